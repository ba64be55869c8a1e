"""`/v1/jobs`: list, look at, follow, cancel and delete."""

from __future__ import annotations

import base64
import binascii
import json
import shutil
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlencode

import sqlalchemy as sa
from anyio import to_thread
from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from hdgemm.server import events, jobs
from hdgemm.server.documents import JobList, StatusInfo
from hdgemm.server.models import Name  # noqa: TC001 - FastAPI reads it
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.publication import sweep_up
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them
from hdgemm.server.tables import FINISHED, Job, Process, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.server.service import Service
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[
    str, Path(pattern=r"^[0-9a-f]{32}$", description="The job's jobID.", examples=["0" * 32])
]
MOST_LISTED: Final = 1000
Limit = Annotated[
    int, Query(ge=1, description=f"Of a page; more than {MOST_LISTED} stands for {MOST_LISTED}.")
]
Cursor = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", description='From a "next" link; opaque.'),
]
_TIME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
Interval = Annotated[
    str | None,
    Field(
        pattern=rf"^({_TIME}|({_TIME}|\.\.)?/({_TIME}|\.\.)?)$",
        description="Only jobs created at this time, or within: start/end, start/.., ../end.",
        examples=["2026-11-21T00:00:00Z/.."],
    ),
]
Seconds = Annotated[int | None, Field(ge=0, le=1 << 31)]


def read_cursor(cursor: str | None, columns: int = 1) -> tuple[float, ...] | None:
    """Return the values of the sorted columns below which a page begins; the last is an integer."""
    if cursor is None:
        return None
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        values = None
    is_list = isinstance(values, list) and len(values) == columns and type(values[-1]) is int
    if not is_list or not all(type(x) in {int, float} and 0 <= x < 1 << 62 for x in values):
        raise ProblemError(422, "bad-cursor", "the cursor is not from a link of this server")
    return tuple(values)


def make_cursor(*values: float | None) -> str:
    """Return the cursor of the page that begins below the values of the sorted columns."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _interval(text: str | None) -> tuple[float | None, float | None]:
    """Return the first and last time of RFC 3339's instants and OGC's intervals."""
    if text is None:
        return None, None
    first, slash, last = text.partition("/")
    try:
        start = _seconds(first)
        if slash or start is None:
            return start, _seconds(last)
        # An instant is as long as its last digit, and documents show microseconds.
        return start - 1e-6, start + (1e-6 if "." in text else 1.0)
    except ValueError as error:
        raise ProblemError(422, "bad-datetime", f"datetime={text}: {error}") from error


def _seconds(text: str) -> float | None:
    if text in {"", ".."}:
        return None
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


#: Columns of each order of the list, all descending.
_ORDERS: Final[dict[str, tuple[Any, ...]]] = {
    "-created": (Job.seq,),
    "-finished": (Job.finished, Job.seq),
}


class JobQuery(BaseModel):
    """Query parameters of the list: OGC's, and `name`, `search`, `sortby` and `cursor`."""

    type: list[Literal["process"]] | None = None
    status: list[Status] | None = None
    processID: list[Process] | None = None  # noqa: N815 - OGC's spelling
    name: Name | None = None
    search: Annotated[
        str | None,
        Field(
            max_length=200,
            pattern=r"^[^\x00-\x1f]*$",
            description="A part of the name, or the beginning of the id.",
        ),
    ] = None
    datetime: Interval = None
    minDuration: Seconds = None  # noqa: N815
    maxDuration: Seconds = None  # noqa: N815
    sortby: Annotated[
        Literal["-created", "-finished"],
        Field(description="-finished: only jobs that have ended, the last first."),
    ] = "-created"
    cursor: Cursor = None
    limit: Limit = 50

    def conditions(self, now: float) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of a query; a parameter that was not given makes none."""
        ran = sa.func.coalesce(Job.finished, now) - Job.started
        first, last = _interval(self.datetime)
        wanted: list[tuple[Any, Callable[[Any], sa.ColumnElement[bool]]]] = [
            (self.status, Job.status.in_),
            (self.processID, Job.process.in_),
            (self.name, Job.name.__eq__),
            (self.search, _matches),
            (read_cursor(self.cursor, len(self.order)), sa.tuple_(*self.order).__lt__),
            (True if self.sortby == "-finished" else None, lambda _: Job.finished.is_not(None)),
            (first, Job.created.__ge__),
            (last, Job.created.__le__),
            (self.minDuration, ran.__ge__),
            (self.maxDuration, ran.__le__),
        ]
        return [condition(value) for value, condition in wanted if value is not None]

    @property
    def order(self) -> tuple[Any, ...]:
        """The columns by which the list is sorted, all descending."""
        return _ORDERS[self.sortby]

    def cursor_after(self, job: Job) -> str:
        """Return the cursor of the page that begins below a job."""
        return make_cursor(*(getattr(job, column.key) for column in self.order))


def _matches(text: str) -> sa.ColumnElement[bool]:
    return sa.or_(
        Job.name.icontains(text, autoescape=True), Job.id.startswith(text, autoescape=True)
    )


@router.get("", responses=responses(model=JobList))
def list_jobs(
    request: Request,
    service: TheService,
    account: TheAccount,
    query: Annotated[JobQuery, Query()],
) -> JSONResponse:
    """List this token's jobs, the last submitted first."""
    documents, limit = service.documents, min(query.limit, MOST_LISTED)
    with service.database.read() as conn:
        now = service.database.now(conn)
        found = jobs.page(conn, account.id, query.conditions(now), limit + 1, query.order)
    links = [documents.link("/v1/jobs", "self")]
    if len(found) > limit:
        same = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
        same.append(("cursor", query.cursor_after(found[limit - 1])))
        links.append(documents.link(f"/v1/jobs?{urlencode(same)}", "next"))
    return JSONResponse({"jobs": [documents.status(job) for job in found[:limit]], "links": links})


