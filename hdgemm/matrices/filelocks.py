"""Locks of the elements of a matrix in a file: one run that overwrites it, processes that write.

The bytes of the elements are locked at offsets beyond the end of any file: once for the run,
which is one process, and once for the writers, which are several. Two views of a file that share
no rows can thus be overwritten at once. A lock belongs to the open file: it is released when the
file is closed, also by the end of a killed process, and is held by a stopped one. On NFS the server
keeps the locks; a machine that it has not heard of for a lease loses them, and its writes fail.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.matrices.filematrix import FileMatrix

#: Distances of the locked bytes from the elements; no file has so many bytes.
_RUN: Final = 1 << 61
_WRITERS: Final = 1 << 62
#: ``struct flock``: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("hhqqi0q")
#: Errors of a lock that another open file holds; others are of file systems without locks.
_HELD: Final = frozenset({errno.EAGAIN, errno.EACCES})
#: Longest wait for processes that still write, in seconds, and the time between two looks.
_WAIT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.02


@contextmanager
def overwriting_alone(matrix: FileMatrix) -> Iterator[None]:
    """Hold the lock of a matrix that a run overwrites; `InputError` while another run does.

    It is released at the end, not only with the file, which a forked child would keep open.
    """
    if not _set(matrix, fcntl.F_WRLCK, _RUN):
        raise InputError(
            f"another run is overwriting {matrix.path}; wait for it", path=str(matrix.path)
        )
    try:
        yield
    finally:
        _set(matrix, fcntl.F_UNLCK, _RUN)


def lock_for_writing(matrix: FileMatrix) -> None:
    """Note that this process writes to a matrix until its file is closed; others may, too."""
    _set(matrix, fcntl.F_RDLCK, _WRITERS)


def wait_for_writers(matrix: FileMatrix) -> None:
    """Wait until no other process writes to a matrix, a minute at most.

    Such a process belongs to an earlier run, whose client has ended before it.

    Raises
    ------
    InputError
        When one still does: it is stopped, perhaps, and writes its old elements when it goes on.
    """
    end = time.monotonic() + _WAIT_SECONDS
    while _written_elsewhere(matrix):
        if time.monotonic() >= end:
            raise InputError(
                f"a worker of an earlier run has {matrix.path} open to write and has not ended for "
                f"{_WAIT_SECONDS:.0f} s (is its process stopped?): end it, then give the same "
                "command",
                path=str(matrix.path),
            )
        time.sleep(_LOOK_SECONDS)


def _set(matrix: FileMatrix, kind: int, base: int) -> bool:
    """Set or release a lock; return whether no other open file prevents it."""
    if matrix.file.fileno() < 0:  # closed, and so unlocked
        return True
    try:
        fcntl.fcntl(matrix.file.fileno(), fcntl.F_OFD_SETLK, _request(matrix, kind, base))
    except OSError as error:
        # A file system without locks cannot tell two runs apart.
        return error.errno not in _HELD
    return True


def _written_elsewhere(matrix: FileMatrix) -> bool:
    request = _request(matrix, fcntl.F_WRLCK, _WRITERS)
    try:
        found = fcntl.fcntl(matrix.file.fileno(), fcntl.F_OFD_GETLK, request)
    except OSError:
        return False
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _request(matrix: FileMatrix, kind: int, base: int) -> bytes:
    nbytes = max(1, matrix.end - matrix.offset)
    return _FLOCK.pack(kind, 0, base + matrix.offset, nbytes, 0)
