"""Results, log, trace and pictures of jobs."""

from __future__ import annotations

import io
import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from hdgemm.errors import InputError
from hdgemm.server import paths, references
from hdgemm.server.content import rectangle, stream_file
from hdgemm.server.heartbeat import HISTORY, OPERATIONS
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.routes.jobs import JobId  # noqa: TC001 - FastAPI reads it
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from hdgemm.server.service import Service
    from hdgemm.server.tables import Job

router = APIRouter(prefix="/v1/jobs", tags=["results"])
Span = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}:[0-9]{1,15}$", examples=["0:10"])]
BYTES: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The .npy file", "content": BYTES},
    206: {"description": "A range of it", "content": BYTES},
    304: {"description": "It is what the client has"},
}
#: The most of a log that is answered, in bytes: its end.
_LOG_BYTES = 4 << 20
#: A report contains its style and pictures.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"


def _file(media_type: str, description: str) -> dict[str, Any]:
    """Return the options of a route that answers with a file of a job's folder."""
    good = {"description": description, "content": {media_type: {}}}
    return {"response_class": Response, "responses": responses(404, **good)}


def _successful(service: Service, job_id: str, owner: str) -> Job:
    job = service.job(job_id, owner)
    if job.status != "successful":
        kind = "result-not-ready" if job.finished is None else "no-result"
        raise ProblemError(404, kind, f"job {job_id} is {job.status}", error=job.error)
    return job


@router.get(
    "/{job_id}/results",
    responses={
        200: {"description": "OGC's results document"},
        204: {"description": 'Links alone, where the request said "response": "raw"'},
        **responses(404),
    },
)
def get_results(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the results as the request asked for them: a document, or Link headers."""
    job = _successful(service, job_id, account.id)
    asked, at, link = job.response or {}, f"/v1/jobs/{job_id}/results", service.documents.link
    links = {"report": link(f"{at}/report", "report")}
    if job.output is not None:
        links["c"] = link(f"{at}/c", "c", "application/octet-stream")
    chosen = [name for name in links if name in (asked.get("outputs") or links)]
    if asked.get("mode") == "raw":
        texts = (f"<{links[name]['href']}>; rel={name}" for name in chosen)
        return Response(status_code=204, headers={"Link": ", ".join(texts)})
    described = ("path", "shape", "dtype", "size", "sha256")
    values = {
        "report": {"value": job.report, "mediaType": "application/json"},
        "c": {
            **links.get("c", {}), "rel": "item",
            **{key: (job.output or {}).get(key) for key in described},
        },
    }  # fmt: skip
    return JSONResponse({name: values[name] for name in chosen})


@router.get("/{job_id}/results/report", responses=responses(404))
def get_result_report(job_id: JobId, service: TheService, account: TheAccount) -> JSONResponse:
    """Return the report of a successful job."""
    return JSONResponse(_successful(service, job_id, account.id).report)


@router.head("/{job_id}/results/c", include_in_schema=False)
@router.get(
    "/{job_id}/results/c",
    responses={**STREAMED, **responses(404, 409, 413, 416)},
)
async def get_result(
    request: Request,
    job_id: JobId,
    service: TheService,
    account: TheAccount,
    rows: Span = None,
    cols: Span = None,
) -> Response:
    """Return the product as .npy: all of it, a byte range, or the rectangle `rows`, `cols`."""
    job = await to_thread.run_sync(_successful, service, job_id, account.id)
    if job.output is None:
        raise ProblemError(404, "no-matrix", f"job {job_id} made no matrix")
    file = await service.files.run(_open_result, service, job)
    if rows is None and cols is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", job.name).strip("-.") or "c"
        return stream_file(request, file, job.output["sha256"], f"{name}.npy")
    return await service.files.run(rectangle, file, rows, cols)


@router.get(
    "/{job_id}/results/{array}",
    response_class=Response,
    responses={200: {"description": "The .npy file", "content": BYTES}, **responses(404, 409)},
)
async def get_array(
    job_id: JobId, array: Literal["piv", "tau"], service: TheService, account: TheAccount
) -> Response:
    """Return the pivots of `lu`, or tau of a raw `qr`, as .npy."""
    job = await to_thread.run_sync(_successful, service, job_id, account.id)
    if job.output is None:
        raise ProblemError(404, "no-matrix", f"job {job_id} made no matrix")
    return await service.files.run(_array_of, service, job, array)


def _array_of(service: Service, job: Job, array: str) -> Response:
    """Read an array beside a result, unless the result was changed."""
    _open_result(service, job).close()
    path = references.result_path(job.id, job.output or {}, service.settings)
    path = path.with_suffix(f".{array}.npy")
    try:
        with paths.opened(path, (*service.settings.roots, service.settings.job_dir(job.id))) as fd:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
    except InputError as error:
        raise ProblemError(404, "not-there", f"job {job.id} stored no {array}") from error
    return Response(data, media_type="application/octet-stream")


def _open_result(service: Service, job: Job) -> io.FileIO:
    """Open a result, unless the file was changed since the job wrote it."""
    output = job.output or {}
    path = references.result_path(job.id, output, service.settings)
    roots = (*service.settings.roots, service.settings.job_dir(job.id))
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(paths.opened(path, roots))
        except InputError as error:
            raise ProblemError(409, "changed", f"the result is gone: {error}") from error
        if not references.is_result(fd, output):
            raise ProblemError(409, "changed", f"{path} was changed since the job wrote it")
        return io.FileIO(os.dup(fd))


@router.get(
    "/{job_id}/log",
    response_class=Response,
    responses=responses(
        404, description="The log", content={"text/plain": {"schema": {"type": "string"}}}
    ),
)
def get_log(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the end of a job's log."""
    service.job(job_id, account.id)
    text = b""
    path = service.settings.job_dir(job_id) / "log.txt"
    if path.exists():
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _LOG_BYTES))
            text = stream.read()
    return Response(text, media_type="text/plain; charset=utf-8")


