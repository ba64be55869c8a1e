"""`/v1/queue`: running jobs, waiting jobs in order, the reasons for waiting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from hdgemm.server import waiting
from hdgemm.server.documents import StatusInfo
from hdgemm.server.problems import responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from hdgemm.server.service import Service
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/queue", tags=["jobs"])


class WaitingInfo(StatusInfo):
    """A waiting job with its place in the queue."""

    ahead: int = Field(description="Jobs of all tokens before it.")
    reason: str = Field(description="For what it waits.")
    startsIn: float | None = Field(  # noqa: N815 - spelled as OGC's members
        description="Seconds until it starts, as far as the times of the jobs before it are known."
    )


class QueueInfo(BaseModel):
    """The queue: running jobs of all tokens, and a page of this token's waiting ones."""

    running: list[dict[str, Any]] = Field(
        description="Of other tokens' jobs: owner, process, devices, memory, progress, no id."
    )
    waiting: list[WaitingInfo]
    waiting_total: int = Field(description="This token's waiting jobs.")
    waiting_of_all: int
    counts: dict[str, int] = Field(description="This token's jobs by status.")


@router.get("", response_model=None, responses={200: {"model": QueueInfo}, **responses()})
async def get_queue(
    service: TheService,
    account: TheAccount,
    offset: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    limit: Annotated[int, Query(ge=0, le=200)] = 50,
) -> Response:
    """Return the queue as it was at most a tenth of a second ago."""
    key = (account.id, f"queue {offset} {limit}")
    body = await service.statuses.get(key, lambda: _queue(service, account, offset, limit))
    return Response(body, media_type="application/json")


def _queue(service: Service, account: Account, offset: int, limit: int) -> bytes:
    with service.database.read() as conn:
        now = service.database.now(conn)
        found, own, every = waiting.places(conn, account.id, now, offset=offset, limit=limit)
        document = {
            "running": waiting.running(conn, account.id),
            "waiting": [
                {**service.documents.status(place.job), "ahead": place.ahead,
                 "reason": place.reason, "startsIn": place.starts_in}
                for place in found
            ],
            "waiting_total": own,
            "waiting_of_all": every,
            "counts": waiting.counts(conn, account.id),
        }  # fmt: skip
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
