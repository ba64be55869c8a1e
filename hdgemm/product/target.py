"""The target of a product: where C is written, and what it must not overlap."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open as open_stored, open_operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.aliasing import overlaps

if TYPE_CHECKING:
    from hdgemm.matrices.base import Matrix, Operand


def single(out: Any) -> Any:
    """Return `out`, also from a tuple of one, as NumPy's functions take it."""
    if not isinstance(out, tuple):
        return out
    if len(out) != 1:
        raise InputError(f"out must be one matrix or a tuple of one, got a tuple of {len(out)}")
    return out[0]


def is_location(x: Any) -> bool:
    """Say whether `x` names a file or an item of a store."""
    return isinstance(x, str | os.PathLike | Location)


def open_target(out: Any) -> Operand | None:
    """Open an `out` that exists already; a location is created when C is computed."""
    if out is None or is_location(out):
        return None
    return open_operand(out, what="out", writable=True)


def result_at(target: Any) -> Any:
    """Return a result as the caller gave it; a .npy file as a read-only memmap, a matrix at any
    other location as a stored matrix that is open for reading.

    The file is complete where it cannot be mapped: `MatrixIOError`.
    """
    if not is_location(target):
        return target
    where = parse_location(target)
    try:
        mapped = where.kind.map(where)
    except OSError as error:
        raise MatrixIOError(
            f"{where.path} is complete, but cannot be mapped into memory: {error}",
            path=str(where.path),
            offset=0,
            length=0,
        ) from error
    return open_stored(where) if mapped is None else mapped


def replaced_path(target: Location | None) -> pathlib.Path | None:
    """Return the file of a new matrix, or its folder in a store; None for an object store."""
    return None if target is None or target.url else target.kind.own_path(target)


def check_location(where: Location, a: Any, b: Any) -> None:
    """Refuse a wrong suffix, a name of an open file, and an item of a store that is an operand.

    Files are compared by `check_product`.
    """
    where.check_suffix()
    folder = pathlib.Path(os.path.realpath(where.path.parent))
    if folder.match("/proc/*/fd") and where.path.is_symlink():
        raise InputError(
            f"out is {where.path}, a name of an open file, which a new file does not get: give its "
            f"path, {where.path.readlink()}"
        )
    if where.kind.whole_file:
        return
    for operand, what in ((a, "a"), (b, "b")):
        if not is_location(operand):
            continue
        there = parse_location(operand)
        if there == where:
            raise InputError(f"out is {what} ({where}): write C under another name")
        if not where.kind.shared and there.path.exists() and there.path == where.path:
            raise InputError(
                f"{where.path} holds {what}, and HDF5 does not read and write one file at once: "
                "write C to another file"
            )


def check_no_operand(out: Any, *operands: Any) -> None:
    """Refuse the location of a result that is an operand's file or array, through links, too.

    Operands are stored matrices, or what a call was given: arrays are passed over, of factors in a
    tuple the first is taken.
    """
    out = single(out)
    path = replaced_path(parse_location(out)) if is_location(out) else None
    for each in operands:
        read = _read_place(each)
        if path is not None and read is not None and overlaps(path, read):
            name = read if isinstance(read, pathlib.Path) else read.name
            raise InputError(
                f"out is the file of an operand, {name}, which the result would replace: choose "
                "another out, or overwrite_a=True (--in-place) where the routine takes that"
            )


def _read_place(operand: Any) -> Matrix | pathlib.Path | None:
    """Return the matrix of an operand, or its file or folder where it is a location."""
    if isinstance(operand, tuple):
        return _read_place(operand[0]) if operand else None
    if isinstance(operand, StoredMatrix):
        return operand.operand.matrix
    return replaced_path(parse_location(operand)) if is_location(operand) else None
