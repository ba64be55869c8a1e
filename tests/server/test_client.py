"""`hdgemm.Client` and its commands against a real server."""

from __future__ import annotations

import contextlib
import doctest
import errno
import inspect
import json
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

import hdgemm
from hdgemm.cli.app import app
from hdgemm.client import Client, RemoteError, RemoteJob, RemoteMatrix, _connection, _transfer
from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError, MatrixIOError
from hdgemm.options import Options
from tests.ports import reserved_port
from tests.server.harness import LIMIT, Live, Threaded, live, make_settings, served, submit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RNG = np.random.default_rng(11)
A, B = RNG.standard_normal((50, 40)), RNG.standard_normal((40, 60))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    """A server without a worker: its jobs wait."""
    with served(make_settings(tmp_path_factory.mktemp("idle"))) as started:
        yield started


@pytest.fixture
def client(server: Live) -> Iterator[Client]:
    with Client(server.url, patience=LIMIT) as made:
        yield made


@pytest.fixture
def root(server: Live) -> Path:
    return server.settings.roots[0]


def test_arrays_there_and_back(client: Client, tmp_path: Path) -> None:
    seen: list[Any] = []
    c = client.multiply(A, B, alpha=2.0, progress=seen.append, name="arrays")
    np.testing.assert_allclose(c, 2 * A @ B)
    assert seen[-1]["status"] == "successful"
    mapped = client.multiply(np.asfortranarray(A), B[::-1], out=tmp_path / "c.npy")
    np.testing.assert_allclose(mapped, A @ B[::-1])
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"]


