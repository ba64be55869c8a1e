"""`/v1/processes`: what can be executed, and executing it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse

from hdgemm.server import jobs, uploads
from hdgemm.server.admission import Admission, Inputs, reserve
from hdgemm.server.documents import DryRun, StatusInfo, link, status_info
from hdgemm.server.models import (
    ExecuteGemm,
    ExecuteProfile,
    ExecuteVerify,
    GemmInputs,
    ProfileInputs,
    VerifyInputs,
    schema_of,
)
from hdgemm.server.problems import ProblemError, from_status, responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pydantic import BaseModel

    from hdgemm.server.records import Job
    from hdgemm.server.service import Service
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1/processes", tags=["processes"])

_PROCESSES: Final[dict[str, tuple[type[BaseModel], str, list[str]]]] = {
    "gemm": (GemmInputs, "C := alpha·op(A)·op(B) + beta·C", ["c", "report"]),
    "verify": (VerifyInputs, "Freivalds' check of a finished product", ["report"]),
    "profile": (ProfileInputs, "How a device's resources slow each other down", ["report"]),
}
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
_EXECUTED: Final = {
    201: {
        "model": StatusInfo,
        "description": "Accepted",
        "headers": {"Location": {"schema": {"type": "string"}, "description": "The job."}},
    },
    200: {"model": DryRun, "description": "The plan of a dry run"},
    **responses(404, 409, 413, 415, 507),
}


def _summary(process_id: str) -> dict[str, Any]:
    at = f"/v1/processes/{process_id}"
    return {
        "id": process_id, "title": _PROCESSES[process_id][1], "version": "1",
        "jobControlOptions": ["async-execute", "dismiss"], "outputTransmission": ["reference"],
        "links": [link(at, "self"),
                  link(f"{at}/execution", "http://www.opengis.net/def/rel/ogc/1.0/execute")],
    }  # fmt: skip


@router.get("", responses=responses())
async def list_processes() -> dict[str, Any]:
    """List the processes."""
    return {
        "processes": [_summary(process_id) for process_id in _PROCESSES],
        "links": [link("/v1/processes", "self")],
    }


@router.get("/{process_id}", responses=responses(404))
async def describe_process(process_id: str) -> dict[str, Any]:
    """Describe one process: the JSON schema of what goes in and what comes out."""
    if process_id not in _PROCESSES:
        raise from_status(404, f"there is no process {process_id!r}")
    model, _, outputs = _PROCESSES[process_id]
    kinds = {"c": {"type": "object", "contentMediaType": "application/octet-stream"},
             "report": {"type": "object"}}  # fmt: skip
    return {
        **_summary(process_id),
        "inputs": schema_of(model),
        "outputs": {name: {"title": name, "schema": kinds[name]} for name in outputs},
    }


@router.post("/gemm/execution", status_code=201, response_model=None, responses=_EXECUTED)
async def execute_gemm(
    request: Request,
    body: ExecuteGemm,
    service: TheService,
    account: TheAccount,
    idempotency_key: Key = None,
) -> JSONResponse:
    """Multiply: C := alpha·op(A)·op(B) + beta·C."""
    return await _execute(request, service, account, body.inputs, body.dry_run, idempotency_key)


@router.post("/verify/execution", status_code=201, response_model=None, responses=_EXECUTED)
async def execute_verify(
    request: Request,
    body: ExecuteVerify,
    service: TheService,
    account: TheAccount,
    idempotency_key: Key = None,
) -> JSONResponse:
    """Check a finished product."""
    return await _execute(request, service, account, body.inputs, body.dry_run, idempotency_key)


@router.post("/profile/execution", status_code=201, response_model=None, responses=_EXECUTED)
async def execute_profile(
    request: Request,
    body: ExecuteProfile,
    service: TheService,
    account: TheAccount,
    idempotency_key: Key = None,
) -> JSONResponse:
    """Profile a device."""
    return await _execute(request, service, account, body.inputs, body.dry_run, idempotency_key)


async def _execute(
    request: Request,
    service: Service,
    account: Account,
    inputs: Inputs,
    dry_run: bool,
    key: str | None,
) -> JSONResponse:
    body = await request.body()
    digest = hashlib.sha256(request.url.path.encode() + b"\n" + body).hexdigest()
    submitter = _Submitter(service, account, inputs, key, digest)
    if dry_run:
        admission = await to_thread.run_sync(submitter.try_out)
        plan = {"plan": admission.plan, "needs": admission.needs, "output": admission.output}
        return JSONResponse(plan)
    job = await to_thread.run_sync(submitter.submit)
    return JSONResponse(status_info(job), 201, {"Location": f"/v1/jobs/{job.id}"})


class _Submitter:
    """One execute request on its way to be a job; its methods block."""

    def __init__(
        self, service: Service, account: Account, inputs: Inputs, key: str | None, digest: str
    ) -> None:
        self._service = service
        self._account = account
        self._inputs = inputs
        self._key = key
        self._digest = digest

    def _examine(self) -> Admission:
        with self._service.database.read() as conn:
            return self._service.examiner.examine(conn, self._inputs, self._account)

    def try_out(self) -> Admission:
        """Do all but accept."""
        admission = self._examine()
        with self._service.database.read() as conn:
            reserve(conn, admission, self._account, self._service.settings)
        return admission

    def submit(self) -> Job:
        """Accept the job, or find the one that this key and body made before."""
        with self._service.database.read() as conn:
            replayed = self._replayed(conn)
        if replayed is not None:
            return replayed
        admission = self._examine()
        with self._service.database.queue() as conn:
            replayed = self._replayed(conn)
            if replayed is not None:
                return replayed
            reserve(conn, admission, self._account, self._service.settings)
            submission = jobs.Submission(
                owner=self._account.id, process=admission.process, name=self._inputs.name,
                priority=self._inputs.priority, inputs=admission.inputs,
                request_digest=self._digest, idempotency_key=self._key, plan=admission.plan,
                units=admission.units,
                output=admission.output, host_bytes=admission.host_bytes,
                disk_bytes=admission.disk_bytes, devices=admission.devices,
                reads=admission.reads,
            )  # fmt: skip
            _check_still_there(conn, submission)
            job_id = jobs.insert(conn, submission, self._service.database.now(conn))
            return jobs.get(conn, job_id, self._account.id)

    def _replayed(self, conn: sa.Connection) -> Job | None:
        if self._key is None:
            return None
        job = jobs.by_key(conn, self._account.id, self._key)
        if job is not None and job.request_digest != self._digest:
            raise ProblemError(
                422, "key-reused", "this Idempotency-Key came with another request before",
                job=job.id,
            )  # fmt: skip
        return job


def _check_still_there(conn: sa.Connection, submission: jobs.Submission) -> None:
    """Refuse a job whose matrix or input job was deleted while its plan was made."""
    for kind, target in submission.reads:
        if kind == "matrix":
            uploads.get(conn, target, submission.owner)
        else:
            jobs.get(conn, target, submission.owner)
