"""Results, log, trace and pictures of jobs."""

from __future__ import annotations

import io
import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from hdgemm.errors import InputError
from hdgemm.matrices.factor_files import FactorFiles
from hdgemm.routines.registry import array_names
from hdgemm.server import paths, references
from hdgemm.server.backend import GANTT, TRACE
from hdgemm.server.content import rectangle, stream_bytes, stream_file
from hdgemm.server.heartbeat import HISTORY, OPERATIONS
from hdgemm.server.outputs import arrays_of
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.routes.jobs import JobId  # noqa: TC001 - FastAPI reads it
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from hdgemm.server.service import Service
    from hdgemm.server.tables import Job

router = APIRouter(prefix="/v1/jobs", tags=["results"])
Span = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}:[0-9]{1,15}$", examples=["0:10"])]
if TYPE_CHECKING:
    ArrayName: TypeAlias = str
else:
    ArrayName = Literal[array_names()]
BYTES: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The .npy file", "content": BYTES},
    206: {"description": "A range of it", "content": BYTES},
    304: {"description": "It is what the client has"},
}
#: The answers to ranges and conditions.
STREAMED_PARTS = {status: answer for status, answer in STREAMED.items() if status != 200}
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
        200: {
            "description": "OGC's results document; the value of one raw output",
            "content": {"application/json": {}, **BYTES, "multipart/related": {}},
        },
        204: {"description": "Links alone, to raw outputs by reference"},
        **STREAMED_PARTS,
        **responses(404, 409, 416),
    },
)
async def get_results(
    request: Request, job_id: JobId, service: TheService, account: TheAccount
) -> Response:
    """Return the results as the request asked for them: a document, values, or Link headers."""
    job = await to_thread.run_sync(_successful, service, job_id, account.id)
    asked = job.response or {}
    arrays = _arrays(job)
    names = ["report", "c", *arrays] if job.output is not None else ["report"]
    chosen = [name for name in names if name in (asked.get("outputs") or names)]
    if asked.get("mode") == "raw":
        return await _raw(request, service, job, chosen)
    at, link = f"/v1/jobs/{job_id}/results", service.documents.link
    described = ("path", "shape", "dtype", "size", "sha256")
    values = {
        "report": {"value": job.report, "mediaType": "application/json"},
        "c": {
            **link(f"{at}/c", "c", "application/octet-stream"),
            "rel": "item",
            **{key: (job.output or {}).get(key) for key in described},
        },
        **{
            name: {**link(f"{at}/{name}", name, "application/octet-stream"), "rel": "item"}
            for name in arrays
        },
    }
    return JSONResponse({name: values[name] for name in chosen})


def _arrays(job: Job) -> tuple[str, ...]:
    """Return the names of the arrays beside a job's result; older jobs noted no files."""
    return arrays_of(job.process, job.inputs) if job.output is not None else ()


async def _raw(request: Request, service: Service, job: Job, chosen: list[str]) -> Response:
    """Return one output's value; links to outputs by reference; several as parts.

    The matrix is a value where it is the one output and no reference is asked for.
    """
    linked = set((job.response or {}).get("links") or ())
    if len(chosen) > 1:
        linked |= set(chosen) - {"report"}
    at = f"{service.documents.prefix}/v1/jobs/{job.id}/results"
    headers = {"Link": ", ".join(f"<{at}/{name}>; rel={name}" for name in chosen)}
    if linked >= set(chosen):
        return Response(status_code=204, headers=headers)
    if chosen == ["c"]:
        return await _stream_file(request, service, job)
    if "report" not in chosen:
        return await service.files.run(_array_of, service, job, chosen[0])
    report = JSONResponse(job.report)
    if chosen == ["report"]:
        return report
    boundary = f"hdgemm-{job.id}"
    parts = (
        (b"Content-ID: <report>\r\nContent-Type: application/json", bytes(report.body)),
        *(
            (f"Content-ID: <{name}>\r\nContent-Location: {at}/{name}".encode(), b"")
            for name in chosen
            if name != "report"
        ),
    )
    body = b"".join(
        b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), head, value) for head, value in parts
    )
    media_type = f'multipart/related; boundary="{boundary}"'
    return Response(body + b"--%b--\r\n" % boundary.encode(), 200, headers, media_type)


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
    if rows is None and cols is None:
        return await _stream_file(request, service, job)
    file = await service.files.run(_open_result, service, job)
    return await service.files.run(rectangle, request, file, rows, cols)


