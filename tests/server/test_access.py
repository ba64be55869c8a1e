"""Access: tokens, quotas, rates, origins; and clients that are slow, endless or broken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock

import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.server import access_log, tokens
from hdgemm.server.http_server import check_may_serve
from hdgemm.server.tables import Job
from tests.server.harness import (
    LIMIT,
    InProcess,
    Threaded,
    application,
    make_settings,
    served,
    submit,
    token,
    upload,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from hdgemm.server.settings import Settings


A = {"path": "a.npy"}
POST = b"POST /v1/matrices HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_one_token_is_enough_to_close_the_door(app: FastAPI) -> None:
    assert InProcess(app).get("/v1/jobs").status_code == 200
    secret = token(app, "me")
    app.state.service._accounts.clear()
    needed = "a token is needed: Authorization: Bearer <token>"
    for given, detail in ((None, needed), ("", needed), ("hdg_wrong", "the token is not valid")):
        answer = InProcess(app, given).get("/v1/jobs")
        assert (answer.status_code, answer.json()["detail"]) == (401, detail)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
    assert InProcess(app, secret).get("/v1/jobs").status_code == 200
    assert InProcess(app).get("/healthz").status_code == 200


def test_secrets_are_not_stored(app: FastAPI, settings: Settings) -> None:
    secret = token(app, "me")
    for file in settings.data_dir.glob("service.db*"):
        assert secret.encode() not in file.read_bytes()
        assert secret.removeprefix("hdg_").encode() not in file.read_bytes()


def test_a_revoked_token_is_worth_nothing(app: FastAPI) -> None:
    client = InProcess(app, token(app, "me"))
    assert client.get("/v1/jobs").status_code == 200
    database = app.state.service.database
    with database.write() as conn:
        assert tokens.revoke(conn, "me", database.now(conn))
    app.state.service._accounts.clear()
    assert client.get("/v1/jobs").status_code == 401
    with pytest.raises(InputError, match="token"):
        check_may_serve("0.0.0.0", app.state.service.settings, database)


def test_deleting_the_last_token_opens_the_server_again(app: FastAPI) -> None:
    database = app.state.service.database
    client = InProcess(app, token(app, "me"))
    job = submit(client, a=A, b=A)
    with database.write() as conn:
        with pytest.raises(InputError, match="token 'me' is not revoked: revoke it first"):
            tokens.delete(conn, "me")
        assert tokens.revoke(conn, "me", database.now(conn))
        with pytest.raises(InputError, match="unfinished jobs of 'me': 1") as refused:
            tokens.delete(conn, "me")
        assert refused.value.unfinished == 1
        with pytest.raises(InputError, match="there is no token named 'you'"):
            tokens.delete(conn, "you")
    app.state.service._accounts.clear()
    assert InProcess(app).get("/v1/jobs").status_code == 401
    with database.write() as conn:
        conn.execute(sa.update(Job).where(Job.id == job).values(status="failed"))
        tokens.delete(conn, "me")
        assert tokens.names(conn) == []
    app.state.service._accounts.clear()
    assert InProcess(app).get("/v1/jobs").json()["jobs"] == []
    assert InProcess(app).get(f"/v1/jobs/{job}").status_code == 404
    assert token(app, "me")  # the name is free again


def test_anothers_jobs_and_matrices_do_not_exist(app: FastAPI) -> None:
    mine, other = InProcess(app, token(app, "me")), InProcess(app, token(app, "other"))
    job, matrix = submit(mine, a=A, b=A), upload(mine, np.eye(2))
    unknown = "0" * 32
    for method, path in (
        ("GET", "/v1/jobs/{}"), ("DELETE", "/v1/jobs/{}"), ("POST", "/v1/jobs/{}/cancel"),
        ("GET", "/v1/jobs/{}/results"), ("GET", "/v1/jobs/{}/log"), ("GET", "/v1/jobs/{}/trace"),
        ("GET", "/v1/jobs/{}/events"), ("GET", "/v1/jobs/{}/gantt.png"),
        ("GET", "/v1/jobs/{}/results/c"),
    ):  # fmt: skip
        theirs, nobodys = (other.request(method, path.format(x)) for x in (job, unknown))
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(job, unknown) == nobodys.text
    for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/content"), ("GET", "/content"),
                         ("POST", "/complete")):  # fmt: skip
        assert other.request(method, f"/v1/matrices/{matrix}{path}").status_code == 404
    assert other.get("/v1/jobs").json()["jobs"] == []
    assert other.get("/v1/matrices").json()["matrices"] == []
    for inputs in ({"a": {"matrix": matrix}, "b": A}, {"a": {"job": job}, "b": A}):
        answer = other.post("/v1/processes/gemm/execution", json={"inputs": inputs})
        assert answer.status_code == 404
    assert mine.get(f"/v1/jobs/{job}").status_code == 200


def test_limits_of_a_token(app: FastAPI) -> None:
    client = InProcess(app, token(app, "me", max_jobs=2, max_bytes=20_000))
    submit(client, a=A, b=A)
    submit(client, a=A, b=A)
    body = {"inputs": {"a": A, "b": A}}
    refused = client.post("/v1/processes/gemm/execution", json=body)
    assert (refused.status_code, refused.json()["limit"]) == (429, 2)
    assert "retry-after" in refused.headers
    refused = client.post("/v1/matrices", json={"shape": [100, 100]})
    assert (refused.status_code, refused.json()["limit"]) == (507, 20_000)


def test_the_rate_of_a_token(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    stopped = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("hdgemm.server.service.time", stopped)
    client = InProcess(app, token(app, "me", rate=5))
    codes = [client.get("/v1/jobs").status_code for _ in range(8)]
    assert codes == [200] * 5 + [429] * 3
    clock[0] += 0.3
    assert [client.get("/v1/jobs").status_code for _ in range(2)] == [200, 429]


def test_other_sites_pages_can_do_nothing(settings: Settings) -> None:
    with application(settings, hosts=frozenset({"127.0.0.1"})) as app:
        client = InProcess(app)
        body = {"inputs": {"a": A, "b": A}}
        at = "/v1/processes/gemm/execution"
        for headers in (
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "file://"},
            {"Origin": ""}, {"Origin": "http://127.0.0.1.evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        ):  # fmt: skip
            assert client.post(at, json=body, headers=headers).status_code == 403
        own = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
        assert client.post(at, json=body, headers=own).status_code == 201
        assert client.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "name",
    ["Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Server",
     "CF-Connecting-IP", "True-Client-IP", "X-Client-IP", "X-Forwarded", "X-Original-Forwarded-For",
     "X-Original-URI", "X-Amzn-Trace-Id"],
)  # fmt: skip
def test_a_proxy_does_not_open_a_server_without_tokens(app: FastAPI, name: str) -> None:
    client = InProcess(app)
    refused = client.get("/v1/jobs", headers={name: "203.0.113.7"})
    assert (refused.status_code, "--public-url" in refused.text) == (421, True)
    secret = token(app, "me")
    app.state.service._accounts.clear()
    answer = InProcess(app, secret).get("/v1/jobs", headers={name: "203.0.113.7"})
    assert answer.status_code == 200


@pytest.mark.parametrize("public_url", ["", "https://example.org:8443/some/path"])
def test_redirects_keep_prefix_and_port(tmp_path: Path, public_url: str) -> None:
    prefix = "/some/path" if public_url else ""
    with application(make_settings(tmp_path, public_url=public_url)) as app:
        client = InProcess(app)
        answer = client.post("/v1/matrices/?x=%20y", json={"shape": [2, 2]})
        assert answer.status_code == 307
        assert answer.headers["location"] == f"{prefix}/v1/matrices?x=%20y"
        assert client.get("/v1/").headers["location"] == f"{prefix}/v1"
        for nothing in ("/v2/", "http://127.0.0.1//example.org/v1/"):
            assert client.get(nothing).status_code == 404


def test_requests_are_logged_with_their_address(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hdgemm.server.access_log")
    secret = token(app, "me")
    InProcess(app).get("/v1/jobs", headers={"X-Forwarded-For": "203.0.113.7"})
    InProcess(app, secret).get("/v1/jobs?name=a%20b")
    InProcess(app).get("/healthz")
    refused, answered = caplog.records
    assert (refused.levelname, answered.levelname) == ("WARNING", "INFO")
    assert refused.getMessage().startswith("127.0.0.1 for 203.0.113.7 - GET /v1/jobs: 401 in ")
    assert answered.getMessage().startswith("127.0.0.1 me GET /v1/jobs?name=a%20b: 200 in ")
    assert secret not in caplog.text


def test_a_client_cannot_forge_a_line_of_the_log() -> None:
    scope = {
        "type": "http", "method": "GET", "path": "/a\nb", "raw_path": b"/a\nb\x1b", "client": None,
        "query_string": b"", "headers": [(b"x-forwarded-for", b"1.2.3.4\r\nme")],
    }  # fmt: skip
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    access_log.log.addHandler(handler)
    try:
        send = access_log.logged(scope, AsyncMock())
        asyncio.run(send({"type": "http.response.start", "status": 401}))
    finally:
        access_log.log.removeHandler(handler)
    assert lines[0].getMessage().isprintable()


def test_the_page_may_load_nothing_from_elsewhere(app: FastAPI) -> None:
    page = InProcess(app).get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in page.text.replace("http-equiv", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    chosen = make_settings(tmp_path_factory.mktemp("slow"), header_seconds=1.5, body_seconds=1.5)
    with served(chosen) as started:
        yield started


def wire(server: Threaded, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
    connection.sendall(sent)
    return connection


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    data = b""
    with connection:
        try:
            while chunk := connection.recv(65536):
                data += chunk
        except ConnectionResetError:
            pass
    return (int(data.split()[1]) if data else 0), data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 408),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", 408),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000, 431),
        (b"NOT HTTP AT ALL\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (POST + b"Content-Length: 100000000000\r\n\r\n", 413),
        (POST + b"Content-Length: 100\r\n\r\n{", 0),
    ],
)
def test_clients_that_never_finish_are_answered_and_closed(
    server: Threaded, sent: bytes, status: int
) -> None:
    found, body = answer_of(wire(server, sent))
    assert found == status
    if status:
        assert json.loads(body)["status"] == status
    assert server.http.get("/healthz").status_code == 200


def test_half_open_connections_slow_nobody_and_go_away(server: Threaded) -> None:
    held = [wire(server, b"GET / HTTP/1.1\r\nHost: x\r\n") for _ in range(300)]
    assert server.http.get("/healthz").status_code == 200
    for connection in held:
        assert answer_of(connection)[0] == 408


def test_a_trickle_of_header_bytes_does_not_keep_a_connection(server: Threaded) -> None:
    with wire(server, b"GET / HTTP/1.1\r\nHost: x\r\n") as connection:

        def closed() -> bool:
            try:
                connection.sendall(b"X: y\r\n")
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        wait_until(closed, every=0.1)


def requests_in_turn(server: Threaded) -> bool:
    """Send requests on one connection; return False where a pause was too long by itself."""
    before = sent = time.monotonic()
    data = b""
    with wire(server, b"") as connection, contextlib.suppress(ConnectionError):
        for _ in range(4):
            before, sent = sent, time.monotonic()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            data = b""
            while not data.endswith(b"}") and (received := connection.recv(65536)):
                data += received
            if not data.endswith(b"}"):
                break
            assert data.startswith(b"HTTP/1.1 200")
            time.sleep(0.7)
        else:
            return True
    assert time.monotonic() - before > server.settings.header_seconds, data
    return False


def test_requests_on_one_connection_are_not_cut(server: Threaded) -> None:
    wait_until(lambda: requests_in_turn(server))
