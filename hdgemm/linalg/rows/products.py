"""Products with the rows of a tall matrix: A·W, stored, and A^H·(A·Q), summed."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np

from hdgemm.linalg.planning.device_tiles import normal_tiles, product_tiles
from hdgemm.linalg.planning.rows import RowShape, RowWork
from hdgemm.linalg.rows.reducer import Reducer, RowBlock
from hdgemm.matrices.read_ahead import RESULT_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, array_at
from hdgemm.pipeline.devices.page_buffer import PageBuffer
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.linalg.rows._device_lane import DeviceLane, DeviceSum
    from hdgemm.matrices.stored import StoredMatrix

    #: Stores A·W₁·W₂·... for rows of A.
    RowProduct = Callable[[NDArray[Any], Sequence[NDArray[Any]], NDArray[Any]], None]

#: Rows that BLAS multiplies at once, and rows and columns of the blocks that it packs.
_STRIP_ROWS: Final = 256
_PACKED: Final = 512


def _strips(a: NDArray[Any]) -> Iterator[slice]:
    """Yield the rows of a block that are multiplied at once."""
    return (slice(first, first + _STRIP_ROWS) for first in range(0, len(a), _STRIP_ROWS))


def multiply_rows(a: NDArray[Any], factors: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
    """Store A·W₁·W₂·... by strips of rows: BLAS would pack all rows of a block at once."""
    *first, last = factors
    for rows in _strips(a):
        part = a[rows]
        for w in first:
            part = part @ w
        np.matmul(part, last, out=out[rows])


def _packed_bytes(shape: RowShape) -> int:
    """Return the bytes that BLAS packs of a strip and of a factor, in memory that it keeps."""
    depth = min(shape.n, _PACKED)
    return (min(shape.m, _STRIP_ROWS) + depth) * depth * np.dtype(shape.dtype).itemsize


def product_work(
    shape: RowShape, columns: Sequence[int], stored: np.dtype[Any], *, beside: int = 0
) -> RowWork:
    """Return the work of A·W·...; rows are stored in some dtype.

    Parameters
    ----------
    columns
        Of W and of further factors.
    beside
        Bytes that the caller holds meanwhile.
    """
    itemsize = np.dtype(shape.dtype).itemsize
    pairs = sum(m * n for m, n in itertools.pairwise((shape.n, *columns)))
    return RowWork(
        name="A·W",
        result="W",
        flops=flops_per_multiply_add(shape.dtype) * shape.m * pairs,
        core_bytes=_packed_bytes(shape)
        + 2 * min(shape.m, _STRIP_ROWS) * sum(columns[:-1]) * itemsize
        + RESULT_BUFFERS * ALIGNMENT,
        shared_bytes=pairs * itemsize + beside,
        row_bytes=RESULT_BUFFERS * columns[-1] * itemsize,
        stored=columns[-1] * stored.itemsize,
        device_tiles=product_tiles(shape.n, columns),
    )


class RowMultiplier(Reducer):
    """A reducer that multiplies each block by matrices, with `_multiply`: on host or device."""

    def __init__(self) -> None:
        self._multiply: RowProduct = multiply_rows

    def use(self, lane: DeviceLane) -> None:
        """Let a device multiply."""
        self._multiply = lane.multiply

    def leave(self) -> None:
        """Let the host multiply."""
        self._multiply = multiply_rows


class StoredProduct(RowMultiplier):
    """A·W (m×k), of which each block of rows is stored when it is computed.

    Parameters
    ----------
    factors
        W (n×k), in the dtype of the blocks; of several factors, A·W₁·W₂·... from left to right.
    target
        m×k, opened for writing.
    conjugate
        Store the conjugate.
    """

    def __init__(
        self, factors: Sequence[NDArray[Any]], target: StoredMatrix, *, conjugate: bool = False
    ) -> None:
        self._conjugate = conjugate
        self._factors, self.target, self._where = factors, target, target
        self._buffers = deque(np.empty(0, np.uint8) for _ in range(RESULT_BUFFERS))
        super().__init__()

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of the product."""
        return product_work(shape, [w.shape[1] for w in self._factors], self._where.dtype)

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return the same product, with memory of its own for results."""
        return type(self)(self._factors, self._where, conjugate=self._conjugate)

    def update(self, block: RowBlock) -> NDArray[Any]:
        """Return the rows of the product."""
        found = self._room(block)
        self._multiply(block.a, self._factors, found)
        if self._conjugate:
            np.conjugate(found, out=found)
        return found

    def _room(self, block: RowBlock) -> NDArray[Any]:
        """Return memory for the results of a block, while the last block's are being stored.

        It has the phase of the file, so that direct I/O needs no copy. It is used again, since
        fresh memory for each block took a twelfth of the time of a product with 500 columns.
        """
        shape = len(block.a), self._factors[-1].shape[1]
        dtype = np.result_type(block.a, *self._factors)
        nbytes = shape[0] * shape[1] * dtype.itemsize + ALIGNMENT
        self._buffers.rotate()
        if len(self._buffers[0]) < nbytes:
            self._buffers[0] = PageBuffer(nbytes).array
        part = self._where[block.first : block.first + shape[0], :]
        return array_at(self._buffers[0], shape, dtype, part.operand.matrix.phase(0, 0))

    def combine(self, other: Self) -> None:
        """Do nothing: all rows are stored."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing is accumulated."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Do nothing."""


class NormalProduct(Reducer):
    """Y := A^H·(A·Q) (n×k) in one read of A: a step of subspace iteration and of block Krylov.

    Parameters
    ----------
    q
        n×k, in the dtype of the blocks.
    """

    def __init__(self, q: NDArray[Any]) -> None:
        self._q = q
        self._conjugate = np.zeros(q.shape, q.dtype)
        self._sum: DeviceSum | None = None

    @property
    def y(self) -> NDArray[Any]:
        """The sum."""
        return self._conjugate.conj()

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of both products."""
        k, itemsize = self._q.shape[1], self._q.itemsize
        return RowWork(
            name="A^H·(A·Q)",
            result="Q and Y",
            flops=2 * flops_per_multiply_add(shape.dtype) * shape.m * shape.n * k,
            core_bytes=_packed_bytes(shape)
            + 2 * (shape.n + min(shape.m, _STRIP_ROWS)) * k * itemsize,
            shared_bytes=shape.n * k * itemsize,
            device_tiles=normal_tiles(shape.n, k),
        )

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return an empty sum for the same Q."""
        return type(self)(self._q)

    def use(self, lane: DeviceLane) -> None:
        """Let a device multiply and add."""
        self._sum = lane.sum(self._q.shape, self._q.dtype)

    def leave(self) -> None:
        """Take the sum of the device."""
        if self._sum is not None:
            self._conjugate += self._sum.take()
            self._sum = None

    def update(self, block: RowBlock) -> None:
        """Add a block's part."""
        # As in BLAS, overflow gives no warning. The conjugate of Y needs no conjugate copy of the
        # block.
        if self._sum is not None:
            self._sum.add_normal(block.a, self._q)
            return
        with np.errstate(all="ignore"):
            for rows in _strips(block.a):
                a = block.a[rows]
                self._conjugate += a.T @ (a @ self._q).conj()

    def combine(self, other: Self) -> None:
        """Add the sum of another core."""
        with np.errstate(all="ignore"):
            self._conjugate += other._conjugate

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The conjugate of the sum."""
        return {"conjugate": self._conjugate if self._sum is None else self._sum.array}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a recorded sum."""
        if self._sum is not None:
            self._sum.restore(arrays["conjugate"])
        else:
            self._conjugate = arrays["conjugate"]


