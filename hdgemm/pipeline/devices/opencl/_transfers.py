"""Transfers between host and device: uploads, which pack A and B, and downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyopencl as cl

from hdgemm.matrices.layout import rectangles
from hdgemm.pipeline.devices.opencl._driver import driver_errors
from hdgemm.pipeline.devices.opencl._memory import bytes_at, span_bytes
from hdgemm.pipeline.devices.opencl._panels import Panels, panel_width, rows_are_steps, rows_of
from hdgemm.pipeline.devices.opencl._programs import PACK_CHUNK, Rows
from hdgemm.pipeline.devices.protocol import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl._memory import Memory
    from hdgemm.pipeline.devices.opencl._programs import Programs
    from hdgemm.pipeline.devices.opencl._queues import Work
    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape

#: Device memory through which rows pass before they are packed, where the device cannot read
#: staging in place. It is not available to slots.
SCRATCH_BYTES: Final = 16 << 20


class Uploads:
    """Prepares uploads for the upload queue."""

    def __init__(
        self, context: cl.Context, memory: Memory, programs: Programs, *, zero_copy: bool
    ) -> None:
        self._context = context
        self._memory = memory
        self._programs = programs
        self._zero_copy = zero_copy
        self._scratch: cl.Buffer | None = None

    def prepare(self, source: NDArray[Any], target: Block, shape: KernelShape) -> tuple[Work, Any]:
        """Return the work to enqueue, and the objects that must live until it is done."""
        rows = rows_of(target)
        if target.tile.operand == "C" or not shape.packed:
            return lambda queue, events: [write_block(queue, source, rows, events)], (source, rows)
        width = panel_width(shape, target.tile)
        if self._zero_copy and _whole_elements(source):
            memory, skip = self._memory.buffer_over(source)
            size = source.itemsize
            staged = Rows(memory, skip // size, source.strides[0] // size)
            return lambda queue, events: [
                pack_block(queue, self._programs, staged, target, width, events)
            ], (source, memory, rows)
        scratch = self._scratch_buffer()

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            """Write one piece at a time into scratch memory and pack it from there."""
            commands: list[cl.Event] = []
            most = SCRATCH_BYTES // source.itemsize
            for row, col, height, across in rectangles((target.rows, target.cols), most):
                part = source[row : row + height, col : col + across]
                block = Block(target.tile, target.row + row, target.col + col, height, across)
                dense = Rows(scratch, 0, across)
                commands += (
                    write_block(queue, part, dense, [] if commands else events),
                    pack_block(queue, self._programs, dense, block, width, []),
                )
            return commands

        return work, (source, rows)

    def _scratch_buffer(self) -> cl.Buffer:
        if self._scratch is None:
            with driver_errors("allocating scratch memory", requested=SCRATCH_BYTES):
                flags = cl.mem_flags.READ_WRITE
                self._scratch = cl.Buffer(self._context, flags, SCRATCH_BYTES)
        return self._scratch

    def close(self) -> None:
        """Free the scratch memory."""
        if self._scratch is not None:
            self._scratch.release()
            self._scratch = None


def pack_block(
    queue: cl.CommandQueue,
    programs: Programs,
    source: Rows,
    target: Block,
    width: int,
    events: list[cl.Event],
    *,
    user: str = "upload",
) -> cl.Event:
    """Pack rows into a block of A or B with panels of `width`; `user` names the queue."""
    tile, items, panels = target.tile, programs.pack_items, Panels.of(target, width)
    kernel = programs.pack(tile.dtype, width, rows_are_steps=rows_are_steps(tile), user=user)
    slot = rows_of(target).memory
    kernel.set_args(
        panels.steps, panels.first, panels.across, *source, slot, panels.start, panels.stride
    )
    grid = (panels.count * items, -(-panels.steps // PACK_CHUNK))
    return cl.enqueue_nd_range_kernel(queue, kernel, grid, (items, 1), wait_for=events)


def _whole_elements(source: NDArray[Any]) -> bool:
    return source.strides[0] % source.itemsize == 0 and source.ctypes.data % source.itemsize == 0


def write_block(
    queue: cl.CommandQueue, source: NDArray[Any], target: Rows, events: list[cl.Event]
) -> cl.Event:
    """Copy a 2-D array to the device."""
    return cl.enqueue_copy(
        queue,
        target.memory,
        bytes_at(source.ctypes.data, span_bytes(source)),
        is_blocking=False,
        wait_for=events,
        **_rectangle(source, target),
    )


def read_block(
    queue: cl.CommandQueue, source: Rows, target: NDArray[Any], events: list[cl.Event]
) -> cl.Event:
    """Copy rows of the device to a 2-D array."""
    return cl.enqueue_copy(
        queue,
        bytes_at(target.ctypes.data, span_bytes(target)),
        source.memory,
        is_blocking=False,
        wait_for=events,
        **_rectangle(target, source),
    )


def _rectangle(host: NDArray[Any], there: Rows) -> dict[str, tuple[int, ...]]:
    size = host.itemsize
    rows, cols = host.shape
    return {
        "buffer_origin": _origin(there, size),
        "host_origin": (0, 0, 0),
        "region": (cols * size, rows, 1),
        "buffer_pitches": (there.ld * size, 0),
        "host_pitches": (host.strides[0] if rows > 1 else cols * size, 0),
    }


def copy_rows(
    queue: cl.CommandQueue,
    source: Rows,
    target: Rows,
    extents: tuple[int, int, int],
    events: list[cl.Event],
) -> cl.Event:
    """Copy between rows of the device: `extents` are rows, columns and bytes of an element."""
    rows, cols, size = extents
    options: dict[str, Any] = {
        "src_origin": _origin(source, size),
        "dst_origin": _origin(target, size),
        "region": (cols * size, rows, 1),
        "src_pitches": (source.ld * size, 0),
        "dst_pitches": (target.ld * size, 0),
    }
    return cl.enqueue_copy(queue, target.memory, source.memory, wait_for=events, **options)


def _origin(rows: Rows, size: int) -> tuple[int, int, int]:
    return rows.start % rows.ld * size, rows.start // rows.ld, 0
