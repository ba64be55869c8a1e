"""Files that a job stores: its result, and beside a factorisation the arrays and a description."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.matrices.factor_files import FactorFiles, matrices_beside
from hdgemm.routines.registry import array_names, commands
from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import UNFINISHED, Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.server.backend import Problem

#: Bytes for the header of an array, and for a description.
HEADER = 4096


def arrays_of(process: str, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arrays that a job stores beside its result, such as ``"piv"``."""
    routine = commands().get(process)
    return () if routine is None else tuple(each.name for each in routine.arrays(inputs))


def _factors(process: str, inputs: Mapping[str, Any]) -> str:
    """Return the kind of factorisation that a job stores; empty for other results."""
    routine = commands().get(process)
    result = None if routine is None else routine.first(inputs)
    return "" if result is None else result.factors


def files_beside(process: str, inputs: Mapping[str, Any], result: Path) -> list[Path]:
    """Return the files that a job stores beside its result."""
    files = FactorFiles.of(result)
    described = [files.description] if _factors(process, inputs) else []
    return [*map(files.array, arrays_of(process, inputs)), *described]


def companion_bytes(problem: Problem) -> int:
    """Return the bytes of the files beside a result."""
    routine = commands().get(problem.process)
    if routine is None:
        return 0
    shapes = {name: source.shape for name, source in problem.operands.items()}
    extents, total = routine.extents(shapes, problem.parameters), 0
    for each in routine.arrays(problem.parameters):
        elements = math.prod(each.shape(extents, problem.parameters))
        total += elements * itemsize_of(each.dtype, problem.dtype) + HEADER
    return total + HEADER * bool(_factors(problem.process, problem.parameters))


def itemsize_of(dtype: str, computed: str) -> int:
    """Return the bytes of an element of an output's dtype, as its description names it."""
    if dtype in {"result", "real"}:
        values = np.empty(0, computed)
        return values.real.itemsize if dtype == "real" else values.itemsize
    return np.dtype(dtype).itemsize


def refuse_existing(
    result: Path, process: str, inputs: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Refuse to replace files, or with `overwrite` anything but files.

    Without `overwrite` a description of an earlier factorisation is refused, too: it would be
    removed with the arrays that it describes.
    """
    beside = files_beside(process, inputs, result)
    described = [] if overwrite else FactorFiles.of(result).described()
    for path in (result, *beside, *described):
        if _exists(path) and not (overwrite and path.is_file()):
            raise exists(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        what = f"cannot store {path.name} beside the result: {error.strerror}; choose another name"
        raise InputError(what, path=str(path)) from error


def exists(path: Path) -> ProblemError:
    """Make the error of a file that would be replaced."""
    what = f"{path} exists; set output.overwrite (--overwrite) to replace it"
    return ProblemError(409, "exists", what)


def refuse_inputs(
    result: Path, process: str, inputs: Mapping[str, Any], read: Iterable[tuple[str, str | None]]
) -> None:
    """Refuse to replace an input, by name and path; C may be replaced by the result alone."""
    beside = {str(path) for path in files_beside(process, inputs, result)}
    for name, path in read:
        if path in beside or (path == str(result) and name != "c"):
            raise InputError(f"{path} is an input of the same job")


def writer_of(
    conn: sa.Connection, process: str, inputs: Mapping[str, Any], result: Path
) -> tuple[str, str] | None:
    """Return an unfinished job that will write a file of this one, and the file.

    Two jobs write the same file beside their results only where the results are one file, so that
    results are compared, and arrays with results.
    """
    files = {str(path) for path in (result, *files_beside(process, inputs, result))}
    owners = {str(path) for path in matrices_beside(result, array_names())}
    query = sa.select(Job.id, Job.process, Job.inputs, Job.output_path).where(
        Job.output_path.in_(files | owners), Job.status.in_(UNFINISHED)
    )
    for other in conn.execute(query):
        path = Path(other.output_path)
        theirs = {str(each) for each in (path, *files_beside(other.process, other.inputs, path))}
        if common := sorted(files & theirs):
            return other.id, common[0]
    return None
