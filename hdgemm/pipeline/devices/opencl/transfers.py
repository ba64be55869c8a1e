"""Transfers between host and device: uploads, which pack A and B, and downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyopencl as cl

from hdgemm.pipeline.devices.opencl.driver import driver_errors
from hdgemm.pipeline.devices.opencl.memory import bytes_at, span_bytes
from hdgemm.pipeline.devices.opencl.panels import (
    Panels,
    element_origin,
    panel_width,
    rows_are_steps,
)
from hdgemm.pipeline.devices.opencl.programs import PACK_CHUNK
from hdgemm.pipeline.devices.protocol import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
    from hdgemm.pipeline.devices.opencl.memory import Memory
    from hdgemm.pipeline.devices.opencl.programs import Programs
    from hdgemm.pipeline.devices.opencl.queues import Work

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

    def prepare(
        self, source: NDArray[Any], target: Block, slot: cl.Buffer, shape: KernelShape
    ) -> tuple[Work, Any]:
        """Return the work to enqueue, and the objects that must live until it is done."""
        tile = target.tile
        if tile.operand == "C" or not shape.packed:
            start = element_origin(tile) + target.row * tile.ld + target.col
            return lambda queue, events: write_block(queue, source, slot, start, tile.ld, events), (
                source, slot,
            )  # fmt: skip
        width = panel_width(shape, tile)
        if self._zero_copy and _whole_elements(source):
            memory, skip = self._memory.reach(source)
            start, ld = skip // source.itemsize, source.strides[0] // source.itemsize
            return lambda queue, events: self._pack(
                queue, target, width, (memory, start, ld), slot, events
            ), (source, memory, slot)
        scratch = self._scratch_buffer()
        return lambda queue, events: self._pass_through(
            queue, source, target, width, scratch, slot, events
        ), (source, slot)

    def _pass_through(
        self,
        queue: cl.CommandQueue,
        source: NDArray[Any],
        target: Block,
        width: int,
        scratch: cl.Buffer,
        slot: cl.Buffer,
        events: list[cl.Event],
    ) -> tuple[cl.Event, cl.Event]:
        """Write one piece at a time into scratch memory and pack it from there."""
        commands: list[cl.Event] = []
        most = SCRATCH_BYTES // source.itemsize
        for row, col, rows, cols in _pieces(target.rows, target.cols, most):
            part = source[row : row + rows, col : col + cols]
            block = Block(target.tile, target.row + row, target.col + col, rows, cols)
            commands += write_block(queue, part, scratch, 0, cols, events)
            commands += self._pack(queue, block, width, (scratch, 0, cols), slot, [])
            events = []
        return commands[0], commands[-1]

    def _pack(
        self,
        queue: cl.CommandQueue,
        target: Block,
        width: int,
        source: tuple[cl.Buffer, int, int],
        slot: cl.Buffer,
        events: list[cl.Event],
    ) -> tuple[cl.Event, cl.Event]:
        event = pack_block(queue, self._programs, source, (target, slot, width), events)
        return event, event

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
    source: tuple[cl.Buffer, int, int],
    target: tuple[Block, cl.Buffer, int],
    events: list[cl.Event],
    *,
    user: str = "upload",
) -> cl.Event:
    """Pack rows of a buffer (its memory, first element and ld) into a block of A or B.

    `target` is the block, its memory and the width of its panels; `user` names the queue.
    """
    (block, slot, width), tile, items = target, target[0].tile, programs.pack_items
    panels = Panels.of(block, width)
    kernel = programs.pack(tile.dtype, width, rows_are_steps=rows_are_steps(tile), user=user)
    kernel.set_args(
        panels.steps, panels.first, panels.across, *source, slot, panels.start, panels.stride
    )
    grid = (panels.count * items, -(-panels.steps // PACK_CHUNK))
    return cl.enqueue_nd_range_kernel(queue, kernel, grid, (items, 1), wait_for=events)


def _whole_elements(source: NDArray[Any]) -> bool:
    return source.strides[0] % source.itemsize == 0 and source.ctypes.data % source.itemsize == 0


def _pieces(rows: int, cols: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut a rectangle into (row, col, rows, cols) of at most `most` elements, whole rows first."""
    width = min(cols, most)
    height = max(1, most // width)
    for row in range(0, rows, height):
        for col in range(0, cols, width):
            yield row, col, min(height, rows - row), min(width, cols - col)


def write_block(
    queue: cl.CommandQueue,
    source: NDArray[Any],
    memory: cl.Buffer,
    start: int,
    ld: int,
    events: list[cl.Event],
) -> tuple[cl.Event, cl.Event]:
    """Copy a 2-D array to rows of `memory`, `ld` elements apart, from element `start` on."""
    event = cl.enqueue_copy(
        queue, memory, bytes_at(source.ctypes.data, span_bytes(source)),
        is_blocking=False, wait_for=events, **_rectangle(source, start, ld),
    )  # fmt: skip
    return event, event


def read_block(
    queue: cl.CommandQueue,
    memory: cl.Buffer,
    start: int,
    ld: int,
    target: NDArray[Any],
    events: list[cl.Event],
) -> tuple[cl.Event, cl.Event]:
    """Copy rows of `memory`, `ld` elements apart, from element `start` on, to a 2-D array."""
    event = cl.enqueue_copy(
        queue, bytes_at(target.ctypes.data, span_bytes(target)), memory,
        is_blocking=False, wait_for=events, **_rectangle(target, start, ld),
    )  # fmt: skip
    return event, event


def _rectangle(host: NDArray[Any], start: int, ld: int) -> dict[str, tuple[int, ...]]:
    size = host.itemsize
    rows, cols = host.shape
    pitch = ld * size
    host_pitch = host.strides[0] if rows > 1 else cols * size
    return {
        "buffer_origin": (start * size % pitch, start * size // pitch, 0),
        "host_origin": (0, 0, 0),
        "region": (cols * size, rows, 1),
        "buffer_pitches": (pitch, 0),
        "host_pitches": (host_pitch, 0),
    }
