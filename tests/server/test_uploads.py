"""Uploads in parts: any order, again, broken off, wrong; downloads by range and by rectangle."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import itertools
import random
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings as examples, strategies as st
from starlette.requests import Request

from hdgemm.server import content, uploads
from hdgemm.server.parts import PartWriter
from hdgemm.server.problems import ProblemError
from hdgemm.server.routes import matrices
from hdgemm.server.tables import Part, StoredMatrix
from tests.server.harness import (
    InProcess,
    live,
    make_settings,
    npy,
    upload,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.server.settings import Settings

MATRIX: NDArray[np.float64] = np.random.default_rng(7).standard_normal((40, 30))
DATA = MATRIX.tobytes()


def new(client: InProcess, **values: Any) -> str:
    answer = client.post("/v1/matrices", json={"shape": [40, 30], **values})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def put(client: InProcess, at: str, start: int, stop: int, data: bytes = DATA, **extra: str) -> Any:
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", **extra}
    return client.put(f"{at}/content", content=data[start:stop], headers=headers)


def content_digest(data: bytes) -> dict[str, str]:
    value = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {"Content-Digest": f"sha-256=:{value}:"}


def test_parts_in_any_order_and_again_make_the_matrix(client: InProcess) -> None:
    at = new(client, sha256=hashlib.sha256(DATA).hexdigest())
    cuts = [0, 1000, 1001, 4096, 9000, len(DATA)]
    spans = list(itertools.pairwise(cuts))
    random.Random(3).shuffle(spans)
    for start, stop in spans * 2:
        answer = put(client, at, start, stop, **content_digest(DATA[start:stop]))
        assert answer.status_code == 200, answer.text
        assert [r for r in answer.json()["received"] if r[0] <= start and stop <= r[1]]
    assert client.get(at).json()["received"] == [[0, len(DATA)]]
    done = client.post(f"{at}/complete").json()
    assert done["complete"]
    assert client.post(f"{at}/complete").json() == done
    loaded = np.load(io.BytesIO(client.get(f"{at}/content").content))
    np.testing.assert_array_equal(loaded, MATRIX)


def test_an_unfinished_upload_says_what_is_there_and_is_no_matrix(client: InProcess) -> None:
    at = new(client)
    put(client, at, 100, 200)
    put(client, at, 300, 400)
    assert client.get(at).json()["received"] == [[100, 200], [300, 400]]
    refused = client.post(f"{at}/complete")
    assert (refused.status_code, refused.json()["received"]) == (409, [[100, 200], [300, 400]])
    assert client.get(f"{at}/content").status_code == 409


def test_acknowledged_bytes_are_never_changed(client: InProcess) -> None:
    at = new(client)
    put(client, at, 0, 5000)
    other = bytes(len(DATA))
    assert put(client, at, 1000, 2000, other).status_code == 409
    assert put(client, at, 4000, 7000, other).status_code == 409
    assert put(client, at, 4000, len(DATA)).status_code == 200
    assert client.post(f"{at}/complete").status_code == 200
    assert put(client, at, 0, 10).status_code == 409
    assert client.get(f"{at}/content").content.endswith(DATA)


def test_a_part_that_meets_the_completion_changes_nothing(
    client: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = new(client)
    put(client, at, 0, len(DATA))

    def completed_first(*arguments: Any) -> PartWriter:
        """The completion comes between the first look at the matrix and the lock."""
        assert client.post(f"{at}/complete").status_code == 200
        return PartWriter(*arguments)

    monkeypatch.setattr(matrices, "PartWriter", completed_first)
    late = put(client, at, 8, 4000, bytes(len(DATA)))
    assert (late.status_code, late.json()["type"]) == (409, "/problems/complete")
    whole = client.get(f"{at}/content")
    assert whole.content.endswith(DATA)
    assert whole.headers["etag"] == f'"{hashlib.sha256(whole.content).hexdigest()}"'


def test_a_completion_and_a_part_exclude_each_other(
    client: InProcess, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = new(client)
    put(client, at, 0, len(DATA))
    path = settings.matrices_dir / f"{at.rpartition('/')[2]}.npy"
    with client.app.state.service.database.read() as conn:
        matrix = uploads.get(conn, path.stem, "")
    writer = PartWriter(path, matrix, 10, 20)
    refused = client.post(f"{at}/complete")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/part-in-flight")
    assert "retry-after" in refused.headers
    writer.close()
    check, during = uploads.check_content, []

    def checking(*arguments: Any) -> str:
        during.append(put(client, at, 0, len(DATA), bytes(len(DATA))).json()["type"])
        return check(*arguments)

    monkeypatch.setattr(uploads, "check_content", checking)
    assert client.post(f"{at}/complete").status_code == 200
    assert during == ["/problems/part-in-flight"]
    assert client.get(f"{at}/content").content.endswith(DATA)


def test_a_matrix_that_is_deleted_while_it_is_checked_is_not_there(
    client: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = new(client)
    put(client, at, 0, len(DATA))
    check = uploads.check_content

    def deleted_before(*arguments: Any) -> str:
        assert client.delete(at).status_code == 204
        return check(*arguments)

    monkeypatch.setattr(uploads, "check_content", deleted_before)
    assert client.post(f"{at}/complete").status_code == 404


def test_a_matrix_that_is_deleted_between_two_reads_is_not_incomplete(
    client: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = new(client)
    put(client, at, 0, len(DATA))
    database, begun = client.app.state.service.database, []

    def read_committed(read: Any) -> Any:
        """Each read sees what is committed, as in PostgreSQL; the deletion follows the first."""

        def reading(_: Any, *arguments: Any) -> Any:
            with database.read() as conn:
                found = read(conn, *arguments)
            if not begun:
                begun.append(read)
                assert client.delete(at).status_code == 204
            return found

        return reading

    def checked(*arguments: Any) -> None:
        """The completion's own look, under the lock of its content."""
        monkeypatch.setattr(uploads, "get", read_committed(uploads.get))
        monkeypatch.setattr(uploads, "ranges", read_committed(uploads.ranges))
        complete(*arguments)

    complete = matrices._complete
    monkeypatch.setattr(matrices, "_complete", checked)
    refused = client.post(f"{at}/complete")
    assert (refused.status_code, refused.json()["type"]) == (404, "/problems/no-such-matrix")
    assert begun