class GatheredProduct(RowMultiplier):
    """Y := A·Q (m×k) in memory, one block of rows after the other.

    Parameters
    ----------
    q
        n×k, in the dtype of the blocks.
    m
        Rows of A.
    y
        The product of all cores; None for a new one.

    Attributes
    ----------
    y
        The product, of all cores.
    places
        The first row and the one behind the last row of each block of this core.
    """

    separate: ClassVar[bool] = False

    def __init__(self, q: NDArray[Any], m: int, y: NDArray[Any] | None = None) -> None:
        self._q = q
        self.y = np.zeros((m, q.shape[1]), q.dtype, "F") if y is None else y
        self.places: list[tuple[int, int]] = []
        super().__init__()

    def work(self, shape: RowShape) -> RowWork:
        """Return the work of the product."""
        k, itemsize = self._q.shape[1], self._q.itemsize
        return RowWork(
            name="A·Q",
            result="Q and Y",
            flops=flops_per_multiply_add(shape.dtype) * shape.m * shape.n * k,
            core_bytes=_packed_bytes(shape) + min(shape.m, _STRIP_ROWS) * k * itemsize,
            shared_bytes=(shape.m + shape.n) * k * itemsize,
            device_tiles=product_tiles(shape.n, [k]),
        )

    def fresh(self, core: int) -> Self:  # noqa: ARG002 - every core begins alike
        """Return a reducer for other rows of the same product."""
        return type(self)(self._q, len(self.y), self.y)

    def update(self, block: RowBlock) -> None:
        """Store a block's rows."""
        place = block.first, block.first + len(block.a)
        self._multiply(block.a, [self._q], self.y[slice(*place)])
        self.places.append(place)

    def combine(self, other: Self) -> None:
        """Take over the rows of another core: they are stored."""
        self.places += other.places

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The rows of the product that are computed, and their places."""
        rows = [self.y[slice(*place)] for place in self.places]
        places = np.array(self.places, np.int64).reshape(-1, 2)
        return {"places": places, "rows": np.concatenate([self.y[:0], *rows])}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the recorded rows."""
        self.places, done = [(int(first), int(last)) for first, last in arrays["places"]], 0
        for first, last in self.places:
            self.y[first:last] = arrays["rows"][done : done + last - first]
            done += last - first
