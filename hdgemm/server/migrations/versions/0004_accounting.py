"""Times of deleted jobs; bytes that finished jobs keep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table; jobs that ended without a result keep no reserved bytes."""
    op.create_table(
        "past_runs",
        sa.Column("id", _SERIAL, primary_key=True),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("finished", sa.Double, nullable=False),
    )
    op.create_index("past_runs_finished", "past_runs", ["finished"])
    jobs = sa.table("jobs", sa.column("status"), sa.column("disk_bytes"))
    ended = jobs.c.status.in_(("failed", "dismissed"))
    op.execute(sa.update(jobs).where(ended).values(disk_bytes=0))
