"""The largest entries of each row of a product that is never stored: `topk`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.blas._triangle_update import TriangleUpdate
from hdgemm.blas.blockwise import opened_result, opened_session, product_summary
from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, RunKeywords, public_call
from hdgemm.call.run import OpenRun, plan_parts
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.base import Operand
from hdgemm.matrices.conversion import EXACT
from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.tile_function import FunctionMatrix
from hdgemm.options import whole_number
from hdgemm.planning.slow_plan import trial
from hdgemm.product.aliasing import same_elements
from hdgemm.product.product import Product
from hdgemm.run.members import preflight
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.matrices.tile_function import TileFunction
    from hdgemm.options import Options

#: Bytes of a tile's rows that are compared at a time.
_STRIP_BYTES: Final = 1 << 20
#: Groups of columns for each entry that is kept, whose largest entries give a first bound.
_GROUPS: Final = 16
#: Entries that are put among the largest ones together.
_TOGETHER: Final = 1 << 16
#: Elements of a table in which entries are sorted, at most; a table of one row may be larger.
_TABLE: Final = 1 << 18
#: Bytes of the comparisons, beside what is kept.
_WORK_BYTES: Final = 16 * _STRIP_BYTES


class TopK(NamedTuple):
    """Largest entries of each row, in descending order, and their columns."""

    values: NDArray[Any]
    indices: NDArray[np.int64]


class _Largest:
    """The k largest entries of each row among the tiles seen so far; of equal ones the first."""

    def __init__(self, shape: tuple[int, int], k: int, dtype: np.dtype[Any]) -> None:
        m, self._n = shape
        self._k = k
        # Sums of an exact product of integers are larger.
        self._lowest = -np.inf if dtype.kind == "f" else -EXACT
        self.values = np.full((m, k), self._lowest, dtype)
        self.indices = np.full((m, k), self._n, np.int64)

    def add(self, rows: slice, cols: slice, tile: NDArray[Any]) -> None:
        """Take a tile into account, by strips of rows."""
        height = max(1, _STRIP_BYTES // max(1, tile.shape[1] * tile.itemsize))
        found: list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[Any]]] = []
        for top in range(0, len(tile), height):
            strip = np.ascontiguousarray(tile[top : top + height])
            places = np.flatnonzero(strip >= self._least(rows.start + top, strip)[:, np.newaxis])
            if places.size:
                row, column = np.divmod(places, strip.shape[1])
                found.append((top + row, cols.start + column, strip[row, column]))
            if found and (top + height >= len(tile) or sum(len(x) for x, *_ in found) > _TOGETHER):
                self._merge(rows.start, *map(np.concatenate, zip(*found, strict=True)))
                found.clear()

    def _least(self, row: int, strip: NDArray[Any]) -> NDArray[Any]:
        """Return a number for each row that none of its k largest entries is less than."""
        least = self.values[row : row + len(strip), -1]
        if strip.shape[1] <= self._k or (self.indices[row : row + len(strip), -1] < self._n).all():
            return least
        # The k-th of the largest entries of many groups of columns is close to the k-th of all.
        cols = strip.shape[1]
        high = max(1, cols // (_GROUPS * self._k))
        wide = cols // high
        largest = strip[:, : high * wide].reshape(len(strip), high, wide).max(axis=1)
        if largest.dtype.kind == "f":  # NaN would be the largest of a partition
            largest[np.isnan(largest)] = -np.inf
        kth: NDArray[Any] = np.partition(largest, -self._k, axis=1)[:, -self._k]
        np.maximum(least, kth, out=kth)
        return kth

    def _merge(
        self,
        row: int,
        found: NDArray[np.intp],
        columns: NDArray[np.intp],
        values: NDArray[Any],
    ) -> None:
        """Keep the largest of the entries that are kept and of candidates.

        `found` has the rows of the candidates, in ascending order. They are sorted in a table; each
        of its rows has the kept entries and the candidates of one row of C.
        """
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        counts = np.diff(starts, append=len(found))
        height, width = len(starts), self._k + int(counts.max())
        if height > 1 and height * width > _TABLE:
            half = starts[height // 2]
            self._merge(row, found[:half], columns[:half], values[:half])
            self._merge(row, found[half:], columns[half:], values[half:])
            return
        kept = row + found[starts]
        every = np.full((height, width), self._lowest, self.values.dtype)
        places = np.full((height, width), self._n, np.int64)
        every[:, : self._k], places[:, : self._k] = self.values[kept], self.indices[kept]
        at = np.repeat(np.arange(height) * width + self._k - starts, counts) + np.arange(len(found))
        every.ravel()[at], places.ravel()[at] = values, columns
        # By value, then by column: of equal entries the first.
        order = np.lexsort((places, -every))[:, : self._k]
        self.values[kept] = np.take_along_axis(every, order, axis=1)
        self.indices[kept] = np.take_along_axis(places, order, axis=1)

    def result(self) -> TopK:
        """Return what was found; missing entries are NaN at column -1."""
        missing = self.indices == self._n
        if missing.any():
            self.values[missing] = np.nan
            self.indices[missing] = -1
        return TopK(self.values, self.indices)


class _LowerTriangle(FunctionMatrix):
    """A symmetric C: its lower triangle is computed, and the function gets all of its elements."""

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:  # noqa: ARG002 - not computed
        """Return NaN above the diagonal, which is no entry."""
        out.fill(np.nan)

    def _give(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Give a tile to the function, then its transpose without the diagonal."""
        super()._give(row, col, tile)
        below, square = tile[:, : row - col], tile[:, row - col :].copy()
        np.fill_diagonal(square, np.nan)
        for first, part in ((col, below), (row, square)):
            if part.size:
                super()._give(first, row, part.T)


