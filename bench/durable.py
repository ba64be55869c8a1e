"""What a journal costs: the same product, file to file, with one and without, in turns.

python -m bench.durable overhead [--n 8192] [--memory 400MB] [--repeats 3]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from bench.harness import ROOT, data_folder, drop_cached, environment, save, spread
from hdgemm.blas.products import multiply
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Measure plain and durable runs in turns."""
    options = Options(host_memory=args.memory, devices="host")
    seconds: dict[str, list[float]] = {"plain": [], "durable": []}
    with data_folder(args.data) as folder:
        a, b, c = (folder / f"{name}.npy" for name in "ABC")
        for seed, path in enumerate((a, b)):
            random_matrix(path, args.n, args.n, seed, "float64")
        for turn in range(2 * args.repeats):
            durable = turn % 2 == 1
            for path in folder.glob("*C.npy*"):
                path.unlink()
            for path in folder.glob(".C.npy*"):
                path.unlink()
            drop_cached([a, b])
            began = time.perf_counter()
            report = multiply(a, b, out=c, options=options, checkpoint=durable)
            took = time.perf_counter() - began
            seconds["durable" if durable else "plain"].append(took)
            how = f"{took:.2f} s, {report.plan['units']} tiles, {report.gflops:.1f} GFLOP/s"
            print(f"{'durable' if durable else 'plain':>8}: {how}", flush=True)
    pairs = zip(seconds["plain"], seconds["durable"], strict=True)
    ratios = [durable / plain for plain, durable in pairs]
    print(f"a durable run takes {spread(ratios)['median']:.3f} times as long (median)")
    return {"n": args.n, "memory": args.memory, "seconds": seconds, "ratio": spread(ratios)}


def main() -> None:
    """Measure and write bench/results/durable_*.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overhead"])
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--memory", default="400MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    args = parser.parse_args()
    where = environment()
    save("durable_overhead", overhead(args), where)


if __name__ == "__main__":
    main()
