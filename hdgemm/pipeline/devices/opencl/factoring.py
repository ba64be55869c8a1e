"""Operations of factorisations on an OpenCL device, in the queue of products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyopencl as cl

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.blocks import bias_of, memory_of, offset_of
from hdgemm.pipeline.devices.opencl.panels import panel_width
from hdgemm.pipeline.devices.opencl.programs import GROUP, ORDER, groups
from hdgemm.pipeline.devices.opencl.transfers import pack_block
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl.device import OpenCLDevice
    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
    from hdgemm.pipeline.devices.opencl.memory import DeviceBuffer, Memory
    from hdgemm.pipeline.devices.opencl.programs import Programs
    from hdgemm.pipeline.devices.opencl.queues import EventCompletion, Queue
    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import Operand


class Triangle(NamedTuple):
    """BLAS's letters: side L or R, op(A) as N, T or C, the lower or upper triangle of A."""

    side: str
    lower: bool
    trans: str
    unit: bool


class Factoring:
    """Triangular solves, permutations and copies of one device, and the workspace that they take.

    Parameters
    ----------
    device
        Runs the products of a triangular solve, beside its diagonal blocks.
    queue
        The queue of products.
    """

    def __init__(
        self, device: OpenCLDevice, memory: Memory, programs: Programs, queue: Queue
    ) -> None:
        self._device, self._memory = device, memory
        self._programs, self._queue = programs, queue
        self._workspace: dict[str, DeviceBuffer] = {}

    def copy(
        self, source: Block, target: Block, shape: KernelShape, after: Sequence[Completion]
    ) -> Completion:
        """Copy between tiles; see `FactorDevice.copy`."""
        tile = target.tile
        if (source.rows, source.cols) != (target.rows, target.cols):
            raise DeviceError(
                f"copy of a block of {source.rows}×{source.cols} to one of "
                f"{target.rows}×{target.cols}",
                source=(source.rows, source.cols),
            )
        if not (source.rows and source.cols):
            return self._queue.mark("copy", after)
        start, ld = bias_of(source.tile) + offset_of(source), source.tile.ld
        memory, slot = memory_of(source.tile), memory_of(tile)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            if tile.operand == "C" or not shape.packed:
                event = _copy_rectangle(queue, (memory, start, ld), target, events)
            else:
                packed = (target, slot, panel_width(shape, tile))
                event = pack_block(
                    queue, self._programs, (memory, start, ld), packed, events, user="compute"
                )
            return event, event

        return self._queue.enqueue("copy", work, after, (memory, slot))

    def permute(
        self,
        block: Block,
        places: NDArray[np.int64],
        sources: NDArray[np.int64],
        after: Sequence[Completion],
        *,
        axis: int,
    ) -> Completion:
        """Permute lines of a block; see `FactorDevice.permute`."""
        tile, count = block.tile, len(places)
        across = block.cols if axis == 0 else block.rows
        if not (count and across):
            return self._queue.mark("permutation", after)
        scratch = self.space("lines", count * across * tile.dtype.itemsize).memory
        lines = [self._memory.constant(each.astype(np.int32)) for each in (sources, places)]
        strides = (tile.ld, 1) if axis == 0 else (1, tile.ld)
        inside = (memory_of(tile), bias_of(tile) + offset_of(block), *strides)
        kernel = self._programs.factor(tile.dtype, "move")

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            held = (scratch, 0, 1, count) if axis else (scratch, 0, across, 1)
            grid = (groups(count), across) if axis else (groups(across), count)
            group, extents = (GROUP, 1), (across, count, axis)
            kernel.set_args(*extents, lines[0], 0, *inside, *held)
            first = cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)
            kernel.set_args(*extents, lines[1], 1, *held, *inside)
            return first, cl.enqueue_nd_range_kernel(queue, kernel, grid, group)

        return self._queue.enqueue("permutation", work, after, (lines, scratch))

    def trsm(self, a: Block, b: Block, form: Triangle, after: Sequence[Completion]) -> Completion:
        """Solve block by block; see `FactorDevice.trsm`.

        The diagonal block is inverted and multiplied with B's rows (or columns) beside it; then
        their product with the rest of op(A) is subtracted from the rows that are not yet solved.
        """
        n = b.rows if form.side == "L" else b.cols
        if (a.rows, a.cols) != (n, n):
            raise DeviceError(
                f"a solve of {b.rows}×{b.cols} on side {form.side} with A {a.rows}×{a.cols}"
            )
        if not (b.rows and b.cols):
            return self._queue.mark("triangular solve", after)
        if form.trans == "C" and b.tile.dtype.kind == "c":  # A^-H·B is conj(A^-T·conj(B))
            first = self.conjugate(b, after)
            self._solve(a, b, form, ())
            last = self.conjugate(b, ())
        else:
            first, last = self._solve(a, b, form, after)
        return first.until("triangular solve", last)

    def _solve(
        self, a: Block, b: Block, form: Triangle, after: Sequence[Completion]
    ) -> tuple[EventCompletion, EventCompletion]:
        """Enqueue a solve with A or A^T; return its first and its last completion."""
        n = a.rows
        left, transposed = form.side == "L", form.trans != "N"
        ends: list[EventCompletion] = []
        for own, rest in _blocks(n, ascending=(form.lower != transposed) == left):
            inverse, inverted = self._invert(_part(a, own, own), form, () if ends else after)
            solved = _part(b, own, None) if left else _part(b, None, own)
            ends += [inverted, self._multiply(1.0, inverse, solved, 0.0, solved, form)]
            if rest.start < rest.stop:
                beside = _part(a, own, rest) if left == transposed else _part(a, rest, own)
                unsolved = _part(b, rest, None) if left else _part(b, None, rest)
                ends.append(self._multiply(-1.0, beside, solved, 1.0, unsolved, form))
        return ends[0], ends[-1]

    def _multiply(
        self, alpha: float, factor: Block, x: Block, beta: float, c: Block, form: Triangle
    ) -> EventCompletion:
        """C := alpha·op(F)·X + beta·C, or with side R alpha·X·op(F) + beta·C.

        Both are copied into tiles of A and B first, so that C may be X.
        """
        names: tuple[Operand, Operand] = ("A", "B") if form.side == "L" else ("B", "A")
        op = self._packed(names[0], factor, trans=form.trans != "N")
        other = self._packed(names[1], x, trans=False)
        a, b = (op, other) if form.side == "L" else (other, op)
        return self._device.gemm(alpha, a, b, beta, c, ())

    def _packed(self, operand: Operand, source: Block, *, trans: bool) -> Block:
        """Copy a block into workspace in the layout of A or B."""
        rows, cols, dtype = source.rows, source.cols, source.tile.dtype
        nbytes = self._device.slot_bytes(operand, rows, cols, dtype)
        tile = Tile(operand, self.space(operand, nbytes), rows, cols, cols, dtype, trans)
        target = Block(tile, 0, 0, rows, cols)
        self._device.copy(source, target, ())
        return target

    def _invert(
        self, a: Block, form: Triangle, after: Sequence[Completion]
    ) -> tuple[Block, EventCompletion]:
        """Invert a triangular block into workspace."""
        dtype = a.tile.dtype
        space = self.space("inverse", ORDER * ORDER * dtype.itemsize)
        kernel = self._programs.factor(dtype, "invert")
        memory, start = memory_of(a.tile), bias_of(a.tile) + offset_of(a)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            kernel.set_args(
                a.rows, int(form.lower), int(form.unit), memory, start, a.tile.ld, space.memory
            )
            grid, group = (groups(a.rows),), (GROUP,)
            event = cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)
            return event, event

        done = self._queue.enqueue("inversion of a block", work, after, (memory, space))
        return Block(Tile("C", space, ORDER, ORDER, ORDER, dtype), 0, 0, a.rows, a.rows), done

    def conjugate(self, block: Block, after: Sequence[Completion]) -> EventCompletion:
        """Conjugate a block that is not empty, in place."""
        kernel = self._programs.factor(block.tile.dtype, "conjugate")
        memory, start = memory_of(block.tile), bias_of(block.tile) + offset_of(block)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            kernel.set_args(block.cols, memory, start, block.tile.ld)
            grid, group = (groups(block.cols), block.rows), (GROUP, 1)
            event = cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)
            return event, event

        return self._queue.enqueue("conjugation", work, after, memory)

    def space(self, name: str, nbytes: int) -> DeviceBuffer:
        """Return workspace, which the queue uses in order; it grows when more is needed."""
        held = self._workspace.get(name)
        if held is None or held.nbytes < nbytes:
            if held is not None:
                self._queue.finish()
                self._memory.free(self._workspace.pop(name))
            held = self._workspace[name] = self._memory.allocate(nbytes)
        return held

    def close(self) -> None:
        """Free the workspace; the queue must be idle."""
        while self._workspace:
            self._memory.free(self._workspace.popitem()[1])


