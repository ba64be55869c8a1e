"""What answers look like: documents made of rows, and their models for OpenAPI."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from hdgemm.server.records import Job, StoredMatrix


class Link(BaseModel):
    """A link of an OGC document."""

    href: str
    rel: str
    type: str | None = None
    title: str | None = None


class StatusInfo(BaseModel):
    """OGC's status document, with what hdgemm adds: phase, live detail, plan, report, error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "jobID": "0" * 32, "processID": "gemm", "type": "process", "name": "night run",
                    "status": "running", "phase": "multiplying", "message": "multiplying",
                    "created": "2026-11-21T10:00:00+00:00", "updated": "2026-11-21T10:00:09+00:00",
                    "started": "2026-11-21T10:00:01+00:00", "finished": None, "progress": 41,
                    "priority": 0, "attempt": 1, "cancelRequested": False, "inputs": {},
                    "detail": {"percent": 41.2, "gflops": 139.0, "eta": 12.0, "limit": "mult1"},
                    "plan": None, "report": None, "error": None, "output": None,
                    "needs": {"host_bytes": 400000000, "disk_bytes": 8000000, "devices": ["auto"]},
                    "links": [],
                }
            ]
        }
    )  # fmt: skip

    jobID: str  # noqa: N815 - OGC's spelling
    processID: Literal["gemm", "verify", "profile"]  # noqa: N815
    type: Literal["process"]
    name: str
    status: Literal["accepted", "running", "successful", "failed", "dismissed"]
    phase: str
    message: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    updated: datetime
    progress: int = Field(ge=0, le=100)
    priority: int
    attempt: int = Field(ge=0, description="How often the job was started.")
    cancelRequested: bool  # noqa: N815
    inputs: dict[str, Any]
    detail: dict[str, Any] | None = Field(
        description="Live: percent, steps, total_steps, gflops, eta in seconds, limiting stage."
    )
    plan: dict[str, Any] | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None = Field(
        description="Of a failed job: origin (user or system), type, detail, numbers."
    )
    output: dict[str, Any] | None
    needs: dict[str, Any]
    links: list[Link]


class JobList(BaseModel):
    """A page of jobs, newest first; the link with rel "next" leads to the next page."""

    jobs: list[StatusInfo]
    links: list[Link]


class DryRun(BaseModel):
    """What an accepted job would do and hold."""

    plan: dict[str, Any] | None
    needs: dict[str, Any]
    output: dict[str, Any] | None


class MatrixInfo(BaseModel):
    """An uploaded matrix; `received` are the content's durable byte ranges, ends excluded."""

    id: str
    name: str
    shape: tuple[int, int]
    dtype: str
    order: Literal["C", "F"]
    format: Literal["raw", "npy"]
    size: int
    sha256: str | None
    etag: str | None
    complete: bool
    received: list[tuple[int, int]]
    created: datetime
    links: list[Link]


class MatrixList(BaseModel):
    """A page of matrices, newest first."""

    matrices: list[MatrixInfo]
    links: list[Link]


class FileInfo(BaseModel):
    """A .npy file that the server can reach; size and times tell a client whether it is its own."""

    path: str
    shape: tuple[int, int]
    dtype: str
    size: int
    mtime_ns: int
    inode: int


def iso(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def link(href: str, rel: str, media_type: str = "application/json") -> dict[str, Any]:
    """Return one link."""
    return {"href": href, "rel": rel, "type": media_type, "title": None}


def status_info(job: Job) -> dict[str, Any]:
    """Return a job as a `StatusInfo` document."""
    at = f"/v1/jobs/{job.id}"
    links = [link(at, "self"), link(f"{at}/events", "monitor", "text/event-stream"),
             link(f"{at}/log", "log", "text/plain")]  # fmt: skip
    if job.status == "successful":
        links.append(link(f"{at}/results", "http://www.opengis.net/def/rel/ogc/1.0/results"))
    percent = 100.0 if job.status == "successful" else (job.progress or {}).get("percent", 0.0)
    return {
        "jobID": job.id, "processID": job.process, "type": "process", "name": job.name,
        "status": job.status, "phase": job.phase, "message": job.message,
        "created": iso(job.created), "started": iso(job.started), "finished": iso(job.finished),
        "updated": iso(job.updated), "progress": min(100, int(percent)),
        "priority": job.priority, "attempt": job.fence, "cancelRequested": job.cancel,
        "inputs": job.inputs, "detail": job.progress, "plan": job.plan, "report": job.report,
        "error": job.error, "output": job.output,
        "needs": {"host_bytes": job.host_bytes, "disk_bytes": job.disk_bytes,
                  "devices": job.devices},
        "links": links,
    }  # fmt: skip


def matrix_info(matrix: StoredMatrix, received: list[tuple[int, int]]) -> dict[str, Any]:
    """Return a matrix as a `MatrixInfo` document."""
    at = f"/v1/matrices/{matrix.id}"
    whole = matrix.completed is not None
    return {
        "id": matrix.id, "name": matrix.name, "shape": [matrix.rows, matrix.cols],
        "dtype": matrix.dtype, "order": matrix.order, "format": matrix.format,
        "size": matrix.size, "sha256": matrix.sha256, "etag": matrix.etag, "complete": whole,
        "received": [[0, matrix.size]] if whole and matrix.size else [list(r) for r in received],
        "created": iso(matrix.created),
        "links": [link(at, "self"), link(f"{at}/content", "content", "application/octet-stream")],
    }  # fmt: skip