def test_files_in_reach_are_named_and_others_sent(
    client: Client, root: Path, tmp_path: Path
) -> None:
    np.save(root / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    sent: list[tuple[int, int]] = []
    job = client.submit(
        root / "a.npy", tmp_path / "b.npy", output="c.npy",
        options=Options(host_memory="1MB"), transfer=lambda *span: sent.append(span),
    ).wait()  # fmt: skip
    assert job.info["inputs"]["a"] == {"path": str(root / "a.npy")}
    assert set(job.info["inputs"]["b"]) == {"matrix"}
    assert sent[-1][0] == sent[-1][1] == (tmp_path / "b.npy").stat().st_size
    np.testing.assert_allclose(np.load(root / "c.npy"), A @ B)
    # The same bytes are not sent again.
    sent.clear()
    client.submit(root / "a.npy", tmp_path / "b.npy", transfer=lambda *span: sent.append(span))
    assert sent == []


def test_a_path_that_only_the_server_has_names_its_file(
    client: Client, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(root / "far.npy", A)
    monkeypatch.chdir(tmp_path)
    job = client.submit("far.npy", B)
    assert job.info["inputs"]["a"] == {"path": str(root / "far.npy")}
    np.testing.assert_allclose(job.wait().result(), A @ B)
    with pytest.raises(InputError, match=r"no\.npy: No such file here, .* server: .*No such"):
        client.compute("svdvals", "no.npy")
    with pytest.raises(InputError, match=r"No such file here, .* server: .* lies in none"):
        client.compute("svdvals", "/no/such.npy")


def test_a_server_that_is_down_is_named_before_a_missing_file() -> None:
    with (
        reserved_port() as port,
        Client(f"http://127.0.0.1:{port}", first_contact=0.0) as nobody,
        pytest.raises(RemoteError, match="cannot reach"),
    ):
        nobody.compute("svdvals", "no.npy")


@pytest.mark.parametrize("documented", [Client, RemoteJob, RemoteMatrix])
def test_the_example_of_a_docstring_runs(
    documented: type, server: Live, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(root / "A.npy", A)
    monkeypatch.chdir(root)
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")
    names: dict[str, Any] = {"hdgemm": hdgemm, "b": B}
    for example in examples:
        source = example.source.replace("http://127.0.0.1:8000", server.url)
        exec(compile(source, "Client", "single"), names)
    if documented is Client:
        np.testing.assert_allclose(names["c"], A @ B)
    assert documented is RemoteMatrix or names["s"].size


@pytest.mark.campaign
def test_jobs_build_on_jobs(client: Client) -> None:
    first = client.submit(A, B)
    second = client.submit(first, B, trans_b=True, c=A, beta=-1.0)
    np.testing.assert_allclose(second.wait().result(), A @ B @ B.T - A)
    assert second.id in {job.id for job in client.jobs(status="successful")}
    assert client.verify(A, B, first).wait().report()["passed"]
    second.delete()
    with pytest.raises(InputError, match="no job"):
        client.job(second.id)


def test_refusals_are_the_librarys_errors(client: Client) -> None:
    with pytest.raises(InputError, match="40 columns meet 50 rows"):
        client.submit(A, A)
    with pytest.raises(DoesNotFitError) as refused:
        client.submit(A, B, options={"host_memory": 10})
    assert refused.value.available == 10
    assert client.plan(A, B)["plan"]["m"] == 50
    with pytest.raises(InputError):
        client.upload(np.zeros(3))
    with pytest.raises(InputError):
        client.upload(np.zeros((3, 3), np.uint64))
    with pytest.raises(InputError, match="array is a NoneType; it must be"):
        client.upload(None)  # type: ignore[arg-type]


def test_lists_are_operands(client: Client) -> None:
    job = client.submit(A.tolist(), B.tolist())
    np.testing.assert_allclose(job.wait().result(), A @ B)


def test_a_cancelled_job_is_told_apart(idle: Threaded) -> None:
    with Client(idle.url) as client:
        job = client.submit(A, B).cancel()
        with pytest.raises(CancelledRunError):
            job.wait().result()
        with pytest.raises(TimeoutError):
            client.submit(A, B).wait(timeout=0.0)


def test_nobody_there(tmp_path: Path) -> None:
    with reserved_port() as port, Client(f"http://127.0.0.1:{port}", patience=0.5) as client:
        jobs = client.jobs()
        with pytest.raises(RemoteError, match="cannot reach"):
            next(jobs)


def test_a_server_that_never_answered_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(_connection.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        _connection.time, "sleep", lambda pause: clock.__setitem__(0, clock[0] + pause)
    )
    request = Mock(side_effect=httpx.ConnectError("Connection refused"))
    with Client("http://127.0.0.1:9") as client:
        monkeypatch.setattr(client._connection._http, "request", request)
        with pytest.raises(RemoteError, match=r"cannot reach .*:9: Connection refused"):
            next(client.jobs())
        assert 1 < clock[0] < 5
        # A server that has answered may restart.
        request.side_effect = [httpx.Response(200, json={"jobs": [], "links": []})]
        assert list(client.jobs()) == []
        request.side_effect = httpx.ConnectError("Connection refused")
        began = clock[0]
        with pytest.raises(RemoteError):
            next(client.jobs())
        assert 30 < clock[0] - began < 90


@pytest.mark.parametrize(
    "url", ["", "foo", "localhost:8000", "ftp://x", "http://", "http://[::1", "http://x:port"]
)
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InputError, match=r"must be like http://127\.0\.0\.1:8000") as refused:
        Client(url)
    assert (refused.value.url, refused.value.exit_code) == (url, 2)
    with pytest.raises(InputError, match="must be like"):
        CliRunner().invoke(app, ["job", "list", "--url", url], catch_exceptions=False)


def test_a_missing_token_and_a_wrong_one_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    folder = ["--data-dir", str(settings.data_dir), "--database-url", settings.url]

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["token", *words, *folder], catch_exceptions=False)

    secret = run("create", "--name", "me").stdout
    with served(settings) as server:
        for given, words in (
            (None, "needs a token: set HDGEMM_TOKEN, or give --token, in Python token="),
            ("", "needs a token: set HDGEMM_TOKEN"),
            ("hdg_wrong", "does not know this token, or it was revoked: set another one"),
            ("hdg_ü", "printable ASCII"),
        ):
            monkeypatch.setenv("HDGEMM_TOKEN", given or "")
            with pytest.raises(InputError, match=words), Client(server.url) as client:
                next(client.jobs())
            with pytest.raises(InputError, match=words):
                CliRunner().invoke(app, ["jobs", "--url", server.url], catch_exceptions=False)
        with Client(server.url, secret) as client:  # with the end of its line
            assert list(client.jobs()) == []
    assert "requests still need one" in run("revoke", "--name", "me").stderr
    assert "requests from this machine need none" in run("delete", "--name", "me").stderr
    assert run("list").stdout == ""


def test_names_hold_any_script(client: Client, root: Path) -> None:
    np.save(root / "x.npy", A)
    np.save(root / "y.npy", B)
    at = ["--url", client._connection.url]
    for name in ("Zürich", "naïve test", "数", "🙂", "<b>&"):
        job = client.submit(root / "x.npy", root / "y.npy", name=name)
        assert [each.id for each in client.jobs(name=name)] == [job.id]
        assert name in CliRunner().invoke(app, ["jobs", "--name", name, *at]).stdout
    answer = client._connection.request("GET", f"/v1/jobs/{job.wait().id}/results/c")
    assert answer.headers["content-disposition"] == 'attachment; filename="b.npy"'
    job = client.submit(root / "x.npy", root / "y.npy", name="Zürich: 数").wait()
    answer = client._connection.request("GET", f"/v1/jobs/{job.id}/results/c")
    encoded = "filename*=UTF-8''Z%C3%BCrich-%E6%95%B0.npy"
    assert answer.headers["content-disposition"] == f"attachment; {encoded}"
    with pytest.raises(InputError, match="name or path is not Unicode text"):
        client.submit(root / "x.npy", root / "y.npy", name="\udcff")


def test_no_request_is_sent_on_a_connection_that_the_server_is_about_to_close() -> None:
    with Client("http://127.0.0.1:1") as client:
        pool = client._connection._http._transport._pool  # type: ignore[attr-defined]
        assert pool._keepalive_expiry < uvicorn.Config("x").timeout_keep_alive - 1


class Breaker:
    """Stands between client and server, and cuts connections after so many bytes."""

    def __init__(self, port: int, cut: int) -> None:
        self._port, self._cut = port, cut
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            budget = [self._cut if self.cuts < 3 else 1 << 40]
            for source, target in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pump, args=(source, target, budget), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, budget: list[int]) -> None:
        try:
            while data := source.recv(65536):
                budget[0] -= len(data)
                if budget[0] < 0:
                    self.cuts += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                # A reset, as a lost connection gives: nobody waits for what will not come.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


