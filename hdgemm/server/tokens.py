"""Who may: tokens, kept as hashes, with their limits."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.server.records import new_id
from hdgemm.server.tables import tokens


@dataclass(frozen=True, slots=True)
class Account:
    """Whose jobs and matrices a request is about, and its limits; None does not limit.

    Parameters
    ----------
    id
        Empty for the one local user of a server without tokens.
    max_jobs
        Unfinished jobs at a time.
    max_bytes
        Bytes of uploaded matrices and kept results.
    rate
        Requests a second.
    """

    id: str = ""
    name: str = "local"
    max_jobs: int | None = None
    max_bytes: int | None = None
    rate: float | None = None


def create(conn: sa.Connection, account: Account, now: float) -> str:
    """Make a token and return its secret, which is kept nowhere.

    32 random bytes need no slow hash: there is nothing to guess.

    Raises
    ------
    InputError
        When the name is taken.
    """
    taken = conn.execute(sa.select(tokens.c.id).where(tokens.c.name == account.name)).one_or_none()
    if taken is not None:
        raise InputError(f"there is a token named {account.name!r} already; choose another name")
    secret = "hdg_" + secrets.token_urlsafe(32)
    conn.execute(
        sa.insert(tokens).values(
            id=new_id(), name=account.name, digest=_digest(secret), created=now,
            max_jobs=account.max_jobs, max_bytes=account.max_bytes, rate=account.rate,
        )
    )  # fmt: skip
    return secret


def revoke(conn: sa.Connection, name: str, now: float) -> bool:
    """End a token; say whether there was one."""
    query = (
        sa.update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked.is_(None))
        .values(revoked=now)
    )
    return conn.execute(query).rowcount == 1


def names(conn: sa.Connection) -> list[tuple[str, float, float | None]]:
    """Return name, creation and revocation of every token."""
    query = sa.select(tokens.c.name, tokens.c.created, tokens.c.revoked).order_by(tokens.c.created)
    return [(row.name, row.created, row.revoked) for row in conn.execute(query)]


def required(conn: sa.Connection) -> bool:
    """Say whether any token was ever made: from then on nobody gets in without one."""
    return conn.execute(sa.select(tokens.c.id).limit(1)).one_or_none() is not None


def usable(conn: sa.Connection) -> bool:
    """Say whether there is a token that is not revoked."""
    query = sa.select(tokens.c.id).where(tokens.c.revoked.is_(None)).limit(1)
    return conn.execute(query).one_or_none() is not None


def authenticate(conn: sa.Connection, secret: str) -> Account | None:
    """Return the account behind a secret, or None."""
    digest = _digest(secret)
    query = sa.select(tokens).where(tokens.c.digest == digest, tokens.c.revoked.is_(None))
    row = conn.execute(query).one_or_none()
    if row is None or not hmac.compare_digest(row.digest, digest):
        return None
    return Account(row.id, row.name, row.max_jobs, row.max_bytes, row.rate)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
