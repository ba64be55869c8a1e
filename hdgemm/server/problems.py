"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy.exc

from hdgemm.errors import DoesNotFitError, HdgemmError, MatrixIOError
from hdgemm.server.backend import finite
from hdgemm.server.validation import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import JSONResponse

log = logging.getLogger(__name__)
#: Errors of drivers and pool when the database is away, locked or full.
DATABASE_ERRORS: Final = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.InternalError,
    sqlalchemy.exc.TimeoutError,
    sqlalchemy.exc.PendingRollbackError,
    sqlalchemy.exc.ResourceClosedError,
)
MEDIA_TYPE: Final = "application/problem+json"
_OGC: Final = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
_OGC_KINDS: Final = frozenset({"no-such-process", "no-such-job", "result-not-ready"})
#: Statuses of every route: of the middleware, or of HTTP itself.
_EVERYWHERE: Final = (400, 401, 403, 408, 413, 415, 421, 422, 429, 431, 500, 503)


class ProblemError(Exception):
    """An answer that is an error: status, kind, a sentence, and its numbers as members."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers, self.members = dict(headers or {}), members

    def response(self) -> JSONResponse:
        """Return the answer."""
        # Jobs' processes raise problems, and never answer a request.
        from starlette.responses import JSONResponse

        base = _OGC if self.kind in _OGC_KINDS else "/problems/"
        body = {
            "type": base + self.kind,
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            **finite(self.members),
        }
        return JSONResponse(body, self.status, self.headers, MEDIA_TYPE)


def from_status(
    status: int, detail: str | None = None, headers: Mapping[str, str] | None = None
) -> ProblemError:
    """Make a problem of a bare status, as the framework raises it."""
    phrase = HTTPStatus(status).phrase
    kind = phrase.lower().replace(" ", "-").replace("'", "")
    return ProblemError(status, kind, detail or phrase, headers=headers)


def is_full(error: BaseException) -> bool:
    """Say whether a database error means that its disk is full."""
    cause = getattr(error, "orig", None)
    return (
        getattr(cause, "sqlite_errorname", None) == "SQLITE_FULL"
        or getattr(cause, "sqlstate", None) == "53100"
    )


def from_database(error: BaseException) -> ProblemError:
    """Make a problem of a database that does not answer, or has no room."""
    if is_full(error):
        return ProblemError(507, "disk-full", "the disk of the service's database is full")
    log.warning("the database did not answer: %s", error)
    return ProblemError(
        503, "database-busy", "the database did not answer in time", headers={"Retry-After": "2"}
    )


class OutageLog:
    """Logs why the database cannot be used: each cause once, until it changes or is over."""

    def __init__(self, to: logging.Logger) -> None:
        self._log, self._cause = to, ""

    def note(self, error: BaseException) -> None:
        """Log the cause of a failure, where it is another one than before."""
        cause = f"cannot reach the database: {getattr(error, 'orig', None) or error}"
        if is_full(error):
            cause = "the disk of the service's database is full: remove files or jobs"
        if cause != self._cause:
            self._log.warning("%s", cause)
        self._cause = cause

    def end(self) -> None:
        """Log the end of an outage, if there was one."""
        if self._cause:
            self._log.warning("the database can be used again")
        self._cause = ""


def from_library(error: HdgemmError) -> ProblemError:
    """Make a problem of an error that the library raised on purpose."""
    kind = "does-not-fit" if isinstance(error, DoesNotFitError) else "bad-input"
    own = {"status", "kind", "detail", "headers"}
    numbers: dict[str, Any] = {
        key: value
        for key, value in error.numbers.items()
        if isinstance(value, (int, float, str)) and key not in own
    }
    if isinstance(error, MatrixIOError) and error.numbers.get("missing"):
        return ProblemError(507, "disk-full", str(error), headers=None, **numbers)
    return ProblemError(422, kind, str(error), headers=None, **numbers)


def problem_of(error: Exception) -> ProblemError:
    """Make a problem of any error."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HdgemmError):
        return from_library(error)
    if isinstance(error, DATABASE_ERRORS):
        return from_database(error)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return ProblemError(507, "disk-full", f"cannot write: {error.strerror}")
    if isinstance(error, OSError):  # the framework raises all others again, and logs them
        log.error("a fault of the server", exc_info=error)
    what = f"a fault of the server: {type(error).__name__}"
    return ProblemError(500, "internal-server-error", what)


@contextmanager
def caused_by(field: str, value: Any) -> Iterator[None]:
    """Name the field of the request, and its value, in an error that this value causes."""
    try:
        yield
    except (HdgemmError, ProblemError) as error:
        found = problem_of(error)
        what = f"{field} is {show(value)}: {found.detail}"
        members = {**found.members, "errors": [named(field, what)]}
        raise ProblemError(
            found.status, found.kind, what, headers=found.headers, **members
        ) from error


def named(field: str, what: str) -> dict[str, str]:
    """Return an entry of an error's member ``errors``: a field of the inputs, and the sentence."""
    return {"where": f"body.inputs.{field}", "field": field, "what": what}


def responses(*statuses: int, **good: Any) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route for OpenAPI, and by keywords its answer with status 200."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*statuses, *_EVERYWHERE})
    }
    return {200: good, **errors} if good else errors
