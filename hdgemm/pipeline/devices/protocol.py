"""The interface between the pipeline and a device: about ten methods.

A device chooses no sizes and does not reorder. It executes an operation after the operation's
`after` completions and returns a completion: an asynchronous device at once, after enqueueing; a
synchronous one `DONE`, after the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from hdgemm.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.plan import DeviceSpec, Operand


class Completion(Protocol):
    """The end of an operation that a device was given."""

    def wait(self) -> None:
        """Block until it is done, without the interpreter's lock; raise `DeviceError` if it failed.

        Several threads can wait at once.
        """

    def interval(self) -> tuple[float, float] | None:
        """Return start and end on `time.perf_counter`'s clock, None where the caller knows them.

        Called after `wait` only.
        """


class _Done:
    def wait(self) -> None:
        return

    def interval(self) -> None:
        return None


#: The completion of an operation that was done before its method returned.
DONE: Completion = _Done()


#: The operations that an operation follows.
After: TypeAlias = "Sequence[Completion]"


class Buffer(Protocol):
    """Memory that a device has allocated; freed once, by `Device.free`."""

    @property
    def nbytes(self) -> int:
        """Bytes requested."""


class HostBuffer(Buffer, Protocol):
    """Host memory that the device can reach by DMA; `array` is the same memory as uint8."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """All its bytes, 4096-byte aligned."""


class Tile(NamedTuple):
    """A tile in a slot.

    Parameters
    ----------
    operand
        A device can store tiles of A, B and C in different layouts.
    buffer
        The slot's memory: from `allocate`, from `allocate_staging` (C written into staging), or
        the caller's array (a resident operand).
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


def first_byte(block: Block) -> int:
    """Return the offset of a block's first element in the buffer of its dense, row-major tile."""
    tile = block.tile
    return tile.origin + (block.row * tile.ld + block.col) * tile.dtype.itemsize


def view(block: Block) -> NDArray[Any]:
    """Return a block of a dense, row-major tile in a `HostBuffer` as an array."""
    tile = block.tile
    return np.ndarray(
        (block.rows, block.cols),
        tile.dtype,
        tile.buffer.array,
        first_byte(block),
        (tile.ld * tile.dtype.itemsize, tile.dtype.itemsize),
    )


def extents_of(a: Block, b: Block, c: Block) -> tuple[int, int, int]:
    """Return m, n and k of C := A·B.

    Raises `DeviceError` where the blocks do not fit together, or C is stored transposed.
    """
    (m, k), (k_b, n) = ((x.cols, x.rows) if x.tile.trans else (x.rows, x.cols) for x in (a, b))
    dtypes = {block.tile.dtype for block in (a, b, c)}
    if (m, n) != (c.rows, c.cols) or k != k_b or c.tile.trans or len(dtypes) != 1:
        raise DeviceError(
            f"blocks of a product do not fit: A {m}×{k}, B {k_b}×{n}, C {c.rows}×{c.cols}"
            f"{' stored transposed' if c.tile.trans else ''} "
            f"of {', '.join(sorted(dtype.name for dtype in dtypes))}",
            m=m,
            n=n,
            k=k,
        )
    return m, n, k


