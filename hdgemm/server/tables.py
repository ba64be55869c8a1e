"""The service's tables as mapped dataclasses.

Times are seconds since 1970 by the database's clock, sizes are bytes. A row read with
`sa.select(Table)` becomes an instance by `Table.of(row)`.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from hdgemm.routines.registry import commands

Status = Literal["accepted", "running", "successful", "failed", "dismissed"]
if TYPE_CHECKING:
    Process: TypeAlias = str
else:
    Process = Literal["gemm", *commands(), "verify", "profile", "linpack"]
FINISHED: Final = ("successful", "failed", "dismissed")
UNFINISHED: Final = ("accepted", "running")
#: Priority of jobs that ask for none.
DEFAULT_PRIORITY: Final = 0

_Serial = Annotated[
    int,
    mapped_column(sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
]
_Id = Annotated[str, mapped_column(sa.String(32))]
_JobKey = Annotated[str, mapped_column(sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"))]
_Digest = Annotated[str, mapped_column(sa.String(64))]
_Name = Annotated[str, mapped_column(sa.String(200))]
_Word = Annotated[str, mapped_column(sa.String(16))]
_Bytes = Annotated[int, mapped_column(sa.BigInteger)]
_Document = dict[str, Any]


def new_id() -> str:
    """Return a random identifier of 32 hexadecimal digits."""
    return secrets.token_hex(16)


class Table(MappedAsDataclass, DeclarativeBase, kw_only=True):
    """Base of all tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it once
        _Document: sa.JSON,
        list[str]: sa.JSON,
        list[list[int]]: sa.JSON,
        float: sa.Double,
    }

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Make an instance of a row with all columns."""
        return cls(**dict(row._mapping))  # noqa: SLF001 - public, in spite of its name


class Token(Table):
    """A bearer token and the limits of its account; None does not limit.

    `read_roots` and `write_roots` are the folders that its jobs may name files in; None stands for
    all roots of the server (tokens made before version 2 of the schema).
    """

    __tablename__ = "tokens"

    id: Mapped[_Id] = mapped_column(primary_key=True)
    name: Mapped[_Name] = mapped_column(unique=True)
    digest: Mapped[_Digest] = mapped_column(unique=True)
    created: Mapped[float]
    revoked: Mapped[float | None]
    max_jobs: Mapped[int | None]
    max_bytes: Mapped[_Bytes | None]
    rate: Mapped[float | None]
    max_priority: Mapped[int | None]
    read_roots: Mapped[list[str] | None]
    write_roots: Mapped[list[str] | None]


class StoredMatrix(Table):
    """An uploaded matrix, whole once `completed` is set.

    `size` is the length of the content that is uploaded, `offset` where that content begins in the
    file (raw elements follow a header that the server wrote).
    """

    __tablename__ = "matrices"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012

    seq: Mapped[_Serial]
    id: Mapped[_Id] = mapped_column(unique=True)
    owner: Mapped[_Id]
    name: Mapped[_Name]
    rows: Mapped[_Bytes]
    cols: Mapped[_Bytes]
    dtype: Mapped[str] = mapped_column(sa.String(20))
    order: Mapped[Literal["C", "F"]] = mapped_column(sa.String(1))
    format: Mapped[Literal["raw", "npy"]] = mapped_column(sa.String(8))
    size: Mapped[_Bytes]
    offset: Mapped[int]
    sha256: Mapped[_Digest | None]
    etag: Mapped[_Digest | None]
    created: Mapped[float]
    completed: Mapped[float | None]

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self.offset + self.size


class Part(Table):
    """A durable range of an upload: bytes `start` to `stop` (excluded) of the content."""

    __tablename__ = "parts"
    __table_args__ = (sa.Index("parts_matrix", "matrix"),)

    id: Mapped[_Serial]
    matrix: Mapped[_Id] = mapped_column(sa.ForeignKey("matrices.id", ondelete="CASCADE"))
    start: Mapped[_Bytes]
    stop: Mapped[_Bytes]


class Job(Table):
    """A job: the request, its state and its outcome.

    `fence` counts the attempts; every write of an attempt names its number. `publication` is
    written before the result is renamed in place, so that a publication is finished, not redone.
    `response` says which outputs the results document holds, and whether it is OGC's "raw" one.
    `output_path` and `volume` repeat, for queries, where the result goes: its path where the
    request named one, and the mount point of its file system. `worker` has the job's process: while
    it runs, and after it has finished until its pictures are counted.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        sa.UniqueConstraint("owner", "idempotency_key", name="jobs_idempotency"),
        sa.Index("jobs_queue", "status", "priority", "owner", "seq"),
        sa.Index("jobs_owner", "owner", "seq"),
        sa.Index("jobs_reserved", "status", "owner", "volume", "disk_bytes"),
        sa.Index("jobs_output", "output_path"),
        sa.Index("jobs_finished", "finished"),
        sa.Index("jobs_owner_finished", "owner", "finished", "seq"),
        {"sqlite_autoincrement": True},
    )

    seq: Mapped[_Serial]
    id: Mapped[_Id] = mapped_column(unique=True)
    owner: Mapped[_Id]
    process: Mapped[Process] = mapped_column(sa.String(16))
    name: Mapped[_Name]
    priority: Mapped[int]
    inputs: Mapped[_Document]
    request_digest: Mapped[_Digest]
    idempotency_key: Mapped[_Name | None]
    status: Mapped[Status] = mapped_column(sa.String(16))
    phase: Mapped[str] = mapped_column(sa.String(32))
    message: Mapped[str] = mapped_column(sa.Text)
    created: Mapped[float]
    updated: Mapped[float]
    started: Mapped[float | None]
    finished: Mapped[float | None]
    plan: Mapped[_Document | None]
    progress: Mapped[_Document | None]
    report: Mapped[_Document | None]
    error: Mapped[_Document | None]
    output: Mapped[_Document | None]
    host_bytes: Mapped[_Bytes]
    disk_bytes: Mapped[_Bytes]
    devices: Mapped[list[str]]
    cancel: Mapped[bool]
    worker: Mapped[_Name | None]
    fence: Mapped[int]
    lease_until: Mapped[float | None]
    crashes: Mapped[int]
    publication: Mapped[_Document | None]
    response: Mapped[_Document | None]
    output_path: Mapped[str | None] = mapped_column(sa.Text)
    volume: Mapped[str | None] = mapped_column(sa.Text)

    @property
    def percent(self) -> int:
        """Progress, 0 to 100."""
        if self.status == "successful":
            return 100
        return min(100, int((self.progress or {}).get("percent", 0.0)))

    @property
    def is_drawing(self) -> bool:
        """Whether it has finished, and its pictures are not counted yet."""
        return self.finished is not None and self.worker is not None

    @property
    def verification(self) -> dict[str, Any] | None:
        """Outcome of the check of its product, or of the product that it is the check of."""
        report = self.report or {}
        return (report or None) if self.process == "verify" else report.get("verification")

    @property
    def needs(self) -> dict[str, Any]:
        """The resources of the job while it runs."""
        return {name: getattr(self, name) for name in ("host_bytes", "disk_bytes", "devices")}