async def _stream_file(request: Request, service: Service, job: Job) -> Response:
    """Return the product's file, or a range of it."""
    file = await service.files.run(_open_result, service, job)
    name = re.sub(r"[^A-Za-z0-9._\x80-\U0010ffff-]+", "-", job.name).strip("-.") or "c"
    return stream_file(request, file, (job.output or {})["sha256"], f"{name}.npy")


@router.get(
    "/{job_id}/results/{array}",
    response_class=Response,
    responses={200: {"description": "The .npy file", "content": BYTES}, **responses(404, 409)},
)
async def get_array(
    job_id: JobId, array: ArrayName, service: TheService, account: TheAccount
) -> Response:
    """Return an array beside the result, such as the pivots of `lu`, as .npy."""
    job = await to_thread.run_sync(_successful, service, job_id, account.id)
    if job.output is None:
        raise ProblemError(404, "no-matrix", f"job {job_id} made no matrix")
    return await service.files.run(_array_of, service, job, array)


def _array_of(service: Service, job: Job, array: str) -> Response:
    """Read an array beside a result, unless the result was changed."""
    output = job.output or {}
    if array not in arrays_of(job.process, job.inputs):
        raise ProblemError(404, "not-there", f"{job.process} job {job.id} stores no {array}")
    _open_result(service, job).close()
    path = FactorFiles.of(references.result_path(job.id, output, service.settings)).array(array)
    published = [each for each in output.get("beside", ()) if each["path"] == str(path)]
    if "beside" in output and not published:
        raise ProblemError(404, "not-there", f"job {job.id} stored no {array}")
    try:
        with paths.opened(path, (*service.settings.roots, service.settings.job_dir(job.id))) as fd:
            if published and not references.is_result(fd, published[0]):
                raise ProblemError(409, "changed", f"{path} was changed since the job wrote it")
            file = io.FileIO(os.dup(fd))
    except InputError as error:
        raise ProblemError(409, "changed", f"{array} is gone: {error}") from error
    return _stream(file, "application/octet-stream")


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
    media_type = "text/plain; charset=utf-8"
    try:
        file = io.FileIO(service.settings.job_dir(job_id) / "log.txt")
    except FileNotFoundError:
        return Response(media_type=media_type)
    return _stream(file, media_type, _LOG_BYTES)


@router.get("/{job_id}/trace", **_file("application/json", "Chrome's trace format"))
def get_trace(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return the timeline in Chrome's trace format, for Perfetto."""
    return _file_of(service, job_id, account.id, TRACE, "application/json")


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
    return _file_of(service, job_id, account.id, GANTT, "image/png")


@router.get(
    "/{job_id}/report.html", **_file("text/html", "A profile's report, one file with its pictures")
)
def get_report(job_id: JobId, service: TheService, account: TheAccount) -> Response:
    """Return a profile's report as a page that loads nothing and runs nothing."""
    answer = _file_of(service, job_id, account.id, "report.html", "text/html; charset=utf-8")
    answer.headers["Content-Security-Policy"] = _REPORT_POLICY
    return answer


def _file_of(service: Service, job_id: str, owner: str, name: str, media_type: str) -> Response:
    job = service.job(job_id, owner)
    absent = ProblemError(404, "not-there", f"job {job_id} has no {name}, or not yet")
    if name in {TRACE, GANTT} and job.is_drawing:
        raise absent
    try:
        file = io.FileIO(service.settings.job_dir(job_id) / name)
    except FileNotFoundError:
        raise absent from None
    return _stream(file, media_type)


def _stream(file: io.FileIO, media_type: str, most: int | None = None) -> Response:
    """Answer with a file, or with its last `most` bytes."""
    size = os.fstat(file.fileno()).st_size
    return stream_bytes(file, 0 if most is None else max(0, size - most), size, media_type)
