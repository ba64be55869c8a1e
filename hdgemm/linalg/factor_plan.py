"""Plans of factorisations under the options of a run, by slabs or in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdgemm.linalg.device_run import device_names
from hdgemm.linalg.planning import Storage, plan_slabs
from hdgemm.linalg.run import folder_of, machine_of
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slab_pricing import priced
from hdgemm.linalg.updates import host_bytes, staging_bytes, with_best_blocks
from hdgemm.matrices.base import Converted
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.transfer import BOUNCE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.stored import StoredMatrix


def plan_for(
    kind: Kind,
    a: StoredMatrix,
    out: StoredMatrix,
    run: OpenRun,
    *,
    new: bool = False,
    reserved: int = 0,
    dtype: np.dtype[Any] | None = None,
) -> SlabPlan:
    """Return the slabs for one factorisation, planned with the rates of this machine.

    `Options.tile` = (mb, nb, kb) forces slabs of nb columns and stream blocks of kb columns; mb is
    not used. `dtype` is that of the result, None for that of A; `reserved` bytes of the memory are
    held by others. A `new` output may hold copies of slabs before they are stored.
    """
    found = (a.dtype if dtype is None else dtype).newbyteorder("=")
    machine = machine_of(a.shape, found, folder_of(out, a), run)
    stored = out.operand.matrix
    contiguous = (
        isinstance(stored, FileMatrix)
        and out.order == "F"
        and stored.pitch == stored.shape[1] * stored.dtype.itemsize
    )
    copies = new and contiguous and out.shape == a.shape
    storage = Storage(out.chunks is None, row_bytes(a), copies, contiguous)
    return slabs_for(kind, a.shape, found.name, machine, run, storage=storage, reserved=reserved)


def plan_in_memory(
    n: int, dtype: np.dtype[Any], folder: Path | None, beside: int, run: OpenRun
) -> SlabPlan | None:
    """Return the plan of LU factors of a file that stay in memory for the solve after them.

    None where they and the bytes `beside` them do not fit, where a tile forces slabs, and where
    devices compute the updates.
    """
    memory, held = host_bytes(run.options), n * n * dtype.itemsize + BOUNCE_BYTES
    forced = run.options.tile is not None or device_names(run.options)
    if folder is None or forced or held + beside > memory:
        return None
    plan = replace(SlabPlan.of_array("lu", n, n, dtype.name, memory), bytes_held=held)
    return priced(plan, machine_of((n, n), dtype, folder, run))


def row_bytes(a: StoredMatrix) -> int:
    """Return the bytes from one row to the next of a row-major matrix in a file, else 0.

    They are those of A's elements, where these are converted while they are read.
    """
    matrix = a.operand.matrix
    stored = matrix.stored if isinstance(matrix, Converted) else matrix
    if not isinstance(stored, FileMatrix) or a.order != "C":
        return 0
    return stored.pitch // stored.dtype.itemsize * matrix.dtype.itemsize


def slabs_for(
    kind: Kind,
    shape: tuple[int, int],
    dtype: str,
    machine: Machine,
    run: OpenRun,
    *,
    storage: Storage,
    reserved: int,
) -> SlabPlan:
    """Return the slabs for a factorisation of a matrix of this shape under the run's options."""
    options = run.options
    _, width, block = options.tile or (None, None, None)

    def planned(block: int | None) -> SlabPlan:
        return plan_slabs(
            kind, shape[1], dtype, host_bytes(options), machine,
            rows=shape[0], width=width, block=block, storage=storage,
            reserved=reserved + staging_bytes(options),
        )  # fmt: skip

    return with_best_blocks(planned, block, machine.flop_rate(dtype), run)
