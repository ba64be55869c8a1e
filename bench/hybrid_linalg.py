"""Factorisations by tasks: devices, schedules and the scheduler's own cost, by turns.

    python -m bench.hybrid_linalg                         # all sections
    python -m bench.hybrid_linalg halves host --n 2048    # some of them

`halves`: two halves of an OpenCL CPU device (default: PoCL) against the whole. `beside`: one half
and one core of the host against the faster of both alone. `slab`: arrays by tasks against a slab of
all columns that stays on the device, as the slabs of files do. `schedule`: lookahead against none,
priorities against none, and columns in proportion (HGDD) against uniform ones, on two recording
devices that sleep to the speeds 1 and 3. `host`: the host alone by tasks, and as `factor` does it,
against LAPACK of OpenBLAS. `overhead`: tasks that do nothing. A ratio above 1 says that the
first-named is faster, or takes less processor time; it is the median over all turns, and every
factorisation is checked with LAPACK's ratio (below 30).
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from bench.harness import environment, save, spread
from hdgemm import Options, Session, linalg
from hdgemm.fortran import getrf, potrf
from hdgemm.linalg.storage import Output
from hdgemm.machine.limits import cores
from hdgemm.pipeline.devices.opencl import list_devices
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.tasks.block_columns import even_widths
from hdgemm.tasks.capability import KINDS, UPDATES, Capability
from hdgemm.tasks.factorise import factor
from hdgemm.tasks.machine import TaskMachine
from hdgemm.tasks.measured_rates import measured
from hdgemm.tasks.runtime import Runtime
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tiles import TaskTile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.pipeline.timeline import Event

    Factor = Callable[[NDArray[np.float64]], Any]

NAMES: Final = ("cholesky", "lu")
#: Flop/s of the slow one of two devices, of which the other is three times as fast.
_SLOW: Final = 4e8


def matrix(name: str, n: int) -> NDArray[np.float64]:
    """Return a column-major matrix that a factorisation takes."""
    a = np.asfortranarray(np.random.default_rng(0).random((n, n)) - 0.5)
    if name == "cholesky":
        a += a.T
        a.flat[:: n + 1] += n
    return a


def check(name: str, a: NDArray[np.float64], factors: NDArray[np.float64], found: Any) -> float:
    """Return LAPACK's ratio of a factorisation, with a random vector in place of a norm."""
    n = len(a)
    x = np.random.default_rng(1).random(n) - 0.5
    if name == "cholesky":
        lower = np.tril(factors)
        rest = lower @ (lower.T @ x) - a @ x
    else:
        y = a @ x
        for row, pivot in enumerate(found):
            y[[row, pivot]] = y[[pivot, row]]
        z = np.triu(factors) @ x
        rest = np.tril(factors, -1) @ z + z - y
    scale = n * 2.0**-53 * np.abs(a).sum(axis=0).max() * np.abs(x).max()
    return float(np.abs(rest).max() / scale)


def compare(name: str, n: int, calls: Mapping[str, Factor], repeats: int) -> dict[str, Any]:
    """Take turns; return seconds of each call, and the ratio of the last one to the first."""
    a = matrix(name, n)
    seconds: dict[str, list[float]] = {label: [] for label in calls}
    processor: dict[str, list[float]] = {label: [] for label in calls}
    for turn in range(repeats + 1):  # the first turn compiles kernels and touches memory
        for label in list(calls)[:: 1 if turn % 2 else -1]:
            array = a.copy("F")
            began, used = time.perf_counter(), time.process_time()
            found = calls[label](array)
            seconds[label].append(time.perf_counter() - began)
            processor[label].append(time.process_time() - used)
            assert check(name, a, array, found) < 30, (name, label)
    first, *_, last = calls
    ratios, of_processor = (
        [b / a for a, b in zip(kept[first][1:], kept[last][1:], strict=True)]
        for kept in (seconds, processor)
    )
    result = {label: spread(values[1:]) for label, values in seconds.items()}
    print(f"{name} n={n}: {first} against {last}: {np.median(ratios):.3f}, "
          f"{np.median(of_processor):.3f} by processor time")  # fmt: skip
    return {"n": n, "seconds": result, "ratio": spread(ratios),
            "processor ratio": spread(of_processor)}  # fmt: skip


