"""What room there is for a job or a matrix: memory of workers, disk, a token's quota; in bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hdgemm.server import jobs
from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import jobs as job_table
from hdgemm.server.tables import matrices, workers

if TYPE_CHECKING:
    from hdgemm.server.settings import Settings
    from hdgemm.server.tokens import Account


def largest_memory(conn: sa.Connection, devices: tuple[str, ...], settings: Settings) -> int:
    """Return the bytes of the largest worker that has these devices; while none is there, ours.

    Planned for more than any worker has, a job would wait for ever.
    """
    wanted = set(devices) - {"auto"}
    found = conn.execute(sa.select(workers.c.memory, workers.c.devices)).all()
    return max((row.memory for row in found if wanted <= set(row.devices)), default=settings.memory)


def _same_disk(path: str | None, folder: Path, settings: Settings) -> bool:
    theirs = Path(path).parent if path else settings.data_dir
    try:
        return theirs.stat().st_dev == folder.stat().st_dev
    except OSError:
        return False


def check_disk(conn: sa.Connection, folder: Path, requested: int, settings: Settings) -> None:
    """Raise a 507 with the numbers where a disk has no room for `requested` bytes more.

    Room that accepted jobs will need is not there any more.
    """
    reserved = sum(
        job.disk_bytes
        for job in jobs.outputs_in_flight(conn)
        if _same_disk(job.output["path"], folder, settings)
    )
    available = shutil.disk_usage(folder).free - reserved - settings.min_free_disk
    if requested > available:
        raise ProblemError(
            507, "disk-full", f"{requested} bytes of disk are needed, {max(0, available)} are free",
            requested=requested, available=max(0, available), missing=requested - available,
            reserved=reserved,
        )  # fmt: skip


def check_quota(conn: sa.Connection, account: Account, requested: int) -> None:
    """Raise a 507 where an account may not keep `requested` bytes more.

    Results count wherever they lie, for as long as their job's record is kept.
    """
    if account.max_bytes is None:
        return
    kept = conn.execute(
        sa.select(sa.func.coalesce(sa.func.sum(matrices.c.size), 0)).where(
            matrices.c.owner == account.id
        )
    ).scalar_one()
    results = conn.execute(
        sa.select(sa.func.coalesce(sa.func.sum(job_table.c.disk_bytes), 0)).where(
            job_table.c.owner == account.id,
            job_table.c.status.in_(("accepted", "running", "successful")),
        )
    ).scalar_one()
    used = int(kept) + int(results)
    if used + requested > account.max_bytes:
        raise ProblemError(
            507, "quota-exceeded",
            f"{requested} bytes asked for; {used} of this token's {account.max_bytes} are in use",
            requested=requested, used=used, limit=account.max_bytes,
        )  # fmt: skip
