"""The plan of a pass over rows on this machine: on the host, or with its products on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.call.run import machine_of
from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.linalg.planning.device_tiles import STAGING_BYTES
from hdgemm.linalg.planning.devices import factor_device
from hdgemm.linalg.planning.rows import plan_pass
from hdgemm.machine.limits import cores, host_bytes
from hdgemm.matrices.layout import check_decoded
from hdgemm.pipeline.plan import OperandSpec, Problem, flops_per_multiply_add
from hdgemm.planning.slow_plan import MORE_MEMORY, warn_if_slow
from hdgemm.run.members import WORTH_AN_ACCELERATOR, best_device, update_devices
from hdgemm.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.device_tiles import DeviceTile
    from hdgemm.linalg.planning.rows import RowPlan, RowShape, RowWork
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.devices.protocol import FactorDevice


def rows_for(
    shape: RowShape, works: Sequence[RowWork], folder: Path | None, run: OpenRun
) -> RowPlan:
    """Return the plan of a pass over a matrix, in a folder or in memory, on this machine.

    Devices that the options name compute the products of work that has some. With ``"auto"`` an
    accelerator does, where the pass is large enough and expected to be faster so.

    Raises
    ------
    DeviceUnavailableError
        When a device cannot be used.
    DoesNotFitError
        When the results and one row of each block do not fit the host's memory, or the memory of a
        device that the options name: `device`.
    """
    memory, dtype = host_bytes(run.options), np.dtype(shape.dtype)
    check_decoded(shape.chunk_bytes, str(shape), memory)
    plan = _plan(shape, works, memory, run)
    # The product with as many operations.
    depth = plan.flops // max(1, plan.m * plan.n * flops_per_multiply_add(shape.dtype))
    machine = machine_of((plan.m, plan.n), dtype, folder, run, depth=depth, memory=memory)
    plan = plan.priced(machine, in_file=folder is not None)
    found = _fastest(plan, shape, works, folder, run)
    if found is plan:
        _warn_if_slow(plan, works, machine, run, in_file=folder is not None)
    return found


def _fastest(
    plan: RowPlan,
    shape: RowShape,
    works: Sequence[RowWork],
    folder: Path | None,
    run: OpenRun,
) -> RowPlan:
    """Return the plan with its products on devices that are named or faster; else the host's."""
    named = update_devices(run.options)
    names = named or _accelerator(plan, run)
    if not names or not plan.m or not all(work.device_tiles for work in works):
        return plan
    try:
        found = _on_devices(plan, names[: plan.cores], shape, works, folder, run)
    except (DoesNotFitError, DeviceError):
        if named:
            raise
        return plan  # the host computes, too
    return found if named or found.expected_seconds < plan.expected_seconds else plan


def _plan(shape: RowShape, works: Sequence[RowWork], memory: int, run: OpenRun) -> RowPlan:
    options = run.options
    forced = options.tile and options.tile[0]
    return plan_pass(shape, works, memory, options.threads or cores(), rows=forced)


def _warn_if_slow(
    plan: RowPlan, works: Sequence[RowWork], machine: Machine, run: OpenRun, *, in_file: bool
) -> None:
    def better() -> float:
        threads = run.options.threads or cores()
        found = plan_pass(plan.shape, works, MORE_MEMORY * plan.host_limit, threads)
        return found.priced(machine, in_file=in_file).expected_seconds

    warn_if_slow(
        f"{plan.name} of {plan.shape}",
        f"blocks of {format_count(plan.rows, 'row')}",
        f"{format_size(plan.host_limit)} of host memory",
        seconds=plan.expected_seconds,
        least=plan.kernel_flops / machine.flop_rate(plan.dtype),
        better=better,
    )


def _on_devices(
    plan: RowPlan,
    names: Sequence[str],
    shape: RowShape,
    works: Sequence[RowWork],
    folder: Path | None,
    run: OpenRun,
) -> RowPlan:
    """Return the plan of a pass with its products on devices, for its `plan` on the host."""
    devices, memory = row_devices(names, run), plan.host_limit
    staging = plan.cores * STAGING_BYTES * any(device.locks_pages for device in devices)
    if plan.host_bytes + staging > memory:
        plan = _plan(shape, works, memory - staging, run)
    rows = _fitting_rows(plan, [tile for work in works for tile in work.device_tiles], devices)
    if rows < plan.rows:
        plan = plan_pass(shape, works, memory - staging, plan.cores, rows=rows)
    plan = plan._replace(
        host_bytes=plan.host_bytes + staging,
        host_limit=memory,
        devices=tuple(device.spec.name for device in devices),
    )
    machines = [_machine(device, shape, folder, run) for device in devices]
    return plan.priced(machines[0], in_file=folder is not None, devices=machines)


def row_devices(names: Iterable[str], run: OpenRun) -> list[FactorDevice]:
    """Open devices that compute products of rows."""
    return [factor_device(name, "passes over rows", run) for name in names]


def _accelerator(plan: RowPlan, run: OpenRun) -> tuple[str, ...]:
    """Return the accelerator for a large pass where the options leave the choice; else ()."""
    if run.options.devices != "auto" or plan.flops < WORTH_AN_ACCELERATOR:
        return ()
    best = best_device()
    return () if best == "host" else (best,)


def _fitting_rows(
    plan: RowPlan, tiles: Sequence[DeviceTile], devices: Sequence[FactorDevice]
) -> int:
    """Return the rows of a block for which all devices have memory, at most `plan.rows`."""
    count = len(devices)
    return min(
        _rows_on(device, count, len(range(index, plan.cores, count)), plan, tiles)
        for index, device in enumerate(devices)
    )


def _rows_on(
    device: FactorDevice, count: int, lanes: int, plan: RowPlan, tiles: Sequence[DeviceTile]
) -> int:
    """Return the rows of a block for which one of `count` devices has memory, for blocks of
    `lanes` cores.
    """
    rows = plan.rows
    while True:
        sizes = [tile.nbytes(device, rows, np.dtype(plan.dtype)) for tile in tiles]
        exceeded = device.spec.exceeded(sizes * lanes)
        if exceeded is None:
            return rows
        if rows == 1:
            name, (needed, available) = device.spec.name, exceeded
            one = "" if needed == lanes * sum(sizes) else " in one allocation"
            fewer = (
                each for each in range(lanes - 1, 0, -1) if not device.spec.exceeded(sizes * each)
            )
            fitting = count * next(fewer, 0)
            threads = f"choose threads={fitting}, " if fitting else ""
            raise DoesNotFitError(
                f"{name} holds {format_size(available)}{one}; {plan.name} of {plan.shape} on "
                f"{lanes} cores takes {format_size(needed)} there: raise device_memory, "
                f"{threads}or choose devices='host'",
                requested=needed,
                available=available,
                missing=needed - available,
                device=name,
            )
        rows //= 2


def _machine(device: FactorDevice, shape: RowShape, folder: Path | None, run: OpenRun) -> Machine:
    staged = OperandSpec(False, "file", "staged", np.dtype(shape.dtype).itemsize)
    problem = Problem(shape.n, shape.n, shape.m, shape.dtype, staged, staged, staged)
    return run.session.machine(device.spec, problem, folder, run.options.threads, run.callbacks)
