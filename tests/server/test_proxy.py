"""TLS, and the documented nginx configuration: the API, the page and the client below a path."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from hdgemm.client import Client
from hdgemm.server import tokens
from hdgemm.server.database import open_database
from hdgemm.server.tokens import Account
from tests.child import ends_with_parent
from tests.ports import reserved_port
from tests.server.harness import (
    LIMIT,
    REPOSITORY,
    Live,
    live,
    make_settings,
    submit,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{ listen 127.0.0.1:{port}; {locations} }}
}}
"""


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture
def proxied(tmp_path: Path, port: int) -> Iterator[tuple[Live, str, str]]:
    """A server behind nginx as docs/how-to/service.md shows it; its public address, and a token."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    public = f"http://127.0.0.1:{port}/hdgemm"
    settings = make_settings(tmp_path, public_url=public)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    database = open_database(settings)
    with database.write() as conn:
        secret = tokens.create(conn, Account(name="me"), database.now(conn))
    database.close()
    with live(settings) as server:
        docs = (REPOSITORY / "docs/how-to/service.md").read_text(encoding="utf-8")
        shown = re.search(r"```nginx\n(.*?)```", docs, re.DOTALL)
        assert shown is not None
        locations = shown[1].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        config = tmp_path / "nginx.conf"
        config.write_text(_NGINX.format(folder=tmp_path, port=port, locations=locations))
        command = [nginx, "-c", str(config), "-e", str(tmp_path / "e.log")]
        with subprocess.Popen(ends_with_parent(command)) as proxy:
            try:
                wait_until(lambda: httpx.get(f"{public}/healthz").status_code == 200)
                yield server, public, secret
            finally:
                proxy.terminate()


@pytest.mark.ci
def test_the_documented_proxy_serves_below_a_path(proxied: tuple[Live, str, str]) -> None:
    server, public, secret = proxied
    origin = public.removesuffix("/hdgemm")
    with httpx.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=LIMIT) as http:
        assert httpx.get(f"{public}/v1").status_code == 401
        assert httpx.get(public).headers["location"].endswith("/hdgemm/")
        assert httpx.get(public).headers["location"] == "/hdgemm/"
        assert http.get(f"{public}/v1/").headers["location"] == "/hdgemm/v1"
        page = http.get(f"{public}/").text
        assert all(at in page for at in ('src="static/app.js"', 'href="static/style.css"'))
        assert http.get(f"{public}/static/app.js").status_code == 200
        for link in http.get(f"{public}/v1").json()["links"]:
            assert link["href"].startswith("/hdgemm/")
            assert http.get(origin + link["href"]).status_code == 200
        body = {"inputs": {"a": {"path": "a.npy"}, "b": {"path": "a.npy"}}}
        at = f"{public}/v1/processes/gemm/execution"
        same = http.post(at, json=body, headers={"Origin": origin})
        assert same.status_code == 201
        other = http.post(at, json=body, headers={"Origin": "http://evil.example"})
        assert other.status_code == 403
        events = http.get(f"{origin}{same.headers['location']}/events").text
        assert "successful" in events
    with Client(public, secret) as client:
        c = client.multiply(np.eye(4), np.full((4, 4), 2.0))
        np.testing.assert_array_equal(c, np.full((4, 4), 2.0))
        assert len(list(client.jobs(limit=1))) == 2
    assert server.http.get("/v1").status_code == 401


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    settings = make_settings(tmp_path)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    trusted = ssl.create_default_context(cafile=str(certificate))
    server = Live(
        settings, "--tls-certificate", str(certificate), "--tls-key", str(key), "--no-worker"
    )
    server.http.close()
    with httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=trusted) as http:
        server.http = http
        try:
            server.wait()
            assert submit(http, a={"path": "a.npy"}, b={"path": "a.npy"})
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{server.port}/healthz")
        finally:
            server.close()
