"""A diagonal block of a symmetric or Hermitian C in memory, updated by a stream of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.blas.blockwise import rectangle
from hdgemm.fortran import rank_k
from hdgemm.matrices.base import Transposed
from hdgemm.matrices.layout import blas_takes
from hdgemm.matrices.read_ahead import STREAM_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes, array_at
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.plan_terms import expected_line, moved_line, part_terms
from hdgemm.units import format_flops, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.matrices.read_ahead import ReadAhead
    from hdgemm.pipeline.plan import Stage
    from hdgemm.product.product import Product

#: Rows of C that are loaded and stored at a time, so that one triangle is moved.
_STRIP: Final = 256


class Place(NamedTuple):
    """Rows and columns `first` to `last` of C, and the columns of op(A) in a stream buffer."""

    first: int
    last: int
    columns: int


def update_flops(products: Sequence[Product], n: int) -> int:
    """Count the operations on one triangle of a diagonal block of order n."""
    pairs = n * (n + 1) // 2 * sum(product.k for product in products)
    return pairs * flops_per_multiply_add(products[0].dtype.name)


class DiagonalBlock:
    """A diagonal block of C, in C's stored orientation, which is C^T where C is column-major.

    Parameters
    ----------
    products
        The updates of the whole C: alpha·A·A^H, or alpha·A·B^H and conj(alpha)·B·A^H.
    place
        The rows of C.
    lower, hermitian
        As in `TriangleUpdate`.
    recorder
        Told of every operation.
    machine
        The rates that the expected duration is computed with.
    """

    def __init__(
        self,
        products: Sequence[Product],
        place: Place,
        *,
        lower: bool,
        hermitian: bool,
        recorder: Recorder,
        machine: Machine,
    ) -> None:
        rows, self._columns = slice(place.first, place.last), place.columns
        product = self._product = products[0]
        self._n = place.last - place.first
        self._factors = [rectangle(product.a, rows, slice(None)) for product in products]
        self._flops = update_flops(products, self._n)
        self._recorder, self._machine = recorder, machine
        c = rectangle(product.destination, rows, rows)
        self._c = c.matrix
        self._old = None if product.old is None else _as_stored(product.old, rows, c)
        self._lower = lower != c.trans
        self._hermitian = hermitian and product.dtype.kind == "c"
        # BLAS takes C column-major: the transpose of a row-major Hermitian C is its conjugate.
        self._conjugate = self._hermitian and not c.trans
        self._by_rows = not self._factors[0].trans
        self._buffers: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def update(self, reads: ReadAhead) -> None:
        """Load the triangle, add the products of all columns, and store it."""
        product, array = self._product, self._c.array
        in_place = blas_takes(array, product.dtype)
        if array is None or not in_place:
            array = np.empty((self._n, self._n), product.dtype)
        block = array
        if self._old is not None and not (in_place and product.updates):
            with self._recorder.operation("load1", 0, nbytes=block.nbytes // 2):
                self._load(self._old, block)
        beta = product.beta
        k = product.k if product.alpha != 0 else 0
        for number, factors in enumerate(reads.blocks(range(0, k, self._columns), self._read), 1):
            flops = self._flops * factors[0].shape[1] // k
            with self._recorder.operation("mult1", 0, flops=flops, block=number):
                self._multiply(factors, block, beta)
            beta = 1.0
        if k == 0:
            none = np.empty((self._n, 0), product.dtype, "C" if self._by_rows else "F")
            self._multiply([none] * len(self._factors), block, beta)
        self._buffers.clear()  # the next block takes their memory
        if not in_place:
            with self._recorder.operation("store2", 0, nbytes=block.nbytes // 2):
                self._store(block)

    def _multiply(self, factors: list[NDArray[Any]], block: NDArray[Any], beta: complex) -> None:
        alpha = self._product.alpha
        if self._conjugate:
            alpha = alpha.conjugate()
        arrays = [x.T for x in factors] if self._by_rows else factors
        first, second = arrays if len(arrays) > 1 else (arrays[0], None)
        rank_k(
            alpha,
            first,
            block.T,
            b=second,
            beta=beta,
            lower=not self._lower,
            trans=self._by_rows,
            hermitian=self._hermitian,
        )

    def _read(self, first: int, buffer: int) -> list[NDArray[Any]]:
        """Return some columns of the factors, as BLAS takes them."""
        columns = min(self._columns, self._product.k - first)
        return [
            self._read_factor(x, first, columns, (number, buffer))
            for number, x in enumerate(self._factors)
        ]

    def _read_factor(
        self, x: Operand, first: int, columns: int, key: tuple[int, int]
    ) -> NDArray[Any]:
        part = rectangle(x, slice(None), slice(first, first + columns))
        array = self._in_place(x, part)
        if array is not None:
            return array.T if x.trans else array
        conjugate = self._conjugates(x)
        shape = (self._n, columns) if self._by_rows else (columns, self._n)
        stored = self._buffer(key, part.matrix.phase(0, 0), shape)
        with self._recorder.operation("load1", 0, nbytes=stored.nbytes):
            part.matrix.read(0, 0, stored if x.trans != self._by_rows else stored.T)
        if conjugate:
            np.conjugate(stored, out=stored)
        return stored if self._by_rows else stored.T

    def _conjugates(self, x: Operand) -> bool:
        # With `by_rows` BLAS computes conj(X)·X^T of a row-major X.
        return self._hermitian and x.conj ^ self._conjugate ^ self._by_rows

    def _in_place(self, x: Operand, part: Operand) -> NDArray[Any] | None:
        """Return the array of some columns of a factor where BLAS takes it as it is."""
        array = part.matrix.array
        taken = blas_takes(array, self._product.dtype) and x.trans != self._by_rows
        return array if taken and not self._conjugates(x) else None

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves: one triangle of C, and the factors that are no arrays."""
        product, itemsize = self._product, self._product.dtype.itemsize
        triangle = self._n**2 * itemsize // 2
        k = product.k if product.alpha != 0 else 0
        streamed = [x for x in self._factors if self._in_place(x, x) is None]
        moved: dict[Stage, int] = {"load1": len(streamed) * self._n * k * itemsize}
        in_place = blas_takes(self._c.array, product.dtype)
        if self._old is not None and not (in_place and product.updates):
            moved["load1"] += triangle
        return moved if in_place else moved | {"store2": triangle}

    def summary(self) -> dict[str, Any]:
        """Return order, depth and memory as plain values, for reports."""
        return {
            "kind": "diagonal block",
            "m": self._n,
            "n": self._n,
            "k": self._product.k,
            "dtype": self._product.dtype.name,
            "block_columns": self._columns,
            **part_terms(self),
        }

    @property
    def flops(self) -> int:
        """Operations on the triangle."""
        return self._flops

    @property
    def expected_limit(self) -> str:
        """What takes longer: ``"kernel"`` or ``"disk"``."""
        phases = self.expected_phase_seconds
        return "kernel" if phases["update"] > phases["load"] else "disk"

    @property
    def expected_phase_seconds(self) -> dict[str, float]:
        """Expected duration of each phase, alone."""
        moved, machine = self.planned_bytes, self._machine
        speed = machine.flop_rate(self._product.dtype.name) * float(
            machine.efficiency(max(1, self._n), max(1, self._n), self._columns)
        )
        return {
            "load": moved["load1"] / machine.disk_read,
            "update": self._flops / speed,
            "store": moved.get("store2", 0) / machine.disk_write,
        }

    @property
    def expected_seconds(self) -> float:
        """Expected duration: columns are read while the block is updated, which is then stored."""
        phases = self.expected_phase_seconds
        return max(phases["load"], phases["update"]) + phases["store"]

    @property
    def host_bytes(self) -> int:
        """Memory for the block and the stream."""
        itemsize = self._product.dtype.itemsize
        streams = STREAM_BUFFERS * len(self._factors) * self._columns
        return self._n * ((streams if self.planned_bytes["load1"] else 0) + self._n) * itemsize

    def __str__(self) -> str:
        return (
            f"diagonal block of order {self._n}, k = {self._product.k}: "
            f"{format_flops(self._flops)}, in steps of {self._columns} columns\n"
            f"{moved_line(self)}; memory held {format_size(self.host_bytes)}\n"
            f"{expected_line(self)}"
        )

    def _buffer(self, key: tuple[int, int], phase: int, shape: tuple[int, int]) -> NDArray[Any]:
        """Lay out a rectangle in a stream buffer, at the phase that it has in its file."""
        dtype = self._product.dtype
        if key not in self._buffers:
            self._buffers[key] = aligned_bytes(self._n * self._columns * dtype.itemsize + ALIGNMENT)
        return array_at(self._buffers[key], shape, dtype, phase)

    def _strips(self) -> Iterator[tuple[slice, slice, slice]]:
        """Yield rows, the columns of the triangle in them, and where among those the square on
        the diagonal begins and ends.
        """
        step = max(1, self._c.chunk[0]) if self._c.chunk is not None else 1
        step *= -(-_STRIP // step)
        for top in range(0, self._n, step):
            bottom = min(top + step, self._n)
            if self._lower:
                yield slice(top, bottom), slice(0, bottom), slice(top, bottom)
            else:
                yield slice(top, bottom), slice(top, self._n), slice(0, bottom - top)

    def _other(self, square: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        n = len(square)
        return np.triu_indices(n, 1) if self._lower else np.tril_indices(n, -1)

    def _load(self, source: Matrix, block: NDArray[Any]) -> None:
        """Read one triangle; the other one of the block stays as it is."""
        for rows, cols, diagonal in self._strips():
            part = block[rows, cols]
            square = part[:, diagonal]
            kept = square[self._other(square)]
            source.read(rows.start, cols.start, part)
            square[self._other(square)] = kept

    def _store(self, block: NDArray[Any]) -> None:
        """Write one triangle; the other one of C stays as it is."""
        for rows, cols, diagonal in self._strips():
            part = block[rows, cols]
            square = part[:, diagonal]
            stored = np.empty_like(square)
            self._c.read(rows.start, rows.start, stored)
            square[self._other(square)] = stored[self._other(square)]
            self._c.write(rows.start, cols.start, part)


def _as_stored(old: Operand, rows: slice, c: Operand) -> Matrix:
    """Return a diagonal block of the old C in the orientation in which C is stored."""
    part = rectangle(old, rows, rows)
    return part.matrix if part.trans == c.trans else Transposed(part.matrix)
