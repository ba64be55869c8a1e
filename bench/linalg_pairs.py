"""Two ways to the same result, file to file under a real memory limit, by turns in one process.

    python -m bench.linalg_pairs syrk --rows 200000 --columns 2000 --memory 1.5GB
    python -m bench.linalg_pairs refine --n 16384 --memory 1.5GB

`syrk`: hdgemm.syrk(1, A, trans=1) against hdgemm.matmul(A.T, A). `refine`: solve(refine="float32")
against plain solve, one right-hand side. Each turn is a process inside a memory cgroup of the limit
+ 300 MB (needs root; without it there is no limit); the order changes from turn to turn. The
speed-up is the median of the ratios. Both results must be sound: HPL's residual below 16.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import (
    ROOT,
    MemoryCgroup,
    data_folder,
    drop_cached,
    environment,
    run,
    save,
    spread,
)
from bench.linalg import ALLOWANCE, SOUND, test_matrix
from bench.linalg_checks import tall_matrix
from hdgemm.options import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm import Options


def syrk_calls(folder: Path, options: Options) -> dict[str, Callable[[], None]]:
    """Return the calls to compare, slow one first, by name."""
    import hdgemm

    def multiply() -> None:
        with hdgemm.open(folder / "A.npy") as a:
            hdgemm.matmul(a.T, a, out=folder / "matmul.npy", options=options)

    def update() -> None:
        hdgemm.syrk(1.0, folder / "A.npy", trans=1, out=folder / "syrk.npy", options=options)

    return {"matmul": multiply, "syrk": update}


def syrk_ratio(folder: Path, name: str) -> float:
    """Return ||C·x - A^T·A·x|| / (eps·|| |A|^T·|A|·|x| ||·k) in infinity norms, x at random."""
    import hdgemm

    with hdgemm.open(folder / "A.npy") as a:
        k, n = a.shape
        x = np.random.default_rng(1).random(n)
        exact, size = np.zeros(n), np.zeros(n)
        for first in range(0, k, 4096):
            rows = a[first : first + 4096, :].read()
            exact += rows.T @ (rows @ x)
            size += np.abs(rows).T @ (np.abs(rows) @ x)
    upper = np.triu(np.load(folder / f"{name}.npy"))
    error = upper @ x + np.triu(upper, 1).T @ x - exact
    return float(np.abs(error).max() / (2.0**-53 * size.max() * k))


def refine_calls(folder: Path, options: Options) -> dict[str, Callable[[], None]]:
    """Return the calls to compare, slow one first, by name."""
    import hdgemm.linalg

    def solve(name: str, refine: str | None) -> None:
        hdgemm.linalg.solve(
            folder / "A.npy", folder / "b.npy", refine=refine, out=folder / f"{name}.npy",
            options=options,
        )  # fmt: skip

    return {"plain": lambda: solve("plain", None), "refine": lambda: solve("refine", "float32")}


def refine_ratio(folder: Path, name: str) -> float:
    """Return HPL's ratio of a solution."""
    import hdgemm

    x, b = np.load(folder / f"{name}.npy"), np.load(folder / "b.npy")
    norm = error = 0.0
    with hdgemm.open(folder / "A.npy") as a:
        for first in range(0, len(x), 512):
            rows = a[first : first + 512, :].read()
            norm = max(norm, float(np.abs(rows).sum(axis=1).max()))
            error = max(error, float(np.abs(rows @ x - b[first : first + 512]).max()))
    return error / (2.0**-53 * (norm * np.abs(x).max() + np.abs(b).max()) * len(x))


CALLS = {"syrk": (syrk_calls, syrk_ratio), "refine": (refine_calls, refine_ratio)}


def turn(pair: str, folder: Path, memory: int, *, reverse: bool) -> dict[str, Any]:
    """Make both calls once; return seconds and residual of each."""
    import hdgemm.linalg

    make, check = CALLS[pair]
    options = hdgemm.Options(host_memory=memory, devices="host")
    # Measures the rates of a machine that has none in its cache, which is once in its life.
    hdgemm.linalg.plan("qr", folder / "A.npy", out=folder / "F.npy", options=options)
    calls = make(folder, options)
    found: dict[str, Any] = {}
    for name, call in reversed(calls.items()) if reverse else calls.items():
        drop_cached([folder / "A.npy"])
        began = time.perf_counter()
        call()
        found[name] = {"seconds": time.perf_counter() - began, "hpl_ratio": check(folder, name)}
    slow, fast = (found[name]["seconds"] for name in calls)
    return found | {"speedup": slow / fast}


def measure(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Take turns in processes of their own, inside a cgroup where there is a limit."""
    turns = []
    for number in range(args.repeats):
        command = [
            sys.executable, "-m", "bench.linalg_pairs", args.pair, "--turn", str(number % 2),
            "--folder", str(folder), "--memory", str(args.memory),
        ]  # fmt: skip
        if os.geteuid() != 0:
            outcome = run(command, timeout=args.time_limit)
        else:
            with MemoryCgroup(args.memory + ALLOWANCE) as cgroup:
                outcome = cgroup.run(command, timeout=args.time_limit)
        if outcome.status != "done":
            raise SystemExit(f"{outcome.status}: {outcome.stderr.strip()[-400:]}")
        found = json.loads(outcome.stdout.splitlines()[-1])
        turns.append(found | {"cgroup_peak_bytes": outcome.peak_bytes})
        print(turns[-1], flush=True)
    return turns


def main() -> None:
    """Measure one pair and write bench/results/linalg_PAIR.json; or take one turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", choices=CALLS)
    parser.add_argument("--rows", type=int, default=20000, help="of A, for syrk")
    parser.add_argument("--columns", type=int, default=1000, help="of A, for syrk")
    parser.add_argument("--n", type=int, default=3000, help="order of A, for refine")
    parser.add_argument("--memory", type=parse_size, default=parse_size("100MB"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds of one turn")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--name", help="of the result")
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn is not None:
        print(json.dumps(turn(args.pair, args.folder, args.memory, reverse=bool(args.turn))))
        return
    where = environment()
    with data_folder(args.data) as folder:
        if args.pair == "syrk":
            tall_matrix(folder, args.rows, args.columns)
        else:
            test_matrix(folder / "A.npy", args.n, "cholesky", "C")
            np.save(folder / "b.npy", np.random.default_rng(1).random((args.n, 1)) - 0.5)
        turns = measure(args, folder)
    speedup = spread([found["speedup"] for found in turns])
    shape = [args.rows, args.columns] if args.pair == "syrk" else [args.n, args.n]
    result = {"shape": shape, "host_memory": args.memory, "turns": turns, "speedup": speedup}
    save(args.name or f"linalg_{args.pair}", result, where)
    print(f"{args.pair}: {speedup['median']:.2f} times as fast (median of {len(turns)})")
    values = [x["hpl_ratio"] for found in turns for x in found.values() if isinstance(x, dict)]
    if not max(values) < SOUND:
        raise SystemExit(f"a result is wrong: the residual is {max(values)}")


if __name__ == "__main__":
    main()