@pytest.mark.parametrize("method", ["put", "get", "post"])
def test_a_matrix_that_is_deleted_meanwhile_is_not_there(
    client: InProcess, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = f"/v1/matrices/{upload(client, MATRIX)}" if method == "get" else new(client)
    load = matrices._load

    def deleted_afterwards(*arguments: Any) -> Any:
        found = load(*arguments)
        client.delete(at)
        return found

    monkeypatch.setattr(matrices, "_load", deleted_afterwards)
    ask = {
        "put": lambda: put(client, at, 0, len(DATA)),
        "get": lambda: client.get(f"{at}/content"),
        "post": lambda: client.post(f"{at}/complete"),
    }
    assert ask[method]().status_code == 404


def test_parts_that_touch_are_one_range(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    at = new(client)
    for start, stop in [(0, 10), (20, 30), (0, 10), (5, 25), (5, 25), (30, 40)]:
        assert put(client, at, start, stop).status_code == 200
    with client.app.state.service.database.read() as conn:
        assert conn.execute(sa.select(Part.start, Part.stop)).all() == [(0, 40)]
    monkeypatch.setattr(uploads, "MOST_RANGES", 2)
    assert put(client, at, 50, 60).status_code == 200
    refused = put(client, at, 70, 80)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/too-many-ranges")
    assert put(client, at, 40, 50).json()["received"] == [[0, 60]]
    assert put(client, at, 70, 80).status_code == 200


def test_a_wrong_digest_acknowledges_nothing(client: InProcess) -> None:
    at = new(client, sha256="0" * 64)
    wrong = content_digest(b"something else")
    assert put(client, at, 0, 1000, **wrong).status_code == 422
    assert client.get(at).json()["received"] == []
    assert put(client, at, 0, 1000, **{"Content-Digest": "md5=:x:"}).status_code == 400
    put(client, at, 0, len(DATA))
    refused = client.post(f"{at}/complete")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/digest-mismatch")


def test_wrong_bytes_are_dropped_and_the_right_ones_can_follow(client: InProcess) -> None:
    at = new(client, sha256=hashlib.sha256(DATA).hexdigest())
    put(client, at, 0, len(DATA), bytes(len(DATA)))
    refused = client.post(f"{at}/complete")
    assert "its bytes are dropped: send it again" in refused.json()["detail"]
    assert client.get(at).json()["received"] == []
    put(client, at, 0, len(DATA))
    assert client.post(f"{at}/complete").status_code == 200
    assert client.get(f"{at}/content").content.endswith(DATA)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Range": "bytes 0-99/1"}, 416),
        ({"Content-Range": f"bytes {len(DATA)}-{len(DATA) + 99}/{len(DATA)}"}, 416),
        ({"Content-Range": "bytes 99-0/*"}, 400),
        ({"Content-Range": "lines 0-99/*"}, 400),
        ({"Content-Range": "bytes 0-9/*"}, 413),
        ({"Content-Range": "bytes 0-199/*"}, 400),
        ({"Content-Encoding": "gzip", "Content-Range": "bytes 0-99/*"}, 415),
        ({}, 400),
    ],
)
def test_parts_that_are_none(client: InProcess, headers: dict[str, str], status: int) -> None:
    at = new(client)
    answer = client.put(f"{at}/content", content=DATA[:100], headers=headers)
    assert answer.status_code == status, answer.text
    assert client.get(at).json()["received"] == []


