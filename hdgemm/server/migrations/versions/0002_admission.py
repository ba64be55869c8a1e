"""Columns that admission queries in place of JSON; folders and highest priority of tokens."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_INDEXES = {
    "jobs_queue": ["status", "priority", "owner", "seq"],
    "jobs_reserved": ["status", "owner", "volume", "disk_bytes"],
    "jobs_output": ["output_path"],
    "jobs_finished": ["finished"],
}


def upgrade() -> None:
    """Add the columns and fill them for unfinished jobs."""
    op.add_column("tokens", sa.Column("max_priority", sa.Integer))
    op.add_column("tokens", sa.Column("read_roots", sa.JSON))
    op.add_column("tokens", sa.Column("write_roots", sa.JSON))
    op.add_column("jobs", sa.Column("response", sa.JSON))
    op.add_column("jobs", sa.Column("output_path", sa.Text))
    op.add_column("jobs", sa.Column("volume", sa.Text))
    _fill(op.get_bind())
    op.drop_index("jobs_queue", "jobs")
    for name, columns in _INDEXES.items():
        op.create_index(name, "jobs", columns)


def _fill(conn: sa.Connection) -> None:
    jobs = sa.table(
        "jobs", sa.column("seq"), sa.column("status"), sa.column("output", sa.JSON),
        sa.column("output_path"), sa.column("volume"),
    )  # fmt: skip
    waiting = sa.select(jobs.c.seq, jobs.c.output).where(jobs.c.status.in_(("accepted", "running")))
    for seq, output in conn.execute(waiting).all():
        path = (output or {}).get("path")
        if path:
            values = {"output_path": path, "volume": _mount_point(Path(path).parent)}
            conn.execute(sa.update(jobs).where(jobs.c.seq == seq).values(**values))


def _mount_point(folder: Path) -> str:
    while not os.path.ismount(folder):
        folder = folder.parent
    return str(folder)
