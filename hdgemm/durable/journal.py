"""An append-only file of records that tells whole ones from torn ones.

A line is the CRC-32 of a JSON text in eight hexadecimal digits, a space, the text: a record, or
several that were added together. A crash can tear the last line only, since every line is made
durable before the next. A bad line that good ones follow was damaged later.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import threading
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.files import read_regular, space_advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Record = dict[str, Any]

_DIGITS: Final = 8
#: Ending of the names that journals have beside their outputs.
SUFFIX: Final = ".hdgemm-journal"
#: Beginning of a journal whose first record a crash has torn.
_TORN: Final = re.compile(rb"[0-9a-f]{0,8}\Z|[0-9a-f]{8} ")


class Journal:
    """An open journal, locked against other runs until it is closed; made where there is none.

    `records` are those found in it, in order; a torn tail is cut off. `damaged` are the numbers of
    the bad lines that good ones follow. Any thread may append.

    `held` are further locks of the run, which are released when it is closed.

    Raises `InputError` when it cannot be opened, is a file of another kind, or another run holds
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = ExitStack()
        self._appending = threading.Lock()
        self._fd = _open_locked(path, f"another run is at work with the journal {path}")
        try:
            with os.fdopen(os.dup(self._fd), "rb") as stream:
                content = stream.read()
            self.records, self.damaged, self._end = _parse(content)
            if not self.records:
                _refuse_other_files(path, content)
            if self._end < len(content):
                os.ftruncate(self._fd, self._end)
                os.fsync(self._fd)
        except InputError:
            os.close(self._fd)
            raise
        except OSError as error:
            os.close(self._fd)
            raise self._error("read", 0, 0, error) from error

    def append(self, records: Sequence[Record]) -> None:
        """Add records; return when they are durable, or raise `MatrixIOError`: the journal then
        ends where it ended before, or in a torn line.
        """
        if not records:
            return
        text = encode(records[0] if len(records) == 1 else {"records": list(records)})
        with self._appending:
            try:
                done = 0
                while done < len(text):
                    done += os.pwrite(self._fd, text[done:], self._end + done)
                os.fsync(self._fd)
            except OSError as error:
                raise self._error("append to", self._end, len(text), error) from error
            self._end += len(text)

    @property
    def empty(self) -> bool:
        """Whether it has no records."""
        return self._end == 0

    def clear(self) -> None:
        """Forget all records, durably."""
        try:
            os.ftruncate(self._fd, 0)
            os.fsync(self._fd)
        except OSError as error:
            raise self._error("empty", 0, self._end, error) from error
        self.records, self.damaged, self._end = [], [], 0

    def close(self) -> None:
        """Let other runs have it; without records it is removed, and its redo log."""
        if self._fd < 0:
            return
        try:
            if self.empty:
                redo_path(self.path).unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a child that was forked meanwhile shares it
            os.close(self._fd)
            self._fd = -1
            self.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _error(self, verb: str, offset: int, length: int, cause: OSError) -> MatrixIOError:
        return MatrixIOError(
            f"cannot {verb} the journal {self.path} at {offset}: {cause.strerror}"
            f"{space_advice(self.path, cause)}",
            path=str(self.path),
            offset=offset,
            length=length,
        )


def redo_path(journal: Path) -> Path:
    """Return the name of the redo log that goes with a journal."""
    return journal.with_name(journal.name + ".redo")


def read_journal(path: Path) -> tuple[list[Record], list[int]]:
    """Return the whole records of a journal and the numbers of its damaged lines, unchanged."""
    try:
        records, damaged, _ = _parse(read_regular(path))
    except OSError as error:
        raise InputError(f"cannot read the journal {path}: {error.strerror}") from error
    return records, damaged


def encode(record: Record) -> bytes:
    """Return a record's line, its newline included."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Record | None:
    """Return the record of a line without its newline, None where its checksum disagrees."""
    text = line[_DIGITS + 1 :]
    try:
        if int(line[:_DIGITS], 16) != zlib.crc32(text) or line[_DIGITS : _DIGITS + 1] != b" ":
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@contextmanager
def locked_name(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a journal that a run does not write; `InputError` with `busy` where another
    run holds it. A journal that is made for that is removed.
    """
    fd = _open_locked(path, busy)
    try:
        yield
    finally:
        if not os.fstat(fd).st_size:
            path.unlink(missing_ok=True)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _open_locked(path: Path, busy: str) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        where = f"in the folder {path.parent}" if path.name.endswith(SUFFIX) else str(path)
        raise InputError(
            f"cannot keep a journal {where}: {error.strerror}", path=str(path)
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError(f"the journal {path} is not a regular file", path=str(path))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise InputError(f"{busy}; wait for it", path=str(path)) from error
    if not os.fstat(fd).st_nlink:  # another run removed it before the lock was taken
        os.close(fd)
        return _open_locked(path, busy)
    return fd


def _refuse_other_files(path: Path, content: bytes) -> None:
    # After a power failure, a block that was not written may read as zeros.
    lost = path.name.endswith(SUFFIX) and content.startswith(bytes(_DIGITS))
    if not lost and not _TORN.match(content):
        raise InputError(
            f"{path} exists and is no journal: choose another name for the checkpoint",
            path=str(path),
        )


def _parse(content: bytes) -> tuple[list[Record], list[int], int]:
    """Return the records, the numbers of damaged lines, and where the last whole record ends."""
    records: list[Record] = []
    bad: list[int] = []
    damaged: list[int] = []
    at = end = 0
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        at += len(line) + 1
        record = decode(line)
        if record is None:
            bad.append(number)
            continue
        damaged, end = list(bad), at
        records += record.get("records", [record])
    return records, damaged, end
