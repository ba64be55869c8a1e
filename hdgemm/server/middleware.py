"""ASGI middleware that checks host, origin, sizes, encoding, token and rate of each request."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from anyio import Lock, to_thread
from anyio.lowlevel import checkpoint
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from hdgemm.server.access_log import logged
from hdgemm.server.problems import DATABASE_ERRORS, ProblemError, problem_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hdgemm.server.metrics import Metrics
    from hdgemm.server.service import Service

_OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})
_CONTENT: Final = re.compile(r"/v1/matrices/[^/]+/content")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Header fields that proxies add; "x-forwarded-" and "x-original-" begin others.
_FORWARDED: Final = frozenset({
    "forwarded", "x-forwarded", "x-forward-for", "via", "x-scheme", "front-end-https",
    "x-rewrite-url", "x-amzn-trace-id", "x-amz-cf-id", "x-real-ip", "x-client-ip",
    "x-cluster-client-ip",
    "x-originating-ip", "x-remote-ip", "x-remote-addr", "x-proxyuser-ip", "x-host", "client-ip",
    "true-client-ip", "cf-connecting-ip", "cf-ray", "cdn-loop", "fastly-client-ip",
    "fly-client-ip", "x-azure-clientip", "x-appengine-user-ip", "x-envoy-external-address",
})  # fmt: skip
_PREFIXES: Final = ("x-forwarded-", "x-original-")
_LONGEST_SECRET: Final = 100
#: Bytes of a request's first line and header fields together.
MOST_HEADER_BYTES: Final = 32 << 10
_ALWAYS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestChecks:
    """Refuses a request with a problem document, or passes it on and limits its body."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics) -> None:
        self._app = app
        self._service = service
        self._metrics = metrics
        self._turn = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._metrics.watch(scope, logged(scope, _with_headers(send)))
        try:
            limit = await self._check(scope)
        except (ProblemError, *DATABASE_ERRORS) as error:
            await problem_of(error).response()(scope, receive, answer)
            return
        await self._app(scope, _limited(receive, limit, self._turn), answer)

    async def _check(self, scope: Scope) -> int:
        """Return how many bytes the body may have."""
        headers = Headers(scope=scope)
        _check_header_size(scope)
        self._check_origin(scope["method"], headers)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(
                415, "unsupported-encoding", "send the body as it is: no Content-Encoding",
                headers={"Connection": "close", "Accept-Encoding": "identity"},
            )  # fmt: skip
        path = scope["path"]
        if path not in _OPEN_PATHS and not path.startswith("/static/"):
            await self._authenticate(scope, headers)
        settings = self._service.settings
        content = scope["method"] == "PUT" and _CONTENT.fullmatch(path)
        limit = settings.max_matrix_bytes if content else settings.max_json_bytes
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limit:
            raise ProblemError(
                413, "content-too-large", f"the body may have {limit} bytes here", limit=limit,
                headers={"Connection": "close"},
            )  # fmt: skip
        return limit

    def _check_origin(self, method: str, headers: Headers) -> None:
        host, own = headers.get("host", ""), self._service.public_host
        if self._service.hosts is not None and _host_name(host) not in self._service.hosts:
            raise ProblemError(421, "misdirected-request", f"this server is not {host!r}")
        if method in _SAFE:
            return
        foreign = _is_foreign(headers.get("origin"), {host, own})
        if foreign or headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            raise ProblemError(403, "cross-site", "another site's page may not do this")

    async def _authenticate(self, scope: Scope, headers: Headers) -> None:
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        # No token is longer. The bound limits the cache of accounts.
        given = secret.strip()[:_LONGEST_SECRET] if scheme.lower() == "bearer" else None
        known, account = self._service.cached_account(given)
        if not known:
            account = await to_thread.run_sync(self._service.account, given)
        if account is None:
            missing = "a token is needed: Authorization: Bearer <token>"
            raise ProblemError(
                401, "unauthorized", "the token is not valid" if given else missing,
                headers={"WWW-Authenticate": 'Bearer realm="hdgemm"'},
            )  # fmt: skip
        if not account.id and _is_forwarded(headers):
            # A proxy makes every client look local.
            raise ProblemError(
                421, "misdirected-request",
                "the request came through a proxy: start the server with --public-url, "
                "and make a token",
            )  # fmt: skip
        early = self._service.wait_for(account)
        if early > 0:
            raise ProblemError(
                429, "too-many-requests", f"this token may send {account.rate:g} requests a second",
                headers={"Retry-After": str(math.ceil(early))},
            )  # fmt: skip
        scope["hdgemm.account"], scope["hdgemm.secret"] = account, given


def _is_foreign(origin: str | None, own: set[str]) -> bool:
    """Say whether a page of another site asks: also a file's, or one whose origin is hidden."""
    if origin is None:
        return False
    netloc = urlsplit(origin).netloc  # of "null" and "file://" it is empty
    return not netloc or netloc not in own


def _is_forwarded(headers: Headers) -> bool:
    return any(name in _FORWARDED or name.startswith(_PREFIXES) for name in headers)


def _check_header_size(scope: Scope) -> None:
    # The parser's own limit holds for headers that come in several pieces.
    size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    size += len(scope["raw_path"]) + len(scope["query_string"])
    if size > MOST_HEADER_BYTES:
        raise ProblemError(
            431, "request-header-fields-too-large",
            f"the header has {size} bytes, {MOST_HEADER_BYTES} are the most",
            limit=MOST_HEADER_BYTES, headers={"Connection": "close"},
        )  # fmt: skip


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0].lower()


def _limited(receive: Receive, limit: int, turn: Lock) -> Receive:
    """Count a body that did not say its length; the framework lets this exception through.

    The framework parses and validates a body in the event loop's step that gets its last part.
    Bodies take turns there, so that the loop serves other requests between any two.
    """
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(
                413, f"the body may have {limit} bytes here", {"Connection": "close"}
            )
        if message["type"] == "http.request" and not message.get("more_body"):
            async with turn:
                await checkpoint()
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _ALWAYS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