def _blocks(n: int, *, ascending: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of each diagonal block, and those that are solved after them."""
    starts = range(0, n, ORDER)
    for start in starts if ascending else reversed(starts):
        stop = min(start + ORDER, n)
        yield slice(start, stop), slice(stop, n) if ascending else slice(0, start)


def _part(block: Block, rows: slice | None, cols: slice | None) -> Block:
    """Return rows and columns of a block; None for all."""
    top, height = (0, block.rows) if rows is None else (rows.start, rows.stop - rows.start)
    first, width = (0, block.cols) if cols is None else (cols.start, cols.stop - cols.start)
    return Block(block.tile, block.row + top, block.col + first, height, width)


def _copy_rectangle(
    queue: cl.CommandQueue,
    source: tuple[cl.Buffer, int, int],
    target: Block,
    events: list[cl.Event],
) -> cl.Event:
    """Copy rows of a buffer (its memory, first element and ld) to a row-major block."""
    (memory, start, ld), tile, size = source, target.tile, target.tile.dtype.itemsize
    to, pitch = (bias_of(tile) + offset_of(target)) * size, tile.ld * size
    options: dict[str, Any] = {
        "src_origin": (start * size % (ld * size), start * size // (ld * size), 0),
        "dst_origin": (to % pitch, to // pitch, 0),
        "region": (target.cols * size, target.rows, 1),
        "src_pitches": (ld * size, 0),
        "dst_pitches": (pitch, 0),
    }
    return cl.enqueue_copy(queue, memory_of(tile), memory, wait_for=events, **options)
