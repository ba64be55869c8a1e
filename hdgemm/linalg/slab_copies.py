"""Slabs of a row-major matrix, copied in one pass to where each is contiguous.

A slab of columns of a row-major file is one short piece of every row. To read each slab alone reads
the gaps between the pieces too, or takes a request for each piece. One pass by bands of whole rows
reads every element once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.linalg.read_ahead import ReadAhead
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.transfer import disk_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.slab_plan import Columns, SlabPlan
    from hdgemm.linalg.slabs import Slab
    from hdgemm.matrices.stored import StoredMatrix


class SlabCopies:
    """Loads the slabs of a plan that is `copied`, in their order.

    The first slabs are filled by the pass over A. Each of the others is copied, row-major, to the
    columns of the output where its factor will be stored, and is read from there.

    Parameters
    ----------
    a
        The matrix to be factored.
    out
        The output, a column-major matrix in a file without gaps.
    recorder
        Told of every operation.
    first
        The slabs in memory that are loaded first.
    buffers
        Memory for the bands: that of stream blocks, which are read after the pass.
    """

    def __init__(
        self,
        a: StoredMatrix,
        out: StoredMatrix,
        plan: SlabPlan,
        recorder: Recorder,
        first: Sequence[Slab],
        buffers: Sequence[NDArray[np.uint8]],
    ) -> None:
        self._a, self._plan, self._recorder = a, plan, recorder
        self._out = out.operand.matrix
        self._first, self._buffers = first, buffers
        self._copied = plan.copies(first[0].number)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the pass, if it runs, at the next band."""
        self._stopped.set()

    def load(self, slab: Slab) -> None:
        """Fill a slab; with the first one all others are filled or copied."""
        if slab.number == self._first[0].number:
            self._pass()
        elif slab.number > self._first[-1].number:
            nbytes = self._plan.nbytes(slab.place)
            with self._recorder.operation("load1", slab.number, nbytes=nbytes):
                self._copy_of(slab.place).read(0, 0, slab.array)

    def _copy_of(self, place: Columns) -> FileMatrix:
        """Return a row-major matrix in the bytes of some columns of the output."""
        columns = self._out.part(place.first, 0, (place.width, self._plan.m))
        if not isinstance(columns, FileMatrix):
            raise TypeError(f"slabs are copied into files only, not into a {type(columns)}")
        shape = self._plan.m, place.width
        copy = FileMatrix(columns.file, shape, columns.dtype, columns.offset, owner=False)
        copy.name = columns.name
        return copy

    def _pass(self) -> None:
        number, left = self._first[0].number, self._first[0].place.first
        m, n = self._plan.m, self._plan.n
        copies = [(place, self._copy_of(place)) for place in self._copied]
        copied = sum(place.width for place, _ in copies) * self._plan.itemsize
        whole = self._plan.loaded_bytes(self._first[0].place._replace(last=n))
        rows = min(m, self._plan.block * m // (n - left))
        bands = [(top, min(top + rows, m)) for top in range(0, m, rows)]

        def read(band: tuple[int, int], buffer: int) -> tuple[int, NDArray[Any]]:
            top, bottom = band
            array = self._band(top, bottom - top, self._buffers[buffer])
            nbytes = whole * bottom // m - whole * top // m
            with self._recorder.operation("load1", number, nbytes=nbytes):
                self._a[top:bottom, left:].read(array)
            return top, array

        with ReadAhead() as reads:
            for top, array in reads.blocks(bands, read):
                if self._stopped.is_set():
                    raise CancelledRunError("the factorisation was stopped")
                for slab in self._first:
                    first, last, _ = slab.place
                    slab.array[top : top + len(array)] = array[:, first - left : last - left]
                with self._recorder.operation("store2", number, nbytes=len(array) * copied):
                    disk_pool().run([
                        piece
                        for place, copy in copies
                        for piece in copy.write_pieces(
                            top, 0, array[:, place.first - left : place.last - left]
                        )
                    ])  # fmt: skip

    def _band(self, top: int, rows: int, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """Lay out rows of A in a buffer, at the phase that they have in its file."""
        plan, left = self._plan, self._first[0].place.first
        operand = self._a.operand
        phase = 0 if operand.trans else operand.matrix.phase(top, left)
        array: NDArray[Any] = np.ndarray(
            (rows, plan.n - left), plan.dtype, memory.data,
            0 if phase % plan.itemsize else phase,
        )  # fmt: skip
        return array
