"""Memory for the slabs and the stream blocks of a plan."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.matrices.read_ahead import STREAM_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, aligned_bytes, leading
from hdgemm.pipeline.devices.workspace import free_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.linalg.planning.slab import Columns, SlabPlan
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.devices.protocol import HostBuffer, NativeDevice


class SlabBuffers:
    """Buffers that slabs and stream blocks take in turn.

    A plan that stores nothing has one slab, which is the array that `out` is.

    Parameters
    ----------
    out
        Where slabs are stored.
    devices
        Read and write the buffers, which are page-locked by one that needs it. Every device
        copies what another one has page-locked.
    """

    def __init__(
        self, plan: SlabPlan, out: StoredMatrix, devices: Sequence[NativeDevice] = ()
    ) -> None:
        self._plan, self._out = plan, out
        self._device = max(devices, key=attrgetter("locks_pages"), default=None)
        self._locked: list[HostBuffer] = []
        self._slabs: list[NDArray[np.uint8]] = []
        #: Memory of each stream block.
        self.stream: list[NDArray[np.uint8]] = []
        try:
            self._allocate(plan, out)
        except BaseException:
            self.free()
            raise

    def _allocate(self, plan: SlabPlan, out: StoredMatrix) -> None:
        array = None if plan.stores else out.operand.matrix.array
        sizes = [self._lead(x) * x.width * plan.itemsize for x in plan.slabs]
        if array is not None:
            self._slabs = [array.reshape(-1).view(np.uint8)]
        elif plan.takes_all(len(sizes) - 1):
            each = (max(sizes[:-1]) + 2 * ALIGNMENT) // ALIGNMENT * ALIGNMENT
            whole = self._bytes(each * plan.slab_buffers)
            self._slabs = [whole[at * each :] for at in range(plan.slab_buffers)]
        else:
            each = max(sizes, default=0) + ALIGNMENT
            self._slabs = [self._bytes(each) for _ in range(plan.slab_buffers)]
        if len(plan.slabs) > 1 or plan.reflectors:
            most = leading(plan.m, plan.m, plan.itemsize) * plan.itemsize * plan.block
            self.stream = [self._bytes(most + ALIGNMENT) for _ in range(STREAM_BUFFERS)]

    def free(self) -> None:
        """Free the buffers: tracebacks may keep this object."""
        self._slabs, self.stream = [], []
        locked, self._locked = self._locked, []
        if self._device is not None:
            free_all(self._device, locked)

    def _bytes(self, nbytes: int) -> NDArray[np.uint8]:
        if self._device is None:
            return aligned_bytes(nbytes)
        self._locked.append(self._device.allocate_staging(nbytes))
        return self._locked[-1].array

    def slab(self, number: int, place: Columns) -> NDArray[Any]:
        """Return the array of a slab: the number of a buffer follows from the slab's.

        The buffers follow one another in memory where a slab takes all of them.
        """
        buffer = 0 if self._plan.takes_all(number) else number % self._plan.slab_buffers
        return self._array(self._out, self._slabs[buffer], place)

    def block(self, number: int, stored: StoredMatrix, place: Columns) -> NDArray[Any]:
        """Return the array of stored columns in a stream buffer."""
        return self._array(stored, self.stream[number], place)

    def _lead(self, place: Columns) -> int:
        return leading(self._plan.m - place.top, self._plan.m, self._plan.itemsize)

    def _array(
        self, stored: StoredMatrix, memory: NDArray[np.uint8], place: Columns
    ) -> NDArray[Any]:
        """Lay out columns in a buffer, at the phase that they have in a stored matrix."""
        matrix, itemsize = stored.operand.matrix, self._plan.itemsize
        phase = matrix.phase(place.first, place.top) if stored.order == "F" else 0
        array: NDArray[Any] = np.ndarray(
            (self._plan.m - place.top, place.width),
            self._plan.dtype,
            memory.data,
            0 if phase % itemsize else phase,
            (itemsize, self._lead(place) * itemsize),
        )
        return array
