"""Files larger than memory, multiplied under a real limit: hdgemm and its peers, one harness.

    python -m bench.file_to_file --case 16384:1.5GB --case 8192:400MB [--no-peers] [--repeats 3]

Every contender runs in a process of its own inside a memory cgroup of the case's limit + 300 MB
(needs root), on random matrices that are not in the page cache. The ceiling is the best in-RAM
`numpy.matmul` of the same run, measured before every turn and after the last. `bench.host_goals`
compares each turn with its own, also beside a process that burns half a core.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.harness import (
    ROOT,
    MemoryCgroup,
    Outcome,
    data_folder,
    drop_cached,
    environment,
    run,
    save,
    spread,
)
from hdgemm.matrices.random import random_matrix
from hdgemm.options import parse_size
from hdgemm.verify import verify

#: What a process needs besides the run's own memory: the interpreter, NumPy, SciPy, BLAS.
ALLOWANCE = 300 * 10**6
PEERS = ("np.matmul", "dask.array")
CEILING_N = 8192


@dataclass(frozen=True)
class Case:
    """n×n matrices under a limit of `memory` bytes."""

    n: int
    memory: int
    text: str

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read ``"16384:1.5GB"``."""
        n, _, memory = text.partition(":")
        return cls(int(n), parse_size(memory), text)

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.n**3


def contend(name: str, case: Case, folder: Path, time_limit: float) -> dict[str, Any]:
    """Run one contender under the case's limit and say how it ended."""
    (folder / "C.npy").unlink(missing_ok=True)
    drop_cached([folder / "A.npy", folder / "B.npy"])
    command = [sys.executable, "-m", "bench.contender", name]
    command += ["--folder", str(folder), "--memory", str(case.memory)]
    with MemoryCgroup(case.memory + ALLOWANCE) as cgroup:
        outcome = cgroup.run(command, timeout=time_limit)
    result: dict[str, Any] = {
        "status": outcome.status,
        "wall_seconds": outcome.seconds,
        "cgroup_peak_bytes": outcome.peak_bytes,
    }
    if outcome.status == "done":
        result |= json.loads(outcome.stdout.splitlines()[-1])
        result["gflops"] = case.flops / result["seconds"] / 1e9
    else:
        result["last_words"] = outcome.stderr.strip().splitlines()[-1:]
    describe(name, case, outcome, result)
    return result


def describe(name: str, case: Case, outcome: Outcome, result: dict[str, Any]) -> None:
    """Print one line about one turn."""
    speed = f"{result['gflops']:7.1f} GFLOP/s" if "gflops" in result else outcome.status
    peak = f", cgroup peak {outcome.peak_bytes / 1e6:.0f} MB" if outcome.peak_bytes else ""
    print(f"{case.text:>14} {name:>11}: {speed} after {outcome.seconds:.1f} s{peak}", flush=True)


def ceiling(case: Case) -> list[float]:
    """Measure in-RAM numpy.matmul in GFLOP/s, in a process of its own, without a limit."""
    n = str(min(case.n, CEILING_N))
    command = [sys.executable, "-m", "bench.contender", "in-ram", "--n", n, "--repeats", "2"]
    outcome = run(command, timeout=600)
    speeds: list[float] = json.loads(outcome.stdout)["gflops"]
    print(f"{case.text:>14} {'in RAM':>11}: {max(speeds):7.1f} GFLOP/s (n = {n})", flush=True)
    return speeds


def verified(folder: Path) -> str:
    """Check the product that lies in the folder; return what the check says."""
    result = verify(*(folder / f"{name}.npy" for name in "ABC"))
    if not result.passed:
        raise SystemExit(f"the product is wrong: {result}")
    return str(result)


def measure(case: Case, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Give every contender its turns and return what they made of them."""
    for seed, name in enumerate("AB", start=1):
        random_matrix(folder / f"{name}.npy", case.n, case.n, seed, "float64")
    in_ram: list[float] = []
    runs: list[dict[str, Any]] = []
    for _ in range(args.repeats):
        in_ram += ceiling(case)
        runs.append(contend("hdgemm", case, folder, args.time_limit))
        if runs[-1]["status"] == "done":
            runs[-1]["verified"] = verified(folder)
    in_ram += ceiling(case)
    peers = {
        name: contend(name, case, folder, args.time_limit)
        if find_spec(name.split(".", maxsplit=1)[0].replace("np", "numpy"))
        else {"status": "not installed"}
        for name in (() if args.no_peers else PEERS)
    }
    best = max(in_ram)
    done = [each["gflops"] for each in runs if each["status"] == "done"]
    shares = [each / best for each in done]
    if shares:
        print(f"{case.text:>14} hdgemm: {spread(shares)['median']:.3f} of in-RAM BLAS (median)")
    return {
        "n": case.n,
        "host_memory": case.memory,
        "cgroup_limit": case.memory + ALLOWANCE,
        "in_ram_n": min(case.n, CEILING_N),
        "in_ram_gflops": in_ram,
        "share_of_in_ram": spread(shares) if shares else None,
        "hdgemm": runs,
        "peers": peers,
    }


def main() -> None:
    """Measure all cases and write bench/results/file_to_file.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", type=Case.parse, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a contender has")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--name", default="file_to_file", help="of the result")
    args = parser.parse_args()
    where = environment()
    cases = {}
    for case in args.case:
        with data_folder(args.data) as folder:
            cases[case.text] = measure(case, folder, args)
    save(args.name, {"cases": cases}, where)


if __name__ == "__main__":
    main()
