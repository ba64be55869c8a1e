"""`/v1/jobs`: list, look at, follow, cancel and delete."""

from __future__ import annotations

import base64
import binascii
import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import anyio
from anyio import to_thread
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hdgemm.server import events, jobs
from hdgemm.server.documents import JobList, StatusInfo, link, status_info
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.records import FINISHED, Process, Status
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hdgemm.server.service import Service
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[
    str, Path(pattern=r"^[0-9a-f]{32}$", description="The job's jobID.", examples=["0" * 32])
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9_-]{1,32}$", description='From a "next" link; opaque.'),
]
_POLL_SECONDS: Final = 0.5
_KEEP_ALIVE_SECONDS: Final = 15.0


def read_cursor(cursor: str | None) -> int | None:
    """Return the sequence number a page begins below."""
    if cursor is None:
        return None
    try:
        number = int(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        number = -1
    if not 0 <= number < 1 << 62:
        raise ProblemError(422, "bad-cursor", "the cursor is none that this server gave")
    return number


def make_cursor(seq: int) -> str:
    """Return the cursor of the page that begins below a sequence number."""
    return base64.urlsafe_b64encode(str(seq).encode()).decode().rstrip("=")


@router.get("", response_model=None, responses={200: {"model": JobList}, **responses()})
def list_jobs(
    service: TheService,
    account: TheAccount,
    status: Annotated[list[Status] | None, Query()] = None,
    processID: Annotated[list[Process] | None, Query()] = None,  # noqa: N803 - OGC's spelling
    name: Annotated[str | None, Query(max_length=200, pattern=r"^[ -~]*$")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> JSONResponse:
    """List this token's jobs, newest first."""
    chosen = jobs.Filter(tuple(status or ()), tuple(processID or ()), name, read_cursor(cursor))
    with service.database.read() as conn:
        found = jobs.page(conn, account.id, chosen, limit + 1)
    links = [link("/v1/jobs", "self")]
    if len(found) > limit:
        pairs: list[tuple[str, str]] = [("status", item) for item in chosen.statuses]
        pairs += [("processID", item) for item in chosen.processes]
        pairs += [] if name is None else [("name", name)]
        pairs += [("limit", str(limit)), ("cursor", make_cursor(found[limit - 1].seq))]
        links.append(link(f"/v1/jobs?{urlencode(pairs)}", "next"))
    return JSONResponse({"jobs": [status_info(job) for job in found[:limit]], "links": links})


@router.get(
    "/{job_id}", response_model=None, responses={200: {"model": StatusInfo}, **responses(404)}
)
async def get_job(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return a job's status document, as it was at most a tenth of a second ago."""
    body = await service.statuses.get(
        (account.id, job_id), lambda: _status(service, job_id, account)
    )
    return Response(body, media_type="application/json")


def _status(service: Service, job_id: str, account: Account) -> bytes:
    with service.database.read() as conn:
        job = jobs.get(conn, job_id, account.id)
    return json.dumps(status_info(job), ensure_ascii=False, allow_nan=False).encode()


@router.get("/{job_id}/map", response_model=None, responses=responses(404))
def get_map(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Return the rectangles of C in the order they are computed: row, column, rows, columns."""
    with service.database.read() as conn:
        job = jobs.get(conn, job_id, account.id)
        units = jobs.units(conn, job_id)
    plan = job.plan or {}
    return JSONResponse({"m": plan.get("m", 0), "n": plan.get("n", 0), "units": units})


@router.post(
    "/{job_id}/cancel",
    response_model=None,
    responses={200: {"model": StatusInfo}, **responses(404, 409)},
)
def cancel_job(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Stop a job within one tile, and keep its record."""
    with service.database.write() as conn:
        job = jobs.cancel(conn, job_id, account.id, service.database.now(conn))
    service.statuses.forget((account.id, job_id))
    return JSONResponse(status_info(job))


@router.delete("/{job_id}", status_code=204, responses=responses(404, 409))
def delete_job(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Delete a finished job with its log, pictures and kept result; a file elsewhere stays."""
    with service.database.queue() as conn:
        jobs.delete(conn, job_id, account.id)
    service.statuses.forget((account.id, job_id))
    shutil.rmtree(service.settings.job_dir(job_id), ignore_errors=True)
    return Response(status_code=204)


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
    """Stream what happens to a job, from after `Last-Event-ID`, until it is finished."""
    await to_thread.run_sync(_exists, service, job_id, account.id)
    stream = _stream(request, service, (account.id, job_id), int(last_event_id or 0))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _exists(service: Service, job_id: str, owner: str) -> None:
    with service.database.read() as conn:
        jobs.get(conn, job_id, owner)


async def _stream(
    request: Request, service: Service, key: tuple[str, str], last: int
) -> AsyncIterator[str]:
    quiet, job_id = 0.0, key[1]
    yield "retry: 1000\n\n"
    while not await request.is_disconnected():
        found, finished = await to_thread.run_sync(_news, service, job_id, last)
        if found:
            # Who hears of an event must not be told an older status.
            service.statuses.forget(key)
        for event in found:
            last = event.id
            yield f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(event.data)}\n\n"
        if finished and not found:
            yield "event: end\ndata: {}\n\n"
            return
        quiet = 0.0 if found else quiet + _POLL_SECONDS
        if quiet >= _KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        if not found:
            await anyio.sleep(_POLL_SECONDS)


def _news(service: Service, job_id: str, last: int) -> tuple[list[events.JobEvent], bool]:
    with service.database.read() as conn:
        found: list[Any] = events.after(conn, job_id, last)
        job = jobs.find(conn, job_id)
    return found, job is None or job.status in FINISHED
