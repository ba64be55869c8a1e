"""Bytes that plans move against the least possible, and the CPU time that planning takes.

    python bench/transfers.py [--out bench/results/transfers.json]

Three figures for each case, as ratios to the plan's bytes of A and B up and C down:

``order``
    What the best replacement could move for the plan's own order and slots (Belady's rule counted
    anew, without the plan's slots): 1.00 means that not one tile is loaded too often.
``tiles``
    The least of all plans whose C tiles are double buffered within the memory: square C tiles
    that leave no room to A and B.
``bound``
    The lower bound for any schedule that holds S elements, 2·m·n·k/√S − 2·S read and m·n written
    (Smith, Lowery, Langou and van de Geijn, 2019), and never less than each matrix once. Nothing
    that overlaps stores with computing can reach it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.machine.rates import H200, HOST
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Plan, Problem, planned_bytes
from hdgemm.planning.expectation import simulate
from hdgemm.planning.planner import plan_for

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine

GB = 10**9
FILE = OperandSpec(place="file")
GPU = DeviceSpec("cuda:0", unified=False, memory_bytes=140 * GB)


@dataclass(frozen=True)
class Case:
    """A square float64 product, and the bytes it may hold where its tiles lie."""

    name: str
    n: int
    memory: int
    device: DeviceSpec
    machine: Machine
    spec: OperandSpec

    def plan(self) -> Plan:
        """Make the plan."""
        n, unified = self.n, self.device.unified
        problem = Problem(n, n, n, "float64", self.spec, self.spec, self.spec)
        host = self.memory if unified else 2 * GB
        options = Options(host_memory=host, device_memory=None if unified else self.memory)
        return plan_for(problem, options, self.device, self.machine)


CASES = [
    Case("files, n = 8192, 400 MB", 8192, 400 * 10**6, DeviceSpec(), HOST, FILE),
    Case("files, n = 10240, 400 MB", 10240, 400 * 10**6, DeviceSpec(), HOST, FILE),
    Case("files, n = 16384, 1.5 GB", 16384, 1500 * 10**6, DeviceSpec(), HOST, FILE),
    Case("GPU, n = 16384, 1 GB", 16384, GB, GPU, H200, OperandSpec()),
    Case("GPU, n = 32768, 8 GB", 32768, 8 * GB, GPU, H200, OperandSpec()),
    Case("GPU, n = 49152, 8 GB", 49152, 8 * GB, GPU, H200, OperandSpec()),
]


def least_for_order(plan: Plan) -> int:
    """Bytes that the plan's order and slot counts need at least, tiles counted by brute Belady."""
    total = planned_bytes(plan)["store2"]
    for operand, slots in (("A", plan.a_slots.count), ("B", plan.b_slots.count)):
        loads = list(plan.course.loads())
        reads = [loads[step.a if operand == "A" else step.b].rect for step in plan.course.steps()]
        runs = [rect for i, rect in enumerate(reads) if i == 0 or rect != reads[i - 1]]
        held: set = set()
        for at, rect in enumerate(runs):
            if rect in held:
                continue
            total += rect.rows * rect.cols * 8
            if len(held) == slots:
                out = held - ({runs[at - 1]} if slots > 1 else set())
                ahead = runs[at:]
                held.remove(max(out, key=lambda r: ahead.index(r) if r in ahead else len(runs)))
            held.add(rect)
    return total


def least_for_tiles(n: int, memory: int) -> float:
    """Bytes with two square C tiles that fill the memory."""
    side = min(n, math.sqrt(memory / 2 / 8))
    return 8 * (max(2 * n**3 / side, 2 * n**2) + n**2)


def lower_bound(n: int, memory: int) -> float:
    """Bytes that no schedule can go below."""
    elements = memory / 8
    return 8 * (max(2 * n**3 / math.sqrt(elements) - 2 * elements, 2 * n**2) + n**2)


def measure(case: Case) -> dict[str, object]:
    """Return one row of the table."""
    start = time.process_time()
    plan = case.plan()
    planning = time.process_time() - start
    moved = planned_bytes(plan)
    nbytes = moved["load1"] + moved["store2"]
    timeline = simulate(plan, case.machine)
    return {
        "case": case.name,
        "tile": plan.tile,
        "slots": [plan.slots(x).count for x in ("A", "B", "C")],
        "bytes": nbytes,
        "over_order": nbytes / least_for_order(plan),
        "over_tiles": nbytes / least_for_tiles(case.n, case.memory),
        "over_bound": nbytes / lower_bound(case.n, case.memory),
        "kernel_share": timeline.stages()["mult1"].seconds / timeline.seconds,
        "planning_seconds": planning,
    }


def plan_many(steps: int) -> dict[str, object]:
    """Plan a product of about so many steps, several times, and take the median."""
    side = round(steps ** (1 / 3))
    options = Options(host_memory=GB, tile=(100, 100, 100))
    seconds = []
    for more in range(5):
        problem = Problem(100 * side, 100 * side, 100 * side - more)  # not a cached plan
        start = time.process_time()
        plan = plan_for(problem, options, GPU, H200)
        seconds.append(time.process_time() - start)
    return {"steps": plan.counts.steps, "seconds": sorted(seconds)[2]}


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench/results/transfers.json"))
    parser.add_argument("--steps", type=int, default=10**5)
    arguments = parser.parse_args()
    rows = [measure(case) for case in CASES]
    for row in rows:
        print(
            f"{row['case']:26} {row['bytes'] / GB:8.1f} GB  order ×{row['over_order']:.3f}"
            f"  tiles ×{row['over_tiles']:.2f}  bound ×{row['over_bound']:.2f}"
            f"  kernel busy {row['kernel_share']:.1%}  planned in {row['planning_seconds']:.2f} s"
        )
    many = plan_many(arguments.steps)
    print(f"planning {many['steps']} steps: {many['seconds']:.2f} s")
    machine = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"cases": rows, "planning": many, "machine": machine}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
