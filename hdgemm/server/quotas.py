"""Room for a job or a matrix, in bytes: memory of workers, disk, a token's quota."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import Job, StoredMatrix, WorkerRow

if TYPE_CHECKING:
    from hdgemm.server.jobs import Reserved
    from hdgemm.server.settings import Settings
    from hdgemm.server.tokens import Account


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
    """Raise a 507 where an account may not keep `requested` bytes more.

    Results count wherever they lie, for as long as their job's record is kept.
    """
    if account.max_bytes is None:
        return
    kept = conn.execute(
        sa.select(sa.func.coalesce(sa.func.sum(StoredMatrix.size), 0)).where(
            StoredMatrix.owner == account.id
        )
    ).scalar_one()
    results = conn.execute(
        sa.select(sa.func.coalesce(sa.func.sum(Job.disk_bytes), 0)).where(
            Job.owner == account.id,
            Job.status.in_(("accepted", "running", "successful")),
        )
    ).scalar_one()
    used = int(kept) + int(results)
    if used + requested > account.max_bytes:
        raise ProblemError(
            507, "quota-exceeded",
            f"{requested} bytes asked for; {used} of this token's {account.max_bytes} are in use",
            requested=requested, used=used, limit=account.max_bytes,
        )  # fmt: skip
