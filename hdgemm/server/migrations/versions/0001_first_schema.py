"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    for create in (_tokens, _matrices, _parts, _jobs, _uses, _unit_maps, _events, _workers):
        create()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", _SERIAL, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("process", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
        sa.Column("started", sa.Double),
        sa.Column("finished", sa.Double),
        sa.Column("plan", sa.JSON),
        sa.Column("progress", sa.JSON),
        sa.Column("report", sa.JSON),
        sa.Column("error", sa.JSON),
        sa.Column("output", sa.JSON),
        sa.Column("host_bytes", sa.BigInteger, nullable=False),
        sa.Column("disk_bytes", sa.BigInteger, nullable=False),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("cancel", sa.Boolean, nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("lease_until", sa.Double),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("publication", sa.JSON),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("owner", "idempotency_key", name="jobs_idempotency"),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_owner", "jobs", ["owner", "seq"])
    op.create_index("jobs_queue", "jobs", ["status", "priority", "seq"])


def _matrices() -> None:
    op.create_table(
        "matrices",
        sa.Column("seq", _SERIAL, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("cols", sa.BigInteger, nullable=False),
        sa.Column("dtype", sa.String(20), nullable=False),
        sa.Column("order", sa.String(1), nullable=False),
        sa.Column("format", sa.String(8), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("offset", sa.Integer, nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("etag", sa.String(64)),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("completed", sa.Double),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("revoked", sa.Double),
        sa.Column("max_jobs", sa.Integer),
        sa.Column("max_bytes", sa.BigInteger),
        sa.Column("rate", sa.Double),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
        sa.UniqueConstraint("name"),
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_job", "events", ["job", "id"])


def _parts() -> None:
    op.create_table(
        "parts",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("matrix", sa.String(32), nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("stop", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["matrix"], ["matrices.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("parts_matrix", "parts", ["matrix"])


def _unit_maps() -> None:
    op.create_table(
        "unit_maps",
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("units", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job"),
    )


def _uses() -> None:
    op.create_table(
        "uses",
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("target", sa.String(32), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "kind", "target"),
    )
    op.create_index("uses_target", "uses", ["target"])
