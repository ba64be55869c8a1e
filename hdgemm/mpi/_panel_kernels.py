"""BLAS on the columns of one panel, called by address.

A panel over several processes needs some calls for each column, each of a few microseconds; with
the checks of `hdgemm.fortran` a call would take longer than its work.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.fortran import unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Columns = NDArray[Any]

#: Arguments of the routines.
_ARGUMENTS: Final = {"trsv": 8, "gemv": 11, "trsm": 11, "gemm": 13}
#: Letters that routines take: not transposed, left, lower, unit diagonal.
_LETTERS: Final = np.frombuffer(b"NLU", np.uint8)


class PanelKernels:
    """Solves and updates of parts of a panel; both arrays are column-major.

    `top` is the diagonal block, L without its unit diagonal and U; `active` has for each column the
    first row of `a` that is updated.
    """

    def __init__(self, a: Columns, top: Columns, active: Sequence[int]) -> None:
        width, item = len(top), a.itemsize
        self._a, self._top, self._active, self._item = _address(a), _address(top), active, item
        self._step = max(a.strides[1] if width > 1 else 0, item * max(1, len(a)))
        # Routines take the addresses of their integers and factors.
        self._integers = np.array(
            [*range(width + 1), *(len(a) - row for row in active), self._step // item], np.intc
        )
        self._factors = np.array([1.0, -1.0], a.dtype)
        base = _address(self._integers)
        self._numbers = [base + 4 * number for number in range(width + 1)]
        self._rows = [base + 4 * (width + 1 + col) for col in range(len(active))]
        self._lead, self._top_lead = base + 4 * (len(self._integers) - 1), self._numbers[width]
        self._one = _address(self._factors)
        self._minus_one = self._one + item
        self._no, self._lower, self._unit = (_address(_LETTERS) + place for place in range(3))
        self._trsv, self._gemv, self._trsm, self._gemm = _routines(a.dtype)

    def update_column(self, start: int, col: int) -> None:
        """Solve for column `col` of U, and update the active rows of a, by columns from `start`."""
        trailing, one = self._numbers[col - start], self._numbers[1]
        u = self._in_top(start, col)
        self._trsv(
            self._lower,
            self._no,
            self._unit,
            trailing,
            self._in_top(start, start),
            self._top_lead,
            u,
            one,
        )
        row = self._active[col]
        self._gemv(
            self._no,
            self._rows[col],
            trailing,
            self._minus_one,
            self._in_a(row, start),
            self._lead,
            u,
            one,
            self._one,
            self._in_a(row, col),
            one,
        )

    def update(self, start: int, middle: int, stop: int) -> None:
        """Do the same for the columns from `middle` to `stop`, by those from `start` to there."""
        depth, width = self._numbers[middle - start], self._numbers[stop - middle]
        u, row = self._in_top(start, middle), self._active[middle]
        self._trsm(
            self._lower,
            self._lower,
            self._no,
            self._unit,
            depth,
            width,
            self._one,
            self._in_top(start, start),
            self._top_lead,
            u,
            self._top_lead,
        )
        self._gemm(
            self._no,
            self._no,
            self._rows[middle],
            width,
            depth,
            self._minus_one,
            self._in_a(row, start),
            self._lead,
            u,
            self._top_lead,
            self._one,
            self._in_a(row, middle),
            self._lead,
        )

    def _in_a(self, row: int, col: int) -> int:
        return self._a + row * self._item + col * self._step

    def _in_top(self, row: int, col: int) -> int:
        return self._top + (row + col * (len(self._numbers) - 1)) * self._item


@cache
def _routines(dtype: np.dtype[Any]) -> list[Callable[..., None]]:
    return [unchecked(name, dtype, count) for name, count in _ARGUMENTS.items()]


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
