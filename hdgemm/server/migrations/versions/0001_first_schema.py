"""The first schema. No upgrade leads to it: new databases are made of the tables as they are."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing."""