def test_a_download_keeps_links_and_replaces_nothing_but_files(
    client: Client, tmp_path: Path
) -> None:
    job = client.submit(A, B).wait()
    (tmp_path / "link.npy").symlink_to(tmp_path / "target.npy")
    job.result(tmp_path / "link.npy")
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_allclose(np.load(tmp_path / "target.npy"), A @ B)
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="is not a file; choose another name"):
        job.result(tmp_path / "pipe.npy")
    assert (tmp_path / "pipe.npy").is_fifo()


def test_a_download_that_cannot_be_written_names_its_file(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(A, B).wait()
    with pytest.raises(InputError, match=r"cannot create .*/no/c\.npy: there is no folder"):
        job.result(tmp_path / "no" / "c.npy")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(_transfer, "_fetch", Mock(side_effect=full))
    with pytest.raises(MatrixIOError, match=r"c\.npy: No space left on device; \d+ bytes are free"):
        job.result(tmp_path / "c.npy")
    assert not list(tmp_path.iterdir())


def test_downloads_to_one_file_at_the_same_time_both_succeed(
    client: Client, tmp_path: Path
) -> None:
    out, job = tmp_path / "c.npy", client.submit(A, B).wait()
    ended: list[Any] = []

    def fetch_meanwhile(done: int, total: int) -> None:
        if done == total:
            ended.append(job.result(out))

    second = job.result(out, fetch_meanwhile)
    for each in (*ended, second, np.load(out)):
        np.testing.assert_allclose(each, A @ B)
    assert len(ended) == 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_download_writes_through_no_link_of_another(client: Client, tmp_path: Path) -> None:
    job = client.submit(A, B).wait()
    victim, link = tmp_path / "victim", tmp_path / ".c.npy.download"
    victim.write_text("kept")
    link.symlink_to(victim)
    job.result(tmp_path / "c.npy")
    assert victim.read_text() == "kept"
    assert link.is_symlink()
    assert not (tmp_path / "c.npy").is_symlink()


def test_uploads_and_downloads_survive_broken_connections(server: Live) -> None:
    a = RNG.standard_normal((1500, 1500))
    breaker = Breaker(server.port, 7 << 20)
    try:
        url = f"http://127.0.0.1:{breaker.port}"
        with Client(url, patience=LIMIT, first_contact=0.0) as client:
            c = client.multiply(a, np.eye(1500))
            assert breaker.cuts >= 3
            np.testing.assert_allclose(c, a)
    finally:
        breaker.close()


@pytest.mark.ci
def test_a_download_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    # Larger than what the buffers of sockets hold.
    a, b = RNG.standard_normal((3000, 1)), RNG.standard_normal((1, 3000))
    with live(make_settings(tmp_path)) as server, Client(server.url, patience=LIMIT) as client:
        job = client.submit(a, b).wait()
        seen: list[int] = []

        def kill(done: int, _total: int) -> None:
            if not seen:
                server.kill()
                server.restart()  # listens some seconds later
            seen.append(done)

        np.testing.assert_allclose(job.result(progress=kill), a @ b)
        assert seen == sorted(set(seen))  # no byte came twice


def test_a_connection_that_always_breaks_at_the_same_byte_ends_the_download() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1234"

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                near.recv(65536)
                near.sendall(head)
                near.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url) as client:
            job = RemoteJob(client._connection, {"jobID": "0" * 32, "status": "successful"})
            with pytest.raises(RemoteError, match="broke 8 times without progress after"):
                job.result()