def test_a_body_of_unknown_length_is_counted(client: InProcess) -> None:
    at = new(client)

    async def pieces(size: int) -> Any:
        for start in range(0, size, 1000):
            yield (DATA * 2)[start : start + 1000]

    assert client.put(f"{at}/content", content=pieces(2 * len(DATA))).status_code == 413
    assert client.put(f"{at}/content", content=pieces(len(DATA) - 600)).status_code == 400
    assert client.get(at).json()["received"] == []


def test_npy_files_are_taken_and_given_back_byte_for_byte(client: InProcess) -> None:
    for array in (MATRIX, np.asfortranarray(MATRIX), MATRIX.astype("f4"), MATRIX + 1j):
        data = npy(array)
        order = "F" if np.isfortran(array) else "C"
        at = new(client, format="npy", dtype=array.dtype.name, order=order, size=len(data))
        assert client.put(f"{at}/content", content=data).status_code == 200
        assert client.post(f"{at}/complete").status_code == 200
        assert client.get(f"{at}/content").content == data


def test_an_npy_file_that_is_not_what_was_announced(client: InProcess) -> None:
    for data in (npy(MATRIX.T), npy(np.asfortranarray(MATRIX)), bytes(len(npy(MATRIX)))):
        at = new(client, format="npy")
        client.put(f"{at}/content", content=data)
        assert client.post(f"{at}/complete").status_code == 422


def test_ranges_and_conditions(client: InProcess) -> None:
    at = f"/v1/matrices/{upload(client, MATRIX)}/content"
    whole = client.get(at)
    etag, size = whole.headers["etag"], len(whole.content)
    assert etag == f'"{hashlib.sha256(whole.content).hexdigest()}"'
    for wanted, span in (
        ("bytes=0-9", (0, 10)),
        ("bytes=-7", (size - 7, size)),
        (f"bytes={size - 3}-", (size - 3, size)),
        ("bytes=5-999999", (5, size)),
    ):
        part = client.get(at, headers={"Range": wanted})
        assert (part.status_code, part.content) == (206, whole.content[slice(*span)])
        assert part.headers["content-range"] == f"bytes {span[0]}-{span[1] - 1}/{size}"
    assert client.get(at, headers={"Range": f"bytes={size}-"}).status_code == 416
    for ignored in ("bytes=0-1,3-4", "lines=0-1", "bytes=4-2"):
        assert client.get(at, headers={"Range": ignored}).status_code == 200
    conditional = {"Range": "bytes=0-9", "If-Range": etag}
    assert client.get(at, headers=conditional).status_code == 206
    assert client.get(at, headers={**conditional, "If-Range": '"x"'}).status_code == 200
    assert client.get(at, headers={"If-None-Match": etag}).status_code == 304
    head = client.request("HEAD", at)
    assert (head.status_code, int(head.headers["content-length"])) == (200, size)


