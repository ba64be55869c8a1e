"""Slabs of a row-major matrix, copied to where each is contiguous.

A slab of columns of a row-major file is one short piece of every row. To read each slab alone reads
the gaps between the pieces too, or takes a request for each piece. One pass by bands of whole rows
reads A once, and the slabs that do not fit the memory a second time.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.linalg.planning.slab import Columns
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.read_ahead import ReadAhead
from hdgemm.matrices.transfer import ALIGNMENT, array_at, copy_rows, disk_pool
from hdgemm.threads import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.matrices.stored import StoredMatrix


class SlabCopies:
    """Loads the slabs of a plan that is `copied`, in their order.

    With the first slab, one pass over A fills all slab buffers and copies the others by strips,
    row-major, to the columns of the output where their factors will be stored; they are read from
    there.

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
        Memory for the bands: the stream blocks' buffers, which are filled after the pass.
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
        self._stopped, self._lock = False, threading.Lock()
        self._passed: Call[None] | None = None

    def stop(self) -> None:
        """End the pass that runs, if one does, at the next band."""
        self._stopped = True

    def load(self, slab: Slab) -> None:
        """Fill a strip of a slab; with the first one all slabs in memory are filled."""
        if slab.number <= self._first[-1].number:
            self._pass_once()
        else:
            nbytes = self._plan.nbytes(slab.place)
            with self._recorder.operation("load1", slab.number, nbytes=nbytes):
                self._copy_of(slab.place).read(0, 0, slab.array)

    def _pass_once(self) -> None:
        """Make the pass, or wait for the thread that makes it."""
        with self._lock:
            first = self._passed is None
            passed = self._passed = self._passed or Call(partial(self._pass, self._first[0].number))
        if first:
            passed.run()
        passed.result()

    def _copy_of(self, place: Columns) -> FileMatrix:
        """Return a row-major matrix in the bytes of some columns of the output."""
        columns = self._out.part(place.first, 0, (place.width, self._plan.m))
        if not isinstance(columns, FileMatrix):
            raise TypeError(f"slabs are copied into files only, not into a {type(columns)}")
        shape = self._plan.m, place.width
        copy = FileMatrix(columns.file, shape, columns.dtype, columns.offset, owner=False)
        copy.name = columns.name
        return copy

    def _pass(self, number: int) -> None:
        """Move A by bands of rows, each in one of two threads; the first slab is slab `number`."""
        m, columns = self._plan.m, self._plan.banded(number)
        operand, dtype = self._a.operand, np.dtype(self._plan.dtype)
        whole = self._plan.loaded_bytes(columns)
        rows = (self._buffers[0].nbytes - ALIGNMENT) // (columns.width * self._plan.itemsize)
        bands = [(top, min(top + rows, m)) for top in range(0, m, rows)]
        step = self._plan.copied_columns
        places = [
            Columns(at, min(at + step, last), top)
            for first, last, top in self._plan.copies(number)
            for at in range(first, last, step)
        ]
        copies = [(place, self._copy_of(place)) for place in places]

        def move(band: tuple[int, int], buffer: int) -> None:
            if self._stopped:
                raise CancelledRunError("the factorisation was stopped")
            top, bottom = band
            shape = bottom - top, columns.width
            phase = 0 if operand.trans else operand.matrix.phase(top, columns.first)
            array = array_at(self._buffers[buffer], shape, dtype, phase)
            nbytes = whole * bottom // m - whole * top // m
            with self._recorder.operation("load1", number, nbytes=nbytes):
                self._a[top:bottom, columns.first : columns.last].read(array)
            self._move(top, columns.first, array, copies)

        with ReadAhead() as moves:
            for _ in moves.blocks(bands, move):
                pass

    def _move(
        self, top: int, left: int, band: NDArray[Any], copies: Sequence[tuple[Columns, FileMatrix]]
    ) -> None:
        """Copy a band into the slabs in memory and to the others; `top` is its first row."""
        for slab in self._first:
            first, last, _ = slab.place
            copy_rows(slab.array[top : top + len(band)], band[:, first - left : last - left])
        nbytes = sum(place.width for place, _ in copies) * len(band) * self._plan.itemsize
        with self._recorder.operation("store2", self._first[0].number, nbytes=nbytes):
            disk_pool().run(
                [
                    piece
                    for place, copy in copies
                    for piece in copy.write_pieces(
                        top, 0, band[:, place.first - left : place.last - left]
                    )
                ]
            )
