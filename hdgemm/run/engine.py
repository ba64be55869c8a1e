"""From a product to its report: choose the device and the limits, plan, run, check."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from hdgemm.errors import InputError
from hdgemm.machine.calibration import machine_for
from hdgemm.machine.limits import default_host_bytes
from hdgemm.machine.peak_memory import PeakMemory
from hdgemm.matrices.dtypes import check_dtype
from hdgemm.options import Options
from hdgemm.pipeline.devices.registry import first_accelerator, open_device, parts_of
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import (
    NO_SLOTS,
    DeviceSpec,
    OperandSpec,
    Overlap,
    Plan,
    Problem,
    flops_per_multiply_add,
)
from hdgemm.pipeline.timeline import Timeline, both
from hdgemm.planning.abft_memory import tally_for
from hdgemm.planning.memory import planned_bytes
from hdgemm.planning.planner import plan_for
from hdgemm.progress import ProgressMeter, Work
from hdgemm.report import build_report
from hdgemm.run.hybrid import run_on_devices
from hdgemm.run.learned_rates import learn_alone
from hdgemm.run.reach import home, reach
from hdgemm.run.replanning import run_in_free_memory
from hdgemm.run.scaling import run_scaling

if TYPE_CHECKING:
    import pathlib
    import threading

    from hdgemm.durable.checkpoint import Checkpoint
    from hdgemm.pipeline.abft import Tally
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Path, Place
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.product.product import Multiplication
    from hdgemm.progress import ProgressCallback
    from hdgemm.report import Report

#: Products below this many flop are not worth asking drivers for an accelerator.
_WORTH_A_DRIVER = 10**10


def choose_devices(options: Options, flops: int) -> tuple[str, ...]:
    """Return the names of the devices that are to compute a product.

    ``"auto"`` takes an accelerator with memory of its own where there is one, else the host;
    the strategy ``"hybrid"`` adds the host to accelerators.
    """
    if options.devices == "auto":
        names: tuple[str, ...] = (best_device() if flops >= _WORTH_A_DRIVER else "host",)
    else:
        given = (options.devices,) if isinstance(options.devices, str) else options.devices
        names = tuple(part for name in given for part in parts_of(name))
    if not names:
        raise InputError("no device is named; devices='auto' chooses one")
    if options.strategy == "hybrid" and "host" not in names:
        names = (*names, "host")
    return names


@cache
def best_device() -> str:
    """Return the first usable accelerator with memory of its own, else the host; asks once."""
    return first_accelerator() or "host"


def make_plan(
    problem: Problem, options: Options, device: Device, folder: pathlib.Path | None = None
) -> Plan:
    """Plan a problem for a device within the options' limits, or the machine's.

    `folder` is where its files lie, if it has any: the speed of their disk counts.
    """
    machine = machine_for(problem, device.spec, folder)
    return plan_for(problem, options, device.spec, machine)


def plan_gemm(
    m: int, n: int, k: int, dtype: str = "float64", options: Options | None = None
) -> Plan:
    """Plan C (m×n) := A (m×k) · B (k×n), all row-major, without touching data.

    The matrices are taken to lie in memory where all three fit the host memory limit, else in
    files; `hdgemm.execute` adapts the plan where they do not.

    Parameters
    ----------
    m, n, k
        At least 1.
    dtype
        float32, float64, complex64 or complex128.

    Raises
    ------
    InputError
        For extents below 1 or a dtype that BLAS does not have.
    DoesNotFitError
        With `requested`, `available` and `missing`, in bytes.
    """
    options = options or Options()
    if min(m, n, k) < 1:
        raise InputError(f"m, n and k must be at least 1, got {m}, {n} and {k}")
    kind = np.dtype(dtype)
    check_dtype(kind, "the product")
    # Several devices draw their tiles while they run; planned is what the first one would do.
    device = open_device(choose_devices(options, 2 * m * n * k)[0], options.device_bytes)
    try:
        nbytes = (m * k + k * n + m * n) * kind.itemsize
        in_memory = nbytes <= (options.host_bytes or default_host_bytes())
        path: Path = "resident" if in_memory and device.spec.unified else "staged"
        place: Place = "memory" if in_memory else "file"
        spec = OperandSpec(False, place, path, kind.itemsize)
        problem = Problem(m, n, k, kind.name, spec, spec, spec)
        return make_plan(problem, options, device)
    finally:
        device.close()


def run_multiplication(
    product: Multiplication,
    options: Options,
    *,
    plan: Plan | None = None,
    progress: ProgressCallback | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    checkpoint: Checkpoint | None = None,
) -> Report:
    """Compute a product that was checked before; alpha and k are not zero, C is not empty.

    Parameters
    ----------
    plan
        A plan made before for the same extents; it is made anew, with the same tile and limits,
        where it does not fit the way these operands are stored.
    checkpoint
        The durable run that this is, with the plan to go on with where there is one.
    """
    product = product.row_major()
    m, n, k = product.extents
    if checkpoint is not None:
        plan = checkpoint.plan_for(options) or plan
    names = (plan.device.name,) if plan is not None else _names(product, options, 2 * m * n * k)
    if len(names) > 1:
        if checkpoint is not None:
            raise InputError(f"a durable run takes one device, got {', '.join(names)}")
        return _run_shared(product, names, options, progress, observer, cancel)
    attempt = partial(
        _run_alone, product, names[0],
        progress=progress, observer=observer, cancel=cancel, checkpoint=checkpoint,
    )  # fmt: skip
    # A durable run's journal holds its tiles: it goes on with them once the memory is free again.
    return (attempt if checkpoint else partial(run_in_free_memory, attempt))(options, plan)


def _run_alone(
    product: Multiplication,
    name: str,
    options: Options,
    plan: Plan | None,
    *,
    progress: ProgressCallback | None,
    observer: Observer | None,
    cancel: threading.Event | None,
    checkpoint: Checkpoint | None,
) -> Report:
    with ExitStack() as stack:
        if options.threads is not None:
            stack.enter_context(threadpool_limits(options.threads, user_api="blas"))
        device = open_device(name, options.device_bytes)
        stack.callback(device.close)
        # A durable run records C as store2 writes it.
        problem = reach(product, device, direct="ABC" if checkpoint is None else "")
        resumed = checkpoint is not None and checkpoint.resumes(problem, options, device.spec)
        if plan is None or (plan.problem != problem and not resumed):
            plan = make_plan(problem, options, device, product.folder)
        if checkpoint is not None:
            plan = checkpoint.begin(plan)
        tally = tally_for(options, plan)
        report = _run(plan, product, device, progress, observer, cancel, checkpoint, tally)
    if checkpoint is None and options.tile is None:
        learn_alone(device.spec.name, problem, report.seconds, options.threads)
    return report


def _names(product: Multiplication, options: Options, flops: int) -> tuple[str, ...]:
    """Return the devices that the caller chose, or else where the operands lie."""
    there = home(product) if options.devices == "auto" else None
    return (there,) if there else choose_devices(options, flops)


def _run_shared(
    product: Multiplication,
    names: tuple[str, ...],
    options: Options,
    progress: ProgressCallback | None,
    observer: Observer | None,
    cancel: threading.Event | None,
) -> Report:
    m, n, k = product.extents
    work = Work(m * n * k * flops_per_multiply_add(product.dtype.name), 1, 0, 0)
    meter = None if progress is None else ProgressMeter(work, progress)
    report = run_on_devices(product, names, options, observer=both(observer, meter), cancel=cancel)
    if meter is not None:
        meter.finish()
    return report


def _run(
    plan: Plan,
    product: Multiplication,
    device: Device,
    progress: ProgressCallback | None,
    observer: Observer | None,
    cancel: threading.Event | None,
    checkpoint: Checkpoint | None,
    tally: Tally | None,
) -> Report:
    planned = planned_bytes(plan)
    meter = None if progress is None else ProgressMeter(Work.of(plan, planned), progress)
    peak = None if plan.in_place else PeakMemory()
    operands = product.operands()
    recording = nullcontext(operands.c) if checkpoint is None else checkpoint.recording(operands.c)
    start = time.perf_counter()
    with peak or nullcontext(), recording as c:
        timeline = run_plan(
            plan,
            device,
            replace(operands, c=c),
            alpha=product.alpha,
            beta=product.beta,
            observer=both(observer, meter),
            cancel=cancel,
            tally=tally,
        )
        c.flush()
    if meter is not None:
        meter.finish()
    return build_report(
        plan,
        Timeline(timeline.events, time.perf_counter() - start),
        planned_bytes=planned,
        peak_memory_bytes=peak.nbytes if peak is not None else 0,
        resumption=None if checkpoint is None else checkpoint.resumption,
        checks=None if tally is None else tally.result(),
    )


def run_scaling_only(work: Multiplication, cancel: threading.Event | None) -> Report:
    """Compute C := beta·C, where alpha or an extent is zero and no plan is needed."""
    start = time.perf_counter()
    run_scaling(work.beta, work.old, work.c, work.dtype, cancel=cancel)
    seconds = time.perf_counter() - start
    host = DeviceSpec()
    none = (NO_SLOTS,) * 5
    problem = work.row_major().problem(host)
    plan = Plan(
        problem, host, "initial", Overlap(), (0, 0, 0), *none, (), (), (), 0, 0, in_place=True
    )
    return build_report(plan, Timeline((), seconds), planned_bytes={}, peak_memory_bytes=0)
