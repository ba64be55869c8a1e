"""Fingerprints of the files of input matrices, taken before and after a run."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.errors import MatrixIOError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import walk
from hdgemm.matrices.location import Location
from hdgemm.matrices.objectstore import objects_state

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.matrices.files import BlockFile

#: `CLOCK_REALTIME_COARSE` of Linux, which Python's `time` does not name.
_COARSE_CLOCK: Final = 5
#: A time of a file that is further ahead comes from another clock.
_LONGEST_TICK_NS: Final = 10_000_000
_REPLACED: Final = "was replaced by another file"


class FileState(NamedTuple):
    """Bytes and latest modification (ns) of a file or several, and device and inode of the file or
    folder, or of each of the files.

    `ctime_ns` is the latest change of any kind, and `attributes` are sums of what besides content
    changes it: links, modes and owners, and whether the file has its name.
    """

    size: int
    mtime_ns: int
    identity: tuple[int, ...]
    ctime_ns: int = 0
    attributes: tuple[int, ...] = ()

    def changed(self, now: FileState | None) -> bool:
        """Return whether content may have changed since.

        The time of modification can be set back after a file is written, its ctime cannot. Where
        links, mode or owner have changed, these explain another ctime.
        """
        if now is None or self[:3] != now[:3]:
            return True
        return self.attributes == now.attributes and self.ctime_ns != now.ctime_ns


def file_state(home: Path) -> FileState:
    """Return the present state of a file or folder."""
    status = home.stat()
    if not home.is_dir():
        return _joined([status])
    files = [place / name for place, names in walk(home) for name in names]
    return _joined([path.stat() for path in files])._replace(identity=_identity(status))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _joined(states: Sequence[os.stat_result]) -> FileState:
    size = modified = changed = 0
    identity: list[int] = []
    kinds: list[tuple[int, ...]] = []
    for state in states:
        size += state.st_size
        modified, changed = max(modified, state.st_mtime_ns), max(changed, state.st_ctime_ns)
        identity += _identity(state)
        kinds.append((state.st_nlink, state.st_mode, state.st_uid, state.st_gid))
    attributes = tuple(map(sum, zip(*kinds, strict=True)))
    return FileState(size, modified, tuple(identity), changed, attributes)


def file_of(matrix: Matrix) -> Path | None:
    """Return the one regular file in which all elements have fixed places; None without such."""
    return matrix.path if isinstance(matrix, FileMatrix) and matrix.path.is_file() else None


def home_of(matrix: Matrix) -> Path | None:
    """Return the file or folder that holds all of a matrix; None where none does, or no more."""
    return matrix.home if matrix.home is not None and matrix.home.exists() else None


@contextmanager
def unchanged(inputs: Mapping[str, Operand], c: Matrix) -> Iterator[None]:
    """Check that the files of the inputs are the same after a run as before it, and that the file
    of `c` keeps its name, or `MatrixIOError`.

    Inputs in the file of `c`, which is written, are not checked.
    """
    written = _state(c)
    before = {letter: _state(operand.matrix) for letter, operand in inputs.items()}
    for state in before.values():
        if state is not None:
            _await_tick(state.ctime_ns)
    with keeps_name(c):
        yield
    for letter, state in before.items():
        matrix = inputs[letter].matrix
        if state is None or (written is not None and state.identity == written.identity):
            continue
        if state.changed(now := _state(matrix)):
            raise _mixed(letter, matrix, _difference(state, now))


@contextmanager
def opened_by_name(inputs: Mapping[str, Matrix]) -> Iterator[None]:
    """Raise `MatrixIOError` on leaving where the name of an input leads to another file.

    Other processes open the inputs by their names, several times; this one keeps its files open.
    """
    yield
    for letter, matrix in inputs.items():
        if (
            not isinstance(matrix, FileMatrix)
            or (now := _named(matrix.path)) == matrix.file.identity
        ):
            continue
        raise _mixed(letter, matrix, "was removed" if now is None else _REPLACED)


def _mixed(letter: str, matrix: Matrix, what: str) -> MatrixIOError:
    place = str(matrix.home or matrix.name)
    return MatrixIOError(
        f"{letter} ({place}) {what} during the run, so that the result may mix elements of both "
        "versions: compute it again",
        path=place,
        offset=0,
        length=0,
    )


def _await_tick(changed_ns: int) -> None:
    """Return when a further change of a file would get a later time than its last one.

    Linux takes times of files from a clock that advances by 1 to 10 ms: a file, or another one of
    its folder, that is written again within one tick leaves the latest time as it is.
    """
    if sys.platform == "linux":
        while 0 <= changed_ns - time.clock_gettime_ns(_COARSE_CLOCK) < _LONGEST_TICK_NS:
            time.sleep(0.0005)


@contextmanager
def keeps_name(matrix: Matrix) -> Iterator[None]:
    """Check that the file or folder of a matrix that is overwritten keeps its name during a run, or
    `MatrixIOError`: another one of that name has no result, or a part of it.
    """
    file = matrix.file if isinstance(matrix, FileMatrix) else None
    home = matrix.home
    named = None if home is None else _named(home)
    opened = named if file is None else file.identity
    yield
    if home is None or opened is None or named != opened or (now := _named(home)) == opened:
        return
    raise MatrixIOError(
        f"{home} {'is gone' if now is None else 'was replaced by another file'} during the run: "
        f"the result is {_whereabouts(file, opened)}, not in the one of that name now ({now})",
        path=str(home),
        offset=0,
        length=0,
        opened=opened,
        found=now,
    )


def _whereabouts(file: BlockFile | None, opened: tuple[int, int]) -> str:
    """Describe where the elements are that were written to a file or folder without its name."""
    if file is None:  # a store, whose library opens files by name when it needs them
        return f"in part where the name led to before (device and inode {opened})"
    names = file.status().st_nlink or "no"
    return (
        f"in the file that was opened (device and inode {opened}), which has {names} other name(s)"
    )


def _named(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file that a name leads to; None without one."""
    try:
        return _identity(path.stat())
    except OSError:
        return None


def _state(matrix: Matrix) -> FileState | None:
    if isinstance(matrix, FileMatrix):
        # The run reads the file that it opened; another file may have its name by now.
        state = _joined([matrix.file.status()])
        named = _named(matrix.path) == matrix.file.identity
        return state._replace(attributes=(*state.attributes, int(named)))
    place = matrix.opened_from[0] if matrix.opened_from is not None else None
    if isinstance(place, Location) and place.url:
        return FileState(*objects_state(place), (hash(place),))
    home = home_of(matrix)
    try:
        if matrix.files:
            return _joined([path.stat() for path in matrix.files])
        return None if home is None else file_state(home)
    except OSError:
        return None


def _difference(before: FileState, now: FileState | None) -> str:
    if now is None:
        return "was removed"
    if now.identity != before.identity:
        return _REPLACED
    if now.size != before.size:
        return f"changed its size from {before.size} to {now.size} bytes"
    if now.mtime_ns == before.mtime_ns:
        return "was modified, and its time of modification set back,"
    return "was modified"
