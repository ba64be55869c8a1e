"""One file, read and written at offsets, past the page cache where that is possible.

A span is cut at 4096-byte boundaries. Its aligned interior goes to the disk by O_DIRECT; its
ragged edges, less than a block each, go through the page cache. The two meet coherently: a block
is never written both ways at once, because a direct write covers whole blocks of one span and an
edge shares its block only with other edges; two edges in one block are merged by the page cache,
under the kernel's inode lock; and a direct read first writes back what the page cache holds.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.transfer import ALIGNMENT, SHORT, address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

#: Held while the header of a .npy file is parsed, here or by NumPy: CPython 3.11 counts the
#: recursion of `ast` for all threads together, and raises SystemError where two parse at once.
PARSING: Final = threading.Lock()
# A child that is forked meanwhile would wait for a thread that it does not have.
os.register_at_fork(
    before=PARSING.acquire, after_in_parent=PARSING.release, after_in_child=PARSING.release
)
#: Errors of file systems that do not support direct I/O, or not with this alignment.
_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: Rows that one request moves: IOV_MAX of Linux.
MOST_ROWS: Final = 1024
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def check_regular(path: Path) -> None:
    """Raise `InputError` unless `path` is a regular file, which opens without waiting."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    _check_kind(path, mode)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and nothing that could block; return its descriptor, or `InputError`."""
    check_regular(path)
    try:
        # The path may have become a FIFO by now.
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_open(path, error) from error
    try:
        _check_kind(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file, or `InputError`."""
    with os.fdopen(open_regular(path), "rb") as stream:
        return stream.read()


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise InputError(f"{path} is {kind}; a matrix is kept in a regular file", path=str(path))


def _cannot_open(path: Path, error: OSError | ValueError) -> InputError:
    cause = error.strerror if isinstance(error, OSError) else error
    return InputError(f"cannot open {path}: {cause}", path=str(path))


class BlockFile:
    """An existing regular file, opened for reading or also for writing; else `InputError`.

    `direct` bypasses the page cache where the file system can. `fd` is the descriptor of a file
    that is open already, and may have no name.
    """

    #: Before the file is open, as where the constructor is interrupted.
    _fd = _direct_fd = -1

    def __init__(
        self, path: Path, *, writable: bool = False, direct: bool = True, fd: int | None = None
    ) -> None:
        self.path = path
        mode = os.O_RDWR if writable else os.O_RDONLY
        self._fd = open_regular(path, mode) if fd is None else fd
        status = os.fstat(self._fd)
        self.identity = (status.st_dev, status.st_ino)
        # No read-ahead: an edge of a few bytes must not bring in its neighbourhood.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        name = path if fd is None else Path(f"/proc/self/fd/{fd}")
        self._direct_fd = self._open_direct(name, mode) if direct else -1

    def _open_direct(self, name: Path, mode: int) -> int:
        try:
            return os.open(name, mode | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return -1

    @property
    def direct(self) -> bool:
        """Whether aligned spans bypass the page cache."""
        return self._direct_fd >= 0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def size(self) -> int:
        """Return its size in bytes, now."""
        return self.status().st_size

    def status(self) -> os.stat_result:
        """Return size, time of modification and identity of the open file, whatever its name."""
        if self._fd < 0:
            raise self._closed()
        return os.fstat(self._fd)

    def in_place(self, offset: int, memory: NDArray[Any]) -> bool:
        """Return whether the span at `offset` moves to or from this memory without a bounce."""
        if self._direct_fd < 0 or memory.nbytes < SHORT:
            return True
        return (address(memory) - offset) % ALIGNMENT == 0

    def read(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Fill `memory` from the span at `offset`; raises `MatrixIOError`, also where the file ends
        within the span.
        """
        first, last = self._interior(offset, memory)
        done = first
        if first < last:
            done += self._request(os.preadv, offset + first, memory[first:last])
        self._read_cached(offset, memory[:first])
        self._read_cached(offset + done, memory[done:])

    def scattered(self, offset: int, memory: NDArray[Any]) -> bool:
        """Return whether direct requests can move many rows of `memory` each: they are contiguous
        in the file from `offset` on, apart in memory, and each is a number of whole blocks.
        """
        rows, cols = memory.shape
        blocks = offset, address(memory), cols * memory.itemsize, memory.strides[0]
        return (
            self.direct
            and rows * cols > 0
            and memory.strides[1] == memory.itemsize
            and memory.strides[0] > 0
            and not any(extent % ALIGNMENT for extent in blocks)
        )

    def read_rows(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Fill at most `MOST_ROWS` `scattered` rows from `offset` on, or raise as `read`."""
        self._move_rows(os.preadv, self._read_cached, offset, memory)

    def write_rows(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Store at most `MOST_ROWS` `scattered` rows from `offset` on, or raise as `write`."""
        self._move_rows(os.pwritev, self._write_cached, offset, memory)

    def _move_rows(
        self,
        call: Any,
        cached: Callable[[int, NDArray[np.uint8]], None],
        offset: int,
        memory: NDArray[np.uint8],
    ) -> None:
        done = self._request(call, offset, *_rows(memory))
        width = memory.shape[1]
        for i in range(done // width, len(memory)):
            moved = max(done - i * width, 0)
            cached(offset + i * width + moved, memory[i, moved:])

    def read_around(self, offset: int, nbytes: int, bounce: NDArray[np.uint8]) -> int:
        """Read a span into an aligned buffer; return where in the buffer it starts.

        The buffer holds two blocks more than `nbytes`.
        """
        start = offset % ALIGNMENT
        found = 0
        if self.direct:
            whole = -(-(start + nbytes) // ALIGNMENT) * ALIGNMENT
            found = self._request(os.preadv, offset - start, bounce[:whole])
        if found < start + nbytes:
            self._read_cached(offset, bounce[start : start + nbytes])
        return start

    def write(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Store `memory` at `offset`, or raise `MatrixIOError`; neighbouring spans may be written
        at once.
        """
        first, last = self._interior(offset, memory)
        done = first
        if first < last:
            done += self._request(os.pwritev, offset + first, memory[first:last])
        self._write_cached(offset, memory[:first])
        self._write_cached(offset + done, memory[done:])

    def flush(self) -> None:
        """Return when everything written is durable, and keep none of it in the page cache."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._error("make durable", 0, self.size(), error) from error
        if not self.direct:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def link(self, path: Path) -> None:
        """Give the file a name that no file has; raises OSError."""
        folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Relative to a folder, `os.link` follows the link that the descriptor is there.
            os.link(str(self._fd), path, src_dir_fd=folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the descriptors; closing twice is fine."""
        descriptors = self._fd, self._direct_fd
        self._fd = self._direct_fd = -1  # first: a run that fails in another thread reads it
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        # A call that fails while it opens its operands leaves none of them open.
        self.close()

    def _interior(self, offset: int, memory: NDArray[np.uint8]) -> tuple[int, int]:
        """Return the part of a span that can go directly, empty where none can."""
        if not self.direct or (address(memory) - offset) % ALIGNMENT:
            return 0, 0
        first, rest = -offset % ALIGNMENT, (offset + memory.size) % ALIGNMENT
        if memory.size < SHORT and (first or rest):
            return 0, 0
        return first, memory.size - rest

    def _request(self, call: Any, offset: int, *memory: memoryview | NDArray[np.uint8]) -> int:
        """Make one direct request; return the bytes moved, 0 when it must go another way."""
        try:
            moved: int = call(self._direct_fd, memory, offset)
        except OSError as error:
            if error.errno in _NOT_DIRECT:
                return 0
            verb = "read" if call is os.preadv else "write"
            raise self._error(verb, offset, sum(map(len, memory)), error) from error
        # The rest of a short request goes through the page cache, which reports the error.
        return moved

    def _read_cached(self, offset: int, memory: NDArray[np.uint8]) -> None:
        done = 0
        while done < memory.size:
            try:
                found = os.preadv(self._fd, [memory[done:].data], offset + done)
            except OSError as error:
                raise self._error("read", offset, memory.size, error) from error
            if found == 0:
                raise MatrixIOError(
                    f"{self.path} ends at byte {self.size()}, in the middle of a read of "
                    f"{memory.size} bytes at {offset}: was it cut short during the run?",
                    path=str(self.path),
                    offset=offset,
                    length=memory.size,
                )
            done += found
        self._drop(offset, memory.size)

    def _write_cached(self, offset: int, memory: NDArray[np.uint8]) -> None:
        done = 0
        while done < memory.size:
            try:
                done += os.pwritev(self._fd, [memory[done:].data], offset + done)
            except OSError as error:
                raise self._error("write", offset, memory.size, error) from error
        self._drop(offset, memory.size)

    def _drop(self, offset: int, nbytes: int) -> None:
        """Take data used once out of the page cache; dirty pages start on their way to disk."""
        if nbytes < ALIGNMENT:
            return
        try:
            os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._error("release", offset, nbytes, error) from error

    def _error(self, verb: str, offset: int, length: int, cause: OSError) -> MatrixIOError:
        if self._fd < 0:
            return self._closed(offset, length)
        return MatrixIOError(
            f"cannot {verb} {length} bytes at {offset} of {self.path}: {cause.strerror}"
            f"{space_advice(self.path, cause)}",
            path=str(self.path),
            offset=offset,
            length=length,
        )

    def _closed(self, offset: int = 0, length: int = 0) -> MatrixIOError:
        return MatrixIOError(
            f"{self.path} was closed during the run: close it when the run has ended",
            path=str(self.path),
            offset=offset,
            length=length,
        )


def _rows(memory: NDArray[np.uint8]) -> Iterator[memoryview]:
    """Yield the rows of `memory`: slices of one view take a tenth of the time of NumPy's rows."""
    width, pitch = memory.shape[1], memory.strides[0]
    end = (len(memory) - 1) * pitch + width
    span = np.lib.stride_tricks.as_strided(memory[0], (end,), (1,)).data
    return (span[first : first + width] for first in range(0, end, pitch))


def space_advice(path: Path, cause: OSError) -> str:
    """Return what to do where a disk was full, or a file too long, to append to a message."""
    if cause.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit == resource.RLIM_INFINITY:
            return "; the file system takes no file of this length: choose another one"
        return f"; the process has a file size limit of {limit} bytes: raise it (ulimit -f)"
    if cause.errno not in _DISK_FULL:
        return ""
    free = shutil.disk_usage(path.parent).free
    return f"; {free} bytes are free there: make room or choose another disk"


def sync(path: Path) -> None:
    """Return when a file's content, or the names in a folder, are durable; else `MatrixIOError`."""
    try:
        # A FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        message = f"cannot make {path} durable: {error.strerror}"
        raise MatrixIOError(message, path=str(path), offset=0, length=0) from error


def sync_file(path: Path) -> None:
    """Return when a file and its name are durable."""
    sync(path)
    sync(path.parent)


def walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder under a folder, also behind links, once, with the names of its files."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        status = Path(place).stat()
        identity = status.st_dev, status.st_ino
        if identity in seen:  # links lead back to it
            folders.clear()
            continue
        seen.add(identity)
        yield Path(place), names


def sync_tree(folder: Path) -> None:
    """Return when all files and names under a folder are durable."""
    for place, names in walk(folder):
        for name in names:
            sync(place / name)
        sync(place)
