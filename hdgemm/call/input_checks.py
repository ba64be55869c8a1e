"""Checks of a call: input files that stay the same, results that are read again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputTypeError
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.fingerprint import unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hdgemm.matrices.stored import StoredMatrix


@contextmanager
def input_unchanged(a: StoredMatrix, out: StoredMatrix) -> Iterator[None]:
    """Raise on leaving when the file of A changed meanwhile."""
    if out is a:
        yield
        return
    with unchanged({"A": a.operand}, out.operand.matrix):
        yield


@contextmanager
def reads_unchanged(matrices: Mapping[str, StoredMatrix]) -> Iterator[None]:
    """Raise on leaving when the file of an input changed meanwhile; results are in memory."""
    operands = {name: matrix.operand for name, matrix in matrices.items()}
    with unchanged(operands, ArrayMatrix(np.empty((0, 0)))):
        yield


def check_reread(found: np.dtype[Any], computed: np.dtype[Any]) -> None:
    """Refuse a complex `out` for a real result that is read from it again while it is computed."""
    if found.kind == "c" and computed.kind != "c":
        raise InputTypeError(
            f"out has dtype {found}, but the result is {computed} and is read from out again while "
            f"it is computed: pass an out of {computed}",
            found=str(found),
            computed=str(computed),
        )
