"""Plans of factorisations under the options of a run, by slabs or in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.call.run import folder_of, machine_of
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.planning._pricing import priced
from hdgemm.linalg.planning.devices import slab_devices
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.planning.solve import COPIES, solve_bytes
from hdgemm.machine.limits import host_bytes
from hdgemm.machine.rates import assumed
from hdgemm.matrices.base import Converted
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.layout import check_decoded
from hdgemm.matrices.planned import PlannedMatrix
from hdgemm.matrices.read_ahead import STREAM_BYTES
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.matrices.triangles import SymmetricMatrix
from hdgemm.pipeline.plan import DeviceSpec
from hdgemm.planning.slow_plan import MORE_MEMORY, warn_if_slow
from hdgemm.run.members import device_names
from hdgemm.units import format_count, format_size

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.slab import Kind
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options

#: Chunks that are held at once: two, as stored, decoded, and on their way into a slab.
_DECODED: Final = 6


def plan_for(
    kind: Kind,
    a: StoredMatrix,
    out: StoredMatrix,
    run: OpenRun,
    *,
    new: bool = False,
    durable: bool = False,
    dtype: np.dtype[Any] | None = None,
) -> SlabPlan:
    """Return the slabs for one factorisation, planned with the rates of this machine.

    `Options.tile` = (mb, nb, kb) forces slabs of nb columns and stream blocks of kb columns; mb is
    not used. `dtype` is the result's, None for A's; a `durable` run keeps a checkpoint.
    A `new` output may hold copies of slabs before they are stored.
    """
    found = (a.dtype if dtype is None else dtype).newbyteorder("=")
    _check_chunks(a, run.options)
    machine = machine_of(a.shape, found, folder_of(out, a), run)
    storage = storage_of(a, out, new=new)
    return slabs_for(kind, a.shape, found.name, machine, run, storage=storage, durable=durable)


def _check_chunks(a: StoredMatrix, options: Options) -> None:
    matrix = a.operand.matrix
    check_decoded(matrix.decoded_bytes, matrix.name, host_bytes(options))


def storage_of(a: StoredMatrix, out: StoredMatrix, *, new: bool) -> Storage:
    """Return what a plan depends on of the storage of A and of an output, which may be `new`."""
    stored = out.operand.matrix
    contiguous = (
        isinstance(stored, FileMatrix | PlannedMatrix)
        and out.order == "F"
        and stored.pitch == stored.shape[1] * stored.dtype.itemsize
    )
    copies = new and contiguous and out.shape == a.shape and mirrored(a) is None
    decoding = _DECODED * a.operand.matrix.decoded_bytes
    return Storage(out.chunks is None, row_bytes(a), copies, contiguous, decoding)


def plan_in_array(
    kind: Kind, a: StoredMatrix, dtype: np.dtype[Any], folder: Path | None, options: Options
) -> SlabPlan:
    """Return the plan of a factorisation in the array that the result is, of A in a folder or in
    RAM.

    The array is the caller's: the memory limit is for the buffers through which a file is read. The
    expected duration is LAPACK's, at an assumed rate: to measure one could take longer.

    Raises
    ------
    DoesNotFitError
        When those buffers do not fit: `missing` in bytes.
    """
    _check_chunks(a, options)
    limit, held = host_bytes(options), 0 if folder is None else BOUNCE_BYTES
    if held > limit:
        m, n = a.shape
        what = f"{kind} of a {m}×{n} {dtype.name} matrix, read from a file into an array,"
        raise DoesNotFitError.within(what, held, limit)
    plan = SlabPlan.of_array(kind, *a.shape, dtype.name, limit)
    machine = assumed(DeviceSpec())
    reading = 0.0 if folder is None else plan.planned_bytes["load1"] / machine.disk_read
    seconds = reading + plan.flops / machine.flop_rate(dtype.name)
    return replace(plan, host_bytes=held, expected_seconds=seconds)


class FactorsOfSolve(NamedTuple):
    """The factors for one solve, which are no longer needed after it.

    Parameters
    ----------
    kind
        "lu" or "cholesky".
    shape, dtype
        Of X.
    single
        The dtype of the factors where X is refined; None for X's.
    in_place
        They are stored over A.
    durable
        A run that goes on after a crash must find them.
    """

    kind: Kind
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    single: np.dtype[Any] | None
    in_place: bool
    durable: bool

    @property
    def copies(self) -> int:
        """Arrays of the size of X that the solve holds, X itself among them."""
        return 1 if self.single is None else COPIES

    def residual_bytes(self, options: Options) -> int:
        """Return the memory for the stream of A that residuals are computed from."""
        return 0 if self.single is None else min(host_bytes(options) // 4, STREAM_BYTES)

    def plan_in_memory(self, folder: Path | None, run: OpenRun) -> SlabPlan | None:
        """Return the plan of factors of a file that stay in memory.

        None where they are Cholesky's or in an array, stored over A or durable, where they do not
        fit beside what the solve holds, where a tile forces slabs, and where devices compute the
        updates.
        """
        n, dtype = self.shape[0], self.single or self.dtype
        memory, held = host_bytes(run.options), n * n * dtype.itemsize + BOUNCE_BYTES
        beside = solve_bytes(self.shape, self.dtype.itemsize, self.copies)
        beside += self.residual_bytes(run.options)
        forced = run.options.tile is not None or device_names(run.options)
        stored = self.kind != "lu" or self.in_place or self.durable
        if folder is None or stored or forced or held + beside > memory:
            return None
        plan = replace(SlabPlan.of_array("lu", n, n, dtype.name, memory), host_bytes=held)
        return priced(plan, machine_of((n, n), dtype, folder, run))


def mirrored(a: StoredMatrix) -> SymmetricMatrix | None:
    """Return the matrix that is read from one triangle where `a` is one, converted or not."""
    matrix = _unconverted(a)
    return matrix if isinstance(matrix, SymmetricMatrix) else None


def _unconverted(a: StoredMatrix) -> Matrix:
    matrix = a.operand.matrix
    while isinstance(matrix, Converted):
        matrix = matrix.stored
    return matrix


def row_bytes(a: StoredMatrix) -> int:
    """Return the bytes from one row to the next of a row-major matrix in a file, else 0.

    They are counted in A's element size where elements are converted. A matrix that is
    read from one triangle counts as row-major: half of each slab are short pieces of rows, whatever
    its order, and to load it took 0.5 to 1.5 times as long as from a row-major file.
    """
    matrix, mirror = a.operand.matrix, mirrored(a)
    stored = _unconverted(a) if mirror is None else mirror.stored
    if mirror is not None and isinstance(stored, PlannedMatrix) and not stored.in_ram:
        return (stored.pitch or 0) // stored.dtype.itemsize * matrix.dtype.itemsize
    if not isinstance(stored, FileMatrix) or (a.order != "C" and mirror is None):
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
    durable: bool,
) -> SlabPlan:
    """Return the slabs for a factorisation of a matrix of this shape under the run's options."""
    memory, (_, width, block) = host_bytes(run.options), run.options.tile or (None, None, None)
    plans = partial(
        plan_slabs,
        kind,
        shape[1],
        dtype,
        machine=machine,
        rows=shape[0],
        storage=storage,
        durable=durable,
        devices=slab_devices(shape, dtype, run),
    )
    plan = plans(memory, width=width, block=block)
    warn_if_slow(
        f"{kind} of a {shape[0]}×{shape[1]} {dtype} matrix",
        f"slabs of {format_count(plan.slabs[0].width if plan.slabs else 0, 'column')}",
        f"{format_size(memory)} of host memory",
        seconds=plan.expected_seconds,
        least=plan.flops / machine.flop_rate(dtype),
        better=lambda: plans(MORE_MEMORY * memory).expected_seconds,
    )
    return plan
