"""What all factorisations share: the session, the machine's rates, the plan, the checks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import HdgemmError, InputError
from hdgemm.linalg.device_run import device_names
from hdgemm.linalg.planning import Storage, plan_slabs
from hdgemm.linalg.recorder import Recorder
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.slab_pricing import priced
from hdgemm.linalg.slab_store import PIECE_BYTES, allocate_slabs
from hdgemm.linalg.slabs import SlabPipeline
from hdgemm.linalg.updates import host_bytes, products_of, staging_bytes, with_best_blocks
from hdgemm.machine.limits import thread_limit
from hdgemm.matrices.base import Converted
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.transfer import BOUNCE_BYTES, copy_pool
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.linalg.slab_plan import Kind
    from hdgemm.linalg.slabs import Slab
    from hdgemm.linalg.storage import Destination
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.matrices.transfer import Bounce
    from hdgemm.options import Options
    from hdgemm.progress import Watch
    from hdgemm.run.session import Session


#: Files that a folder of a Zarr store has.
_OF_ZARR: Final = ("zarr.json", ".zarray", ".zgroup")
#: Bytes that a thread looks through for NaN and Inf at a time.
_CHECKED_BYTES: Final = 1 << 20


class Run(NamedTuple):
    """How one call runs: its options and session, and what the caller sees and stops of it."""

    options: Any
    session: Session | None
    watch: Watch


class OpenRun(NamedTuple):
    """A `Run` whose session is open."""

    options: Options
    session: Session
    watch: Watch


@contextmanager
def open_run(run: Run | OpenRun) -> Iterator[OpenRun]:
    """Hold a session for one factorisation or solve, without slots that products have left.

    Devices that the options name compute the updates of slabs (`hdgemm.linalg.updates`) and factor
    arrays (`hdgemm.linalg.device_run`); all else runs on the host.
    """
    with (
        thread_limit(),
        session_for(run.session, run.options) as (opened, chosen),
        opened.running(chosen),
    ):
        opened.free_slots()
        try:
            yield OpenRun(chosen, opened, run.watch)
        finally:
            opened.free_slots()


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


def machine_of(
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    folder: Path | None,
    run: OpenRun,
    *,
    depth: int | None = None,
) -> Machine:
    """Return the rates of this machine's host, and of the disk of a folder.

    They are measured where products of this shape and depth, None for a factorisation's mean one,
    are worth it.
    """
    m, n = shape
    staged = OperandSpec(False, "file", "staged", dtype.itemsize)
    k = min(m, n) // 3 if depth is None else depth
    problem = Problem(max(1, m), max(1, n), max(1, k), dtype.name, staged, staged, staged)
    return run.session.machine(DeviceSpec(), problem, folder, run.options.threads, run.watch)


@contextmanager
def slab_run(
    kind: Kind,
    a: StoredMatrix,
    out: StoredMatrix,
    target: Destination,
    run: OpenRun,
    check: Callable[[Slab], None] | None,
    plan: SlabPlan | None = None,
) -> Iterator[SlabPipeline]:
    """Yield the pipeline of one factorisation, durable or not; report it on leaving.

    Parameters
    ----------
    a, out
        The matrix whose columns are factored, and where they are stored: `target`, or its
        transpose.
    check
        Called with each slab that is loaded.
    plan
        Of factors that stay in the array that `out` is; None plans slabs.
    """
    checkpoint = target.checkpoint
    if checkpoint is not None and isinstance(checkpoint.plan, SlabPlan):
        plan = checkpoint.plan
    if plan is None:
        reserved = 0 if checkpoint is None else PIECE_BYTES
        plan = plan_for(kind, a, out, run, new=target.new, reserved=reserved)
    if target.new and kind == "cholesky" and (checkpoint is None or checkpoint.plan is None):
        allocate_slabs(target.location, out, plan)
    if checkpoint is not None:
        checkpoint.begin(plan, run.options)
    factored, final = (0, 0) if checkpoint is None else (checkpoint.done(0), checkpoint.done(1))
    before = plan.flops_of(plan.slabs[factored - 1].last) if factored else 0
    recorder = Recorder(run.watch, plan.flops, done=before, devices=plan.devices)
    products = products_of(plan, run, recorder)
    store = None if plan.stores else lambda _slab: None
    pipeline = SlabPipeline(
        a, out, plan, recorder, check, checkpoint, store=store, products=products
    )
    try:
        with pipeline:
            yield pipeline
    except BaseException as error:
        if not target.new:
            say_state(error, pipeline.overwritten("columns" if out is target.stored else "rows"))
        raise
    resumption = None if checkpoint is None else checkpoint.resumption
    recorder.finish(plan, plan.bytes_from(factored, final), resumption)


def say_state(error: BaseException, state: str) -> None:
    """Add to an error what a failed run has left of the matrix that it overwrote."""
    if isinstance(error, HdgemmError):
        error.args = (f"{error}; {state}",)
    else:
        error.add_note(state)


def folder_of(*matrices: StoredMatrix) -> Path | None:
    """Return the folder with the file, or the Zarr store, of the first matrix that lies in one."""
    for stored in matrices:
        home = stored.operand.matrix.home
        if home is not None:
            folder = home if home.is_dir() else home.parent
            while any((folder / name).exists() for name in _OF_ZARR):
                folder = folder.parent
            return folder
    return None


@contextmanager
def input_unchanged(a: StoredMatrix, out: StoredMatrix) -> Iterator[None]:
    """Raise on leaving when the file of A changed meanwhile."""
    if out is a:
        yield
        return
    with unchanged({"A": a.operand}, out.operand.matrix):
        yield


def check_finite_slab(
    slab: Slab, *, triangle: bool = False, transposed: bool = False, name: str = "a"
) -> None:
    """Raise `InputError` with the position of the first NaN or Inf of a slab of matrix `name`.

    With `triangle`, of its lower triangle; `transposed`, the matrix is the slab's transpose.
    """
    above = slab.place.first - slab.place.top

    def column(index: int) -> NDArray[Any]:
        return slab.array[above + index if triangle else 0 :, index]

    def look(block: range, _bounce: Bounce) -> None:
        for index in block:
            if not np.isfinite(column(index)).all():
                found.append(index)
                return

    found: list[int] = []
    width = max(1, _CHECKED_BYTES // max(1, len(slab.array) * slab.array.itemsize))
    columns = range(slab.place.width)
    copy_pool().run([partial(look, columns[first : first + width]) for first in columns[::width]])
    if found:
        index = min(found)
        offset = int(np.argmin(np.isfinite(column(index))))
        value, offset = column(index)[offset], offset + (above + index if triangle else 0)
        row, col = slab.place.top + offset, slab.place.first + index
        row, col = (col, row) if transposed else (row, col)
        raise InputError(
            f"{name} has {value} at row {row}, column {col}: it must not contain infs or NaNs",
            row=row, col=col,
        )  # fmt: skip
