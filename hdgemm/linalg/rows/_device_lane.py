"""Products of the rows of one core with matrices in the memory of a device.

Rows are uploaded, multiplied and, where they are stored, downloaded in turn: a lane waits for each
operation. The lanes of a device's cores overlap. Sums stay on the device to the end of a pass.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.linalg.planning.device_tiles import STAGING_BYTES, sum_panel
from hdgemm.matrices.layout import rectangles
from hdgemm.pipeline.devices.protocol import Block
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.pipeline.devices.protocol import Completion, FactorDevice, HostBuffer
    from hdgemm.pipeline.plan import Stage


class SharedDevice:
    """A device that several lanes use at once: each stage enqueues from one thread at a time."""

    def __init__(self, device: FactorDevice) -> None:
        self.device, self.name = device, device.spec.name
        self._locks: dict[Stage, threading.Lock] = {
            "load2": threading.Lock(),
            "mult1": threading.Lock(),
            "store1": threading.Lock(),
        }

    def lock(self, stage: Stage) -> threading.Lock:
        """Return the lock of a stage."""
        return self._locks[stage]


class DeviceLane:
    """Memory and products of one core on a device; a context manager.

    Parameters
    ----------
    core
        The number of the core, for the record of operations.
    """

    def __init__(self, shared: SharedDevice, core: int, recorder: Recorder) -> None:
        self._shared, self._core, self._recorder = shared, core, recorder
        self._work = Workspace(shared.device)
        self._factors: dict[int, tuple[NDArray[Any], Block]] = {}
        self._names = itertools.count()
        self._number = self._flops = 0
        self._staging: HostBuffer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as memory, self._shared.lock("mult1"):
            memory.callback(self._work.free)
            if self._staging is not None:
                memory.callback(self._shared.device.free, self._staging)
            self._shared.device.synchronize()

    @contextmanager
    def block(self, number: int, flops: int) -> Iterator[None]:
        """Count operations to a block of rows; to the host's where the device has computed none."""
        self._number, self._flops = number, flops
        start = time.perf_counter()
        yield
        if self._flops:
            self._note("mult1", start, device="host", flops=self._flops)

    def sum(
        self, shape: tuple[int, int], dtype: np.dtype[Any], *, triangle: bool = False
    ) -> DeviceSum:
        """Return an empty sum, of a square matrix also of its lower triangle alone."""
        block = self.room(f"sum {next(self._names)}", shape, dtype)
        return DeviceSum(self, block, sum_panel(shape[0]) if triangle else None)

    def room(self, name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Block:
        """Return memory of the device; the same name is the same memory."""
        with self._shared.lock("mult1"):
            return self._work.scratch(name, *shape, dtype)

    def multiply(self, a: NDArray[Any], factors: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
        """Store A·W₁·W₂·... in the host's memory, where `out` has rows or columns in one piece."""
        part, turned = self.upload(a)
        *first, last = (self.factor(w) for w in factors)
        for number, w in enumerate(first):
            found = self.room(f"product {number}", (len(a), w.cols), a.dtype)
            with self.computing() as work:
                work.multiply(1.0, part, w, found, beta=0.0, trans_a="T" if turned else "N")
            part, turned = found, False
        columns = out.strides[0] == out.itemsize != out.strides[1]
        target = self.room("product", out.shape[:: -1 if columns else 1], a.dtype)
        with self.computing() as work:
            if columns:  # the transpose: W^T·A^T
                trans = "N" if turned else "T"
                work.multiply(1.0, last, part, target, beta=0.0, trans_a="T", trans_b=trans)
            else:
                work.multiply(1.0, part, last, target, beta=0.0, trans_a="T" if turned else "N")
        self.download(target, out.T if columns else out)

    def factor(self, w: NDArray[Any]) -> Block:
        """Return a factor on the device, uploaded at its first use."""
        if id(w) not in self._factors:
            self._factors[id(w)] = w, self._sent(f"factor {next(self._names)}", w)
        return self._factors[id(w)][1]

    def upload(self, a: NDArray[Any]) -> tuple[Block, bool]:
        """Upload rows; return them, or their transpose, and whether it is the transpose."""
        turned = a.strides[1] != a.itemsize
        return self._sent("rows", a.T if turned else a), turned

    def _sent(self, name: str, source: NDArray[Any]) -> Block:
        if source.strides[1] != source.itemsize:
            source = np.ascontiguousarray(source)
        target = self.room(name, (source.shape[0], source.shape[1]), source.dtype)
        self.send(source, target)
        return target

    def send(self, source: NDArray[Any], target: Block) -> None:
        """Upload an array with contiguous rows."""
        start = time.perf_counter()
        for part, piece, staging in self._pieces(target, source):
            if staging is not None:
                staging[...] = piece
            with self._shared.lock("load2"):
                completion = self._shared.device.upload(
                    piece if staging is None else staging, part, ()
                )
            completion.wait()
        self._note("load2", start, nbytes=source.nbytes)

    def download(self, source: Block, target: NDArray[Any]) -> None:
        """Download a block to an array with contiguous rows."""
        start = time.perf_counter()
        for part, piece, staging in self._pieces(source, target):
            with self._shared.lock("store1"):
                completion = self._shared.device.download(
                    part, piece if staging is None else staging, ()
                )
            completion.wait()
            if staging is not None:
                piece[...] = staging
        self._note("store1", start, nbytes=target.nbytes)

    def _pieces(
        self, block: Block, array: NDArray[Any]
    ) -> Iterator[tuple[Block, NDArray[Any], NDArray[Any] | None]]:
        """Yield parts of a block and of its array, with staging where a device needs it."""
        if not self._shared.device.locks_pages:
            yield block, array, None
            return
        if self._staging is None:
            self._staging = self._shared.device.allocate_staging(STAGING_BYTES)
        most = STAGING_BYTES // array.itemsize
        for row, col, rows, cols in rectangles((block.rows, block.cols), most):
            part = Block(block.tile, block.row + row, block.col + col, rows, cols)
            staging = np.ndarray((rows, cols), array.dtype, self._staging.array.data)
            yield part, array[row : row + rows, col : col + cols], staging

    @contextmanager
    def computing(self) -> Iterator[Workspace]:
        """Yield what enqueues products, and wait for these; the first ones count the block's."""
        start = time.perf_counter()
        with self._shared.lock("mult1"):
            yield self._work
            enqueued: list[Completion] = self._work.take()
        for completion in enqueued:
            completion.wait()
        flops, self._flops = self._flops, 0
        self._note("mult1", start, flops=flops)

    def _note(
        self, stage: Stage, start: float, *, device: str = "", nbytes: int = 0, flops: int = 0
    ) -> None:
        name = device or self._shared.name
        if nbytes:  # the elements decide which rows are summed on a device
            self._recorder.expect(stage, nbytes)
        self._recorder.done_since(
            start, stage, self._core, nbytes=nbytes, flops=flops, block=self._number, device=name
        )


class DeviceSum:
    """A sum of products in the memory of a lane's device.

    Parameters
    ----------
    block
        Where it lies.
    width
        Columns of a panel; of a panel only the rows from its first column on are summed. None for
        all rows and columns.
    """

    def __init__(self, lane: DeviceLane, block: Block, width: int | None = None) -> None:
        self._lane, self._block, self._width = lane, block, width
        self._conjugated = False
        self._start: NDArray[Any] | None = None  # a recorded sum that is not uploaded yet
        self._empty = True

    @property
    def array(self) -> NDArray[Any]:
        """The sum so far; zeros above the panels, and where nothing was added."""
        found = np.zeros((self._block.rows, self._block.cols), self._block.tile.dtype)
        if self._start is not None:
            found[...] = self._start
        elif not self._empty:
            for part, elements in self._panels():
                self._lane.download(part, found[elements])
            if self._conjugated:
                np.conjugate(found, out=found)
        return found if self._width is None else np.tril(found)

    def restore(self, array: NDArray[Any]) -> None:
        """Go on from an `array`."""
        self._start, self._empty = array, False

    def take(self) -> NDArray[Any]:
        """Return the sum, which is empty afterwards."""
        found = self.array
        self._start, self._empty = None, True
        return found

    def add_normal(self, a: NDArray[Any], q: NDArray[Any]) -> None:
        """Add the conjugate of A^H·(A·Q): A^T by the conjugate of A·Q."""
        lane, factor = self._lane, self._lane.factor(q)
        rows, turned = lane.upload(a)
        beta = self._begin(conjugated=False)
        product = lane.room("A·Q", (len(a), q.shape[1]), a.dtype)
        by_rows, by_columns = ("T", "N") if turned else ("N", "T")
        with lane.computing() as work:
            work.multiply(1.0, rows, factor, product, beta=0.0, trans_a=by_rows)
            work.conjugate(product)
            work.multiply(1.0, rows, product, self._block, beta=beta, trans_a=by_columns)

    def add_gram(self, a: NDArray[Any]) -> None:
        """Add the lower triangle of A^H·A."""
        lane = self._lane
        rows, turned = lane.upload(a)
        # S·S^H of the transpose S is the conjugate of A^H·A. A single row has either layout: of one
        # that differs from the rows before it, the conjugate is added.
        differs = self._start is None and not self._empty and turned != self._conjugated
        beta = self._begin(conjugated=turned != differs)
        forms = ("N", "C") if turned else ("C", "N")
        with lane.computing() as work:
            if differs:
                work.conjugate(rows)
            for part, _ in self._panels():
                below, across = (
                    rows._replace(row=part.col, rows=count)
                    if turned
                    else rows._replace(col=part.col, cols=count)
                    for count in (part.rows, part.cols)
                )
                work.multiply(
                    1.0, below, across, part, beta=beta, trans_a=forms[0], trans_b=forms[1]
                )

    def _begin(self, *, conjugated: bool) -> float:
        """Return beta for the next product; upload what a sum goes on from."""
        self._conjugated = conjugated
        if self._start is not None:
            start = self._start.conj() if conjugated else self._start
            for part, elements in self._panels():
                self._lane.send(np.ascontiguousarray(start[elements]), part)
            self._start = None
        beta, self._empty = float(not self._empty), False
        return beta

    def _panels(self) -> Iterator[tuple[Block, tuple[slice, slice]]]:
        """Yield the parts of the block that are summed, and their elements in an array."""
        whole = self._block
        if self._width is None:
            yield whole, (slice(None), slice(None))
            return
        for first in range(0, whole.cols, self._width):
            count = min(self._width, whole.cols - first)
            part = whole._replace(row=first, col=first, rows=whole.rows - first, cols=count)
            yield part, (slice(first, None), slice(first, first + count))