def test_a_file_that_changes_during_its_upload_is_refused_once(
    client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, RNG.standard_normal((1500, 1500)))  # two parts
    whole = path.read_bytes()

    def change(_done: int, _total: int) -> None:
        path.write_bytes(whole[:-8] + bytes(8))

    def shorten(_done: int, _total: int) -> None:
        path.write_bytes(whole[: -1 << 20])

    with pytest.raises(InputError, match=r"changed during the upload: .* another SHA-256; upload"):
        client.upload(path, change)
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"a\.npy was changed during the upload: it has 1.* of 1"):
        client.upload(path, shorten)
    path.write_bytes(whole)
    client.upload(path)


def test_a_file_of_any_name_can_be_uploaded(client: Client, server: Live, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RNG.standard_normal((3, 3)))
    for name, shown in ((b"new\nline.npy", "new_line.npy"), (b"\xff\x1b.npy", "__.npy")):
        path = tmp_path / os.fsdecode(name)
        path.write_bytes((tmp_path / "a.npy").read_bytes())
        at = client.upload(path).id
        assert shown == server.http.get(f"/v1/matrices/{at}").json()["name"]
        server.http.delete(f"/v1/matrices/{at}")
    name = "ü\u00a0\u3000漢.npy"
    np.save(tmp_path / name, A)
    with _transfer._opened(tmp_path / name) as source:
        assert source.description["name"] == name


def test_a_path_that_is_not_utf_8_is_refused(client: Client, root: Path) -> None:
    path = root / os.fsdecode(b"\xff.npy")
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"xff\.npy' is not UTF-8: rename the file"):
        client.submit(path, B)


def test_the_commands(server: Live, idle: Threaded, root: Path, tmp_path: Path) -> None:
    np.save(root / "x.npy", A)
    np.save(tmp_path / "y.npy", B)
    at = ["--url", server.url]

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, *at], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    files = (str(root / "x.npy"), str(tmp_path / "y.npy"))
    assert '"needs"' in run("submit", *files, "--dry-run")
    job = run("submit", *files, "--alpha", "3", "--name", "by hand")
    assert "successful" in run("watch", job)
    run("fetch", job[:8], str(tmp_path / "c.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), 3 * A @ B)
    assert "by hand" in run("jobs", "--status", "successful")
    np.save(root / "kept.npy", A)
    checked = ("submit", *files, "--verify", "--output", str(root / "kept.npy"))
    with pytest.raises(InputError, match="--overwrite"):
        run(*checked)
    job = run(*checked, "--overwrite")
    assert run("watch", job).endswith("C is the product")
    np.testing.assert_allclose(np.load(root / "kept.npy"), A @ B)
    again = run("submit", f"job:{job}", files[1], "--trans-b", "--priority", "-1")
    assert again in run("jobs")
    np.save(root / "square.npy", 2 * np.eye(3))
    pair = (str(root / "square.npy"), str(root / "square.npy"))
    given = ("--set", "assume_a=pos", "--set", "lower=true", "--json")
    told = json.loads(run("submit", "--process", "solve", *pair, *given))
    assert "successful" in run("watch", told["jobID"])
    inputs = server.http.get(f"/v1/jobs/{told['jobID']}").json()["inputs"]
    assert (told["processID"], inputs["assume_a"], inputs["lower"]) == ("solve", "pos", True)
    assert '"needs"' in run("submit", "--process", "pca", pair[0], "--set", "k=1", "--dry-run")
    for words, text in (
        (("lu", *pair), "lu takes 1 matrices, got 2"),
        (("lu", pair[0], "--set", "mode"), "write NAME=VALUE"),
        (("lu", pair[0], "--set", "mode=raw"), "mode is not known here"),
        (("lu", pair[0], "--alpha", "2"), "alpha is not known here"),
        (("nothing", pair[0]), "nothing"),
    ):
        with pytest.raises(InputError, match=text):
            run("submit", "--process", *words)
    square = {"path": "square.npy"}
    wrong = submit(server.http, "verify", a=square, b=square, c=square)
    watched = CliRunner().invoke(app, ["watch", wrong, *at])
    assert watched.exit_code == 1
    assert "C is not the product" in watched.output
    at = ["--url", idle.url]
    waiting = run("submit", *files)
    assert "cancelled" in run("cancel", waiting)
    assert waiting in run("jobs", "--status", "dismissed")
