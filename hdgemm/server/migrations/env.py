"""Runs the migrations on the connection that `Database.migrate` hands over."""

from __future__ import annotations

from alembic import context

from hdgemm.server.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
