"""Rank-k and rank-2k updates of one triangle of a stored C.

C is halved until its diagonal blocks fit the memory. A diagonal block stays in memory while the
columns of op(A) pass through it once, by syrk (herk, syr2k, her2k); each rectangle beside the
diagonal is a product of views, which the engine computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.blas._diagonal_block import DiagonalBlock, Place, update_flops
from hdgemm.blas.blockwise import block_of, run_blocks
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
from hdgemm.progress import Watch
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
        options, session = run.options, run.session
        blocks = _Blocks([], [])
        self._cut(options, 0, self.first.m, blocks)
        session.free_slots()
        machine = self._machine(options, session)
        products = [preflight(product, options, session) for product in self._sums(blocks)]
        diagonal = (self._block(place, Recorder(Watch(), 0), machine) for place in blocks.diagonal)
        return UpdatePlan(blocks, machine, tuple(diagonal), tuple(map(Plans, products)))

    def run(self, plan: UpdatePlan, run: OpenRun) -> RunSequence:
        """Compute the triangle; the products' C is open. Return what the caller reports with."""
        places, sums = plan.blocks.diagonal, self._sums(plan.blocks)
        flops = [update_flops(self.products, last - first) for first, last, _ in places]
        portions = RunSequence(run.watch, sum(flops) + sum(product.flops for product in sums))
        run.session.free_slots()
        with ReadAhead() as reads:
            for place, count in zip(places, flops, strict=True):
                recorder = Recorder(portions.next(count), count)
                block = self._block(place, recorder, plan.machine)
                with recorder.measuring_memory():
                    block.update(reads)
                recorder.finish(block)
        run_blocks(sums, run, portions, plan.products)
        return portions

    def _sums(self, blocks: _Blocks) -> list[Product]:
        """Return the products beside the diagonal."""
        return [part for block in blocks.rectangles for part in self._rectangle(block)]

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
            OpenRun(options, session, Watch()),
            depth=first.k,
        )

    def _cut(self, options: Options, first: int, last: int, blocks: _Blocks) -> None:
        """Halve C until diagonal blocks fit; collect them and the rectangles beside them."""
        columns = self._stream_columns(options, first, last)
        if columns is not None:
            blocks.diagonal.append(Place(first, last, columns))
            return
        middle = self._middle(first, last)
        self._cut(options, first, middle, blocks)
        rows, cols = slice(middle, last), slice(first, middle)
        blocks.rectangles.append((rows, cols) if self.lower else (cols, rows))
        self._cut(options, middle, last, blocks)

    def _middle(self, first: int, last: int) -> int:
        """Return where to halve a block, on a boundary of C's chunks or disk blocks."""
        c = self.first.destination.matrix
        step = max(c.chunk or (ALIGNMENT // c.dtype.itemsize,))
        middle = (first + last) // 2
        aligned = middle - middle % step
        return aligned if aligned > first else middle

    def _stream_columns(self, options: Options, first: int, last: int) -> int | None:
        """Return the columns of op(A) that a stream buffer holds beside a diagonal block.

        None where the block is to be halved.
        """
        n, k, dtype = last - first, self.first.k, self.first.dtype
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

    def _rectangle(self, block: tuple[slice, slice]) -> Iterator[Product]:
        first, *second = (block_of(product, *block) for product in self.products)
        yield first
        for product in second:
            yield replace(product, c=first.c, old=first.c)


class _Blocks(NamedTuple):
    diagonal: list[Place]
    rectangles: list[tuple[slice, slice]]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """Where C is cut, and the plan of each block.

    Parameters
    ----------
    blocks
        Diagonal blocks, and the rectangles beside them.
    machine
        Rates with which it was planned.
    diagonal, products
        Plans of the diagonal blocks, and of the products in the rectangles, in order.
    """

    blocks: _Blocks
    machine: Machine
    diagonal: tuple[DiagonalBlock, ...]
    products: tuple[Plans, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The plans in the order in which the blocks are computed."""
        return (*self.diagonal, *(plans for plans in self.products if plans))
