"""Requests to a service: retried where that is safe, problem documents raised as errors."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BUSY: Final = frozenset({429, 502, 503, 504})
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0
#: An idle connection is used again for so long: the server closes it after 5 seconds.
_IDLE_SECONDS: Final = 2.0


class RemoteError(HdgemmError):
    """The service failed or cannot be reached; see `status` and `problem`."""


class Connection:
    """One service under one token.

    Parameters
    ----------
    url
        Address of the service, like ``"http://127.0.0.1:8000"``.
    patience
        Seconds during which a safe request is repeated.
    first_contact
        The same, until the service has answered for the first time.
    """

    def __init__(
        self, url: str, token: str | None, timeout: float, patience: float, first_contact: float
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(keepalive_expiry=_IDLE_SECONDS)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, limits=limits)
        self._patience = patience
        self._until_answered = first_contact
        self.url = url

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def request(
        self, method: str, path: str, *, repeatable: bool = True, **options: Any
    ) -> httpx.Response:
        """Send a request and return its good answer.

        Parameters
        ----------
        repeatable
            The request is idempotent. Others are repeated only where the connection was not
            made, or where the server answers that it is busy.

        Raises
        ------
        InputError
            For a 4xx; `status` and `problem` are its numbers.
        RemoteError
            For a 5xx, and for a service that cannot be reached.
        """
        began = time.monotonic()
        wait = _FIRST_WAIT
        while True:
            asked = 0.0
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                safe = repeatable or isinstance(error, httpx.ConnectError)
                if not safe or time.monotonic() + wait > began + self._until_answered:
                    raise RemoteError(
                        f"cannot reach {self.url}: {error}; is 'hdgemm serve' running there?",
                        status=0,
                    ) from error
            else:
                self._until_answered = self._patience
                if answer.is_success or answer.status_code == 304:
                    return answer
                in_flight = repeatable and "part-in-flight" in answer.text
                busy = answer.status_code in _BUSY or in_flight
                if not busy or time.monotonic() + wait > began + self._patience:
                    raise error_of(answer)
                asked = _seconds(answer.headers.get("retry-after"))
            # Random waits keep clients from asking a restarted server all at once.
            time.sleep(max(asked, wait * random.uniform(0.5, 1.0)))  # noqa: S311
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Open an answer that is read as a stream; it is not repeated."""
        with self._http.stream("GET", path, headers=dict(headers)) as answer:
            if not answer.is_success:
                answer.read()
                raise error_of(answer)
            yield answer


def error_of(answer: httpx.Response) -> HdgemmError:
    """Return the exception for an answer with an error status."""
    problem: dict[str, Any] = {}
    if "json" in answer.headers.get("content-type", ""):
        problem = answer.json()
    detail = str(problem.get("detail") or f"{answer.status_code} {answer.reason_phrase}")
    kind: type[HdgemmError] = InputError if answer.status_code < 500 else RemoteError
    known = {
        name: problem[name] for name in ("requested", "available", "missing") if name in problem
    }
    if problem.get("type") == "/problems/does-not-fit":
        kind = DoesNotFitError
    return kind(detail, status=answer.status_code, problem=problem, **known)


def _seconds(header: str | None) -> float:
    return min(float(header), _LONGEST_WAIT) if header is not None and header.isdigit() else 0.0
