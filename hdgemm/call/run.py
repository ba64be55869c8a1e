"""One run: its options, its session, and the rates of its machine and disks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.machine.benchmarks import calibration_bytes
from hdgemm.machine.limits import cores
from hdgemm.matrices.location import is_store
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.planning.slow_plan import trial
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np

    from hdgemm.call.keywords import Call
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.progress import Callbacks
    from hdgemm.run.session import Session

_T = TypeVar("_T")
#: Times that a refused plan is made with the memory that the refusal names.
_MOST_PLANS: Final = 16


class OpenRun(NamedTuple):
    """A call whose session is open."""

    options: Options
    session: Session
    callbacks: Callbacks


@contextmanager
def open_run(run: Call | OpenRun) -> Iterator[OpenRun]:
    """Hold a session for one factorisation or solve, without slots that products have left.

    Devices that the options name update slabs (`hdgemm.linalg.slabs._resident`) and factor arrays
    (`hdgemm.linalg.devices.run`); all else runs on the host.
    """
    with session_for(run.session, run.options) as (opened, chosen), opened.running(chosen):
        opened.free_slots()
        try:
            yield OpenRun(chosen, opened, run.callbacks)
        finally:
            opened.free_slots()


def machine_of(
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    folder: Path | None,
    run: OpenRun,
    *,
    depth: int | None = None,
    memory: int | None = None,
) -> Machine:
    """Return the rates of this machine's host, and of the disk of a folder.

    They are measured where products of this shape and depth, None for a factorisation's mean one,
    are worth it, and the measurement fits `memory` bytes, None for any.
    """
    m, n = shape
    staged = OperandSpec(False, "file", "staged", dtype.itemsize)
    k = min(m, n) // 3 if depth is None else depth
    if memory is not None and memory < calibration_bytes(run.options.threads or cores()):
        k = 0
    problem = Problem(max(1, m), max(1, n), max(1, k), dtype.name, staged, staged, staged)
    return run.session.machine(DeviceSpec(), problem, folder, run.options.threads, run.callbacks)


def folder_of(*matrices: StoredMatrix) -> Path | None:
    """Return the folder with the file, or the Zarr store, of the first matrix that lies in one."""
    for stored in matrices:
        home = stored.operand.matrix.home
        if home is not None:
            folder = home if home.is_dir() else home.parent
            while is_store(folder):
                folder = folder.parent
            return folder
    return None


def plan_parts(what: str, plan: Callable[[OpenRun], _T], run: OpenRun) -> _T:
    """Return the plans of the parts of a computation; a refusal names memory for all of them.

    Each part refuses for itself, and more memory may lead to a part that needs even more.
    """
    try:
        return plan(run)
    except DoesNotFitError as error:
        if not error.of_host:
            raise
        given, requested = error.available, error.requested
        for _ in range(_MOST_PLANS):
            try:
                with trial():
                    plan(run._replace(options=replace(run.options, host_memory=requested)))
            except DoesNotFitError as next_part:
                requested = next_part.requested
            except InputError:  # more memory than options take
                break
            else:
                break
        if requested == error.requested:
            raise
        raise DoesNotFitError.within(what, requested, given) from None
