"""Factorisations in files: the matrix, the arrays beside it, and a description that joins them.

Beside ``LU.npy`` lie ``LU.piv.npy`` (LU) or ``LU.tau.npy`` (QR), and ``LU.factor.json`` with the
kind of the factorisation, samples of the matrix and checksums of the arrays.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from hdgemm.durable.fingerprint import differences, sampled
from hdgemm.errors import InputError
from hdgemm.linalg.slab_run import say_state
from hdgemm.linalg.storage import Destination
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open as open_stored
from hdgemm.product.aliasing import overlaps

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix

_FORMAT: Final = 1
#: Name of the description of a factor, after the factor's own.
_DESCRIPTION: Final = ".factor.json"
#: Bytes that suffice for the header of a .npy file, and for a description.
_HEADER: Final = 4096


class LUFactors(NamedTuple):
    """What `lu_factor` returns, and `lu_solve` takes, SciPy's too."""

    lu: Any
    piv: NDArray[np.int64]


class CholeskyFactor(NamedTuple):
    """What `cho_factor` returns, and `cho_solve` takes."""

    c: Any
    lower: bool


class QRFactors(NamedTuple):
    """Reflectors and their factors, as ``qr(mode="raw")`` returns them first."""

    qr: Any
    tau: NDArray[Any]


Factorisation: TypeAlias = LUFactors | CholeskyFactor | QRFactors


def beside(location: Location, suffix: str) -> Path | None:
    """Return the path of a file that belongs to a factor; None for an item of a store."""
    if location.format not in ("npy", "raw"):
        return None
    return location.path.resolve().with_suffix(suffix)


def _companion(target: Destination, suffix: str) -> Path | None:
    """Return the same for the factor of a run, which may be in no file."""
    return None if target.location is None else beside(target.location, suffix)


def reserve_beside(target: Destination, name: str, a: StoredMatrix, itemsize: int) -> None:
    """Take disk space for an array of min(m, n) elements beside a factor, before A is overwritten.

    Raises
    ------
    InputError
        When ``LU.piv.npy``, for the factors ``LU.npy``, is the file of A, or cannot be created.
    MatrixIOError
        When the space is missing.
    """
    path, description = _companion(target, f".{name}.npy"), _companion(target, _DESCRIPTION)
    if path is None or description is None:
        return
    if overlaps(path, a.operand.matrix):
        raise InputError(f"{path} is the matrix, and {name} is saved there: choose another out")
    target.companions.reserve(path, _HEADER + min(a.shape) * itemsize)
    target.companions.reserve(description, _HEADER)


def save_factors(
    target: Destination, kind: str, arrays: Mapping[str, NDArray[Any]], **facts: Any
) -> None:
    """Save what belongs to a factor beside it, for `open`; nothing for a factor in no file.

    The files get their names when the factor has its own.

    Parameters
    ----------
    arrays
        By the middle part of their names: ``"piv"`` for ``LU.piv.npy``.
    facts
        Plain values that are kept with the kind.
    """
    try:
        _save_beside(target, kind, arrays, facts)
    except BaseException as error:
        if not target.new:
            name = target.stored.operand.matrix.name
            say_state(error, f"{name} is factored, but the files that belong to it are not saved")
        raise


def _save_beside(
    target: Destination, kind: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    description = _companion(target, _DESCRIPTION)
    if description is None:
        return
    sums = {}
    for name, array in arrays.items():
        path = _companion(target, f".{name}.npy")
        if path is not None:
            target.companions.add(path, lambda stream, array=array: np.save(stream, array))  # type: ignore[misc]
            sums[name] = zlib.crc32(np.ascontiguousarray(array).tobytes())
    record = {
        "format": _FORMAT, "kind": kind, "facts": facts, "arrays": sums,
        "matrix": sampled(target.stored.operand),
    }  # fmt: skip
    text = json.dumps(record, indent=2).encode() + b"\n"
    target.companions.add(description, lambda stream: stream.write(text))


def open(  # noqa: A001 - its name within hdgemm.linalg, as hdgemm.open
    location: str | os.PathLike[str],
) -> Factorisation:
    """Open a factorisation that `lu_factor`, `cholesky`, `cho_factor` or `qr` has stored.

    Parameters
    ----------
    location
        Of the factor: a .npy or raw file.

    Returns
    -------
    named tuple
        ``(lu, piv)`` for `lu_solve`, ``(c, lower)`` for `cho_solve`, or ``(qr, tau)``. The matrix
        is a read-only memmap of a .npy file, a stored matrix of a raw file.

    Raises
    ------
    InputError
        When no description of a factorisation lies beside it, or the matrix or an array is no
        longer what was described.

    Examples
    --------
    >>> x = hdgemm.linalg.lu_solve(hdgemm.linalg.open("LU.npy"), b)
    """
    place = parse_location(location)
    with open_stored(place) as stored:
        now = sampled(stored.operand)
    record = _read(place)
    if found := differences(str(place.path), record["matrix"], now):
        raise InputError(
            f"{beside(place, _DESCRIPTION)} describes another factorisation: {'; '.join(found)}; "
            "factor the matrix again"
        )
    matrix = Destination(stored, location=place).result()
    if record["kind"] == "lu":
        return LUFactors(matrix, _array(place, "piv", record))
    if record["kind"] == "qr":
        return QRFactors(matrix, _array(place, "tau", record))
    return CholeskyFactor(matrix, bool(record["facts"]["lower"]))


def _read(place: Location) -> dict[str, Any]:
    path = beside(place, _DESCRIPTION)
    if path is None or not path.exists():
        raise InputError(
            f"{place} is not known as a factorisation: {path or 'a .factor.json file'}, which the "
            "factorisation writes beside a .npy or raw file, is not there"
        )
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = record["format"] == _FORMAT and record["kind"] in ("lu", "cholesky", "qr")
        known = known and {"facts", "arrays", "matrix"} <= record.keys()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise InputError(f"{path} describes no factorisation in format {_FORMAT}", path=str(path))
    return record


def _array(place: Location, name: str, record: Mapping[str, Any]) -> NDArray[Any]:
    path = beside(place, f".{name}.npy")
    try:
        array: NDArray[Any] = np.load(path)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}, which belongs to {place}: {error}") from error
    if zlib.crc32(np.ascontiguousarray(array).tobytes()) != record["arrays"].get(name):
        raise InputError(f"{path} is not that of {place}: its checksum differs", path=str(path))
    return array
