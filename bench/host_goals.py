"""Ratios of products and factorisations on the host to their peers, and the goal of each.

    python -m bench.host_goals --part file-8192 [--pairs 3]
    python -m bench.host_goals --part file-16384 --pairs 1 [--add]

Each part writes bench/results/host_goals_PART.json, "neighbour" its own result. A part of `FILES`
takes turns: hdgemm from cold files, `numpy.matmul` in RAM alone, then, where it has that goal,
`numpy.matmul` beside a process that reads a file by direct I/O at the bytes per second that hdgemm
read and wrote. Every second turn is in reverse; the reader's rate is then the one of the turn
before. hdgemm runs in a memory cgroup of the limit + 300 MB (needs root). A ratio is hdgemm's
speed divided by numpy's of the same turn. With `--add`, stored turns of the same part count, too.
A part of `COMMANDS` is another benchmark of this folder, which says what its ratios are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.file_to_file import CEILING_N, Case, contend, verified
from bench.harness import RESULTS, ROOT, data_folder, environment, run, save, spread
from bench.neighbour import neighbour
from hdgemm.matrices.random import random_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Files:
    """Products of one size from file to file; `goals` are least ratios by name."""

    case: Case
    goals: dict[str, float]
    burning: bool = False


@dataclass(frozen=True)
class Command:
    """Another benchmark; `goals` are least ratios by their place in the result `name`."""

    arguments: str
    name: str
    goals: dict[str, float]


FILES: Final = {
    "file-8192": Files(Case.parse("8192:400MB"), {"of_numpy": 0.92, "of_numpy_beside_reader": 1.0}),
    "file-16384": Files(Case.parse("16384:1.5GB"), {"of_numpy": 0.97}),
    "file-16384-burnt": Files(Case.parse("16384:1.5GB"), {"of_numpy": 1.1}, burning=True),
}


def _factors(routine: str, goal: float) -> Command:
    name = f"host_goals_{routine}"
    arguments = f"bench.linalg --n 8192 --memory 200MB --routines {routine} --name {name}"
    return Command(arguments, name, {f"{routine}/of_scipy": goal})


def _format(kind: str, goal: float) -> Command:
    name = f"host_goals_{kind}"
    arguments = f"bench.formats --only {kind} --name {name}"
    return Command(arguments, name, {f"formats/{kind}/share_of_in_ram": goal})


COMMANDS: Final = {
    "neighbour": Command(
        "bench.neighbour --sizes 4096 --repeats 5",
        "neighbour",
        {
            "sizes/4096/quiet/hdgemm file to file, in a session/ratio": 0.9,
            "sizes/4096/half a core burnt/hdgemm file to file, in a session/ratio": 1.05,
        },
    ),
    "lu": _factors("lu_factor", 0.95),
    "cholesky": _factors("cholesky", 1.05),
    "qr": _factors("qr", 1.7),
    "cholesky-columns": Command(
        "bench.linalg --n 16384 --memory 1.5GB --order F --routines cholesky"
        " --name host_goals_columns",
        "host_goals_columns",
        {"cholesky/of_scipy": 1.1, "cholesky/of_gemm": 0.85},
    ),
    "hdf5": _format("hdf5", 0.92),
    "zarr": _format("zarr", 0.92),
    "zarr-blosc": _format("zarr-blosc", 0.85),
}

#: Reads a file in requests of 8 MB, past the page cache, so many bytes a second, until killed.
_READER: Final = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
memory, size = mmap.mmap(-1, 8 << 20), os.fstat(file).st_size
rate, moved, began = float(sys.argv[2]), 0, time.perf_counter()
while True:
    moved += os.preadv(file, [memory], moved % (size - size % len(memory)))
    time.sleep(max(0.0, began + moved / rate - time.perf_counter()))
"""


@contextlib.contextmanager
def reader(path: Path, rate: float) -> Iterator[None]:
    """Run a process that reads a file at `rate` bytes per second."""
    with subprocess.Popen([sys.executable, "-c", _READER, str(path), str(rate)]) as process:
        try:
            time.sleep(0.5)
            if process.poll() is not None:
                raise SystemExit("the reader ended: this file system has no direct I/O")
            yield
        finally:
            process.kill()


