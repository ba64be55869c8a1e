"""Requests to a service: retried where that is safe, problem documents raised as errors."""

from __future__ import annotations

import random
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import httpx

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BUSY: Final = frozenset({429, 502, 503, 504})
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0
#: Default patience with a server that has not answered yet.
_FIRST_CONTACT: Final = 3.0
#: An idle connection is used again for so long: the server closes it after 5 seconds.
_IDLE_SECONDS: Final = 2.0
_MISSING: Final = (
    "the service needs a token: set HDGEMM_TOKEN, or give --token, in Python token=; "
    "'hdgemm token create' makes one on the server"
)
_UNKNOWN: Final = (
    "the service does not know this token, or it was revoked: set another one by HDGEMM_TOKEN or "
    "--token, in Python token="
)


class RemoteError(HdgemmError):
    """The service failed or cannot be reached; see `status` and `problem`.

    See Also
    --------
    hdgemm.Client : Its methods raise it.
    """


class Connection:
    """One service under one token.

    Parameters
    ----------
    url
        Address of the service, like ``"http://127.0.0.1:8000"``.
    patience
        Seconds during which a safe request is repeated.
    first_contact
        The same, until the service has answered for the first time; None: 3 seconds, or `patience`
        where that is shorter.

    Raises
    ------
    InputError
        For a URL that is not of HTTP, and a token that no header can hold.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        patience: float,
        first_contact: float | None,
    ) -> None:
        self._http = httpx.Client(
            base_url=_address(url),
            headers=_authorization(token),
            timeout=timeout,
            limits=httpx.Limits(keepalive_expiry=_IDLE_SECONDS),
        )
        self._patience = patience
        default = min(_FIRST_CONTACT, patience)
        self._until_answered = default if first_contact is None else first_contact
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
            For a 4xx; `status` and `problem` are its numbers. For texts that UTF-8 cannot hold.
        RemoteError
            For a 5xx, and for a service that cannot be reached.
        """
        return self._answer(lambda: self._http.request(method, path, **options), repeatable)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Open an answer that is read as a stream; the request is repeated as by `request`."""
        asked = self._http.build_request("GET", path, headers=dict(headers))
        with closing(self._answer(lambda: self._http.send(asked, stream=True))) as answer:
            yield answer

    def _answer(
        self, send: Callable[[], httpx.Response], repeatable: bool = True
    ) -> httpx.Response:
        """Return a good answer, or raise as `request`."""
        began = time.monotonic()
        wait = _FIRST_WAIT
        while True:
            asked = 0.0
            try:
                answer = send()
                if not answer.is_success:
                    answer.read()
            except UnicodeEncodeError as error:
                raise InputError(f"a name or path is not Unicode text: {error}") from error
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


def _address(url: str) -> httpx.URL:
    with suppress(httpx.InvalidURL):
        address = httpx.URL(url)
        if address.scheme in {"http", "https"} and address.host:
            return address
    raise InputError(
        f"the service's URL is {url!r}: it must be like http://127.0.0.1:8000", url=url
    )


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header of a token; an empty one is none."""
    secret = (token or "").strip()
    if not (secret.isascii() and secret.isprintable()):
        raise InputError("the token must be what 'hdgemm token create' printed: printable ASCII")
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def error_of(answer: httpx.Response) -> HdgemmError:
    """Return the exception for an answer with an error status."""
    problem: dict[str, Any] = {}
    if "json" in answer.headers.get("content-type", ""):
        problem = answer.json()
    detail = str(problem.get("detail") or f"{answer.status_code} {answer.reason_phrase}")
    if problem.get("type") == "/problems/unauthorized":
        detail = _UNKNOWN if "authorization" in answer.request.headers else _MISSING
    kind: type[HdgemmError] = InputError if answer.status_code < 500 else RemoteError
    known = {
        name: problem[name] for name in ("requested", "available", "missing") if name in problem
    }
    if problem.get("type") == "/problems/does-not-fit":
        kind = DoesNotFitError
    return kind(detail, status=answer.status_code, problem=problem, **known)


def _seconds(header: str | None) -> float:
    return min(float(header), _LONGEST_WAIT) if header is not None and header.isdigit() else 0.0
