"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
import re
import resource
import secrets
import shlex
import shutil
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.factor_files import remove_described
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, space_advice, sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    #: First row, first column, rows and columns.
    Rectangle = tuple[int, int, int, int]

#: Errors of `posix_fallocate` on file systems that do not support it.
_NOT_OFFERED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

#: Bytes of the longest file that offsets can address.
_LONGEST_FILE: Final = (1 << 63) - 1

#: Bytes of the longest name of a file.
_LONGEST_NAME: Final = 255

M = TypeVar("M", bound=Matrix)


class Draft(Generic[M]):
    """A matrix being written aside: `publish` gives it its name `path`, `discard` removes it.

    As a context manager it is discarded on leaving, unless it was published before. Until then its
    name is `part`, in the same folder. With `trans`, `matrix`, which is row-major, is the transpose
    of the matrix that a reader of the file will see.
    """

    def __init__(self, path: Path, part: Path, matrix: M, *, trans: bool = False) -> None:
        self.path = path
        self.part = part
        self.matrix = matrix
        self.trans = trans
        self._open = True

    @property
    def operand(self) -> Operand:
        """The matrix as its reader will see it."""
        return Operand(self.matrix, self.trans)

    def publish(self) -> None:
        """Make it durable and give it its name, in place of any file that had it.

        Files of a factorisation beside the replaced file are removed: they do not belong to it.

        Raises
        ------
        MatrixIOError
            When the system refuses: before the rename, the draft is still there; after it, the
            file is complete, but its name may not be durable.
        """
        self.matrix.flush()
        with _freed_later(self.path):
            try:
                self._give_name()
            except OSError as error:
                raise MatrixIOError(
                    f"cannot rename {self.part} to {self.path}: {error}",
                    path=str(self.path),
                    offset=0,
                    length=0,
                ) from error
            self._open = False
            self.matrix.close()
            try:
                remove_described(self.path)
                self._settle()
            except OSError as error:
                raise MatrixIOError(
                    f"{self.path} is complete, but its name may not survive a power failure, or "
                    f"files of an earlier factorisation lie beside it: {error}",
                    path=str(self.path),
                    offset=0,
                    length=0,
                ) from error

    def _give_name(self) -> None:
        self.part.replace(self.path)

    def _settle(self) -> None:
        """Make the new name durable."""
        sync(self.path.parent)

    def _remove(self) -> None:
        self.part.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove it; nothing happens when it is published or discarded already."""
        if self._open:
            self._open = False
            self.matrix.close()
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class FileDraft(Draft[FileMatrix]):
    """A draft in one file, which may have no name until it is published."""

    def _give_name(self) -> None:
        give_name(self.matrix.file, self.path)

    def discard(self) -> None:
        """Remove it, as any draft; a thread frees its space."""
        if self._open:
            with _freed_later(Path(f"/proc/self/fd/{self.matrix.file.fileno()}")):
                super().discard()


#: Threads that free files which have lost their names.
_FREEING: Final[list[threading.Thread]] = []


@contextmanager
def _freed_later(path: Path) -> Iterator[None]:
    """Let a thread free the file that loses its name, or its last descriptor, meanwhile.

    To free thousands of extents takes ext4 seconds (measured: 10 s for a triangle of order 8192,
    30 s for a file of 34 GB that was reserved). They are freed when the last descriptor is closed.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # the name is new, or the file is closed
        yield
        return
    thread = threading.Thread(target=os.close, args=(fd,), name="hdgemm-free")
    try:
        yield
    finally:
        try:
            thread.start()
            _FREEING.append(thread)
        except RuntimeError:  # no more threads
            os.close(fd)


def give_name(file: BlockFile, path: Path) -> None:
    """Give a file that `reserve` made its name, in place of any file that had it."""
    if not file.path.exists():
        file.link(file.path)
    file.path.replace(path)


def wait_for_freed_space() -> None:
    """Wait until the files that were replaced or discarded are freed."""
    with suppress(IndexError):  # another thread may take the last one
        while True:
            _FREEING.pop().join()


def real_path(path: Path) -> Path:
    """Return the file that a link leads to: the link keeps its name, its target is replaced."""
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise InputError(f"cannot create {path}: its links lead in a loop", path=str(path))
    return found


