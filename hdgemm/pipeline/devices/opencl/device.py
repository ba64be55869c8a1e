"""The OpenCL device: three in-order queues, packed tiles, one kernel of many shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.opencl.driver import driver_errors
from hdgemm.pipeline.devices.opencl.queues import DrivenLane, EventLane, Lane
from hdgemm.pipeline.devices.opencl.launch import Product, Source, Target, enqueue_gemm
from hdgemm.pipeline.devices.opencl.memory import (
    DeviceBuffer,
    MappedStaging,
    Memory,
    StagingBuffer,
)
from hdgemm.pipeline.devices.opencl.packing import (
    aligned_start,
    element_origin,
    packed_elements,
    panel_width,
    panels,
)
from hdgemm.pipeline.devices.opencl.programs import Programs
from hdgemm.pipeline.devices.opencl.store import hint
from hdgemm.pipeline.devices.opencl.transfers import SCRATCH_BYTES, Uploads, read_block
from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl.shape_classes import Kernels
    from hdgemm.pipeline.devices.opencl.driver import Facts
    from hdgemm.pipeline.devices.opencl.shape import Shape
    from hdgemm.pipeline.devices.protocol import Block, Buffer, Completion, Tile
    from hdgemm.pipeline.plan import Operand


class OpenCLDevice:
    """One OpenCL device, or a part of one.

    Parameters
    ----------
    name
        As in `Options.devices`.
    shapes
        The multiply kernel's shapes for each dtype that the device multiplies.
    memory_bytes
        The most it may hold; None for what the driver says it can.
    zero_copy
        Staging is read and written in place by the device; so it is on a CPU.
    """

    def __init__(
        self,
        name: str,
        device: cl.Device,
        facts: Facts,
        shapes: Mapping[np.dtype[Any], Kernels],
        *,
        memory_bytes: int | None = None,
        zero_copy: bool = True,
    ) -> None:
        with driver_errors(f"opening {name}"):
            self._context = cl.Context([device])
            make = DrivenLane if facts.waiting_threads_work else EventLane
            self._lanes: tuple[Lane, ...] = tuple(make(self._context, device) for _ in range(3))
        self._description = facts.device
        self._upload, self._compute, self._download = self._lanes
        self._programs = Programs(self._context, shapes, in_step=facts.simd_width > 1)
        limit = facts.memory_bytes - SCRATCH_BYTES
        if memory_bytes is not None:
            limit = min(limit, memory_bytes)
        most = min(limit, facts.max_buffer_bytes)
        self._memory = Memory(self._context, limit, most, zero_copy=zero_copy)
        self._uploads = Uploads(self._context, self._memory, self._programs, zero_copy=zero_copy)
        self.spec = DeviceSpec(name, False, limit, most, _granularity(self._programs.shapes))

    def slot_bytes(self, operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Bytes of a tile in its slot: A and B in whole panels, C as it is."""
        shape = self._kernels(dtype).square
        if operand == "C" or not shape.packed:
            return rows * cols * dtype.itemsize
        return packed_elements(rows, cols, panel_width(shape, operand, dtype)) * dtype.itemsize

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Take device memory."""
        return self._memory.allocate(nbytes)

    def allocate_staging(self, nbytes: int) -> StagingBuffer:
        """Take host memory that the device reads in place, or by DMA."""
        return self._memory.allocate_staging(nbytes, self._download.queue)

    def free(self, buffer: Buffer) -> None:
        """Give memory back; nothing enqueued may still need it."""
        if not isinstance(buffer, DeviceBuffer):
            raise DeviceError(f"{self.spec.name}: this memory was not taken here")
        self._memory.free(buffer)

    def upload(
        self, source: NDArray[Any], target: Block, after: Sequence[Completion]
    ) -> Completion:
        """load2: bring staged rows into a tile, packing them on the way."""
        if source.shape != (target.rows, target.cols):
            raise DeviceError(
                f"upload of {source.shape} into a block of {(target.rows, target.cols)}",
                source=source.shape,
            )
        if source.size == 0:
            return DONE
        shape = self._kernels(target.tile.dtype).square
        work, keep = self._uploads.prepare(source, target, _memory(target.tile), shape)
        return self._upload.enqueue("upload", work, after, keep)

    def gemm(
        self,
        alpha: complex,
        a: Block,
        b: Block,
        beta: complex,
        c: Block,
        after: Sequence[Completion],
    ) -> Completion:
        """mult1: C := alpha·A·B + beta·C; alpha = 0 reads neither A nor B."""
        dtype = c.tile.dtype
        k = _depth(a, b, c)
        kernels = self._kernels(dtype)
        shape = kernels.of((c.rows, c.cols, k))
        hint(self.spec.name, self._description, dtype.name, kernels.origin)
        if c.rows == 0 or c.cols == 0:
            return DONE
        target = Target(_memory(c.tile), _bias(c.tile) + _offset(c), c.tile.ld)
        product = Product(
            (c.rows, c.cols, 0 if alpha == 0 else k),
            alpha, _operand(a, shape), _operand(b, shape), beta, target,
        )  # fmt: skip
        kernel = self._programs.gemm(dtype, shape)
        buffer = c.tile.buffer

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            if not isinstance(buffer, MappedStaging):
                event = enqueue_gemm(queue, kernel, shape, dtype, product, events)
                return event, event
            buffer.unmap(queue, events)
            event = enqueue_gemm(queue, kernel, shape, dtype, product)
            return event, buffer.remap(queue)

        return self._compute.enqueue("multiplication", work, after, (product, buffer))

    def download(
        self, source: Block, target: NDArray[Any], after: Sequence[Completion]
    ) -> Completion:
        """store1: copy part of a C tile into staging."""
        if target.shape != (source.rows, source.cols) or target.dtype != source.tile.dtype:
            raise DeviceError(
                f"download of a block of {(source.rows, source.cols)} {source.tile.dtype} into "
                f"{target.shape} {target.dtype}",
                target=target.shape,
            )
        if target.size == 0:
            return DONE
        memory, start = _memory(source.tile), _bias(source.tile) + _offset(source)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> tuple[cl.Event, cl.Event]:
            event = read_block(queue, memory, start, source.tile.ld, target, events)
            return event, event

        return self._download.enqueue("download", work, after, (target, memory))

    def synchronize(self) -> None:
        """Wait for all three queues."""
        for lane in self._lanes:
            lane.finish()

    def close(self) -> None:
        """Wait, end the lanes, and free what uploads pass through."""
        for lane in self._lanes:
            lane.close()
        self._uploads.close()

    def _kernels(self, dtype: np.dtype[Any]) -> Kernels:
        try:
            return self._programs.shapes[dtype]
        except KeyError:
            held = ", ".join(sorted(each.name for each in self._programs.shapes))
            raise DeviceUnavailableError(
                f"{self.spec.name} does not multiply {dtype.name}; it does {held}"
            ) from None


def _granularity(shapes: Mapping[np.dtype[Any], Kernels]) -> tuple[int, int, int]:
    """One granularity for all dtypes: a multiple of each one's panels."""
    packed = {dtype: each.square for dtype, each in shapes.items() if each.square.packed}
    return (
        math.lcm(*(shape.block_m() for shape in packed.values())),
        math.lcm(*(shape.block_n(dtype) for dtype, shape in packed.items())),
        1,
    )