@router.get("/{job_id}/trace", **_file("application/json", "Chrome's trace format"))
def get_trace(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the timeline in Chrome's trace format, for Perfetto."""
    return _file_of(service, job_id, account.id, "trace.json", "application/json")


@router.get(
    "/{job_id}/history",
    **_file("application/json", "Points: elapsed, percent, gflops, phase, busy seconds by stage"),
)
def get_history(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the progress of a finished job over time, in at most 400 points."""
    return _file_of(service, job_id, account.id, HISTORY, "application/json")


@router.get(
    "/{job_id}/operations",
    **_file("application/json", "By device and stage: start, end and work unit of each operation"),
)
def get_operations(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the last operations of a running job, at most `most` of each stage of a device."""
    service.job(job_id, account.id)
    path = service.settings.job_dir(job_id) / OPERATIONS
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        body = b'{"most": 0, "lanes": {}}'
    return Response(body, media_type="application/json")


@router.get("/{job_id}/gantt.png", **_file("image/png", "The Gantt chart"))
def get_gantt(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the timeline as a Gantt chart."""
    return _file_of(service, job_id, account.id, "gantt.png", "image/png")


@router.get(
    "/{job_id}/report.html", **_file("text/html", "A profile's report, one file with its pictures")
)
def get_report(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return a profile's report as a page that loads nothing and runs nothing."""
    answer = _file_of(service, job_id, account.id, "report.html", "text/html; charset=utf-8")
    answer.headers["Content-Security-Policy"] = _REPORT_POLICY
    return answer


def _file_of(service: Service, job_id: str, owner: str, name: str, media_type: str) -> Response:
    service.job(job_id, owner)
    path = service.settings.job_dir(job_id) / name
    if not path.is_file():
        raise ProblemError(404, "not-there", f"job {job_id} has no {name}, or not yet")
    return Response(path.read_bytes(), media_type=media_type)