class PastRun(Table):
    """Owner, start and end of a deleted job, for fair share; kept for an hour after its end."""

    __tablename__ = "past_runs"
    __table_args__ = (sa.Index("past_runs_finished", "finished"),)

    id: Mapped[_Serial]
    owner: Mapped[_Id]
    started: Mapped[float]
    finished: Mapped[float]


class Use(Table):
    """A matrix or another job's result that a job reads: `kind` is "matrix" or "job"."""

    __tablename__ = "uses"
    __table_args__ = (sa.Index("uses_target", "target"),)

    job: Mapped[_JobKey] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(8), primary_key=True)
    target: Mapped[_Id] = mapped_column(primary_key=True)


class UnitMap(Table):
    """A plan's work units, apart from the job's row: they are large, and read once."""

    __tablename__ = "unit_maps"

    job: Mapped[_JobKey] = mapped_column(primary_key=True)
    units: Mapped[list[list[int]]]


class JobEvent(Table):
    """Something that happened to a job: `kind` is "status" or "progress"."""

    __tablename__ = "events"
    __table_args__ = (sa.Index("events_job", "job", "id"), {"sqlite_autoincrement": True})

    id: Mapped[_Serial]
    job: Mapped[_JobKey]
    kind: Mapped[_Word]
    data: Mapped[_Document]
    created: Mapped[float]


class LoadSample(Table):
    """Load of one worker's machine at one time.

    `cpu` is in percent of all processors; `devices` has the share of the time since the sample
    before in which a job held each device.
    """

    __tablename__ = "load_samples"
    __table_args__ = (sa.Index("load_samples_taken", "taken"),)

    id: Mapped[_Serial]
    worker: Mapped[_Name]
    taken: Mapped[float]
    cpu: Mapped[float]
    memory_used: Mapped[_Bytes]
    memory_total: Mapped[_Bytes]
    disk_used: Mapped[_Bytes]
    disk_total: Mapped[_Bytes]
    devices: Mapped[_Document]


class WorkerRow(Table):
    """A running worker, as it registered."""

    __tablename__ = "workers"

    id: Mapped[_Name] = mapped_column(primary_key=True)
    host: Mapped[_Name]
    pid: Mapped[int]
    memory: Mapped[_Bytes]
    devices: Mapped[list[str]]
    started: Mapped[float]
    seen: Mapped[float]
