"""Native mode: a factorisation of which every operation runs on one device.

The method is that of Abdelfattah et al., "Analysis and Design Techniques towards High-Performance
and Energy-Efficient Dense Linear Solvers on GPUs".

The matrix lies on the device row-major, where rows are permuted by copies of contiguous memory.
Panels are factored recursively down to the columns that the device's own kernels take; the host
reads their pivots, and composes them into one permutation for each update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.slab_plan import elimination_pairs
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.workspace import Workspace
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.pipeline.devices.protocol import Completion, NativeDevice

#: Columns of a panel: products of this depth come near a device's full rate.
PANEL: Final = 512
#: Bytes of staging through which rows pass to and from the device.
_STAGING: Final = 16 << 20


class NativeFactors(NamedTuple):
    """What LU leaves beside its factors: interchanges, and 1-based indices of zero pivots."""

    pivots: NDArray[np.int64]
    zeros: tuple[int, ...]


def factor_native(
    name: str, device: Any, array: NDArray[Any], recorder: Recorder, *, panel: int = PANEL
) -> NativeFactors:
    """Overwrite a column-major array by its factors: "cholesky" (lower) or "lu".

    Raises
    ------
    InputError
        When the device has no kernels for panels.
    DoesNotFitError
        When the matrix does not fit the device: `requested` and `available` in bytes.
    """
    if not hasattr(device, "getrf"):
        raise InputError(
            f"{device.spec.name} has no kernels for panels: choose strategy='hybrid', or an OpenCL "
            "device"
        )
    if not array.size:
        return NativeFactors(np.empty(0, np.int64), ())
    with _Matrix(device, array, recorder, panel) as matrix:
        matrix.upload()
        found = matrix.cholesky() if name == "cholesky" else matrix.lu()
        matrix.download(lower=name == "cholesky")
    return found


class _Matrix:
    """A matrix on a device; a context that frees its memory."""

    def __init__(
        self, device: NativeDevice, array: NDArray[Any], recorder: Recorder, panel: int
    ) -> None:
        self._device, self._array, self._recorder, self._width = device, array, recorder, panel
        self._work = Workspace(device)
        self._buffers: list[Any] = []
        self._pivots = np.zeros(min(array.shape), np.int64)
        self._zeros: list[int] = []

    def __enter__(self) -> Self:
        (m, n), dtype, device = self._array.shape, self._array.dtype, self._device
        nbytes = device.slot_bytes("C", m, n, dtype)
        limit = device.spec.limit()
        # Two operands of an update, and what solves and permutations take.
        needed = nbytes + 4 * min(self._width, max(m, n)) * (m + n) * dtype.itemsize
        if limit is not None and needed > limit:
            raise DoesNotFitError(
                f"{device.spec.name} holds {limit:,} bytes; a {m}×{n} {dtype.name} matrix and its "
                f"workspace take {needed:,}: choose strategy='hybrid'",
                requested=needed, available=limit, missing=needed - limit,
            )  # fmt: skip
        self._rows = max(1, min(m, _STAGING // max(1, n * dtype.itemsize)))
        try:
            self._buffers.append(device.allocate(nbytes))
            self._buffers.append(device.allocate_staging(self._rows * n * dtype.itemsize))
        except BaseException:
            self.__exit__()
            raise
        self._tile = Tile("C", self._buffers[0], m, n, n, dtype)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.synchronize()
        self._work.free()
        while self._buffers:
            self._device.free(self._buffers.pop())

    def _block(self, rows: tuple[int, int], cols: tuple[int, int]) -> Block:
        return Block(self._tile, rows[0], cols[0], rows[1] - rows[0], cols[1] - cols[0])

    def _staged(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield the first row of each piece, the row behind it, and its place in staging."""
        m, n = self._array.shape
        for first in range(0, m, self._rows):
            last = min(first + self._rows, m)
            memory = self._buffers[1].array
            yield first, last, np.ndarray((last - first, n), self._array.dtype, memory)

    def upload(self) -> None:
        """Copy the array to the device, row by row."""
        for first, last, staged in self._staged():
            with self._recorder.operation("load2", 0, nbytes=staged.nbytes):
                np.copyto(staged, self._array[first:last])
                block = self._block((first, last), (0, staged.shape[1]))
                self._device.upload(staged, block, ()).wait()

    def download(self, *, lower: bool) -> None:
        """Copy the factors to the array; of a lower triangle nothing above the diagonal."""
        for first, last, staged in self._staged():
            with self._recorder.operation("store1", 0, nbytes=staged.nbytes):
                block = self._block((first, last), (0, staged.shape[1]))
                self._device.download(block, staged, ()).wait()
                if not lower:
                    self._array[first:last] = staged
                    continue
                self._array[first:last, :first] = staged[:, :first]
                own = np.tril_indices(last - first)
                self._array[first:last, first:last][own] = staged[:, first:last][own]

    def lu(self) -> NativeFactors:
        """Factor by right-looking panels; the rows left of them are permuted at the end."""
        (m, n), count = self._array.shape, len(self._pivots)
        for number, (first, last) in enumerate(self._panels(count)):
            pairs = elimination_pairs(m - first, n - first, last - first)
            with self._step(number, pairs):
                self._lu_panel(first, last)
                self._update((first, last), (last, n))
        for first, last in self._panels(count):
            self._permute((last, count), (first, last))
        self._finish()
        return NativeFactors(self._pivots, tuple(self._zeros))

    def _lu_panel(self, first: int, last: int) -> None:
        """Factor columns from their diagonal on: halves recursively, narrow ones by a kernel."""
        m = self._array.shape[0]
        if last - first <= self._device.panel_columns:
            found, zero = self._device.getrf(self._block((first, m), (first, last)), ())
            self._pivots[first:last] = found + first
            if zero:
                self._zeros.append(zero + first)
            return
        middle = self._middle(first, last)
        self._lu_panel(first, middle)
        self._update((first, middle), (middle, last))
        self._lu_panel(middle, last)
        self._permute((middle, last), (first, middle))

    def _update(self, panel: tuple[int, int], cols: tuple[int, int]) -> None:
        """Apply a factored panel to columns right of it: permute, solve for U, and multiply."""
        last, m = panel[1], len(self._array)
        if cols[0] == cols[1]:
            return
        self._permute(panel, cols)
        beside = self._block(panel, cols)
        triangle = self._block(panel, panel)
        self._done(self._device.trsm(triangle, beside, (), unit=True))
        if last < m:
            self._work.multiply(
                -1.0, self._block((last, m), panel), beside, self._block((last, m), cols)
            )

    def _permute(self, panel: tuple[int, int], cols: tuple[int, int]) -> None:
        """Permute the rows of some columns by the interchanges of a panel, each row once."""
        first, last = panel
        moves = moves_of(self._pivots[first:last], first)
        if len(moves.places) and cols[0] < cols[1]:
            whole = self._block((0, self._array.shape[0]), cols)
            self._done(self._device.permute(whole, *moves, ()))

    def cholesky(self) -> NativeFactors:
        """Factor by left-looking panels: each is updated once, by all columns left of it."""
        n = len(self._array)
        for number, (first, last) in enumerate(self._panels(n)):
            rows, width = n - first, last - first
            pairs = first * width * rows + width**3 / 6 + width**2 * (rows - width) / 2
            with self._step(number, pairs):
                for earlier in self._panels(first):
                    self._work.multiply(
                        -1.0, self._block((first, n), earlier), self._block((first, last), earlier),
                        self._block((first, n), (first, last)), trans_b="C",
                    )  # fmt: skip
                self._cholesky_block(first, last)
                self._solve_below((first, last), (last, n))
        self._finish()
        return NativeFactors(self._pivots, ())

    def _cholesky_block(self, first: int, last: int) -> None:
        """Factor a diagonal block: halves recursively, small ones by a kernel."""
        if last - first <= self._device.panel_columns:
            order = self._device.potrf(self._block((first, last), (first, last)), ())
            if order:
                raise SingularMatrixError(
                    f"a is not positive definite: its leading minor of order {first + order} is "
                    "not",
                    order=first + order,
                )
            return
        middle = self._middle(first, last)
        self._cholesky_block(first, middle)
        self._solve_below((first, middle), (middle, last))
        below = self._block((middle, last), (first, middle))
        own = self._block((middle, last), (middle, last))
        self._work.multiply(-1.0, below, below, own, trans_b="C")
        self._cholesky_block(middle, last)

    def _solve_below(self, panel: tuple[int, int], rows: tuple[int, int]) -> None:
        """Compute rows of L below a factored diagonal block."""
        if rows[0] < rows[1]:
            triangle, below = self._block(panel, panel), self._block(rows, panel)
            self._done(self._device.trsm(triangle, below, (), side="R", trans="C"))

    def _panels(self, count: int) -> list[tuple[int, int]]:
        return [(first, min(first + self._width, count)) for first in range(0, count, self._width)]

    def _middle(self, first: int, last: int) -> int:
        """Halve a panel at a multiple of the columns that the device's kernels take."""
        narrow = self._device.panel_columns
        return first + max(narrow, (last - first) // 2 // narrow * narrow)

    def _step(self, number: int, pairs: float) -> Any:
        self._finish()
        flops = int(flops_per_multiply_add(self._array.dtype.name) * pairs)
        return self._recorder.operation("mult1", number, flops=flops)

    def _done(self, completion: Completion) -> None:
        self._work.completions.append(completion)

    def _finish(self) -> None:
        """Wait for all operations, and raise the error of the first that failed."""
        for completion in self._work.take():
            completion.wait()
