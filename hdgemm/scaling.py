"""What BLAS does without A and B: C := beta·C, for alpha = 0 and for k = 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.pipeline.plan import NO_SLOTS, DeviceSpec, Overlap, Plan, Slots
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.report import build_report

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.multiplication import Multiplication
    from hdgemm.report import Report

#: Bytes of the only buffer, unless the caller allows fewer.
_BUFFER: Final = 64 << 20


def run_scaling(
    work: Multiplication, *, memory: int = _BUFFER, cancel: threading.Event | None = None
) -> Report:
    """Compute C := beta·C by rectangles; A and B are never read, nor the old C for beta = 0.

    Parameters
    ----------
    work
        A multiplication with alpha = 0, or with an empty dimension.
    memory
        Bytes that the only buffer may take.
    cancel
        When set, no further rectangle is begun.

    Returns
    -------
    Report
        One store2 operation a rectangle, on the host.

    Raises
    ------
    CancelledRunError
        C is not finished: some rectangles hold their new values, the others their old ones.
    MatrixIOError
        Reading or writing C failed.
    """
    work = work.row_major()
    target = work.c.matrix
    old = work.operands().old_c if work.beta != 0 and work.old is not None else None
    unchanged = work.beta == 1 and old is target
    tiles = [] if unchanged else list(_tiles(target.shape, memory // work.dtype.itemsize))
    buffer = np.zeros(max((rows * cols for _, _, rows, cols in tiles), default=0), work.dtype)
    events: list[Event] = []
    began = time.perf_counter()
    for number, (row, col, rows, cols) in enumerate(tiles):
        if cancel is not None and cancel.is_set():
            raise CancelledRunError("cancelled while C was multiplied by beta; C is not finished")
        start = time.perf_counter() - began
        tile = buffer[: rows * cols].reshape(rows, cols)
        if old is not None:
            _read_scaled(old, row, col, tile, work.beta)
        target.write(row, col, tile)
        nbytes = tile.size * (target.dtype.itemsize + (0 if old is None else old.dtype.itemsize))
        end = time.perf_counter() - began
        events.append(Event("host", "store2", number, number, 0, start, end, nbytes, 0))
    target.flush()
    timeline = Timeline(tuple(events), time.perf_counter() - began)
    planned = sum(event.nbytes for event in events)
    return build_report(
        _plan(work, buffer.nbytes, memory),
        timeline,
        planned_bytes={"store2": planned},
        peak_memory_bytes=buffer.nbytes,
    )


def _read_scaled(old: Matrix, row: int, col: int, tile: NDArray[Any], beta: complex) -> None:
    old.read(row, col, tile)
    # BLAS raises no floating-point signals: Inf·0 and overflow are results like others.
    with np.errstate(all="ignore"):
        np.multiply(tile, tile.dtype.type(beta), out=tile)


def _tiles(shape: tuple[int, int], elements: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut stored rows and columns into whole-row slabs, or into parts of rows that are too long."""
    height, width = shape
    cols = max(1, min(width, elements))
    rows = max(1, min(height, elements // cols))
    for row in range(0, height, rows):
        for col in range(0, width, cols):
            yield row, col, min(rows, height - row), min(cols, width - col)


def _plan(work: Multiplication, held: int, memory: int) -> Plan:
    """Return a plan without loads or steps, for the report to describe."""
    device = DeviceSpec()
    m, n, k = work.extents
    return Plan(
        problem=work.problem(device), device=device, strategy="data-placement", overlap=Overlap(),
        tile=(max(m, 1), max(n, 1), max(k, 1)), a_slots=NO_SLOTS, b_slots=NO_SLOTS,
        c_slots=Slots(1, held), up=NO_SLOTS, down=NO_SLOTS, loads=(), units=(), steps=(),
        host_limit=memory, device_limit=device.memory_bytes,
    )  # fmt: skip