@router.get("/{job_id}", responses=responses(404, model=StatusInfo))
async def get_job(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return a job's status document, as it was at most a tenth of a second ago."""
    body = await service.statuses.get(
        (account.id, job_id), lambda: _status(service, job_id, account)
    )
    return Response(body, media_type="application/json")


def _status(service: Service, job_id: str, account: Account) -> bytes:
    with service.database.read() as conn:
        job = jobs.get(conn, job_id, account.id)
        phases = events.phases(conn, job_id)
    document = service.documents.status(job, phases)
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


@router.get("/{job_id}/map", responses=responses(404))
def get_map(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Return the rectangles of C in the order they are computed: row, column, rows, columns."""
    with service.database.read() as conn:
        job = jobs.get(conn, job_id, account.id)
        units = jobs.units(conn, job_id)
    plan = job.plan or {}
    return JSONResponse({"m": plan.get("m", 0), "n": plan.get("n", 0), "units": units})


@router.post("/{job_id}/cancel", responses=responses(404, 409, model=StatusInfo))
async def cancel_job(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Stop a job within one tile, and keep its record."""
    job, _ = await _stop(service, account, job_id, delete_finished=False)
    return JSONResponse(service.documents.status(job))


@router.delete("/{job_id}", responses=responses(404, 409, 507, model=StatusInfo))
async def dismiss_job(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Cancel an unfinished job; delete a finished one with its log, pictures and kept result.

    A result in a file of its own stays.
    """
    job, deleted = await _stop(service, account, job_id, delete_finished=True)
    # OGC's answer to a dismissal; the job's own document shows when a running one stops.
    message = "deleted" if deleted else job.message
    document = {**service.documents.status(job), "status": "dismissed", "message": message}
    return JSONResponse(document)


async def _stop(
    service: Service, account: Account, job_id: str, *, delete_finished: bool
) -> tuple[Job, bool]:
    """Cancel or delete a job; return it, and whether it was deleted."""

    def stop() -> tuple[Job, bool]:
        with service.database.queue() as conn:
            now = service.database.now(conn)
            if delete_finished and jobs.get(conn, job_id, account.id).status in FINISHED:
                return jobs.delete(conn, job_id, account.id, now), True
            return jobs.cancel(conn, job_id, account.id, now), False

    job, deleted = await to_thread.run_sync(service.database.with_reserve, stop)
    service.statuses.forget((account.id, job_id))
    if deleted:
        folder = service.settings.job_dir(job_id)
        await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
    elif job.status == "dismissed" and job.fence:
        # An attempt that died may have left a journal and a draft.
        await service.files.run(sweep_up, job, service.settings)
    return job, deleted


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: status and progress, each with its id.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **responses(404),
    },
)
async def follow_job(
    request: Request,
    job_id: JobId,
    service: TheService,
    account: TheAccount,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,18}$")
    ] = None,
) -> StreamingResponse:
    """Stream a job's events, from after `Last-Event-ID`, until it is finished."""
    await to_thread.run_sync(service.job, job_id, account.id)
    secret = request.scope["hdgemm.secret"]
    stream = service.streams.follow(job_id, account, secret, int(last_event_id or 0))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
