"""The parts of the CUDA benchmark: the device by itself, the pipeline, the peers."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.copy_rates import copy_rates
from bench.cuda_data import spoil
from bench.cuda_device import kernel, link, locking_cost, page_locked
from bench.cuda_peers import CublasXt, PretendCupy, PretendXt, load_cublas, plain_cupy
from hdgemm.blas.products import multiply
from hdgemm.options import STRATEGIES, Options
from hdgemm.pictures.gantt import save_gantt
from hdgemm.pipeline.devices.cuda import list_devices, open_device

if TYPE_CHECKING:
    from bench.cuda_run import Run
    from hdgemm.report import Report

DTYPES = ("float32", "float64", "complex64", "complex128")


def measure_all(run: Run) -> None:
    """Measure the device by itself, the pipeline, and the peers."""
    run.attempt("device", lambda: measure_device(run))
    sizes = run.sizes
    run.each("pipeline", sizes.squares, 45, lambda n: measure_square(run, n))
    run.each(
        "paper shape", sizes.paper, 10,
        lambda nk: pipeline(run, "paper_shapes", f"m=n={nk[0]}, k={nk[1]}", (nk[0], *nk)),
    )  # fmt: skip
    n, k = sizes.ladder
    run.each(
        "ladder", STRATEGIES[:4], 15,
        lambda strategy: pipeline(
            run, "ladder", f"{strategy}, m=n={n}, k={k}", (n, n, k), strategy=strategy
        ),
    )  # fmt: skip
    run.each("CuPy", sizes.peers, 20, lambda n: measure_cupy(run, n))
    run.attempt("cuBLASXt", lambda: measure_cublasxt(run))


def measure_device(run: Run) -> None:
    """Measure cuBLAS on resident data, the kernel of each dtype, the link, and page-locking."""
    device = open_device(run.device)
    sizes, results = run.sizes, run.results
    with closing(device):
        results["device"] = {
            "name": device.facts.name,
            "bus_id": device.facts.bus_id,
            "compute_capability": list(device.facts.compute_capability),
            "fp64_ratio": device.facts.fp64_ratio,
            "copy_engines": device.facts.copy_engines,
            "total_bytes": device.facts.total,
            "free_bytes": device.driver.memory()[0],
            "description": list_devices()[0].description,
        }

        def ceiling(n: int) -> None:
            if 3 * 8 * n * n > device.spec.memory_bytes:
                run.left_out.append(f"ceiling n = {n}: does not fit in device memory")
                return
            entry = kernel(device, (n, n, n), "float64", sizes.repeats)
            run.ceilings[n] = entry["tflops"]
            run.note("ceiling", {"label": f"dgemm n={n}, resident", **entry})

        def kernels(dtype: str) -> None:
            entry = kernel(device, (sizes.kernels,) * 3, dtype, sizes.repeats)
            run.note("kernels", {"label": f"{dtype} n={sizes.kernels}, resident", **entry})

        def show(section: str, figures: dict[Any, float]) -> None:
            results[section] = figures
            if not run.dry:
                print(json.dumps({section: figures}))

        run.each("ceiling", sizes.squares, 20, ceiling)
        run.each("kernel", DTYPES, 10, kernels)
        run.attempt("link", lambda: show("link", link(device, sizes.link_bytes, sizes.repeats)))
        run.attempt("host copies", lambda: show("host_copy_gbs_by_threads", {
            threads: rate / 1e9 for threads, rate in copy_rates(sizes.copy_bytes).items()
        }))  # fmt: skip
        run.attempt(
            "page-locking",
            lambda: show("page_locking_seconds_per_gb", locking_cost(device, sizes.pin_bytes)),
        )


def measure_square(run: Run, n: int) -> None:
    """Run the pipeline on plain and on page-locked arrays, with a part of the device's memory."""
    for locked in (False, True):
        label = f"n={n}, {'page-locked arrays' if locked else 'plain arrays'}"
        report = pipeline(run, "pipeline", label, (n, n, n), locked=locked)
        if n == run.sizes.squares[-1] and not locked:
            save_gantt(report.timeline, run.folder / "cuda-gantt.png", title=run.title)


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
            device = stack.enter_context(closing(open_device(run.device)))
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


def measure_cublasxt(run: Run) -> None:
    """Run cuBLASXt on plain and on page-locked arrays: the smallest with its default and other
    blocks, the larger ones with the block that was the fastest there (others take minutes).
    """
    invoke = PretendXt() if run.dry else load_cublas()
    index = int(run.device.partition(":")[2] or 0)

    def case(n_locked: tuple[int, bool]) -> None:
        n, locked = n_locked
        a, b, c = run.data.product(n, n, n)

        def one(block: int | None) -> None:
            spoil(c)
            with CublasXt(invoke, index, block) as peer:
                seconds = [peer.dgemm(a, b, c) for _ in range(2)]
                memory = "page-locked" if locked else "pageable"
                default = " (default)" if block is None else ""
                label = f"n={n}, block {peer.block}{default}, {memory}"
            run.timed("cublasxt", label, (n, n, n), seconds, block=block, locked=locked,
                      residual=run.checked(a, b, c, label))  # fmt: skip

        with ExitStack() as stack:
            if locked:
                device = stack.enter_context(closing(open_device(run.device)))
                stack.enter_context(page_locked(device, a, b, c))
            blocks = run.sizes.blocks if n == run.sizes.peers[0] else (fastest(locked),)
            run.each(f"cuBLASXt n={n}", blocks, 20, one)

    def fastest(locked: bool) -> int | None:
        found = [one for one in run.results.get("cublasxt", []) if one["locked"] == locked]
        block: int | None = max(found, key=lambda one: one["tflops"])["block"]
        return block

    cases = [(n, locked) for n in run.sizes.peers for locked in (False, True)]
    run.each("cuBLASXt", cases, 30, case)


def measure_cupy(run: Run, n: int) -> None:
    """Run what a user of CuPy would write; all three matrices must fit on the device."""
    if run.dry:
        cupy: Any = PretendCupy()
    else:
        import cupy
    a, b, c = run.data.product(n, n, n)
    spoil(c)
    seconds = plain_cupy(cupy, a, b, c, run.sizes.repeats)
    label = f"n={n}, copy, multiply, copy back"
    run.timed("cupy", label, (n, n, n), seconds, residual=run.checked(a, b, c, label))
