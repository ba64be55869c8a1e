"""Rank-k and rank-2k updates of one triangle of a stored C.

C is halved until its diagonal blocks fit the memory. Each rectangle beside the diagonal is a
product of views, which the engine computes. Then each diagonal block stays in memory while the
columns of op(A) pass through it once, by syrk (herk, syr2k, her2k). All blocks of one halving are
equal but the last, so that a plan has a few shapes and their numbers, however many blocks there
are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.blas._diagonal_block import DiagonalBlock, Place, update_flops
from hdgemm.blas.blockwise import block_of, run_blocks
from hdgemm.call.plans import RepeatedPart
from hdgemm.call.recorder import Recorder
from hdgemm.call.run import OpenRun, folder_of, machine_of
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import DoesNotFitError
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.layout import blas_takes
from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS, ReadAhead
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.transfer import ALIGNMENT, BOUNCE_BYTES
from hdgemm.pipeline.plans import Plans
from hdgemm.planning.byte_counts import ceil_div
from hdgemm.progress import Callbacks
from hdgemm.run.members import preflight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.call.plans import Part
    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.product.product import Product
    from hdgemm.run.session import Session

#: Stream blocks at least, so that little is read before the first update.
_LEAST_BLOCKS: Final = 8
#: Columns of op(A) in a stream buffer at least: with fewer, syrk is much slower than gemm.
_LEAST_COLUMNS: Final = 64
#: Blocks of at least so many chunks of A and C are rounded up to whole ones, smaller blocks to
#: chunks of C alone.
_ALIGNED: Final = 8


@dataclass(frozen=True, slots=True)
class TriangleUpdate:
    """C := alpha·A·A^H + beta·C, or alpha·A·B^H + conj(alpha)·B·A^H + beta·C; or with ^T.

    Parameters
    ----------
    products
        What is added to C: one product, or two of which the second has beta = 1.
    lower
        The triangle of C that is read and written.
    hermitian
        ^H; for real matrices the same as ^T.
    """

    products: tuple[Product, ...]
    lower: bool
    hermitian: bool

    @property
    def first(self) -> Product:
        """The product with the caller's alpha and beta."""
        return self.products[0]

    def plan(self, run: OpenRun) -> UpdatePlan:
        """Return the plan that `run` executes; the products' C is open, or only described."""
        cut = self._cut(run.options)
        run.session.free_slots()
        machine = self._machine(run.options, run.session)
        diagonal = []
        for blocks in cut.diagonal:
            place = next(_places(blocks, cut.columns))
            block = self._block(place, Recorder(Callbacks(), 0), machine)
            diagonal.append(RepeatedPart(block, blocks.count))
        return UpdatePlan(cut, machine, tuple(diagonal), tuple(self._planned(cut, run)))

    def run(self, plan: UpdatePlan, run: OpenRun) -> RunSequence:
        """Compute the triangle; the products' C is open. Return what the caller reports with."""
        cut = plan.cut
        portions = RunSequence(run.callbacks, update_flops(self.products, self.first.m))
        for (products, _), (plans, _) in zip(self._sums(cut), plan.products, strict=True):
            run_blocks(products, run, portions, plans)
        run.session.free_slots()
        with ReadAhead() as reads:
            for place in chain.from_iterable(_places(x, cut.columns) for x in cut.diagonal):
                flops = update_flops(self.products, place.last - place.first)
                recorder = Recorder(portions.next(flops), flops)
                block = self._block(place, recorder, plan.machine)
                with recorder.measuring_memory():
                    block.update(reads)
                recorder.finish(block)
        return portions

    def _sums(self, cut: _Cut) -> Iterator[tuple[Iterator[Product], int]]:
        """Yield the products of each run of rectangles, and their number.

        With rank 2k, the second products of a run follow its first ones.
        """
        for blocks in cut.rectangles:
            for product in self.products:
                yield (block_of(product, *block) for block in blocks), blocks.count

    def _planned(self, cut: _Cut, run: OpenRun) -> Iterator[tuple[Plans, int]]:
        """Plan each run of products beside the diagonal: all take the tile of the largest."""
        options = run.options
        for products, count in self._sums(cut):
            plans = Plans(preflight(next(products), options, run.session))
            if len(plans) == 1 and not plans[0].in_place:
                options = replace(options, tile=options.tile or plans[0].tile)
            yield plans, count

    def _block(self, place: Place, recorder: Recorder, machine: Machine) -> DiagonalBlock:
        return DiagonalBlock(
            self.products,
            place,
            lower=self.lower,
            hermitian=self.hermitian,
            recorder=recorder,
            machine=machine,
        )

    def _machine(self, options: Options, session: Session) -> Machine:
        """Return the rates of the host, and of the disk of A or else of C."""
        first = self.first
        files = (StoredMatrix(x, writable=False) for x in (first.a, first.destination))
        return machine_of(
            (first.m, first.n),
            first.dtype,
            folder_of(*files),
            OpenRun(options, session, Callbacks()),
            depth=first.k,
        )

    def _cut(self, options: Options) -> _Cut:
        """Halve C until diagonal blocks fit."""
        n = order = self.first.m
        halvings = 0
        while (columns := self._stream_columns(options, order)) is None:
            halvings += 1
            order = self._aligned(ceil_div(n, 1 << halvings))
        order = max(1, order)
        whole = n // order
        square, rest = slice(0, order), slice(whole * order, n)
        diagonal = [_Blocks(square, square, order, whole)] if whole else []
        diagonal += [_Blocks(rest, rest, order, 1)] if n % order or not whole else []
        rectangles: list[_Blocks] = []
        while order < n:
            rectangles = [*self._beside(order), *rectangles]
            order *= 2
        return _Cut(columns, tuple(diagonal), tuple(rectangles))

    def _aligned(self, order: int) -> int:
        """Round the order of blocks up to whole chunks or disk blocks, where these are smaller."""
        c = self.first.destination.matrix
        own = math.lcm(*(c.chunk or (ALIGNMENT // c.dtype.itemsize,)))
        every = math.lcm(own, *self._chunks())
        step = every if _ALIGNED * every <= order else own
        return order if step > order else ceil_div(order, step) * step

    def _chunks(self) -> set[int]:
        """Return the chunks' extents along the rows of op(A) and in C."""
        found = set(self.first.destination.matrix.chunk or ())
        for x in (self.first.a, self.first.b.transposed()):
            if x.matrix.chunk is not None:
                found.add(x.matrix.chunk[x.trans])
        return found

    def _beside(self, order: int) -> Iterator[_Blocks]:
        """Yield the rectangles beside blocks of this order, each between the two of a pair.

        Rectangles that begin at different places of chunks have plans of their own.
        """
        n, pair = self.first.m, 2 * order
        whole, period = n // pair, math.lcm(*(x // math.gcd(x, pair) for x in self._chunks()))
        for first in range(0, min(whole, period) * pair, pair):
            count = ceil_div(n - first - pair + 1, period * pair)
            yield self._between(first, first + order, first + pair, period * pair, count)
        if n - whole * pair > order:
            yield self._between(whole * pair, whole * pair + order, n, pair, 1)

    def _between(self, first: int, middle: int, last: int, distance: int, count: int) -> _Blocks:
        """Return the rectangles between blocks that begin at `first` and at `middle`."""
        rows, cols = slice(middle, last), slice(first, middle)
        rows, cols = (rows, cols) if self.lower else (cols, rows)
        return _Blocks(rows, cols, distance, count)

    def _stream_columns(self, options: Options, n: int) -> int | None:
        """Return the columns of op(A) that a stream buffer holds.

        None where a diagonal block of order n is to be halved.
        """
        k, dtype = self.first.k, self.first.dtype
        memory, (_, width, forced) = host_bytes(options), options.tile or (None, None, None)
        if width is not None and n > width:
            return None
        each = max(1, n * dtype.itemsize)
        held = 0 if blas_takes(self.first.destination.matrix.array, dtype) else n * each
        buffers = STREAM_BUFFERS * len(self.products)
        room = memory - BOUNCE_BYTES - held - 2 * buffers * ALIGNMENT
        fits = min(k, room // (buffers * each))
        columns = min(fits, max(_LEAST_COLUMNS, min(BLOCK_BYTES // each, k // _LEAST_BLOCKS)))
        if columns < min(k, _LEAST_COLUMNS) or room < 0:
            if n > 1:
                return None
            requested = memory - room + buffers * each * min(k, _LEAST_COLUMNS)
            what = f"an update of one element of C with k = {k}"
            raise DoesNotFitError.within(what, requested, memory)
        return max(1, min(columns, forced or columns))


def _places(blocks: _Blocks, columns: int) -> Iterator[Place]:
    return (Place(rows.start, rows.stop, columns) for rows, _ in blocks)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Equal blocks of C at a constant distance along its diagonal: the first one, and how many."""

    rows: slice
    cols: slice
    distance: int
    count: int

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        for shift in range(0, self.count * self.distance, self.distance):
            rows, cols = self.rows, self.cols
            yield (
                slice(rows.start + shift, rows.stop + shift),
                slice(cols.start + shift, cols.stop + shift),
            )


class _Cut(NamedTuple):
    """Columns of op(A) in a stream buffer; diagonal blocks, and the rectangles, largest first."""

    columns: int
    diagonal: tuple[_Blocks, ...]
    rectangles: tuple[_Blocks, ...]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """Where C is cut, and the plan of each run of equal blocks.

    Parameters
    ----------
    cut
        Diagonal blocks, and the rectangles beside them.
    machine
        Rates with which it was planned.
    diagonal, products
        Plans of the diagonal blocks, and of the products in the rectangles, in order, each with the
        number of its blocks.
    """

    cut: _Cut
    machine: Machine
    diagonal: tuple[RepeatedPart, ...]
    products: tuple[tuple[Plans, int], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The plans in the order in which the blocks are computed."""
        return (
            *(RepeatedPart(*planned) for planned in self.products if planned[0]),
            *self.diagonal,
        )
