"""One engine for SQLite and PostgreSQL: reading and writing transactions, clock, migrations."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa

from hdgemm.errors import InputError, missing_extra
from hdgemm.server.permissions import check_apart, open_private
from hdgemm.server.problems import is_full
from hdgemm.server.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from hdgemm.server.settings import Settings

# Alembic logs each start at INFO.
logging.getLogger("alembic").setLevel(logging.WARNING)
Result = TypeVar("Result")
#: Bytes that `DiskReserve` holds back.
_RESERVE: Final = 8 << 20
#: The last revision of `migrations`, which made the schema of `tables`.
REVISION: Final = "0005"
#: The table with Alembic's record of the revision.
_VERSIONS: Final = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)
_MIGRATION_LOCK = 0x68_64_67_65
_QUEUE_LOCK = 0x68_64_67_66


class DiskReserve:
    """A file that holds disk space back for deletions: they, too, make the database's log grow.

    The server and the worker beside it share the file; its lock keeps the one from taking the space
    that the other has just freed for a deletion.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fill()

    def fill(self) -> None:
        """Take the space, as far as there is any."""
        with suppress(OSError), self._locked() as fd:
            _allocate(fd)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free the space for the block; take it again afterwards."""
        with self._locked() as fd:
            os.ftruncate(fd, 0)
            try:
                yield
            finally:
                _allocate(fd)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)


def _allocate(fd: int) -> None:
    """Let the file of a reserve grow to its whole size, or to the largest part that has space."""
    held, disk = os.fstat(fd).st_size, os.fstatvfs(fd)
    for size in (_RESERVE, _RESERVE // 2, _RESERVE // 4, _RESERVE // 8):
        if held < size <= held + disk.f_bavail * disk.f_frsize:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError:
                os.ftruncate(fd, held)
            else:
                return


class Database:
    """The service's database.

    SQLite writes take the write lock at their start (``BEGIN IMMEDIATE``), so that a transaction
    that read first never fails at its first write; synchronous=FULL makes a commit survive a
    power cut as well as a SIGKILL.
    """

    def __init__(
        self, url: str, reserve: DiskReserve | None = None, lock: IO[bytes] | None = None
    ) -> None:
        self._reserve, self._lock = reserve, lock
        self.is_sqlite = url.startswith("sqlite")
        if url.startswith("postgresql://"):
            url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        if self.is_sqlite:
            self.engine = sa.create_engine(url, pool_size=16, max_overflow=48, pool_timeout=10)
            sa.event.listen(self.engine, "connect", _configure_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = sa.create_engine(
                url, pool_size=8, max_overflow=24, pool_timeout=10, pool_pre_ping=True,
                connect_args={
                    "connect_timeout": 5,
                    "tcp_user_timeout": 10_000,
                    "options": "-c lock_timeout=15s -c idle_in_transaction_session_timeout=30s",
                },
            )  # fmt: skip
        self._writer = self.engine.execution_options(writes=True)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction that only reads."""
        return self.engine.begin()

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction that writes; it commits when the block ends without an error."""
        return self._writer.begin()

    @contextmanager
    def queue(self) -> Iterator[sa.Connection]:
        """Open a writing transaction that no other `queue` transaction overlaps."""
        with self.write() as conn:
            if not self.is_sqlite:
                conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_QUEUE_LOCK)))
            yield conn

    def with_reserve(self, delete: Callable[[], Result]) -> Result:
        """Run a deletion; where the disk is full, again with the space held back for it."""
        try:
            return delete()
        except sa.exc.OperationalError as error:
            if self._reserve is None or not is_full(error):
                raise
        with self._reserve.released():
            return delete()

    def fill_reserve(self) -> None:
        """Take the space held back for deletions again, where it was freed or never there."""
        if self._reserve is not None:
            self._reserve.fill()

    def now(self, conn: sa.Connection) -> float:
        """Return the time by the one clock that all machines see."""
        if self.is_sqlite:
            return time.time()
        epoch = sa.select(sa.extract("epoch", sa.func.clock_timestamp()))
        return float(conn.execute(epoch).scalar_one())

    def migrate(self, lock_file: Path) -> None:
        """Make the tables, or upgrade older ones; several processes may call this at once."""
        with open_private(lock_file) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.write() as conn:
                if not self.is_sqlite:
                    conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                if not sa.inspect(conn).has_table(_VERSIONS.name):
                    Table.metadata.create_all(conn)
                    _VERSIONS.create(conn)
                    conn.execute(_VERSIONS.insert().values(version_num=REVISION))
                elif conn.execute(sa.select(_VERSIONS.c.version_num)).scalar() != REVISION:
                    _upgrade(conn)

    def close(self) -> None:
        """Close all connections, and free the database for another server."""
        self.engine.dispose()
        if self._lock is not None:
            self._lock.close()


def _upgrade(conn: sa.Connection) -> None:
    """Run the migrations; Alembic takes a while to import, and only older schemas need it."""
    import alembic.command
    import alembic.config
    from alembic.util import CommandError

    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = conn
    try:
        alembic.command.upgrade(config, "head")
    except CommandError as error:
        raise InputError(f"cannot upgrade the database to schema {REVISION}: {error}") from error


def open_database(settings: Settings, *, serving: bool = False) -> Database:
    """Open the database of a service, with its folders and schema made.

    Raises `InputError` when the folders or the database cannot be opened; the message says why.
    `serving` marks it as a server's own, and refuses an SQLite database that another server has:
    limits of requests and streams, and caches, hold for one process.
    """
    try:
        file = sqlite_file(settings.url)
        own = [settings.data_dir, settings.matrices_dir, settings.data_dir / "jobs"]
        check_apart([*own, *([] if file is None else [file])], settings.roots)
        settings.make_folders()
        lock = None
        if file is not None and file.parent.is_dir():
            open_private(file).close()  # SQLite gives the files beside it the same permissions
            lock = _lock_server(file) if serving else None
        database = Database(settings.url, DiskReserve(settings.data_dir / "reserve"), lock)
        database.migrate(settings.data_dir / "migrate.lock")
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        if isinstance(error, ImportError):
            missing = missing_extra(error, f"the database {_shown(settings.url)}")
            if missing is not None:
                raise missing from error
        cause = str(getattr(error, "orig", None) or error).strip().splitlines() or ["no answer"]
        raise InputError(f"cannot open the database {_shown(settings.url)}: {cause[0]}") from error
    except OSError as error:
        raise InputError(
            f"cannot use the data folder {settings.data_dir}: {error.strerror}"
        ) from error
    return database


def _lock_server(database: Path) -> IO[bytes]:
    """Lock an SQLite database against other servers; the lock ends with the process."""
    lock = open_private(database.with_name(f"{database.name}.server"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = Path(lock.name).read_text(encoding="ascii", errors="replace").strip()
        lock.close()
        raise InputError(
            f"another server, process {holder or 'unknown'}, has the database {database}: stop it, "
            "or give another --data-dir; several servers need PostgreSQL"
        ) from error
    lock.truncate(0)
    lock.write(b"%d" % os.getpid())
    lock.flush()
    return lock


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database."""
    parsed = sa.make_url(url)
    named = parsed.get_backend_name() == "sqlite" and parsed.database not in {None, "", ":memory:"}
    return Path(parsed.database or "") if named else None


def _shown(url: str) -> str:
    """Return a URL without its password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "of HDGEMM_DATABASE_URL or --database-url"


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in (
        "busy_timeout = 15000",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(conn: sa.Connection) -> None:
    writes = conn.get_execution_options().get("writes", False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
