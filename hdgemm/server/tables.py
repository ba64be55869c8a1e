"""The service's tables. Times are seconds since 1970 by the database's clock, sizes are bytes."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_id = sa.String(32)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", _id, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("revoked", sa.Double),
    sa.Column("max_jobs", sa.Integer),
    sa.Column("max_bytes", sa.BigInteger),
    sa.Column("rate", sa.Double),
)

matrices = sa.Table(
    "matrices",
    metadata,
    sa.Column("seq", _serial, primary_key=True),
    sa.Column("id", _id, nullable=False, unique=True),
    sa.Column("owner", _id, nullable=False),
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
    sqlite_autoincrement=True,
)

#: What of an upload is durable: bytes ``start`` to ``stop`` (excluded) of the content.
parts = sa.Table(
    "parts",
    metadata,
    sa.Column("id", _serial, primary_key=True),
    sa.Column("matrix", _id, sa.ForeignKey("matrices.id", ondelete="CASCADE"), nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("stop", sa.BigInteger, nullable=False),
    sa.Index("parts_matrix", "matrix"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("seq", _serial, primary_key=True),
    sa.Column("id", _id, nullable=False, unique=True),
    sa.Column("owner", _id, nullable=False),
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
    #: Written before the result is renamed in place, so that a publication is finished, not redone.
    sa.Column("publication", sa.JSON),
    sa.UniqueConstraint("owner", "idempotency_key", name="jobs_idempotency"),
    sa.Index("jobs_queue", "status", "priority", "seq"),
    sa.Index("jobs_owner", "owner", "seq"),
    sqlite_autoincrement=True,
)

#: Which matrices and jobs a job reads: ``kind`` is "matrix" or "job".
uses = sa.Table(
    "uses",
    metadata,
    sa.Column("job", _id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("kind", sa.String(8), primary_key=True),
    sa.Column("target", _id, primary_key=True),
    sa.Index("uses_target", "target"),
)

#: A plan's work units, apart from the job's row: they are large, and read once.
unit_maps = sa.Table(
    "unit_maps",
    metadata,
    sa.Column("job", _id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("units", sa.JSON, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _serial, primary_key=True),
    sa.Column("job", _id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Index("events_job", "job", "id"),
    sqlite_autoincrement=True,
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("memory", sa.BigInteger, nullable=False),
    sa.Column("devices", sa.JSON, nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
)
