"""A function as the place of a result: it takes each tile when it is finished."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from hdgemm.errors import InputError
from hdgemm.matrices.base import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    #: Takes rows, columns and elements of a tile; these stay as they are until it returns.
    TileFunction = Callable[[slice, slice, NDArray[Any]], object]


class FunctionMatrix(Matrix):
    """A matrix whose tiles are given to a function, one at a time; it cannot be read."""

    name = "a function"

    def __init__(
        self,
        function: TileFunction,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        origin: tuple[int, int] = (0, 0),
        turn: threading.Lock | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._function = function
        self._origin = origin
        self._turn = turn or threading.Lock()

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:  # noqa: ARG002 - refused
        """Refuse."""
        raise InputError("out is a function, which keeps no C that could be read again")

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Call the function."""
        self._give(self._origin[0] + row, self._origin[1] + col, tile)

    def _give(self, row: int, col: int, tile: NDArray[Any]) -> None:
        rows, cols = tile.shape
        shown = tile.view()
        shown.flags.writeable = False
        with self._turn:
            self._function(slice(row, row + rows), slice(col, col + cols), shown)

    def part(self, row: int, col: int, shape: tuple[int, int]) -> Self:
        """Return a rectangle; the function gets its tiles at their places in the whole matrix."""
        origin = self._origin[0] + row, self._origin[1] + col
        return type(self)(self._function, shape, self.dtype, origin, self._turn)


def is_tile_function(out: Any) -> bool:
    """Say whether a result is given to a function."""
    return callable(out) and not hasattr(out, "shape")