@public_call(RunKeywords)
def topk(
    a: Any,
    b: Any,
    k: int,
    *,
    trans_b: int = False,
    **keywords: Unpack[RunKeywords],
) -> TopK:
    """Return the k largest entries of each row of A·op(B), and their columns; C is never stored.

    The most similar of many embeddings: ``topk(queries, embeddings, 10, trans_b=True)``. Where both
    are the same matrix, half of C is computed.

    Parameters
    ----------
    a, b
        Real matrices as in `hdgemm.matmul`, m×p and, after `trans_b`, p×n.
    k
        Entries of each row, at most n.
    trans_b
        As in `dgemm`.
    **keywords
        Keywords of every call, from `options` to `cancel`.

    Returns
    -------
    values : array
        m×k, in descending order.
    indices : array of int64
        Their columns. Of equal entries the first columns are taken, in ascending order. NaN is no
        entry: a row with fewer than k numbers ends in NaN at column -1.

    Raises
    ------
    InputError
        When k is less than 1 or more than n, or the product is complex.
    DoesNotFitError
        When the result does not fit `host_memory`.

    See Also
    --------
    stream : Every tile of a product.

    Examples
    --------
    >>> values, indices = hdgemm.topk("E.npy", "E.npy", 10, trans_b=True)
    """
    call = Call.of(**keywords)
    count = whole_number(k, "k")
    largest: list[_Largest] = []

    def take(rows: slice, cols: slice, tile: NDArray[Any]) -> None:
        largest[0].add(rows, cols, tile)

    product = Product.of(a, b, trans_b=trans_b, out=take, whole=True)
    if count > product.n:
        raise InputError(f"k = {count} is more than the {product.n} columns of the product")
    if product.dtype.kind == "c":
        raise InputError("the product is complex, and complex numbers have no order")
    with session_for(call.session, call.options) as (session, options):
        half = not options.verify and _is_symmetric(product, a, b)
        product = _lower_triangle(product, take) if half else product
        kept = product.m * count * (product.c_dtype.itemsize + 8) + _WORK_BYTES
        what = f"topk of a {product.m}×{product.n} product with k = {count}"

        def plan(run: OpenRun) -> Options:
            """Plan the product with the memory that the result leaves; return its options."""
            allowed = host_bytes(run.options)
            if kept >= allowed:
                raise DoesNotFitError.within(what, kept + 1, allowed)
            beside = replace(run.options, host_memory=allowed - kept)
            try:
                if half:
                    _update(product).plan(run._replace(options=beside))
                else:
                    preflight(product, beside, run.session, run.callbacks)
            except DoesNotFitError as error:
                if not error.of_host:
                    raise
                raise DoesNotFitError.within(what, kept + error.requested, allowed) from None
            return beside

        with trial():  # the run plans again
            beside = plan_parts(what, plan, OpenRun(options, session, call.callbacks))
        inner = replace(call, options=beside, session=session)
        largest.append(_Largest(product.shape, count, product.c_dtype))
        if half:
            _compute_half(product, inner)
        else:
            compute(product, inner)
    return largest[0].result()


def _is_symmetric(product: Product, a: Any, b: Any) -> bool:
    """Say whether the product is A·A^T, of floating-point numbers that the host can read."""
    other = product.b.transposed()
    same = (a is b and product.a.trans == other.trans) or same_elements(product.a, other)
    on_host = not isinstance(product.a.matrix, DeviceArrayMatrix)
    return same and on_host and product.c_dtype == product.dtype and product.dtype.kind == "f"


def _lower_triangle(product: Product, take: TileFunction) -> Product:
    """Return A·A^T with a C of which `take` gets the tiles below the diagonal, and transposes."""
    return replace(product, c=Operand(_LowerTriangle(take, product.shape, product.dtype)))


def _update(product: Product) -> TriangleUpdate:
    return TriangleUpdate((product,), lower=True, hermitian=False)


def _compute_half(product: Product, call: Call) -> None:
    """Compute the lower triangle of A·A^T."""
    with opened_session(call, "topk") as run:
        update = _update(product)
        plan = update.plan(run)
        with opened_result(product, run):
            portions = update.run(plan, run)
        portions.finish(product_summary("topk", product, run.options))
