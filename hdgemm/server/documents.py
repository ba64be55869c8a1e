"""Response documents: their models for OpenAPI, and how rows of the tables become them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hdgemm.server.tables import Process, Status  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from hdgemm.server.tables import Job, StoredMatrix


class Link(BaseModel):
    """A link of an OGC document."""

    href: str
    rel: str
    type: str | None = None
    title: str | None = None


class StatusInfo(BaseModel):
    """OGC's status document, with members of hdgemm's own: phase, detail, plan, report, error."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "jobID": "0" * 32, "processID": "gemm", "type": "process", "name": "night run",
                    "status": "running", "phase": "multiplying", "message": "multiplying",
                    "created": "2026-11-21T10:00:00Z", "updated": "2026-11-21T10:00:09Z",
                    "started": "2026-11-21T10:00:01Z", "expires": None,
                    "progress": 41, "priority": 0, "attempt": 1, "cancelRequested": False,
                    "inputs": {},
                    "detail": {"percent": 41.2, "gflops": 139.0, "eta": 12.0, "limit": "mult1"},
                    "plan": None, "report": None, "error": None, "output": None,
                    "verification": None,
                    "needs": {"host_bytes": 400000000, "disk_bytes": 8000000, "devices": ["auto"]},
                    "links": [],
                }
            ]
        },
    )  # fmt: skip

    jobID: str = Field(validation_alias="id")  # noqa: N815 - OGC's spelling
    processID: Process = Field(validation_alias="process")  # noqa: N815
    type: Literal["process"] = "process"
    name: str
    status: Status
    phase: str
    message: str
    created: datetime
    started: datetime | None = Field(None, description="Absent before.")
    finished: datetime | None = Field(None, description="Absent before.")
    updated: datetime
    expires: datetime | None = Field(
        None, description="When a finished job is deleted with its kept result; null: never."
    )
    progress: int = Field(validation_alias="percent", ge=0, le=100)
    priority: int
    attempt: int = Field(validation_alias="fence", ge=0, description="How often it was started.")
    cancelRequested: bool = Field(validation_alias="cancel")  # noqa: N815
    inputs: dict[str, Any]
    detail: dict[str, Any] | None = Field(
        validation_alias="progress",
        description="Live: percent, steps, total_steps, gflops, eta in seconds, limiting stage.",
    )
    plan: dict[str, Any] | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None = Field(
        description="Of a failed job: origin (user or system), type, detail, numbers."
    )
    output: dict[str, Any] | None
    verification: dict[str, Any] | None = Field(
        None, description="Of the product's check, where one was asked for: passed, summary."
    )
    needs: dict[str, Any]
    phases: list[dict[str, Any]] | None = Field(
        None,
        description="In a job's own document: each phase, and the second since 1970 of its begin.",
    )
    links: list[Link] = []


class JobList(BaseModel):
    """A page of jobs, newest first; the link with rel "next" leads to the next page."""

    jobs: list[StatusInfo]
    links: list[Link]


class DryRun(BaseModel):
    """Plan and resources of a job that was not submitted."""

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


class ProblemDocument(BaseModel):
    """The body of every error; `type` is stable and meant for programs."""

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

    type: str = Field(description="A stable name of this kind of error, as a URI reference.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened this time, with the numbers.")


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


@dataclass(frozen=True)
class Documents:
    """Makes documents of rows.

    Parameters
    ----------
    prefix
        The path below which a proxy serves this service, like ``"/hdgemm"``; empty without one.
    retention_seconds
        How long finished jobs are kept; None: until they are deleted.
    """

    prefix: str = ""
    retention_seconds: float | None = None

    def link(self, path: str, rel: str, media_type: str = "application/json") -> dict[str, Any]:
        """Return a link to a path of this service."""
        return {"href": self.prefix + path, "rel": rel, "type": media_type}

    def status(self, job: Job, phases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Return a job as a `StatusInfo` document, with its phases where they are given."""
        at = f"/v1/jobs/{job.id}"
        links = [
            self.link(at, "self"),
            self.link(f"{at}/events", "monitor", "text/event-stream"),
            self.link(f"{at}/log", "log", "text/plain"),
        ]
        if job.status == "successful":
            results = "http://www.opengis.net/def/rel/ogc/1.0/results"
            links.append(self.link(f"{at}/results", results))
        document = StatusInfo.model_validate(job).model_dump(mode="json")
        for name in ("started", "finished"):
            if document[name] is None:
                del document[name]  # OGC's schema has no null
        if job.finished is not None and self.retention_seconds is not None:
            document["expires"] = iso(job.finished + self.retention_seconds)
        return {**document, "phases": phases, "links": links}

    def matrix(self, matrix: StoredMatrix, received: list[tuple[int, int]]) -> dict[str, Any]:
        """Return a matrix as a `MatrixInfo` document."""
        at = f"/v1/matrices/{matrix.id}"
        whole = matrix.completed is not None
        return {
            "id": matrix.id, "name": matrix.name, "shape": [matrix.rows, matrix.cols],
            "dtype": matrix.dtype, "order": matrix.order, "format": matrix.format,
            "size": matrix.size, "sha256": matrix.sha256, "etag": matrix.etag, "complete": whole,
            "received": [[0, matrix.size]] if whole and matrix.size else list(received),
            "created": iso(matrix.created),
            "links": [self.link(at, "self"),
                      self.link(f"{at}/content", "content", "application/octet-stream")],
        }  # fmt: skip
