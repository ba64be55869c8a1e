"""Costs beside the work itself: the executor per operation, a product's start-up, the import.

python -m bench.overhead [--repeat 7]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import hdgemm
from bench.harness import environment, save, spread
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import Problem
from hdgemm.pipeline.slots import Operands
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.devices.protocol import Completion

#: (m, n, k), edge of all tiles, and k-extent of a load. Tiny tiles: the work itself is nothing.
CASES = {
    "most operations load": ((64, 64, 64), 4, 4),
    "all five stages alike": ((128, 128, 8), 4, 8),
    "most operations multiply": ((64, 64, 64), 4, 64),
}
#: Products of a session: their order, and each device's memory.
N = 1024
SESSIONS = {"host": None, "opencl:0": "16MB"}
OUT = np.empty((N, N))


class Tape(RecordingDevice):
    """A recording device that keeps the calls of a run, to repeat them without the executor."""

    def __init__(self) -> None:
        super().__init__()
        self._tape: list[Callable[[Sequence[Completion]], Completion]] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in {"upload", "gemm", "download"}:
            return method

        def call(*arguments: Any) -> Completion:
            self._tape.append(partial(method, *arguments[:-1]))
            return method(*arguments)

        return call

    def replay(self) -> float:
        """Repeat all calls, each after the one before it; return the seconds of CPU time."""
        start, completion = time.process_time(), DONE
        for call in self._tape:
            completion.wait()
            completion = call([completion])
        completion.wait()
        return time.process_time() - start


DEVICES = {"recording": Tape, "host": HostDevice}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    where = environment()
    results = {
        "us_per_operation": {
            device: {case: per_operation(device, case, repeat) for case in CASES}
            for device in DEVICES
        },
        "second_product_seconds": second_product(repeat),
        "command_seconds": {
            command: command_seconds(arguments, repeat) for command, arguments in COMMANDS.items()
        },
    }
    save("overhead", results, where)


def per_operation(device: str, case: str, repeat: int) -> dict[str, Any]:
    """Return microseconds per operation of whole runs: elapsed, of CPU time, and the executor's.

    The executor's share on the recording device is the CPU time of the run less the CPU time
    of the same device calls made again without the executor.
    """
    (m, n, k), edge, depth = CASES[case]
    rng = np.random.default_rng(0)
    a, b, c = rng.random((m, k)), rng.random((k, n)), np.empty((m, n))
    stores = [ArrayMatrix(array) for array in (a, b, c)]
    elapsed, used, own, stages = [], [], [], {}
    for _ in range(repeat):
        opened = DEVICES[device]()
        shape = Shape((edge, edge, edge), depth, depth, (2, 2, 2))
        planned = Case(Problem(m, n, k), opened.spec, "data-placement", Limits(1 << 30, 1 << 30))
        plan = build_plan(planned, shape)
        wall, cpu = time.perf_counter(), time.process_time()
        timeline = run_plan(plan, opened, Operands(*stores, stores[2]))
        stages = {stage: stats.operations for stage, stats in timeline.stages().items()}
        count = sum(stages.values())
        elapsed.append((time.perf_counter() - wall) / count * 1e6)
        used.append((time.process_time() - cpu) / count * 1e6)
        if isinstance(opened, Tape):
            own.append(used[-1] - opened.replay() / count * 1e6)
        opened.close()
    np.testing.assert_allclose(c, a @ b)
    times = f"{statistics.median(elapsed):6.1f} us, {statistics.median(used):6.1f} us of CPU time"
    print(f"{device:10} {case:26} {times}, {sum(stages.values()):6} operations")
    found = {"operations": stages, "elapsed": spread(elapsed), "cpu": spread(used)}
    if own:
        print(f"{'':37} of it {statistics.median(own):6.1f} us of the executor")
        found["executor_cpu"] = spread(own)
    return found


def second_product(repeat: int) -> dict[str, Any]:
    """Return the start-up of later products of one session, in seconds, by device.

    Start-up is the length of the call less the time from its first event to its last: opening
    files, planning, slots, threads and the report.
    """
    found = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("HDGEMM_BENCH_DATA")) as folder:
        for name in "ab":
            np.save(f"{folder}/{name}.npy", np.random.default_rng(0).random((N, N)))
        for device, memory in SESSIONS.items():
            options = hdgemm.Options(devices=device, host_memory="24MB", device_memory=memory)
            with hdgemm.Session(options) as session:
                seconds = [start_up(folder, session) for _ in range(repeat + 1)]
            found[device] = {"first": seconds[0], "later": spread(seconds[1:])}
            print(f"{device:10} first product {seconds[0] * 1e3:6.1f} ms, later ones "
                  f"{statistics.median(seconds[1:]) * 1e3:6.1f} ms of start-up")  # fmt: skip
    return found


def start_up(folder: str, session: hdgemm.Session) -> float:
    """Multiply two files in a session; return the seconds before, between and after the work."""
    start = time.perf_counter()
    report = hdgemm.multiply(f"{folder}/a.npy", f"{folder}/b.npy", out=OUT, session=session)
    called = time.perf_counter() - start
    events = report.timeline.events
    return called - (max(event.end for event in events) - min(event.start for event in events))


COMMANDS = {
    "python": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import hdgemm": ["-c", "import hdgemm"],
    "first product": ["-c", "import hdgemm, numpy; hdgemm.matmul(numpy.eye(2), numpy.eye(2))"],
    "hdgemm --help": ["-m", "hdgemm", "--help"],
}


def command_seconds(arguments: list[str], repeat: int) -> dict[str, Any]:
    """Return elapsed and CPU seconds of a fresh interpreter."""
    elapsed, used = [], []
    for _ in range(repeat):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=os.environ
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        elapsed.append(time.perf_counter() - start)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{' '.join(arguments):60.60} {statistics.median(elapsed) * 1e3:5.0f} ms, "
          f"{statistics.median(used) * 1e3:5.0f} ms of CPU time")  # fmt: skip
    return {"elapsed": spread(elapsed), "cpu": spread(used)}


if __name__ == "__main__":
    main()
