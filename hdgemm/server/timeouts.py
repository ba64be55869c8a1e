"""uvicorn's HTTP/1.1 protocol with timeouts for header, body and reader.

uvicorn waits without limit for a request's header and body. Here a connection is closed when its
header is not complete in time, and when its body comes, or its answer is read, too slowly. Time in
which the server itself stopped reading does not count.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hdgemm.server.middleware import MOST_HEADER_BYTES
from hdgemm.server.problems import from_status

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.server import ServerState

#: Bytes that must come, or be taken, in each period of `body_seconds` in which data is due.
_TRICKLE: Final = 16 << 10
_LOOK_SECONDS: Final = 1.0
Due = Literal["header", "body", "reader"]


class TimeoutProtocol(H11Protocol):
    """One connection, checked once a second; `with_timeouts` sets how long it may take."""

    header_seconds = 10.0
    body_seconds = 20.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = h11.Connection(h11.SERVER, MOST_HEADER_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        self._due: Due | None = None
        self._since = 0.0
        self._moved = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the checks."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._due = "header"
        self._timer = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes received."""
        self._received += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, or a header that is too long, with a problem document."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400) if error is not None else 400
        self._refuse(status if status in {400, 431, 501} else 400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        answer = from_status(status, detail, {"Connection": "close"}).response()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            reason = HTTPStatus(status).phrase
            for event in (
                h11.Response(status_code=status, headers=answer.raw_headers, reason=reason),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        self._timer = self.loop.call_later(_LOOK_SECONDS, self._look)
        now, due = self.loop.time(), self._what_is_due()
        if due is None or due != self._due:
            self._due, self._since, self._moved = due, now, self._progress(due)
        elif due == "header":
            if now - self._since >= self.header_seconds:
                self._refuse(408, f"no complete header within {self.header_seconds:g} seconds")
        elif now - self._since >= self.body_seconds:
            if self._progress(due) - self._moved < _TRICKLE:
                self.transport.abort()
            self._since, self._moved = now, self._progress(due)

    def _what_is_due(self) -> Due | None:
        """Return the client's next duty: to send a header, to send a body, or to read."""
        if self.flow.write_paused:
            return "reader"
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            return "body"
        # An idle connection between two requests is closed by uvicorn's keep-alive timer, which
        # the first byte stops.
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            return "header"
        return None

    def _progress(self, due: Due | None) -> int:
        """Return a count of bytes that grows while the client fulfils its duty."""
        return -self.transport.get_write_buffer_size() if due == "reader" else self._received


def with_timeouts(header_seconds: float, body_seconds: float) -> type[TimeoutProtocol]:
    """Return the protocol with its times set, as uvicorn's `http` argument takes it."""
    times = {"header_seconds": header_seconds, "body_seconds": body_seconds}
    return type("TimeoutProtocol", (TimeoutProtocol,), times)
