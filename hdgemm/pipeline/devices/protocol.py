"""The seam between the pipeline and a device: about ten methods, one file a device.

A device never chooses a size and never reorders: it does what it is told, when its `after`
completions are done, and returns a completion. Devices that work asynchronously enqueue and
return at once; the others work and return `DONE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import DeviceSpec, Operand


class Completion(Protocol):
    """An operation that a device was given."""

    def wait(self) -> None:
        """Block until it is done; raise `DeviceError` if it failed. Others may run meanwhile."""

    def interval(self) -> tuple[float, float] | None:
        """Return start and end on `time.perf_counter`'s clock, None where the caller knows them.

        Only asked for after `wait`.
        """


class _Done:
    def wait(self) -> None:
        return

    def interval(self) -> None:
        return None


#: The completion of an operation that was done before its method returned.
DONE: Completion = _Done()


class Buffer(Protocol):
    """Memory that a device gave out; freed once, by `Device.free`."""

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""


class HostBuffer(Buffer, Protocol):
    """Host memory that the device can reach by DMA; `array` is the same memory as uint8."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """All its bytes, 4096-byte aligned."""


class Tile(NamedTuple):
    """A tile as it lies in a slot.

    Parameters
    ----------
    operand
        Whose tile it is: a device may keep A, B and C in different layouts.
    buffer
        The slot's memory: from `allocate`, from `allocate_staging` (C written into staging), or
        the caller's own array (a resident operand).
    rows, cols
        Stored extents, row-major.
    ld
        Elements from one stored row to the next; `cols` unless the operand is resident.
    trans
        The tile is stored as the transpose of its op-space rectangle.
    origin
        Bytes from the buffer's start to its first element.
    """

    operand: Operand
    buffer: Any
    rows: int
    cols: int
    ld: int
    dtype: np.dtype[Any]
    trans: bool = False
    origin: int = 0


class Block(NamedTuple):
    """A rectangle of a tile, in the tile's stored rows and columns."""

    tile: Tile
    row: int
    col: int
    rows: int
    cols: int


class Device(Protocol):
    """What the pipeline asks of a device.

    Methods that enqueue may be called from one thread per stage at once: upload from load2's,
    gemm from mult1's, download from store1's. They raise `DeviceError` from the driver's error.
    """

    @property
    def spec(self) -> DeviceSpec:
        """What a plan depends on."""

    def slot_bytes(self, operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Bytes that a tile of these stored extents takes in a slot."""

    def allocate(self, nbytes: int) -> Buffer:
        """Take device memory; raise `DoesNotFitError` with the numbers when there is too little."""

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Take host memory that DMA can reach."""

    def free(self, buffer: Buffer) -> None:
        """Give memory back."""

    def upload(
        self, source: NDArray[Any], target: Block, after: Sequence[Completion]
    ) -> Completion:
        """load2: copy rows from staging (or pinned application memory) into part of a tile.

        `source` is 2-D, C-contiguous within each row, and stays as it is until the completion
        is done.
        """

    def gemm(
        self,
        alpha: complex,
        a: Block,
        b: Block,
        beta: complex,
        c: Block,
        after: Sequence[Completion],
    ) -> Completion:
        """mult1: C := alpha·A·B + beta·C on op-space A (m×k), B (k×n), C (m×n).

        beta = 0 must not read C. k = 0 does not occur.
        """

    def download(
        self, source: Block, target: NDArray[Any], after: Sequence[Completion]
    ) -> Completion:
        """store1: copy part of a C tile into staging."""

    def synchronize(self) -> None:
        """Wait for everything enqueued, failed or not: after it, memory may be freed."""

    def close(self) -> None:
        """Free what the device itself holds."""