def test_pieces(client: InProcess) -> None:
    at = f"/v1/matrices/{upload(client, MATRIX)}/content"
    for rows, cols in (("0:10", "0:10"), ("39:40", "0:30"), ("5:5", "0:3")):
        answer = client.get(at, params={"rows": rows, "cols": cols})
        chosen = tuple(slice(*map(int, text.split(":"))) for text in (rows, cols))
        np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), MATRIX[chosen])
    assert client.get(at, params={"rows": "0:41"}).status_code == 422
    assert client.get(at, params={"rows": "10:2"}).status_code == 422
    assert client.get(at, params={"rows": "-1:2"}).status_code == 422


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("shape", "rows", "cols"),
    [
        ((700, 500), "3:690", "7:493"),  # small gaps: read with the lines
        ((300, 3000), "5:299", "2990:3000"),  # large gaps: a request for each line
        ((3000, 300), "2990:3000", "5:299"),
        ((3, 90_000), "1:3", "100:89999"),  # lines longer than a chunk
        ((90_000, 3), "100:89999", "1:3"),
        ((700, 500), "0:700", None),
        ((700, 500), None, "499:500"),
        ((700, 500), "20:20", None),
    ],
)
def test_pieces_are_read_from_the_file_as_they_are_sent(
    client: InProcess, order: Any, shape: tuple[int, int], rows: str | None, cols: str | None
) -> None:
    array = np.asarray(np.random.default_rng(3).standard_normal(shape), order=order)
    at = new(client, shape=list(shape), order=order)
    client.put(f"{at}/content", content=array.tobytes("A"))
    client.post(f"{at}/complete")
    wanted = {name: span for name, span in (("rows", rows), ("cols", cols)) if span is not None}
    answer = client.get(f"{at}/content", params=wanted)
    chosen = tuple(slice(*map(int, t.split(":"))) if t else slice(None) for t in (rows, cols))
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), array[chosen])
    head = client.request("HEAD", f"{at}/content", params=wanted)
    assert head.headers["content-length"] == str(len(answer.content))


def test_an_answer_holds_a_chunk_at_a_time(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2000, 2000)))
    request = Request({"type": "http", "method": "GET", "headers": []})

    async def lengths(answer: Any) -> list[int]:
        return [len(chunk) async for chunk in answer.body_iterator]

    for answer in (
        content.rectangle(request, io.FileIO(tmp_path / "a.npy"), "0:2000", "3:1990"),
        content.stream_bytes(io.FileIO(tmp_path / "a.npy"), 0, 32_000_000, "text/plain"),
    ):
        found = asyncio.run(lengths(answer))
        assert sum(found) == int(answer.headers["content-length"])
        assert max(found) <= 1 << 20


def test_chunks_get_smaller_where_many_contents_are_read() -> None:
    streams = content._Streams()
    with contextlib.ExitStack() as opened:
        for count, chunk in ((64, 1 << 20), (128, 512 << 10), (4000, 64 << 10)):
            for _ in range(count - streams._open):
                opened.enter_context(streams)
            assert streams.chunk == chunk
    assert streams._open == 0


