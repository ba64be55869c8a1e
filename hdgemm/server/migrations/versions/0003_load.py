"""Samples of the workers' load."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "load_samples",
        sa.Column("id", _SERIAL, primary_key=True),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("taken", sa.Double, nullable=False),
        sa.Column("cpu", sa.Double, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("memory_used", "memory_total", "disk_used", "disk_total")
        ),
        sa.Column("devices", sa.JSON, nullable=False),
    )
    op.create_index("load_samples_taken", "load_samples", ["taken"])
