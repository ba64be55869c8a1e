"""Checks of inputs: elements that are finite, files that stay the same during a run."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.transfer import copy_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.slab import Slab
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.matrices.transfer import Bounce

#: Bytes that a thread checks for NaN and Inf at a time.
_CHECKED_BYTES: Final = 1 << 20


@contextmanager
def input_unchanged(a: StoredMatrix, out: StoredMatrix) -> Iterator[None]:
    """Raise on leaving when the file of A changed meanwhile."""
    if out is a:
        yield
        return
    with unchanged({"A": a.operand}, out.operand.matrix):
        yield


def check_reread(found: np.dtype[Any], computed: np.dtype[Any]) -> None:
    """Refuse a complex `out` for a real result that is read from it again while it is computed."""
    if found.kind == "c" and computed.kind != "c":
        raise InputTypeError(
            f"out has dtype {found}, but the result is {computed} and is read from out again while "
            f"it is computed: pass an out of {computed}",
            found=str(found), computed=str(computed),
        )  # fmt: skip


def check_finite_slab(
    slab: Slab, *, triangle: bool = False, transposed: bool = False, name: str = "a"
) -> None:
    """Raise `InputError` with the position of the first NaN or Inf of a slab of matrix `name`.

    With `triangle`, of its lower triangle; `transposed`, the matrix is the slab's transpose.
    """
    above = slab.place.first - slab.place.top

    def column(index: int) -> NDArray[Any]:
        return slab.array[above + index if triangle else 0 :, index]

    def look(block: range, _bounce: Bounce) -> None:
        for index in block:
            if not np.isfinite(column(index)).all():
                found.append(index)
                return

    found: list[int] = []
    width = max(1, _CHECKED_BYTES // max(1, len(slab.array) * slab.array.itemsize))
    columns = range(slab.place.width)
    copy_pool().run([partial(look, columns[first : first + width]) for first in columns[::width]])
    if found:
        index = min(found)
        offset = int(np.argmin(np.isfinite(column(index))))
        value, offset = column(index)[offset], offset + (above + index if triangle else 0)
        row, col = slab.place.top + offset, slab.place.first + index
        row, col = (col, row) if transposed else (row, col)
        raise InputError(
            f"{name} has {value} at row {row}, column {col}: it must not contain infs or NaNs",
            row=row, col=col,
        )  # fmt: skip
