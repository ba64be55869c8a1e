"""Factorisations in files: the matrix, the arrays beside it, and a description that joins them.

`FactorFiles` names them: ``LU.piv.npy`` and the description ``LU.factor.json`` for ``LU.npy``. The
description has the kind of the factorisation, samples of the matrix and checksums of the arrays.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from zipfile import BadZipFile

import numpy as np

from hdgemm.durable.fingerprint import differences, sampled
from hdgemm.errors import InputError
from hdgemm.linalg.slabs.run import say_state
from hdgemm.linalg.storage import OpenOutput
from hdgemm.matrices.factor_files import ARRAYS, FactorFiles, checksum
from hdgemm.matrices.files import PARSING, open_regular
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open as open_stored, open_operand
from hdgemm.product.aliasing import overlaps
from hdgemm.product.target import is_location
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from hdgemm.matrices.base import Matrix

    #: The matrix of a factorisation: an array, or a stored matrix.
    Factor_co = DefaultTypeVar("Factor_co", default=Any, covariant=True)
else:
    Factor_co = TypeVar("Factor_co", covariant=True)

_FORMAT: Final = 1
#: Members of a description that have members.
_RECORDS: Final = ("facts", "arrays", "matrix")
#: Bytes that suffice for the header of a .npy file, and for a description.
_HEADER: Final = 4096


class LUFactors(NamedTuple, Generic[Factor_co]):
    """What `lu_factor` returns, and `lu_solve` takes, SciPy's too.

    Parameters
    ----------
    lu
        L below the diagonal, without its ones, and U.
    piv
        The row that was interchanged with each row, counted from 0.

    See Also
    --------
    lu_factor, lu_solve, slogdet : Calls that return or take it.
    open : Factors in files.

    Examples
    --------
    >>> factors = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    >>> x = hdgemm.linalg.lu_solve(factors, b)
    """

    lu: Factor_co
    piv: NDArray[np.int64]


class CholeskyFactor(NamedTuple, Generic[Factor_co]):
    """What `cho_factor` returns, and `cho_solve` takes.

    Parameters
    ----------
    c
        The factor in one triangle; the other one is undefined.
    lower
        Whether it is the lower triangle, of L; else the upper one, of U.

    See Also
    --------
    cho_factor, cho_solve, slogdet : Calls that return or take it.
    open : Factors in files.

    Examples
    --------
    >>> factor = hdgemm.linalg.cho_factor("S.npy", lower=True, out="L.npy")
    >>> x = hdgemm.linalg.cho_solve(factor, b)
    """

    c: Factor_co
    lower: bool


class QRFactors(NamedTuple, Generic[Factor_co]):
    """Reflectors and their factors, as ``qr(mode="raw")`` returns them first.

    Parameters
    ----------
    qr
        Reflectors below the diagonal, as LAPACK's geqrf stores them, and R.
    tau
        The scalar factor of each reflector.

    See Also
    --------
    qr : Returns it with ``mode="raw"``.
    qr_multiply : c·Q or Q·c, without Q.
    open : Factors in files.

    Examples
    --------
    >>> factors, _ = hdgemm.linalg.qr("A.npy", mode="raw", out="QR.npy")
    >>> factors.tau.shape
    (300,)
    """

    qr: Factor_co
    tau: NDArray[Any]


Factorisation: TypeAlias = LUFactors | CholeskyFactor | QRFactors


def reserve_beside(
    target: OpenOutput, kind: str, a: Any, itemsize: int = 0, other: Any = None
) -> None:
    """Take disk space for the files beside a factor, before A is overwritten.

    Parameters
    ----------
    kind, itemsize
        Of the factorisation, and of the elements of its array, min(m, n) of them.
    a
        The matrix: stored, or with a shape only, in the memory of processes.
    other
        Another result of the call, as the caller gave it.

    Raises
    ------
    InputError
        When ``LU.piv.npy``, for the factors ``LU.npy``, is the file of A or of the other result, or
        cannot be created, or ``LU.factor.json`` is a file that no factorisation wrote.
    MatrixIOError
        When the space is missing.
    """
    files, operand = _files(target), getattr(a, "operand", None)
    read = None if operand is None else operand.matrix
    if files is not None and files.stored_by(kind) and files.is_foreign:
        raise InputError(
            f"{files.description} was written by no factorisation, and this one saves a file "
            "there: rename that file, or choose another out",
            path=str(files.description),
        )
    for path in () if files is None else files.stored_by(kind):
        for matrix, what in ((read, "the matrix"), (_place(other), "another result")):
            if matrix == path or (matrix is not None and overlaps(path, matrix)):
                raise InputError(
                    f"{path} is {what}, and the factorisation saves a file there: choose another "
                    "out",
                    path=str(path),
                )
        length = min(a.shape) * itemsize if path.suffix == ".npy" else 0
        # Space for triangles is reserved later: on a full disk the error is to name the factor.
        target.companions.reserve(path, _HEADER + length if ARRAYS[kind] else 0)


def _place(out: Any) -> Matrix | Path | None:
    if out is None:
        return None
    return (
        parse_location(out).path.resolve()
        if is_location(out)
        else open_operand(out, what="out").matrix
    )


def _files(target: OpenOutput) -> FactorFiles | None:
    """Return the files beside the factor of a run; None for a factor in no file."""
    beside = target.companions.beside
    return None if beside is None else FactorFiles.of(beside)


def save_factors(
    target: OpenOutput, kind: str, arrays: Mapping[str, NDArray[Any]], **facts: Any
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
    target: OpenOutput, kind: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    files = _files(target)
    if files is None:
        return
    for name, array in arrays.items():
        target.companions.add(
            files.array(name),
            lambda stream, array=array: np.save(stream, array),  # type: ignore[misc]
        )
    sums = {name: checksum(array) for name, array in arrays.items()}
    record = {
        "format": _FORMAT,
        "kind": kind,
        "facts": facts,
        "arrays": sums,
        "matrix": sampled(target.stored.operand),
    }
    text = json.dumps(record, indent=2).encode() + b"\n"
    target.companions.add(files.description, lambda stream: stream.write(text))


@refuses_unknown
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

    See Also
    --------
    lu_factor, cho_factor : Store factors.
    lu_solve, cho_solve : Take what this returns.

    Examples
    --------
    >>> x = hdgemm.linalg.lu_solve(hdgemm.linalg.open("LU.npy"), b)
    """
    place = parse_location(location)
    with open_stored(place) as stored:
        now = sampled(stored.operand)
    files = _files_of(place)
    record = _read(place, files)
    if found := differences(str(place.path), record["matrix"], now):
        raise InputError(
            f"{files.description} describes another factorisation: {'; '.join(found)}; "
            "factor the matrix again"
        )
    matrix = OpenOutput(stored, location=place).result()
    if record["kind"] == "lu":
        return LUFactors(matrix, _array(place, files.array("piv"), record["arrays"].get("piv")))
    if record["kind"] == "qr":
        return QRFactors(matrix, _array(place, files.array("tau"), record["arrays"].get("tau")))
    return CholeskyFactor(matrix, bool(record["facts"]["lower"]))