def by_tasks(machine: TaskMachine, name: str, width: int | None = None) -> Factor:
    """Return a factorisation on some devices; it returns the pivots."""

    def run(array: NDArray[np.float64]) -> Any:
        n = len(array)
        widths = width and even_widths(n, width)
        return factor(machine, name, array, widths=widths or None).pivots

    return run


@contextmanager
def opened(names: list[str], *, beside: int, **how: Any) -> Iterator[Callable[[str], TaskMachine]]:
    """Yield the machine of the host and some devices, measured for a factorisation.

    `beside` is the number of the host's threads beside the devices' threads.
    """
    with ExitStack() as stack:
        devices: Any = {}
        for name in names:
            devices[name] = open_device(name)
            stack.callback(devices[name].close)

        def machine(name: str) -> TaskMachine:
            threads = beside + sum(device.host_cores for device in devices.values())
            made = replace(TaskMachine.of(devices, threads=threads), threads=max(1, beside))
            return replace(measured(made, name, np.dtype("float64")), **how)

        yield machine


def halves(args: argparse.Namespace) -> dict[str, Any]:
    """Compare two halves of a device with the whole; the host factors the panels of both."""
    found = {}
    parts = [f"{args.device}/2:0", f"{args.device}/2:1"]
    with (
        opened(parts, beside=0, dealing="uniform") as two,
        opened([args.device], beside=0, dealing="uniform") as whole,
    ):
        for name in NAMES:
            calls = {"halves": by_tasks(two(name), name), "whole": by_tasks(whole(name), name)}
            found[name] = compare(name, args.n, calls, args.repeats)
    return found