def _memory(tile: Tile) -> cl.Buffer:
    if not isinstance(tile.buffer, DeviceBuffer):
        raise DeviceError(
            f"an OpenCL device multiplies tiles in its own slots, not in a {type(tile.buffer)}"
        )
    return tile.buffer.memory


def _bias(tile: Tile) -> int:
    """Elements from the start of the driver's memory to the tile."""
    skip = tile.buffer.skip if isinstance(tile.buffer, StagingBuffer) else 0
    return int(skip) // tile.dtype.itemsize + element_origin(tile)


def _offset(block: Block) -> int:
    return block.row * block.tile.ld + block.col


def _depth(a: Block, b: Block, c: Block) -> int:
    """Check that the blocks of a product fit together, and return its k."""
    m, k = (a.cols, a.rows) if a.tile.trans else (a.rows, a.cols)
    k_b, n = (b.cols, b.rows) if b.tile.trans else (b.rows, b.cols)
    dtypes = {block.tile.dtype for block in (a, b, c)}
    if (m, n) != (c.rows, c.cols) or k != k_b or len(dtypes) != 1:
        raise DeviceError(
            f"blocks of a product do not fit: A {m}×{k}, B {k_b}×{n}, C {c.rows}×{c.cols} "
            f"of {', '.join(sorted(dtype.name for dtype in dtypes))}",
            m=m, n=n, k=k,
        )  # fmt: skip
    return k


def _operand(block: Block, shape: Shape) -> Source:
    tile = block.tile
    if shape.packed:
        part = panels(block, panel_width(shape, tile.operand, tile.dtype))
        return Source(_memory(tile), aligned_start(part), (part.stride,))
    strides = (1, tile.ld) if tile.trans else (tile.ld, 1)
    return Source(_memory(tile), element_origin(tile) + _offset(block), strides)
