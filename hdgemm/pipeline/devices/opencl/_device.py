"""The OpenCL device: three in-order queues, tiles in panels, one multiply kernel of many shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.opencl._driver import OwnerProcess, driver_errors
from hdgemm.pipeline.devices.opencl._memory import (
    DeviceBuffer,
    MappedStaging,
    Memory,
    StagingBuffer,
)
from hdgemm.pipeline.devices.opencl._panels import (
    kernel_width,
    packed_elements,
    panel_width,
    rows_of,
    source_of,
)
from hdgemm.pipeline.devices.opencl._programs import GemmCall, Programs
from hdgemm.pipeline.devices.opencl._queues import open_queues
from hdgemm.pipeline.devices.opencl._transfers import SCRATCH_BYTES, Uploads, read_block
from hdgemm.pipeline.devices.opencl.tuning_cache import warn_untuned
from hdgemm.pipeline.devices.protocol import DONE, extents_of
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl._queues import EventCompletion
    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShapes
    from hdgemm.pipeline.devices.opencl.platforms import Found
    from hdgemm.pipeline.devices.protocol import After, Block, Buffer, Completion
    from hdgemm.pipeline.plan import Operand


class OpenCLDevice:
    """One OpenCL device, or a part of one; it serves any number of products one after another.

    Its context, queues and built kernels live until `close`. In a forked child of the process
    that opened it every method but `close` raises `DeviceError`.

    `shapes` are the multiply kernel's for each dtype that the device multiplies. It holds at most
    `memory_bytes`, None for what the driver reports. With `zero_copy` it reads and writes staging
    in place, as a CPU does.
    """

    def __init__(
        self,
        name: str,
        found: Found,
        shapes: Mapping[np.dtype[Any], KernelShapes],
        *,
        memory_bytes: int | None = None,
        zero_copy: bool = True,
    ) -> None:
        facts = found.facts
        self.host_cores = facts.compute_units if facts.kind == "cpu" else 0
        self._owner = OwnerProcess(name)
        with driver_errors(f"opening {name}"):
            self._context = cl.Context([found.handle])
            self._queues = open_queues(
                self._context, found.handle, self._owner, 3, blocking=facts.waiting_threads_work
            )
        self._upload, self._compute, self._download = self._queues
        self._description = facts.device
        self._shapes = dict(shapes)
        self._programs = Programs(self._context, self._owner, lockstep=facts.simd_width > 1)
        limit = facts.memory_bytes - SCRATCH_BYTES
        if memory_bytes is not None:
            limit = min(limit, memory_bytes)
        most = min(limit, facts.max_buffer_bytes)
        self._memory = Memory(self._context, self._owner, limit, most, zero_copy=zero_copy)
        self._zero_copy = zero_copy
        self._uploads = Uploads(self._context, self._memory, self._programs, zero_copy=zero_copy)
        self.spec = DeviceSpec(name, False, limit, most, _granularity(self._shapes))
        self._owner.protect(self)

    def slot_bytes(self, operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Return the bytes of a tile in its slot: A and B in whole panels, C row-major."""
        shape = self._dtype_shapes(dtype).square
        if operand == "C" or not shape.packed:
            return rows * cols * dtype.itemsize
        return packed_elements(rows, cols, kernel_width(shape, operand, dtype)) * dtype.itemsize

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Take device memory."""
        return self._memory.allocate(nbytes)

    def allocate_staging(self, nbytes: int) -> StagingBuffer:
        """Take host memory that the device reads in place, or by DMA."""
        return self._memory.allocate_staging(nbytes, self._download.queue)

    def free(self, buffer: Buffer) -> None:
        """Give memory back; nothing enqueued may still use it."""
        self._memory.free(buffer)

    def upload(self, source: NDArray[Any], target: Block, after: After) -> Completion:
        """load2: copy staged rows into a tile, packing A and B on the way."""
        self._owner.check()
        if source.shape != (target.rows, target.cols):
            raise DeviceError(
                f"upload of {source.shape} into a block of {(target.rows, target.cols)}",
                source=source.shape,
            )
        if source.size == 0:
            return DONE
        shape = self._dtype_shapes(target.tile.dtype).square
        work, keep = self._uploads.prepare(source, target, shape)
        return self._upload.enqueue("upload", work, after, keep)

    def gemm(
        self, alpha: complex, a: Block, b: Block, beta: complex, c: Block, after: After
    ) -> EventCompletion:
        """mult1: C := alpha·A·B + beta·C; alpha = 0 reads neither A nor B."""
        dtype = c.tile.dtype
        m, n, k = extents_of(a, b, c)
        shapes = self._dtype_shapes(dtype)
        if shapes.origin != "tuned":
            warn_untuned(self.spec.name, self._description, dtype.name, shapes.origin)
        if m == 0 or n == 0:
            return self._compute.mark("multiplication", after)
        shape = shapes.for_product((m, n, k))
        if shape.packed:
            widths = panel_width(shape, a.tile), panel_width(shape, b.tile)
            shape = shape.with_panels(*widths, dtype)
        call = GemmCall(
            (m, n, 0 if alpha == 0 else k),
            alpha,
            source_of(a, shape),
            source_of(b, shape),
            beta,
            rows_of(c),
        )
        kernel = self._programs.gemm(dtype, shape)
        buffer = c.tile.buffer

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            if not isinstance(buffer, MappedStaging):
                return [call.enqueue(queue, kernel, shape, dtype, events)]
            buffer.unmap(queue, events)
            return [call.enqueue(queue, kernel, shape, dtype), buffer.remap(queue)]

        return self._compute.enqueue("multiplication", work, after, (call, buffer))

    def download(self, source: Block, target: NDArray[Any], after: After) -> Completion:
        """store1: copy part of a C tile into staging."""
        if target.shape != (source.rows, source.cols) or target.dtype != source.tile.dtype:
            raise DeviceError(
                f"download of a block of {(source.rows, source.cols)} {source.tile.dtype} into "
                f"{target.shape} {target.dtype}",
                target=target.shape,
            )
        if target.size == 0:
            return DONE
        rows = rows_of(source)
        return self._download.enqueue(
            "download",
            lambda queue, events: [read_block(queue, rows, target, events)],
            after,
            (target, rows),
        )

    def synchronize(self) -> None:
        """Wait for all three queues."""
        for queue in self._queues:
            queue.finish()

    def close(self) -> None:
        """Wait for the queues, end them, and free scratch memory; does nothing in a fork."""
        if self._owner.forked:
            return
        for queue in self._queues:
            queue.close()
        self._uploads.close()

    def reaches(self, array: NDArray[Any]) -> bool:
        """Return whether the device reads and writes the caller's arrays, as a CPU does.

        They are for it what page-locked memory is for a GPU: load1 and store2, which would take
        cores from the kernel, are not needed (the paper's Observation 2).
        """
        del array
        return self._zero_copy

    def _dtype_shapes(self, dtype: np.dtype[Any]) -> KernelShapes:
        try:
            return self._shapes[dtype]
        except KeyError:
            held = ", ".join(sorted(each.name for each in self._shapes))
            raise DeviceUnavailableError(
                f"{self.spec.name} does not multiply {dtype.name}; it does {held}"
            ) from None


def _granularity(shapes: Mapping[np.dtype[Any], KernelShapes]) -> tuple[int, int, int]:
    """Return one granularity for all dtypes: a multiple of the panel widths of each."""
    packed = {dtype: each.square for dtype, each in shapes.items() if each.square.packed}
    return (
        math.lcm(*(shape.block_m() for shape in packed.values())),
        math.lcm(*(shape.block_n(dtype) for dtype, shape in packed.items())),
        1,
    )
