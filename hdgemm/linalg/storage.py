"""Results of the calls: overwritten matrices, and files published when they are complete."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.durable.destination import Destination as DurablePlace
from hdgemm.durable.run import check_whole
from hdgemm.errors import InputError, InputTypeError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.checkpoint import SlabCheckpoint
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.draft import Draft
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.fingerprint import keeps_name
from hdgemm.matrices.layout import SUPPORTED
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open as open_stored
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix, create_scratch, is_stored
from hdgemm.product.aliasing import overlaps, same_elements
from hdgemm.product.arguments import check_shape
from hdgemm.product.target import check_location, is_location, result_at, single

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hdgemm.linalg.slab_journal import Command


@dataclass(frozen=True, slots=True)
class Destination:
    """The matrix that a result is stored in.

    Parameters
    ----------
    stored
        Opened for writing.
    given
        The array or matrix that the caller gets; None for a location.
    location
        The location that the caller gave; None without one.
    new
        It was made for this call: elements that are not stored are zero.
    checkpoint
        The durable run that stores it; None without one.
    companions
        Files beside it, which get their names after it.
    """

    stored: StoredMatrix
    given: Any = None
    location: Location | None = None
    new: bool = False
    checkpoint: SlabCheckpoint | None = None
    companions: CompanionFiles = field(default_factory=CompanionFiles)

    def result(self) -> Any:
        """Return what the caller gets: a .npy file as a read-only memmap, as `hdgemm.matmul`."""
        return self.given if self.location is None else result_at(self.location)


@contextmanager
def destination(
    out: Any,
    a: Any,
    source: StoredMatrix,
    *,
    order: str,
    overwrite_a: bool,
    dtype: np.dtype[Any] | None = None,
    shape: tuple[int, int] | None = None,
    command: Command | None = None,
) -> Iterator[Destination]:
    """Yield where a result goes; a new file gets its name on leaving without an error.

    Parameters
    ----------
    out
        As the caller gave it; None for a new array, or for `a` where `overwrite_a` allows that; a
        draft for a file that stays unpublished.
    a, source
        The operand as the caller gave it, and opened.
    order
        ``"F"`` or ``"C"``, for new arrays and .npy files.
    dtype, shape
        Of the result; None for those of the operand.
    command
        The durable run that this is a part of, if any.
    """
    shape = source.shape if shape is None else shape
    dtype = (source.dtype if dtype is None else dtype).newbyteorder("=")
    form = _Form(shape, dtype, order)
    # The companions are left last: the result has its name by then.
    with (
        CompanionFiles() as companions,
        _opened(single(out), a, source, form, overwrite_a, command) as target,
    ):
        yield replace(target, companions=companions)


class _Form(NamedTuple):
    """Shape, dtype and order of a result."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    order: str


@contextmanager
def _opened(
    out: Any, a: Any, source: StoredMatrix, form: _Form, overwrite_a: bool, command: Command | None
) -> Iterator[Destination]:
    shape, dtype, order = form
    if command is not None and command.checkpoint is not False:
        with _durable(command, out, a, source, form, overwrite_a) as durable:
            yield durable
    elif out is None and overwrite_a and takes_result(a):
        with (
            _open_writable(a, "a") as stored,
            _only_run(a, stored),
            keeps_name(stored.operand.matrix),
        ):
            check_whole(stored.operand)
            yield Destination(stored, a, parse_location(a) if is_location(a) else None)
    elif out is None:
        array = np.zeros(shape, dtype, order)  # type: ignore[call-overload]
        yield Destination(open_stored(array, "r+"), array, new=True)
    elif isinstance(out, Draft):
        stored = StoredMatrix(out.operand, writable=True)
        yield Destination(stored, stored, new=True)
    elif is_location(out):
        place = parse_location(out)
        check_location(place, a, None)
        order = order if place.format == "npy" else "C"
        sparse = command is not None and command.triangle
        with create_matrix(place, shape, dtype, order=order, sparse=sparse) as draft:
            yield Destination(StoredMatrix(draft.operand, writable=True), location=place, new=True)
            draft.publish()
    else:
        with _open_writable(out, "out") as stored, keeps_name(stored.operand.matrix):
            _check_out(stored, source, shape, dtype)
            yield Destination(stored, out)


