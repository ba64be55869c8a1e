"""An index with which an owner's jobs are listed by the time at which they ended."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the index."""
    op.create_index("jobs_owner_finished", "jobs", ["owner", "finished", "seq"])