def beside(args: argparse.Namespace) -> dict[str, Any]:
    """Compare half a device and one core of the host with the best of both alone."""
    found = {}
    threads = max(1, cores() // 2)
    with opened([f"{args.device}/2:0"], beside=threads) as half:
        for name in NAMES:
            machine = half(name)
            calls = {
                "half + host": by_tasks(machine, name),
                "half alone": by_tasks(replace(machine, dealing="uniform"), name),
                "host alone": lambda array, name=name: lapack(name, array, threads),
            }
            result = compare(name, args.n, calls, args.repeats)
            alone = min(result["seconds"][x]["median"] for x in ("half alone", "host alone"))
            result["of the best alone"] = alone / result["seconds"]["half + host"]["median"]
            print(f"  half + host against the best alone: {result['of the best alone']:.3f}")
            found[name] = result
    return found


def slab(args: argparse.Namespace) -> dict[str, Any]:
    """Compare arrays by tasks with one slab on the device, which the library uses for files."""
    options = Options(devices=args.device, host_memory="8GB")
    calls = {"lu": linalg.lu_factor, "cholesky": partial(linalg.cholesky, lower=True)}
    found = {}
    with Session(options) as session:

        def tasks(array: NDArray[np.float64]) -> Any:
            factors = calls[name](array, overwrite_a=True, options=options, session=session)
            return factors[1]  # the pivots of LU

        def resident(array: NDArray[np.float64]) -> Any:
            with ExitStack() as stack:
                # What takes the array for a file.
                stack.enter_context(patch.object(Output, "in_array", new=False))
                module = sys.modules[linalg.cholesky.__module__]
                stack.enter_context(patch.object(module, "in_memory", lambda *_: None))
                return tasks(array)

        for name in NAMES:
            pair = {"tasks": tasks, "resident slab": resident}
            found[name] = compare(name, args.n, pair, args.repeats)
    return found


def lapack(name: str, array: NDArray[np.float64], threads: int) -> Any:
    """Factor by LAPACK with some BLAS threads."""
    with threadpool_limits(threads, user_api="blas"):
        if name == "cholesky":
            return potrf(array)
        return getrf(array)[0]


def schedule(args: argparse.Namespace) -> dict[str, Any]:
    """Compare schedules on two devices of the speeds 1 and 3, which wait for most of the time."""
    found: dict[str, Any] = {}
    rates = {"slow": _SLOW, "fast": 3 * _SLOW}

    def pace(rate: float) -> Callable[[str, int], float]:
        return lambda kind, amount: amount / rate if kind == "gemm" else 0.0

    with ExitStack() as stack:
        devices: Any = {}
        for device, rate in rates.items():
            devices[device] = RecordingDevice(1 << 30, name=device, pace=pace(rate))
            stack.callback(devices[device].close)
        host = Capability(name="host", rates=dict.fromkeys(KINDS, 1e9) | {"gemm": 0.0, "trsm": 0.0})
        pair = [Capability(name=x, rates=dict.fromkeys(UPDATES, r)) for x, r in rates.items()]
        best = TaskMachine(capabilities=(host, *pair), devices=devices, dealing="proportional")
        others = {
            "no lookahead": replace(best, lookahead=False),
            "no priorities": replace(best, priorities=False),
            "uniform": replace(best, dealing="uniform"),
        }
        n, width = args.schedule_n, args.schedule_n // 16
        for name in NAMES:
            for label, other in others.items():
                calls = {"best": by_tasks(best, name, width), label: by_tasks(other, name, width)}
                found[f"{name}: best against {label}"] = compare(name, n, calls, args.repeats)
    return found


def host(args: argparse.Namespace) -> dict[str, Any]:
    """Compare the host alone by tasks with LAPACK of the same BLAS."""
    found = {}
    machine = TaskMachine.of({}, threads=cores(), lanes=True)
    for name in NAMES:
        tasks = replace(measured(machine, name, np.dtype("float64")), dealing="dynamic")
        calls = {
            "tasks": by_tasks(tasks, name),
            "factor": by_tasks(machine, name),
            "LAPACK": lambda array, name=name: lapack(name, array, cores()),
        }
        result = found[name] = compare(name, args.host_n, calls, args.repeats)
        result["factor ratio"] = (
            result["seconds"]["LAPACK"]["median"] / result["seconds"]["factor"]["median"]
        )
        print(f"  factor, which chooses LAPACK, against LAPACK: {result['factor ratio']:.3f}")
    return found


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the time of a task that does nothing, and the memory that the tasks take."""
    host = Capability(name="host", rates={"gemm": 1e9}, lanes=cores())
    tiles = [TaskTile(f"A[{number}]", 8) for number in range(64)]
    times, cpu = [], []
    for _ in range(args.repeats):
        began, used = time.perf_counter(), time.process_time()
        _insert(host, tiles, args.tasks)
        times.append((time.perf_counter() - began) / args.tasks * 1e6)
        cpu.append((time.process_time() - used) / args.tasks * 1e6)
    memory = {}
    for tasks in (args.tasks // 10, args.tasks // 5):
        tracemalloc.start()
        _insert(host, tiles, tasks, events=False)
        memory[tasks] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    print(f"overhead: {np.median(times):.1f} us a task ({np.median(cpu):.1f} us of CPU), {memory}")
    return {"tasks": args.tasks, "us": spread(times), "cpu_us": spread(cpu), "peak_bytes": memory}


class _WithoutEvents(Runtime):
    """A runtime without a timeline: its memory is bounded by the window."""

    def _note(self, event: Event) -> None:
        pass


def _insert(host: Capability, tiles: list[TaskTile], tasks: int, *, events: bool = True) -> None:
    kernel = Kernel("gemm", host=lambda: None)
    with (Runtime if events else _WithoutEvents)([host], window=1024) as runtime:
        for number in range(tasks):
            left, right = tiles[number % 7], tiles[7 + number % 57]
            runtime.insert(kernel, reads=[left, right], writes=[right])
        runtime.finish()


SECTIONS: Final = {
    "halves": halves,
    "beside": beside,
    "slab": slab,
    "schedule": schedule,
    "host": host,
    "overhead": overhead,
}


def pocl() -> str:
    """Return the device of PoCL; the first OpenCL device where there is none."""
    names = [each.name for each in list_devices() if "Portable" in each.description]
    return next(iter(names), "opencl:0")


def main() -> None:
    """Run the sections and write bench/results/hybrid_linalg.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="default: all")
    parser.add_argument("--device", help="an OpenCL CPU device; default: PoCL's")
    parser.add_argument("--n", type=int, default=4096, help="order on OpenCL devices")
    parser.add_argument("--host-n", type=int, default=8192, help="order on the host alone")
    parser.add_argument("--schedule-n", type=int, default=1024, help="order on slow devices")
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks that do nothing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="hybrid_linalg", help="of the result")
    args = parser.parse_args()
    args.device = args.device or pocl()
    where = environment()
    results = {name: SECTIONS[name](args) for name in args.sections or SECTIONS}
    save(args.name, results, where)


if __name__ == "__main__":
    main()
