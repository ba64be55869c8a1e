"""Bearer tokens, kept as hashes, and the limits of their accounts."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.server.tables import DEFAULT_PRIORITY, UNFINISHED, Job, Token, new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.server.settings import Settings


@dataclass(frozen=True, slots=True)
class Account:
    """The owner of jobs and matrices, and its limits; None does not limit, unless said below.

    Parameters
    ----------
    id
        Empty for the one local user of a server without tokens.
    max_jobs
        Unfinished jobs at a time; None stands for the server's limit of a token.
    max_bytes
        Bytes of uploaded matrices and kept results.
    rate
        Requests a second.
    max_priority
        The highest priority that its jobs may ask for; None stands for the default priority.
        The local user of a server without tokens may ask for any.
    read_roots, write_roots
        Folders, within the server's roots, that its jobs may read files from, and write files to.
        None allows all of the server's roots.
    """

    id: str = ""
    name: str = "local"
    max_jobs: int | None = None
    max_bytes: int | None = None
    rate: float | None = None
    max_priority: int | None = None
    read_roots: list[str] | None = None
    write_roots: list[str] | None = None

    @property
    def highest_priority(self) -> int | None:
        """The highest priority that its jobs may ask for; None does not limit."""
        return DEFAULT_PRIORITY if self.max_priority is None and self.id else self.max_priority

    def most_jobs(self, settings: Settings) -> int | None:
        """Return how many unfinished jobs it may have; None does not limit."""
        return settings.max_queue_per_token if self.max_jobs is None and self.id else self.max_jobs

    def readable(self, roots: Sequence[Path]) -> tuple[Path, ...]:
        """Return the folders below the server's `roots` that its jobs may read."""
        if self.read_roots is None:
            return tuple(roots)
        return _within([*self.read_roots, *(self.write_roots or ())], roots)

    def writable(self, roots: Sequence[Path]) -> tuple[Path, ...]:
        """Return the folders below the server's `roots` that its jobs may write."""
        return tuple(roots) if self.write_roots is None else _within(self.write_roots, roots)


def _within(folders: Sequence[str], roots: Sequence[Path]) -> tuple[Path, ...]:
    found = dict.fromkeys(map(Path, folders))
    return tuple(path for path in found if any(path.is_relative_to(root) for root in roots))


_LIMITS = tuple(field.name for field in fields(Account) if field.name not in {"id", "name"})


def create(conn: sa.Connection, account: Account, now: float) -> str:
    """Make a token and return its secret, of which only the hash is kept.

    32 random bytes need no slow hash: there is nothing to guess.

    Raises `InputError` when the name is taken.
    """
    taken = conn.execute(sa.select(Token.id).where(Token.name == account.name)).one_or_none()
    if taken is not None:
        raise InputError(f"there is a token named {account.name!r} already; choose another name")
    secret = "hdg_" + secrets.token_urlsafe(32)
    limits = {name: getattr(account, name) for name in _LIMITS}
    conn.execute(
        sa.insert(Token).values(
            id=new_id(), name=account.name, digest=_digest(secret), created=now, **limits
        )
    )
    return secret


def revoke(conn: sa.Connection, name: str, now: float) -> bool:
    """End a token; say whether there was one."""
    query = sa.update(Token).where(Token.name == name, Token.revoked.is_(None)).values(revoked=now)
    return conn.execute(query).rowcount == 1


def delete(conn: sa.Connection, name: str) -> None:
    """Remove a revoked token; without any, a server for this machine alone is open again.

    Its jobs and matrices stay, and no other account can reach them.

    Raises `InputError` when there is no such token, and for one that is not revoked or has jobs
    that have not ended: its limits hold for them.
    """
    token = conn.execute(sa.select(Token).where(Token.name == name)).one_or_none()
    if token is None:
        raise InputError(f"there is no token named {name!r}; see 'hdgemm token list'")
    if token.revoked is None:
        raise InputError(f"token {name!r} is not revoked: revoke it first", name=name)
    own = sa.select(sa.func.count()).where(Job.owner == token.id, Job.status.in_(UNFINISHED))
    if unfinished := conn.execute(own).scalar_one():
        raise InputError(
            f"unfinished jobs of {name!r}: {unfinished}; delete the token when they have ended",
            name=name,
            unfinished=unfinished,
        )
    conn.execute(sa.delete(Token).where(Token.id == token.id))


def names(conn: sa.Connection) -> list[tuple[str, float, float | None]]:
    """Return name, creation and revocation of every token."""
    query = sa.select(Token.name, Token.created, Token.revoked).order_by(Token.created)
    return [(row.name, row.created, row.revoked) for row in conn.execute(query)]


def required(conn: sa.Connection) -> bool:
    """Say whether every request needs a token: there is one, which may be revoked.

    Revoking the last token keeps its server closed; only its deletion opens it.
    """
    return conn.execute(sa.select(Token.id).limit(1)).one_or_none() is not None


def usable(conn: sa.Connection) -> bool:
    """Say whether there is a token that is not revoked."""
    query = sa.select(Token.id).where(Token.revoked.is_(None)).limit(1)
    return conn.execute(query).one_or_none() is not None


def authenticate(conn: sa.Connection, secret: str) -> Account | None:
    """Return the account of a secret, or None."""
    digest = _digest(secret)
    query = sa.select(Token).where(Token.digest == digest, Token.revoked.is_(None))
    row = conn.execute(query).one_or_none()
    if row is None or not hmac.compare_digest(row.digest, digest):
        return None
    return Account(row.id, row.name, **{name: getattr(row, name) for name in _LIMITS})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
