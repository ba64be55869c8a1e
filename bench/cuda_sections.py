"""The parts of the CUDA benchmark: the device by itself, the pipeline, the peers."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.copy_rates import copy_rates
from bench.cuda_data import spoil
from bench.cuda_device import kernel, link, locking_cost, page_locked
from bench.cuda_peers import CublasXt, PretendCupy, PretendXt, load_cublas, plain_cupy
from hdgemm.blas import multiply
from hdgemm.options import STRATEGIES, Options
from hdgemm.pipeline.devices.cuda import list_devices, open_device

if TYPE_CHECKING:
    from bench.cuda_run import Run
    from hdgemm.report import Report

DTYPES = ("float32", "float64", "complex64", "complex128")


def measure_device(run: Run) -> None:
    """CuBLAS on resident data, the kernel of each dtype, the link, and what locking pages costs."""
    device = open_device(run.device)
    try:
        run.results["device"] = {
            "name": device.facts.name,
            "bus_id": device.facts.bus_id,
            "compute_capability": list(device.facts.compute_capability),
            "copy_engines": device.facts.copy_engines,
            "total_bytes": device.facts.total,
            "free_bytes": device.driver.memory()[0],
            "description": list_devices()[0].description,
        }
        for n in run.turns("ceiling", run.sizes.squares, 20):
            if 3 * 8 * n * n > device.spec.memory_bytes:
                run.left_out.append(f"ceiling n = {n}: does not fit in device memory")
                continue
            entry = kernel(device, (n, n, n), "float64", run.sizes.repeats)
            run.ceilings[n] = entry["tflops"]
            run.note("ceiling", {"label": f"dgemm n={n}, resident", **entry})
        for dtype in run.turns("kernel", DTYPES, 10):
            entry = kernel(device, (run.sizes.kernels,) * 3, dtype, run.sizes.repeats)
            run.note("kernels", {"label": f"{dtype} n={run.sizes.kernels}, resident", **entry})
        run.results["link"] = link(device, run.sizes.link_bytes, run.sizes.repeats)
        rates = copy_rates(run.sizes.copy_bytes)
        run.results["host_copy_gbs_by_threads"] = {
            threads: rate / 1e9 for threads, rate in rates.items()
        }
        run.results["page_locking_seconds_per_gb"] = locking_cost(device, run.sizes.pin_bytes)
        if not run.dry:
            shown = ("link", "host_copy_gbs_by_threads", "page_locking_seconds_per_gb")
            print(json.dumps({key: run.results[key] for key in shown}))
    finally:
        device.close()


def measure_pipeline(run: Run) -> None:
    """Run the pipeline on arrays in host memory, with a part of the device's memory."""
    for n in run.turns("pipeline", run.sizes.squares, 45):
        for locked in (False, True):
            label = f"n={n}, {'page-locked arrays' if locked else 'plain arrays'}"
            report = pipeline(run, "pipeline", label, (n, n, n), locked=locked)
            if n == run.sizes.squares[-1] and not locked:
                run.results["gantt"] = report
    for n, k in run.turns("paper shape", run.sizes.paper, 10):
        pipeline(run, "paper_shapes", f"m=n={n}, k={k}", (n, n, k))
    n, k = run.sizes.ladder
    for strategy in run.turns("ladder", STRATEGIES[:4], 15):
        pipeline(run, "ladder", f"{strategy}, m=n={n}, k={k}", (n, n, k), strategy=strategy)


def pipeline(
    run: Run,
    section: str,
    label: str,
    extents: tuple[int, int, int],
    *,
    strategy: str = "data-placement",
    locked: bool = False,
) -> Report:
    """Run one product `repeats` times, check it, and keep what the reports say."""
    m, n, k = extents
    a, b, c = run.data.product(m, n, k)
    options = Options(devices=run.device, device_memory=run.sizes.device_memory, strategy=strategy)
    spoil(c)
    with ExitStack() as stack:
        if locked:
            device = open_device(run.device)
            stack.callback(device.close)
            stack.enter_context(page_locked(device, a, b, c))
        reports = [multiply(a, b, out=c, options=options) for _ in range(run.sizes.repeats)]
    middle = sorted(reports, key=lambda one: one.seconds)[len(reports) // 2]
    run.timed(
        section,
        label,
        extents,
        [one.seconds for one in reports],
        strategy=strategy,
        residual=run.checked(a, b, c, f"{section} {label}"),
        moved_as_planned=all(one.moved_bytes == one.planned_bytes for one in reports),
        stage_seconds={name: stage.seconds for name, stage in middle.stages.items()},
        moved_bytes=middle.moved_bytes,
        limit=middle.limit,
        kernel_gaps=kernel_gaps(middle),
        plan=dict(middle.plan),
    )
    return middle


def kernel_gaps(report: Report) -> dict[str, float]:
    """Return how long the compute stream stood idle between its first kernel and its last."""
    kernels = [event for event in report.timeline.events if event.stage == "mult1"]
    gaps = [max(0.0, b.start - a.end) for a, b in pairwise(kernels)]
    return {"seconds": sum(gaps), "longest": max(gaps, default=0.0), "count": len(gaps)}


def measure_peers(run: Run) -> None:
    """Run cuBLASXt, default and tuned, pageable and page-locked, and plain CuPy."""
    try:
        invoke = PretendXt() if run.dry else load_cublas()
    except OSError as error:
        run.left_out.append(f"cuBLASXt: {error}")
        invoke = None
    index = int(run.device.partition(":")[2] or 0)
    cases = [(n, locked) for n in run.sizes.peers for locked in (False, True)]
    for n, locked in run.turns("cuBLASXt", cases if invoke is not None else [], 30):
        a, b, c = run.data.product(n, n, n)
        with ExitStack() as stack:
            if locked:
                device = open_device(run.device)
                stack.callback(device.close)
                stack.enter_context(page_locked(device, a, b, c))
            for block in run.turns(f"cuBLASXt n={n}", run.sizes.blocks, 20):
                spoil(c)
                with CublasXt(invoke, index, block) as peer:
                    seconds = [peer.dgemm(a, b, c) for _ in range(2)]
                    memory = "page-locked" if locked else "pageable"
                    default = " (default)" if block is None else ""
                    label = f"n={n}, block {peer.block}{default}, {memory}"
                run.timed("cublasxt", label, (n, n, n), seconds, block=block, locked=locked,
                          residual=run.checked(a, b, c, label))  # fmt: skip
    measure_cupy(run)


def measure_cupy(run: Run) -> None:
    """Run what a user of CuPy would write, where three matrices fit on the device."""
    if run.dry:
        cupy: Any = PretendCupy()
    else:
        import cupy
    for n in run.turns("CuPy", run.sizes.peers, 20):
        a, b, c = run.data.product(n, n, n)
        spoil(c)
        try:
            seconds = plain_cupy(cupy, a, b, c, run.sizes.repeats)
        except MemoryError as error:
            run.left_out.append(f"CuPy n = {n}: {error}")
            continue
        label = f"n={n}, copy, multiply, copy back"
        run.timed("cupy", label, (n, n, n), seconds, residual=run.checked(a, b, c, label))
