"""Rows of the tables as frozen values."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import sqlalchemy as sa

Status = Literal["accepted", "running", "successful", "failed", "dismissed"]
Process = Literal["gemm", "verify", "profile"]
FINISHED: Final = ("successful", "failed", "dismissed")
UNFINISHED: Final = ("accepted", "running")


def new_id() -> str:
    """Return an identifier that was never used and cannot be guessed."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of `tables.jobs`; every field is explained there."""

    seq: int
    id: str
    owner: str
    process: Process
    name: str
    priority: int
    inputs: dict[str, Any]
    request_digest: str
    idempotency_key: str | None
    status: Status
    phase: str
    message: str
    created: float
    updated: float
    started: float | None
    finished: float | None
    plan: dict[str, Any] | None
    progress: dict[str, Any] | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None
    output: dict[str, Any] | None
    host_bytes: int
    disk_bytes: int
    devices: list[str]
    cancel: bool
    worker: str | None
    fence: int
    lease_until: float | None
    crashes: int
    publication: dict[str, Any] | None

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Job:
        """Make one of a row with all columns."""
        return cls(**dict(row._mapping))  # noqa: SLF001 - public, in spite of its name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """One row of `tables.matrices`: an uploaded matrix, whole once `completed` is set.

    `size` is the length of the content that is uploaded, `offset` where that content begins in the
    file (raw elements come after a header that the server wrote).
    """

    seq: int
    id: str
    owner: str
    name: str
    rows: int
    cols: int
    dtype: str
    order: Literal["C", "F"]
    format: Literal["raw", "npy"]
    size: int
    offset: int
    sha256: str | None
    etag: str | None
    created: float
    completed: float | None

    @classmethod
    def of(cls, row: sa.Row[Any]) -> StoredMatrix:
        """Make one of a row with all columns."""
        return cls(**dict(row._mapping))  # noqa: SLF001 - public, in spite of its name

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self.offset + self.size