def check_replaceable(path: Path) -> None:
    """Raise `InputError` where a path exists and is not a file."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a file; choose another name", path=str(path))


def aside(path: Path, mark: int | None = None) -> Path:
    """Return an unused name in the same folder, of a length that file systems take; with a `mark`
    of 32 bits, the same name each time.
    """
    mark = secrets.randbits(32) if mark is None else mark
    suffix = f".{mark:08x}.part"
    name = os.fsencode(path.name)[: _LONGEST_NAME - 1 - len(suffix)].decode(errors="ignore")
    # A locale without UTF-8 has another text for these bytes.
    return path.with_name(f".{os.fsdecode(name.encode())}{suffix}")


def final_name(name: str) -> str:
    """Return the name, perhaps cut, from which `aside` made a name; any other name itself."""
    made = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.part", name)
    return name if made is None else made[1]


def reserve(
    path: Path, header: bytes, nbytes: int, part: Path | None = None, *, sparse: bool = False
) -> BlockFile:
    """Create a file aside that begins with `header` and has space for `nbytes`, or leave nothing.

    `part` is its name, where that must be known later; a file of that name is removed. Without, the
    file has no name where the file system can do that: even a killed process leaves nothing of it.
    A `sparse` file has its length only; `allocate_rectangles` takes space for parts of it.

    Raises `InputError` when nothing can be created there, `no_space` when the space is missing.
    """
    wait_for_freed_space()
    try:
        check_replaceable(path)
        fd, part = _create(path, part)
    except FileNotFoundError as error:
        raise no_folder(path) from error
    except OSError as error:
        raise InputError(f"cannot create {path}: {error.strerror}", path=str(path)) from error
    try:
        if sparse:
            _check_length(nbytes)
            os.ftruncate(fd, nbytes)
        else:
            allocate(fd, 0, nbytes)
        os.pwrite(fd, header, 0)
    except OSError as error:
        os.close(fd)
        part.unlink(missing_ok=True)
        raise no_space(path, nbytes, error) from error
    except BaseException:
        os.close(fd)
        part.unlink(missing_ok=True)
        raise
    return BlockFile(part, writable=True, fd=fd)


def _create(path: Path, part: Path | None) -> tuple[int, Path]:
    """Return a new file's descriptor, and the name that it has or may get."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if part is None:
        part = aside(path)
        try:
            Path("/proc/self/fd").stat()  # needed to name the file
            return os.open(path.parent, flags | os.O_TMPFILE, 0o666), part
        except OSError:
            pass  # no unnamed files here; other causes appear again below
    part.unlink(missing_ok=True)
    return os.open(part, flags | os.O_CREAT | os.O_EXCL, 0o666), part


def allocate(fd: int, offset: int, nbytes: int) -> None:
    """Take disk space for a part of an open file, so that writing there cannot run out of it.

    A file system that cannot promise space gets the file's length only.
    """
    _check_length(offset + nbytes)
    try:
        os.posix_fallocate(fd, offset, nbytes)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        _check_free(fd, nbytes)
        os.ftruncate(fd, max(os.fstat(fd).st_size, offset + nbytes))


def _check_length(nbytes: int) -> None:
    """Refuse a length that Python cannot hand to the system, as the system does longer ones."""
    if nbytes > _LONGEST_FILE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _check_free(fd: int, nbytes: int) -> None:
    status = os.fstatvfs(fd)
    if nbytes > status.f_bavail * status.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def allocate_rectangles(path: Path, matrix: FileMatrix, rects: Sequence[Rectangle]) -> None:
    """Take disk space for rectangles of a sparse file, row by row; raises `no_space`.

    `path` is the name that the file gets when it is complete.
    """
    itemsize, fd = matrix.dtype.itemsize, matrix.file.fileno()
    total = sum(rows * cols for _, _, rows, cols in rects) * itemsize
    try:
        _check_free(fd, total)
        for top, col, rows, cols in rects:
            for row in range(top, top + rows):
                allocate(fd, matrix.offset + row * matrix.pitch + col * itemsize, cols * itemsize)
    except OSError as error:
        raise no_space(path, total, error) from error


def require_space(path: Path, nbytes: int) -> None:
    """Raise unless `nbytes` are free on the disk of `path`, and one file may be so long.

    For stores that would find out by filling the disk, or in the middle of a change to a file.
    Raises `InputError` when the folder does not exist, `no_space` when the space is missing.
    """
    if not path.parent.is_dir():
        raise no_folder(path)
    wait_for_freed_space()
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    code = errno.ENOSPC if nbytes > shutil.disk_usage(path.parent).free else 0
    if limit != resource.RLIM_INFINITY and nbytes > limit:
        code = errno.EFBIG
    if code:
        raise no_space(path, nbytes, OSError(code, os.strerror(code)))


def no_folder(path: Path) -> InputError:
    """Make the error of a file in a folder that does not exist."""
    return InputError(f"cannot create {path}: {missing_folder(path.parent)}", path=str(path))


def missing_folder(folder: Path) -> str:
    """Say that a folder does not exist, and how to create it."""
    return f"there is no folder {folder}; create it: mkdir -p {shlex.quote(str(folder))}"


def no_space(path: Path, nbytes: int, cause: OSError) -> MatrixIOError:
    """Make the error that says how much was requested and how much is free."""
    available = shutil.disk_usage(path.parent).free
    return MatrixIOError(
        f"cannot reserve {nbytes} bytes for {path}: {cause.strerror}{space_advice(path, cause)}",
        path=str(path),
        offset=0,
        length=nbytes,
        requested=nbytes,
        available=available,
        missing=max(0, nbytes - available),
    )
