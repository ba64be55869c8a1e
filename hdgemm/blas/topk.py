"""The largest entries of each row of a product that is never stored: `topk`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.blas._triangle_update import TriangleUpdate, UpdatePlan
from hdgemm.blas.blockwise import opened_result, product_summary
from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.plans import JointPlan
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import OpenRun, plan_parts
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.results import Result, open_results, outputs_of
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.base import Operand
from hdgemm.matrices.conversion import EXACT
from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.tile_function import FunctionMatrix
from hdgemm.options import whole_number
from hdgemm.pipeline.plans import Plans
from hdgemm.product.aliasing import same_elements
from hdgemm.product.product import Product
from hdgemm.product.target import check_no_operand
from hdgemm.run.members import preflight
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.plans import Part
    from hdgemm.matrices.tile_function import TileFunction

#: Bytes of a tile's rows that are compared at a time.
_STRIP_BYTES: Final = 1 << 20
#: Groups of columns for each entry that is kept, whose largest entries give a first bound.
_GROUPS: Final = 16
#: Entries that are put among the largest ones together.
_TOGETHER: Final = 1 << 16
#: Elements of a table in which entries are sorted, at most; a table of one row may be larger.
_TABLE: Final = 1 << 18
_NOTE: Final = "C is not stored: the bytes written are of its tiles, in memory"
#: Bytes of the comparisons, beside what is kept.
_WORK_BYTES: Final = 16 * _STRIP_BYTES


class TopK(NamedTuple):
    """The largest entries of each row of a product, the result of `topk`.

    Parameters
    ----------
    values
        m×k, in descending order.
    indices
        Their columns, int64.

    See Also
    --------
    topk : Returns it.

    Examples
    --------
    >>> found = hdgemm.topk("T.npy", "T.npy", 3, trans_b=True)
    >>> found.values.shape == found.indices.shape
    True
    """

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


@public_call(ReportKeywords)
def topk(
    a: Any,
    b: Any,
    k: int,
    *,
    trans_b: int = False,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
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
    out
        Where values and indices go: a tuple of two arrays, stored matrices, locations of files, or
        None for a new array; None for both.
    **keywords
        Keywords of every call, from `options` to `report`.

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
    with prepare(a, b, out, Call.of(**keywords), k=k, trans_b=trans_b) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any, b: Any, out: Any, call: Call, *, k: int = 10, trans_b: int = False
) -> Iterator[Prepared[TopK]]:
    """Yield the largest entries of a product, planned."""
    count = whole_number(k, "k")
    outs = outputs_of(out, TopK._fields)
    largest: list[_Largest] = []

    def take(rows: slice, cols: slice, tile: NDArray[Any]) -> None:
        largest[0].add(rows, cols, tile)

    product = Product.of(a, b, trans_b=trans_b, out=take, whole=True)
    if count > product.n:
        raise InputError(f"k = {count} is more than the {product.n} columns of the product")
    if product.dtype.kind == "c":
        raise InputError("the product is complex, and complex numbers have no order")
    results = _results(outs, a, product, count)
    with session_for(call.session, call.options) as (session, options):
        half = not options.verify and _is_symmetric(product, a, b)
        product = _lower_triangle(product, take) if half else product
        kept = product.m * count * (product.c_dtype.itemsize + 8) + _WORK_BYTES
        what = f"topk of a {product.m}×{product.n} product with k = {count}"

        def plan(run: OpenRun) -> _Half | _Whole:
            """Plan the product with the memory that the result leaves."""
            allowed = host_bytes(run.options)
            if kept >= allowed:
                raise DoesNotFitError.within(what, kept + 1, allowed)
            beside = run._replace(options=replace(run.options, host_memory=allowed - kept))
            try:
                return (_Half if half else _Whole).of(product, beside)
            except DoesNotFitError as error:
                if not error.of_host:
                    raise
                raise DoesNotFitError.within(what, kept + error.requested, allowed) from None

        planned = plan_parts(what, plan, OpenRun(options, session, call.callbacks))
        facts = product_summary("topk", product, options) | {"held_bytes": kept, "note": _NOTE}

        def compute() -> TopK:
            with ExitStack() as stack:
                source = StoredMatrix(product.a, writable=False)
                opened = open_results(stack, tuple(results.values()), source, large=None)
                targets = dict(zip(results, opened, strict=True))
                largest.append(_Largest(product.shape, count, product.c_dtype))
                portions = planned.run()
                found = largest.pop().result()._asdict()
                for name, target in targets.items():
                    target.stored[:, :] = found[name]
                portions.finish(facts)
            return TopK(**found | {name: results[name].value(x) for name, x in targets.items()})

        yield Prepared(JointPlan(facts, planned.parts), compute, session)


def _results(outs: tuple[Any, ...], a: Any, product: Product, count: int) -> dict[str, Result]:
    """Describe the places of values and indices, by name; new arrays are left out."""
    source, other = (StoredMatrix(x, writable=False) for x in (product.a, product.b))
    found = {}
    dtypes = product.c_dtype, np.dtype(np.int64)
    for name, out, dtype in zip(TopK._fields, outs, dtypes, strict=True):
        if out is not None:
            check_no_operand(out, source, other)
            found[name] = Result.of(out, a, source, (product.m, count), dtype)
    return found


@dataclass(frozen=True, slots=True)
class _Whole:
    """A planned product, every tile of which is computed."""

    product: Product
    how: OpenRun
    plans: Plans

    @classmethod
    def of(cls, product: Product, run: OpenRun) -> Self:
        """Plan it."""
        return cls(product, run, Plans(preflight(product, *run)))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The plan, as a part of the computation."""
        return (self.plans,) if self.plans else ()

    def run(self) -> RunSequence:
        """Compute it; return what reports its end."""
        product, (options, session, callbacks) = self.product, self.how
        portions = RunSequence(callbacks, product.flops)
        call = Call(options, session, portions.next(product.flops))
        plan = self.plans[0] if len(self.plans) == 1 else None
        portions.add(compute(product, call, plan=plan))
        return portions


@dataclass(frozen=True, slots=True)
class _Half:
    """The planned lower triangle of A·A^T."""

    product: Product
    how: OpenRun
    update: TriangleUpdate
    plan: UpdatePlan

    @classmethod
    def of(cls, product: Product, run: OpenRun) -> Self:
        """Plan it."""
        update = TriangleUpdate((product,), lower=True, hermitian=False)
        return cls(product, run, update, update.plan(run))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The plans of blocks."""
        return self.plan.parts

    def run(self) -> RunSequence:
        """Compute it; return what reports its end."""
        with opened_result(self.product, self.how):
            return self.update.run(self.plan, self.how)


def _is_symmetric(product: Product, a: Any, b: Any) -> bool:
    """Say whether the product is A·A^T, of floating-point numbers that the host can read."""
    other = product.b.transposed()
    same = (a is b and product.a.trans == other.trans) or same_elements(product.a, other)
    on_host = not isinstance(product.a.matrix, DeviceArrayMatrix)
    return same and on_host and product.c_dtype == product.dtype and product.dtype.kind == "f"


def _lower_triangle(product: Product, take: TileFunction) -> Product:
    """Return A·A^T with a C of which `take` gets the tiles below the diagonal, and transposes."""
    return replace(product, c=Operand(_LowerTriangle(take, product.shape, product.dtype)))
