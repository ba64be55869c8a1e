"""Access log: a line for each request, with the client's address and the answer's status."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

log = logging.getLogger(__name__)
#: Paths that monitoring asks every few seconds; only their failures are logged.
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_LONGEST: Final = 300


def logged(scope: Scope, send: Send) -> Send:
    """Return a `send` that logs a request when its answer begins; a 401 as a warning.

    The log's own time precedes each line.
    """
    began = time.perf_counter()

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            if status >= 400 or scope["path"] not in _PROBES:
                log.log(
                    logging.WARNING if status == 401 else logging.INFO,
                    "%s %s %s %s: %d in %.3f s", _address(scope), _account(scope),
                    _printable(scope["method"].encode()), _target(scope), status,
                    time.perf_counter() - began,
                )  # fmt: skip
        await send(message)

    return sending


def _address(scope: Scope) -> str:
    """Return the client's address; of a proxy's request, also the one that the proxy names."""
    client = (scope.get("client") or ("unknown",))[0]
    named = [_printable(value) for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return f"{client} for {', '.join(named)}" if named else str(client)


def _account(scope: Scope) -> str:
    account = scope.get("hdgemm.account")
    return "-" if account is None else _printable(account.name.encode())


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return _printable(path + b"?" + query if query else path)


def _printable(text: bytes) -> str:
    """Return text of a client on one line, so that it cannot forge another one."""
    return text[:_LONGEST].decode("latin-1").encode("unicode_escape").decode("ascii")
