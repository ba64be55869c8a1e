"""The stand-in's `cupy.RawKernel`: the kernels of `hdgemm.pipeline.devices.cuda._kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.pipeline.devices.cuda._kernels import NAMES
from tests.pipeline.devices.cuda.standin.blas import Library, Stored
from tests.pipeline.devices.cuda.standin.memory import DEVICE, ILLEGAL_ADDRESS, INVALID_VALUE
from tests.pipeline.devices.cuda.standin.streams import CUDADriverError, CUDARuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.devices.cuda.standin.standin import StandIn

#: Of a grid (x, y), and the threads of a block.
_MOST: Final = (2**31 - 1, 65535)
_MOST_THREADS: Final = 1024


class Move(NamedTuple):
    """The arguments of a kernel that moves lines."""

    matrix: int
    workspace: int
    lines: int
    pitch: int
    width: int
    height: int
    columns: int
    back: int


class Kernel(Library):
    """One kernel, which reaches device memory only."""

    def __init__(self, standin: StandIn, name: str) -> None:
        super().__init__(standin, CUDADriverError)
        self._dtype = np.dtype(f"V{next(size for size, each in NAMES.items() if each == name)}")

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the method by CuPy's name, and what a call does."""
        return {"compile": lambda: None, "launchKernel": self._launch}

    def _launch(self, grid: tuple[int, int], block: tuple[int, int], args: tuple[int, ...]) -> None:
        move = Move(*args)
        threads = block[0] * block[1]
        if not (0 < threads <= _MOST_THREADS and block[1] == 1) or not all(
            0 < extent <= most for extent, most in zip(grid, _MOST, strict=True)
        ):
            raise CUDADriverError(INVALID_VALUE, f"a grid of {grid} blocks of {block}")
        if any(type(each) is not int for each in move):
            raise TypeError(f"CuPy takes numbers of 64 bits as int, got {args}")
        # Rows are covered by strides of the grid, columns by threads alone.
        covered, view = min(grid[0] * block[0], move.width), self._viewer(DEVICE)

        def row(address: int, count: int, dtype: Any) -> Any:
            return view(Stored(address, 1, 1, count), dtype)[0]

        def work() -> None:
            lines = row(move.lines, covered if move.columns else move.height, np.int64)
            if lines.min() < 0:
                raise CUDARuntimeError(ILLEGAL_ADDRESS, f"line {lines.min()}")
            held = row(move.workspace, (move.height - 1) * move.width + covered, self._dtype)
            cols = lines if move.columns else np.arange(covered)
            rows = np.arange(move.height) if move.columns else lines
            places = rows[:, None] * move.pitch + cols
            matrix = row(move.matrix, int(places.max()) + 1, self._dtype)
            dense = np.arange(move.height)[:, None] * move.width + np.arange(covered)
            if move.back:
                matrix[places] = held[dense]
            else:
                held[dense] = matrix[places]

        self._enqueue(work)