@contextmanager
def _durable(
    command: Command, out: Any, a: Any, source: StoredMatrix, form: _Form, overwrite_a: bool
) -> Iterator[Destination]:
    """Yield where a durable run stores its result; it is published on leaving without an error."""
    shape, dtype, order = form
    if is_location(out):
        place = parse_location(out)
        check_location(place, a, None)
        aside = DurablePlace.aside(place, shape, dtype, source.operand)
        order = order if place.format == "npy" else "C"
        with _run(command, source, aside, order) as checkpoint:
            yield Destination(checkpoint.stored, None, place, new=True, checkpoint=checkpoint)
        return
    given = a if out is None and overwrite_a and takes_result(a) else out
    if given is None:
        raise InputError("checkpoint needs a result in a file: give out as a path; factorisations "
                         "also take overwrite_a=True with a file as a")  # fmt: skip
    with _open_writable(given, "a" if out is None else "out") as stored:
        _check_out(stored, source, shape, dtype)
        matrix = stored.operand.matrix
        updates = overlaps(matrix, source.operand.matrix)
        existing = DurablePlace.of_existing(stored.operand, updates=updates)
        with (
            _run(command, source, existing, order) as checkpoint,
            _only_run(given, stored),
            keeps_name(matrix),
        ):
            location = parse_location(given) if is_location(given) else None
            yield Destination(stored, given, location, checkpoint=checkpoint)


@contextmanager
def _run(
    command: Command, source: StoredMatrix, place: DurablePlace, order: str
) -> Iterator[SlabCheckpoint]:
    with SlabCheckpoint(command, source, place, order) as checkpoint:
        try:
            yield checkpoint
        except SingularMatrixError:
            if not checkpoint.destination.updates:
                checkpoint.discard()  # to go on would fail again
            raise
        checkpoint.finish()


@contextmanager
def _only_run(given: Any, stored: StoredMatrix) -> Iterator[None]:
    """Lock a .npy or raw file that is overwritten: two runs would factor each other's columns.

    Views of a file are not locked: runs may overwrite several at once.
    """
    matrix = stored.operand.matrix
    whole = is_location(given) and parse_location(given).format in ("npy", "raw")
    if not whole or not isinstance(matrix, FileMatrix):
        yield
        return
    try:
        fcntl.flock(matrix.file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another run is overwriting {matrix.path}; wait for it", path=str(matrix.path)
        ) from error
    except OSError:
        pass  # no locks on this file system
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(matrix.file.fileno(), fcntl.LOCK_UN)  # a forked child shares it


def _open_writable(x: Any, what: str) -> StoredMatrix:
    return StoredMatrix(open_operand(x, what=what, writable=True), writable=True)


def takes_result(a: Any) -> bool:
    """Say whether an operand that may be overwritten can hold the result."""
    if isinstance(a, np.ndarray):
        return a.flags.writeable and a.dtype.newbyteorder("=").name in SUPPORTED
    return is_location(a) or is_stored(a)


def _check_out(
    stored: StoredMatrix, source: StoredMatrix, shape: tuple[int, int], dtype: np.dtype[Any]
) -> None:
    check_shape(stored.shape, shape, "out")
    if not np.can_cast(dtype, stored.dtype, "safe"):
        raise InputTypeError(
            f"out has dtype {stored.dtype}, which cannot hold a result in {dtype}: pass an out of "
            f"{dtype}, or convert the operands first",
            found=str(stored.dtype), computed=str(dtype),
        )  # fmt: skip
    mine, other = stored.operand, source.operand
    if overlaps(mine.matrix, other.matrix) and not same_elements(mine, other):
        raise InputError(
            "out overlaps an operand without being the same matrix: choose another one"
        )


def check_apart(one: Destination, other: Destination) -> None:
    """Refuse two results in one place."""
    if (one.location is not None and one.location == other.location) or overlaps(
        one.stored.operand.matrix, other.stored.operand.matrix
    ):
        raise InputError("two results overlap: choose different places for out")


@contextmanager
def scratch_matrix(
    folder: Path | None, shape: tuple[int, int], dtype: np.dtype[Any]
) -> Iterator[StoredMatrix]:
    """Yield a column-major matrix in a file that is removed on leaving, or in memory."""
    if folder is None:
        yield open_stored(np.zeros(shape, dtype, "F"), "r+")
        return
    with create_scratch(folder, shape, dtype, order="F") as draft:
        yield StoredMatrix(draft.operand, writable=True)