class Device(Protocol):
    """A device, as the pipeline uses it.

    Methods that enqueue are called from one thread per stage at once: `upload` from load2's lane,
    `gemm` from mult1's, `download` from store1's. Driver errors are raised as `DeviceError`.
    """

    @property
    def spec(self) -> DeviceSpec:
        """The properties that a plan depends on."""

    def slot_bytes(self, operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Bytes that a tile of these stored extents takes in a slot."""

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory, or raise `DoesNotFitError` with the numbers."""

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Allocate host memory that DMA can reach."""

    def free(self, buffer: Buffer) -> None:
        """Free memory."""

    def upload(self, source: NDArray[Any], target: Block, after: After) -> Completion:
        """load2: copy rows from staging (or page-locked application memory) into part of a tile.

        `source` is 2-D with contiguous rows, and unchanged until the completion is done.
        """

    def gemm(
        self, alpha: complex, a: Block, b: Block, beta: complex, c: Block, after: After
    ) -> Completion:
        """mult1: C := alpha·A·B + beta·C on op-space A (m×k), B (k×n), C (m×n).

        With beta = 0, C is not read. k is at least 1.
        """

    def download(self, source: Block, target: NDArray[Any], after: After) -> Completion:
        """store1: copy part of a C tile into staging."""

    def synchronize(self) -> None:
        """Wait for all enqueued operations, failed ones included, so that memory can be freed."""

    def close(self) -> None:
        """Free the device's own memory, queues and threads."""


@runtime_checkable
class WideningDevice(Device, Protocol):
    """A device that multiplies integers in half of C's precision and adds their sums in C's."""

    def gemm_exact(
        self, a: Block, b: Block, beta: float, c: Block, terms: int, after: After
    ) -> Completion:
        """mult1: C := A·B + beta·C, where sums of `terms` products are exact in A's precision.

        A and B have half of C's precision, else as `gemm`.
        """


def widening(device: Device) -> WideningDevice:
    """Return a device as what its `spec.widens` says it is."""
    if not isinstance(device, WideningDevice):
        raise DeviceError(f"{device.spec.name} cannot add products of half the precision")
    return device


class Triangle(NamedTuple):
    """How `trsm` uses A: B := op(A)^-1·B (side L) or B·op(A)^-1 (side R).

    op(A) is A (trans N), A^T (T) or A^H (C); the other triangle of A, and with `unit` its diagonal,
    are not read.
    """

    side: str = "L"
    lower: bool = True
    trans: str = "N"
    unit: bool = False

    def of_transposes(self) -> Triangle:
        """Return the same solve for A^T and B^T: a row-major block is its transpose to BLAS."""
        return self._replace(side="R" if self.side == "L" else "L", lower=not self.lower)


class FactorDevice(Device, Protocol):
    """A device with the operations that factorisations need beside `gemm`.

    Blocks are parts of tiles of C, stored row-major (`trans` is not used); `copy` alone writes
    tiles of A and B. All operations run in `gemm`'s queue, in the order in which they are enqueued.
    """

    #: Cores of the host that it computes on; 0 for a device with processors of its own.
    host_cores: int
    #: `gemm` takes A and B in layouts that differ from C's.
    packs: bool
    #: A copy from or to host memory that it has not page-locked blocks its caller.
    locks_pages: bool

    def trsm(self, a: Block, b: Block, form: Triangle, after: After) -> Completion:
        """Solve with a square triangular A, see `Triangle`.

        A device may hold workspace for 128 rows and 128 columns of A and B.
        """

    def permute(self, block: Block, moves: Moves, after: After, axis: int = 0) -> Completion:
        """Move all rows of a block at once, or with `axis` 1 all columns; no place occurs twice."""

    def copy(self, source: Block, target: Block, after: After) -> Completion:
        """Copy a block of C to a block of the same shape in another tile, of A, B or C.

        `gemm` takes A and B in the layout of their tiles: what a factorisation multiplies is first
        copied there.
        """

    def conjugate(self, block: Block, after: After) -> Completion:
        """Conjugate a block of complex elements in place."""


class NativeDevice(FactorDevice, Protocol):
    """A device that factors narrow panels by itself: no part of a factorisation runs on the host.

    Blocks are as in `FactorDevice`. All three methods wait for their result.
    """

    #: Most columns of a panel that `getrf`, `geqrf` and `potrf` factor.
    panel_columns: int

    def getrf(self, panel: Block, after: After) -> tuple[NDArray[np.int64], int]:
        """Overwrite a panel, not wider than high, by its LU factors with partial pivoting.

        Returns interchanges relative to its first row, and the 1-based index of the first pivot
        that is exactly zero, 0 without one.
        """

    def geqrf(self, panel: Block, after: After) -> NDArray[Any]:
        """Overwrite a panel, not wider than high, by R and the reflectors below its diagonal.

        Returns tau, as LAPACK's geqrf: Q is the product of all I - tau[i]·v·v^H.
        """

    def potrf(self, block: Block, after: After) -> int:
        """Overwrite the lower triangle of a square block by its Cholesky factor.

        Returns the order of the first leading minor that is not positive, 0 without one.
        """