def test_an_answer_that_is_broken_off_is_no_longer_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 << 20))

    async def begun() -> None:
        chunks = content._read(io.FileIO(tmp_path / "a"), content._Piece.of(0, 4 << 20))
        await anext(chunks)
        assert content._STREAMS._open == 1
        await chunks.aclose()  # type: ignore[attr-defined]

    asyncio.run(begun())
    assert content._STREAMS._open == 0


def test_matrices_are_reserved_listed_and_deleted(client: InProcess, tmp_path: Path) -> None:
    ids = [new(client, name=str(i)).rpartition("/")[2] for i in range(3)]
    file = tmp_path / "data" / "matrices" / f"{ids[0]}.npy"
    assert file.stat().st_blocks * 512 >= len(DATA)
    page = client.get("/v1/matrices?limit=2").json()
    assert [m["id"] for m in page["matrices"]] == ids[:0:-1]
    assert [m["id"] for m in client.get(page["links"][-1]["href"]).json()["matrices"]] == ids[:1]
    assert client.delete(f"/v1/matrices/{ids[0]}").status_code == 204
    assert not file.exists()
    assert client.get(f"/v1/matrices/{ids[0]}").status_code == 404


def test_two_writers_never_share_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    path.write_bytes(bytes(100))
    matrix = StoredMatrix(
        seq=1, id="x", owner="", name="", rows=1, cols=1, dtype="float64", order="C", format="npy",
        size=100, offset=0, sha256=None, etag=None, created=0.0, completed=None,
    )  # fmt: skip
    first = PartWriter(path, matrix, 0, 50)
    with pytest.raises(ProblemError) as refused:
        PartWriter(path, matrix, 49, 60)
    assert refused.value.status == 409
    PartWriter(path, matrix, 50, 60).close()
    first.close()
    PartWriter(path, matrix, 49, 60).close()


@examples(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=8))
def test_whatever_came_before_only_the_rest_is_written(
    tmp_path: Path, parts: list[tuple[int, int]]
) -> None:
    truth = bytes(range(90))
    path = tmp_path / "m.npy"
    path.write_bytes(bytes(90))
    matrix = StoredMatrix(
        seq=1, id="x", owner="", name="", rows=1, cols=1, dtype="float64", order="C", format="npy",
        size=90, offset=0, sha256=None, etag=None, created=0.0, completed=None,
    )  # fmt: skip
    durable: list[tuple[int, int]] = []
    for start, length in parts:
        digest = hashlib.sha256(truth[start : start + length]).digest()
        writer = PartWriter(path, matrix, start, start + length, digest).knows(sorted(durable))
        middle = start + length // 2
        writer.feed(truth[start:middle])
        writer.feed(truth[middle : start + length])
        writer.check()
        writer.close()
        durable.append((start, start + length))
    written = path.read_bytes()
    for i in range(90):
        covered = any(start <= i < stop for start, stop in durable)
        assert written[i] == (truth[i] if covered else 0)


def test_a_broken_connection_keeps_what_came_and_the_rest_follows(tmp_path: Path) -> None:
    chosen = make_settings(tmp_path)
    big = np.random.default_rng(5).standard_normal((1000, 1000))
    data = big.tobytes()
    with live(chosen, "--no-worker") as server:
        answer = server.http.post("/v1/matrices", json={"shape": [1000, 1000]})
        at = answer.headers["location"]
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            head = (
                f"PUT {at}/content HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            )
            wire.sendall(head.encode() + b"\r\n" + data[: 5 << 20])
        received = wait_until(lambda: server.http.get(at).json()["received"])
        assert received[0][0] == 0
        assert 0 < received[0][1] <= 5 << 20
        # Killed between two parts, the server still knows what it acknowledged.
        server.kill()
        server.restart()
        server.wait()
        assert server.http.get(at).json()["received"] == received
        start = received[0][1]
        span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        rest = server.http.put(f"{at}/content", content=data[start:], headers=span)
        assert rest.status_code == 200, rest.text
        assert server.http.post(f"{at}/complete").status_code == 200
        loaded = np.load(io.BytesIO(server.http.get(f"{at}/content").content))
        np.testing.assert_array_equal(loaded, big)
