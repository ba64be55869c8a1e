"""Room for a job or a matrix, in bytes: memory of workers, disk, a token's quota."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import Job, Part, StoredMatrix, Token, WorkerRow

if TYPE_CHECKING:
    from hdgemm.server.jobs import Reserved
    from hdgemm.server.settings import Settings
    from hdgemm.server.tokens import Account

#: Bytes that a job's or a matrix's rows in the database, and the last block of its file, count for.
RECORD_BYTES: Final = 4096
#: Bytes that one range of an unfinished upload takes in the database.
_PART_BYTES: Final = 100


def largest_memory(conn: sa.Connection, devices: tuple[str, ...], settings: Settings) -> int:
    """Return the bytes of the largest worker that has these devices; the server's without one.

    A job that needs more would never start.
    """
    wanted = set(devices) - {"auto"}
    found = conn.execute(sa.select(WorkerRow.memory, WorkerRow.devices)).all()
    return max((row.memory for row in found if wanted <= set(row.devices)), default=settings.memory)


def check_disk(held: Reserved, folder: Path, requested: int, settings: Settings) -> None:
    """Raise a 507 with the numbers where a disk has no room for `requested` bytes more.

    Room that accepted jobs will need counts as used.
    """
    device = folder.stat().st_dev
    reserved = sum(
        nbytes
        for volume, nbytes in held.disk_bytes.items()
        if _device(Path(volume) if volume else settings.data_dir) == device
    )
    available = shutil.disk_usage(folder).free - reserved - settings.min_free_disk
    if requested > available:
        raise ProblemError(
            507, "disk-full", f"{requested} bytes of disk are needed, {max(0, available)} are free",
            requested=requested, available=max(0, available), missing=requested - available,
            reserved=reserved,
        )  # fmt: skip


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def check_quota(conn: sa.Connection, account: Account, requested: int) -> None:
    """Raise a 507 where an account may not keep a record with `requested` bytes more."""
    if account.max_bytes is None:
        return
    requested += RECORD_BYTES
    used = used_bytes(conn, account.id)
    if used + requested > account.max_bytes:
        raise ProblemError(
            507, "quota-exceeded",
            f"{requested} bytes asked for; {used} of this token's {account.max_bytes} are in use",
            requested=requested, used=used, limit=account.max_bytes,
        )  # fmt: skip


def used_bytes(conn: sa.Connection, owner: str) -> int:
    """Return the bytes that an owner keeps: matrices, jobs and their records.

    An unfinished job counts with the disk that it will need, a finished one with the bytes that it
    left: its result wherever it lies, until the job is deleted, log, trace and pictures.
    """
    stored = sa.select(
        sa.func.coalesce(sa.func.sum(StoredMatrix.size + StoredMatrix.offset + RECORD_BYTES), 0)
    ).where(StoredMatrix.owner == owner)
    kept = sa.select(sa.func.coalesce(sa.func.sum(Job.disk_bytes + RECORD_BYTES), 0)).where(
        Job.owner == owner
    )
    parts = (
        sa.select(sa.func.count())
        .select_from(Part)
        .join(StoredMatrix, StoredMatrix.id == Part.matrix)
        .where(StoredMatrix.owner == owner)
    )
    matrices, jobs, ranges = (int(conn.execute(q).scalar_one()) for q in (stored, kept, parts))
    return matrices + jobs + _PART_BYTES * ranges


def free_bytes(conn: sa.Connection, owner: str) -> int | None:
    """Return the bytes that an owner may keep yet; None without a limit."""
    limit = conn.execute(sa.select(Token.max_bytes).where(Token.id == owner)).scalar()
    return None if limit is None else limit - used_bytes(conn, owner)