def moved_bytes(product: dict[str, Any]) -> int:
    """Return the bytes that a product read from files and wrote to them."""
    stages = product["report"]["stages"]
    return sum(int(stages[name]["bytes"]) for name in ("load1", "store2") if name in stages)


def matmul_gflops(case: Case) -> float:
    """Return the speed of one in-RAM numpy.matmul in GFLOP/s, in a process of its own."""
    n = str(min(case.n, CEILING_N))
    command = [sys.executable, "-m", "bench.contender", "in-ram", "--n", n, "--repeats", "1"]
    (speed,) = json.loads(run(command, timeout=100).stdout)["gflops"]
    print(f"{case.text:>14} {'in RAM':>11}: {speed:7.1f} GFLOP/s (n = {n})", flush=True)
    return float(speed)


def measure(files: Files, folder: Path, pairs: int, before: dict[str, Any]) -> dict[str, Any]:
    """Take the turns; return speeds in GFLOP/s and ratios, earlier turns included."""
    case = files.case
    for seed, name in enumerate("AB", start=1):
        random_matrix(folder / f"{name}.npy", case.n, case.n, seed, "float64")
    runs: list[dict[str, Any]] = before.get("hdgemm", [])
    earlier = before.get("peer_gflops", {})
    speeds: dict[str, list[float]] = {name: earlier.get(name, []) for name in files.goals}
    rates: list[float] = before.get("bytes_per_second", [])

    def product() -> None:
        found = contend("hdgemm", case, folder, 250.0)
        if found["status"] != "done":
            raise SystemExit(f"hdgemm {found['status']}: {found['last_words']}")
        found["verified"] = verified(folder)
        runs.append(found)
        rates.append(moved_bytes(found) / found["seconds"])

    def peers() -> None:
        speeds["of_numpy"].append(matmul_gflops(case))
        if "of_numpy_beside_reader" in speeds:
            with reader(folder / "A.npy", rates[-1]):
                speeds["of_numpy_beside_reader"].append(matmul_gflops(case))

    with neighbour(burning=files.burning):
        for _ in range(pairs):
            for step in (peers, product) if len(runs) % 2 else (product, peers):
                step()
    ours = [each["gflops"] for each in runs]
    return {
        "n": case.n,
        "host_memory": case.memory,
        "hdgemm": runs,
        "bytes_per_second": rates,
        "peer_gflops": speeds,
        "ratios": {
            name: spread([one / other for one, other in zip(ours, theirs, strict=True)])
            for name, theirs in speeds.items()
        },
    }


def print_ratio(name: str, ratio: dict[str, Any], goal: float) -> None:
    """Print one ratio with its goal."""
    spread_of = f"{ratio['median']:.3f} [{ratio['min']:.3f}, {ratio['max']:.3f}]"
    short = ratio["median"] / goal - 1
    print(f"{name}: {spread_of} of {ratio['count']} turns, goal {goal} ({short:+.1%})")


def measure_command(part: Command) -> None:
    """Run another benchmark and print its ratios."""
    subprocess.run([sys.executable, "-m", *part.arguments.split()], cwd=ROOT, check=True)
    results = stored(part.name)
    for place, goal in part.goals.items():
        ratio: Any = results
        for key in place.split("/"):
            ratio = ratio[key]
        print_ratio(place, ratio, goal)


def stored(name: str) -> dict[str, Any]:
    """Return a written result; empty where there is none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main() -> None:
    """Measure one part and write its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*FILES, *COMMANDS], required=True)
    parser.add_argument("--pairs", type=int, default=3, help="turns of a part of files")
    parser.add_argument("--add", action="store_true", help="to the turns that are stored")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    args = parser.parse_args()
    if args.part in COMMANDS:
        measure_command(COMMANDS[args.part])
        return
    where, files, name = environment(), FILES[args.part], f"host_goals_{args.part}"
    with data_folder(args.data) as folder:
        results = measure(files, folder, args.pairs, stored(name) if args.add else {})
    for ratio, goal in files.goals.items():
        print_ratio(f"{args.part} {ratio}", results["ratios"][ratio], goal)
    save(name, results, where)


if __name__ == "__main__":
    main()
