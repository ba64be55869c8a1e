"""Errors as `application/problem+json` (RFC 9457), one class for all of them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from hdgemm.errors import DoesNotFitError, HdgemmError
from hdgemm.server.json_values import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE = "application/problem+json"


_EVERYWHERE: Final = (400, 401, 403, 408, 413, 415, 421, 422, 429, 431, 500, 503)


class ProblemDocument(BaseModel):
    """What every error's body looks like; `type` is stable and meant for programs."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "/problems/does-not-fit",
                    "title": "Does not fit",
                    "status": 422,
                    "detail": "the plan needs 3000000000 bytes of memory, 1000000000 are there",
                    "requested": 3_000_000_000,
                    "available": 1_000_000_000,
                }
            ]
        },
    )

    type: str = Field(description="A stable name of this kind of error, as a relative URI.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened this time, with the numbers.")


class ProblemError(Exception):
    """An answer that is an error: status, kind, sentence, and its numbers as members."""

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
        body = {
            "type": f"/problems/{self.kind}",
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


def from_library(error: HdgemmError) -> ProblemError:
    """Make a problem of an error the library raised on purpose: the user's to mend."""
    kind = "does-not-fit" if isinstance(error, DoesNotFitError) else "bad-input"
    own = {"status", "kind", "detail", "headers"}
    numbers: dict[str, Any] = {
        key: value
        for key, value in error.numbers.items()
        if isinstance(value, (int, float, str)) and key not in own
    }
    return ProblemError(422, kind, str(error), headers=None, **numbers)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route for OpenAPI; most belong to all, of the guard or the wire."""
    every = sorted({*statuses, *_EVERYWHERE})
    return {
        status: {
            "description": _phrase(status),
            "content": {
                MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}},
            },
        }
        for status in every
    }


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
