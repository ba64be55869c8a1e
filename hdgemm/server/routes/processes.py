"""`/v1/processes`: the processes, their descriptions, and executing them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse

from hdgemm.routines.registry import meant
from hdgemm.server import jobs, uploads
from hdgemm.server.admission import reserve
from hdgemm.server.documents import DryRun, StatusInfo
from hdgemm.server.execution import PROCESSES, Description, describe_inputs
from hdgemm.server.jobs import Admission, Submission
from hdgemm.server.outputs import arrays_of
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.routes.jobs import MOST_LISTED, Limit
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import sqlalchemy as sa

    from hdgemm.server.models import Common
    from hdgemm.server.service import Service
    from hdgemm.server.tables import Job, Process
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/processes", tags=["processes"])

_MATRIX: Final = {"type": "object", "contentMediaType": "application/octet-stream"}
_REPORT: Final = {"type": "object"}
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="The same key and body again answer with the same job.",
    ),
]
ProcessCursor = Annotated[
    str | None, Query(pattern=r"^[a-z][a-z0-9]{0,15}$", description='From a "next" link; opaque.')
]
_EXECUTED: Final = {
    201: {
        "model": StatusInfo,
        "description": "Accepted",
        "headers": {"Location": {"schema": {"type": "string"}, "description": "The job."}},
    },
    200: {"model": DryRun, "description": "The plan of a dry run"},
    **responses(404, 409, 413, 415, 507),
}


def _summary(service: Service, process_id: Process) -> dict[str, Any]:
    at, link = f"/v1/processes/{process_id}", service.documents.link
    return {
        "id": process_id, "title": PROCESSES[process_id].title, "version": "1",
        "jobControlOptions": ["async-execute", "dismiss"],
        "outputTransmission": ["reference", "value"],
        "links": [link(at, "self"),
                  link(f"{at}/execution", "http://www.opengis.net/def/rel/ogc/1.0/execute")],
    }  # fmt: skip


@router.get("", responses=responses())
async def list_processes(
    service: TheService, limit: Limit = MOST_LISTED, cursor: ProcessCursor = None
) -> dict[str, Any]:
    """List the processes."""
    names = list(PROCESSES)
    if cursor is not None and cursor not in PROCESSES:
        raise ProblemError(422, "bad-cursor", "the cursor is not from a link of this server")
    start = 0 if cursor is None else names.index(cursor)
    stop = start + min(limit, MOST_LISTED)
    link = service.documents.link
    links = [link("/v1/processes", "self")]
    if stop < len(names):
        links.append(link(f"/v1/processes?limit={limit}&cursor={names[stop]}", "next"))
    return {"processes": [_summary(service, name) for name in names[start:stop]], "links": links}


def _no_process(process_id: str) -> ProblemError:
    near = meant(process_id, PROCESSES)
    use = "" if near is None else f": use {near}"
    what = f"there is no process {process_id!r}{use}; known are: {', '.join(PROCESSES)}"
    return ProblemError(404, "no-such-process", what)


@router.get("/{process_id}", responses=responses(404))
async def describe_process(process_id: str, service: TheService) -> dict[str, Any]:
    """Describe one process: a JSON schema for each input and output."""
    described = PROCESSES.get(process_id)
    if described is None:
        raise _no_process(process_id)
    return {
        **_summary(service, process_id),
        "inputs": describe_inputs(described.inputs),
        "outputs": {
            name: {"title": name, "schema": _REPORT if name == "report" else _MATRIX}
            for name in described.outputs
        },
    }


def _endpoint(process: Process, described: Description) -> Callable[..., Any]:
    """Return the function that executes one process."""

    async def execute(
        request: Request,
        body: Any,
        service: TheService,
        account: TheAccount,
        idempotency_key: Key = None,
    ) -> JSONResponse:
        inputs, digest = body.inputs, hashlib.sha256(request.url.path.encode() + b"\n")
        digest.update(await request.body())
        submission = Submission(
            owner=account.id, name=inputs.name, priority=inputs.priority,
            request_digest=digest.hexdigest(), idempotency_key=idempotency_key,
            response={
                "mode": body.response, "outputs": body.chosen_outputs, "links": body.linked_outputs,
            },
        )  # fmt: skip
        job = await to_thread.run_sync(_replayed, service, submission)
        if job is None:
            admission = await _admit(request, service, account, process, inputs)
            _refuse_absent(process, admission.inputs, body.chosen_outputs or ())
            if body.dry_run:
                plan = {"plan": admission.plan, "needs": admission.needs}
                return JSONResponse({**plan, "output": admission.output})
            job = await to_thread.run_sync(_submit, service, account, submission, admission)
        headers = {"Location": service.documents.prefix + f"/v1/jobs/{job.id}"}
        if "respond-async" in request.headers.get("prefer", ""):
            headers["Preference-Applied"] = "respond-async"
        return JSONResponse(service.documents.status(job), 201, headers)

    execute.__annotations__["body"] = described.request(process)
    execute.__doc__ = f"{described.title}."
    return execute


for _process, _described in PROCESSES.items():
    router.add_api_route(
        f"/{_process}/execution", _endpoint(_process, _described), methods=["POST"],
        status_code=201, responses=_EXECUTED, name=f"execute_{_process}",
    )  # fmt: skip


@router.post("/{process_id}/execution", include_in_schema=False)
async def execute_unknown(process_id: str) -> None:
    """Refuse a process that is not there."""
    raise _no_process(process_id)


async def _admit(
    request: Request, service: Service, account: Account, process: Process, inputs: Common
) -> Admission:
    """Check and plan a job; ends when the client disconnects."""
    examiner = service.examiner
    if process in {"profile", "linpack"}:
        admission = await to_thread.run_sync(examiner.measurement, process, inputs)
    else:
        candidate = await service.files.run(examiner.look_up, process, inputs, account)
        cancel = threading.Event()
        watch = asyncio.create_task(_cancel_on_disconnect(request, cancel))
        try:
            admission = await service.plans.run(examiner.plan, candidate, cancel, owner=account.id)
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
    asked, limit = inputs.priority, account.highest_priority
    if limit is not None and asked > limit:
        what = f"priority {asked} is above {limit}, the highest for this token (--max-priority)"
        raise ProblemError(403, "priority-too-high", what, requested=asked, limit=limit)
    return admission


def _refuse_absent(process: Process, inputs: Mapping[str, Any], chosen: Iterable[str]) -> None:
    """Refuse a choice of an array that the job does not store with these inputs."""
    for name in set(chosen) - {"c", "report", *arrays_of(process, inputs)}:
        flag = f": set {name} to true among the inputs" if name in inputs else ""
        what = f"outputs.{name}: a {process} job with these inputs stores no {name}{flag}"
        field = f"outputs.{name}"
        errors = [{"where": f"body.{field}", "field": field, "what": what}]
        raise ProblemError(422, "invalid-request", what, errors=errors)


async def _cancel_on_disconnect(request: Request, cancel: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancel.set()


def _submit(
    service: Service, account: Account, submission: Submission, admission: Admission
) -> Job:
    """Accept the job, or return the one that a concurrent request with this key has made."""
    with service.database.queue() as conn:
        replayed = _of_key(conn, submission)
        if replayed is not None:
            return replayed
        reserve(conn, admission, account, service.settings)
        _check_still_there(conn, submission.owner, admission)
        job_id = jobs.insert(conn, submission, admission, service.database.now(conn))
        return jobs.get(conn, job_id, account.id)


def _replayed(service: Service, submission: Submission) -> Job | None:
    with service.database.read() as conn:
        return _of_key(conn, submission)


def _of_key(conn: sa.Connection, submission: Submission) -> Job | None:
    """Return the job of an earlier request with this key and body."""
    if submission.idempotency_key is None:
        return None
    job = jobs.by_key(conn, submission.owner, submission.idempotency_key)
    if job is not None and job.request_digest != submission.request_digest:
        raise ProblemError(
            422, "key-reused", "this Idempotency-Key came with another request before", job=job.id
        )
    return job


def _check_still_there(conn: sa.Connection, owner: str, admission: Admission) -> None:
    """Refuse a job if a matrix or job that it reads was deleted while it was planned."""
    for kind, target in admission.reads:
        if kind == "matrix":
            uploads.get(conn, target, owner)
        else:
            jobs.get(conn, target, owner)