def _files_of(place: Location) -> FactorFiles:
    if not place.kind.whole_file:
        raise InputError(
            f"{place} is not known as a factorisation: factorisations are described beside .npy "
            "and raw files only"
        )
    return FactorFiles.found(place.path.resolve())


def _read(place: Location, files: FactorFiles) -> dict[str, Any]:
    path = files.description
    if not path.exists():
        raise InputError(
            f"{place} is not known as a factorisation: {path}, which the factorisation writes "
            "beside it, is not there"
        )
    try:
        record: dict[str, Any] = json.loads(files.text())
        known = record["format"] == _FORMAT and record["kind"] in ARRAYS
        known = known and all(isinstance(record[name], dict) for name in _RECORDS)
        known = known and (record["kind"] != "cholesky" or "lower" in record["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise InputError(f"{path} describes no factorisation in format {_FORMAT}", path=str(path))
    return record


def _array(place: Location, path: Path, expected: int | None) -> NDArray[Any]:
    try:
        with PARSING, os.fdopen(open_regular(path), "rb") as stream:
            array: NDArray[Any] = np.load(stream)
    except (OSError, ValueError, EOFError, BadZipFile, MemoryError) as error:
        raise InputError(f"cannot read {path}, which belongs to {place}: {error}") from error
    if not isinstance(array, np.ndarray) or checksum(array) != expected:
        raise InputError(f"{path} does not belong to {place}: its checksum differs", path=str(path))
    return array
