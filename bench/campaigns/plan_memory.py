"""Plans and first steps of large matrices in a cgroup of `host_memory` + 300 MB.

python -m bench.campaigns.plan_memory [--n 65536] [--memory 60MB ...] [--save]

The matrices are sparse files with a diagonal of ones. For each limit and routine one process plans
the run, and another one begins it and cancels it after some operations; both start in a memory
cgroup (needs root) of the limit and what docs/reference/limits.md asks for beside it. Whatever is
killed is wrong, and so is a plan that its run exceeds. A limit that is too small may be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from bench.campaigns.tally import Tally, add_save
from bench.harness import MemoryCgroup
from hdgemm.options import parse_size

ALLOWANCE: Final = 300_000_000
ROUTINES: Final = ("multiply", "cholesky", "lu_factor", "solve")
#: Operations after which a run is cancelled.
FIRST: Final = 60
_TIME_LIMIT: Final = 300.0

CHILD: Final = """
import resource, sys, threading, time
import hdgemm
from hdgemm import linalg

routine, folder, memory, first = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options, cancel, seen = hdgemm.Options(host_memory=memory, devices="host"), threading.Event(), []
a, b = folder + "/A.npy", folder + "/b.npy"

def observe(event):
    seen.append(event.stage)
    if len(seen) >= first:
        cancel.set()

def plan():
    if routine == "multiply":
        return hdgemm.plan(a, a, out=folder + "/X.npy", options=options)
    name = {"lu_factor": "lu"}.get(routine, routine)
    return linalg.plan(name, a, out=folder + "/X.npy", options=options)

def run():
    given = {"out": folder + "/X.npy", "options": options, "observer": observe, "cancel": cancel}
    if routine == "multiply":
        hdgemm.multiply(a, a, **given)
    elif routine == "solve":
        linalg.solve(a, b, **given)
    else:
        getattr(linalg, routine)(a, **given)

try:
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    run() if first else plan()
except hdgemm.errors.CancelledRunError:
    pass
except hdgemm.errors.DoesNotFitError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began
print(grown * 1024, time.perf_counter() - start, len(seen))
"""


def write_inputs(folder: Path, n: int) -> None:
    """Write a sparse identity matrix and a right side."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (n, n)}
    with (folder / "A.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        first = stream.tell()
        stream.truncate(first + 8 * n * n)
        one = np.ones(1).tobytes()
        for row in range(n):
            os.pwrite(stream.fileno(), one, first + 8 * (n + 1) * row)
    np.save(folder / "b.npy", np.ones((n, 1)))


def attempt(tally: Tally, folder: Path, routine: str, memory: int, first: int) -> None:
    """Plan, or begin, one run in a cgroup, and note its end and its memory."""
    what = f"{routine}, {memory // 10**6} MB, {'first steps' if first else 'plan'}"
    command = [sys.executable, "-c", CHILD, routine, str(folder), str(memory), str(first)]
    with MemoryCgroup(memory + ALLOWANCE) as cgroup:
        outcome = cgroup.run(command, timeout=_TIME_LIMIT)
    for left in (*folder.glob("X*"), *folder.glob(".X*")):
        left.unlink()
    refused = "are missing" in outcome.stderr or "raise it by" in outcome.stderr
    status = "refused" if refused else outcome.status
    tally.counts[status] += 1
    words = outcome.stderr.strip().splitlines()[-1:]
    tally.check(status in ("done", "refused"), f"{what}: {status} {words}")
    figures: dict[str, object] = {"status": status, "cgroup_peak_bytes": outcome.peak_bytes}
    if status == "done":
        grown, seconds, operations = outcome.stdout.split()
        figures |= {"grown_bytes": int(grown), "seconds": float(seconds), "operations": operations}
    else:
        figures["last_words"] = words
    tally.figures[what] = figures
    print(f"{what}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def main() -> int:
    """Try every limit and routine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=65536)
    parser.add_argument("--memory", nargs="+", default=["60MB", "100MB", "400MB", "1GB"])
    parser.add_argument("--routine", nargs="+", default=ROUTINES)
    parser.add_argument("--data", type=Path, help="where the matrices go")
    add_save(parser)
    asked = parser.parse_args()
    if os.geteuid() != 0:
        print("setting a cgroup's limit needs root", file=sys.stderr)
        return 2
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=asked.data) as folder:
        write_inputs(Path(folder), asked.n)
        for memory in map(parse_size, asked.memory):
            for routine in asked.routine:
                for first in (0, FIRST):
                    attempt(tally, Path(folder), routine, memory, first)
    return tally.end("plan_memory", asked)


if __name__ == "__main__":
    raise SystemExit(main())
