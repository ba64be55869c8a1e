"""Load balance of several devices, simulated and real, against the best split and device.

    python -m bench.split [--n 6144] [--repeats 3] [--quick]

Simulated: the pool in virtual time with given speeds, against the best fixed split. Real: two
halves of the first OpenCL device against the whole device, and one half with the host against the
better of the two alone, on the same random float64 matrices in RAM, by turns. About 160 s at most;
`--quick` runs tiny sizes and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import environment, save, spread
from bench.virtual_pool import Speed, run_pool
from hdgemm.blas.products import multiply
from hdgemm.machine.cache import cache_folder
from hdgemm.options import Options
from hdgemm.run.balance import PoolMember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.report import Report
    from hdgemm.run.split_report import SplitReport

SIDE, RATE = 16000, 1e6
EVEN = SIDE * SIDE / (2 * RATE)
SIMULATED = {
    "1:1": Speed.steady(RATE),
    "1:3": Speed.steady(RATE / 3),
    "1:10": Speed.steady(RATE / 10),
    "1:100": Speed.steady(RATE / 100),
    "1:1, tenfold slower from the middle": Speed(((RATE, EVEN / 2), (RATE / 10, 1.0))),
    "1:10, tenfold faster from the middle": Speed(((RATE / 10, EVEN / 2), (RATE, 1.0))),
    "1:1 and 1:10 in turns": Speed(((RATE, EVEN / 10), (RATE / 10, EVEN / 10)), repeats=True),
}


def best_static(elements: int, speeds: Mapping[str, Speed]) -> float:
    """Return the seconds of the best fixed split, without overhead per piece.

    All devices of that split end at the same moment (HDGEMM, section 4.3.2), which is found by
    bisection.
    """

    def complete(seconds: float) -> bool:
        return sum(_done(speed, seconds, elements) for speed in speeds.values()) >= elements

    return _bisect(complete, min(speed.end(0.0, elements) for speed in speeds.values()))


def _done(speed: Speed, seconds: float, most: int) -> float:
    """Return how many elements, `most` at most, are done after so many seconds."""
    return _bisect(lambda elements: speed.end(0.0, elements) > seconds, float(most))


def _bisect(reached: Callable[[float], bool], high: float) -> float:
    """Return the least value between 0 and `high` for which a monotonic condition holds."""
    low = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def simulate(slow: Speed, *, known: bool) -> dict[str, float]:
    """Run the pool against a steady device, its tile 1/64 of C, in virtual time."""
    speeds = {"fast": Speed.steady(RATE), "slow": slow}
    tile = (SIDE // 8, SIDE // 8)
    members = {
        "fast": PoolMember(tile, RATE if known else 0.2 * RATE, known),
        "slow": PoolMember(tile, slow.steps[0][0] if known else 0.2 * RATE, known, "bottom"),
    }
    outcome = run_pool(SIDE, SIDE, members, speeds)
    best = min(speed.end(0.0, SIDE * SIDE) for speed in speeds.values())
    return {
        "of_best_static": best_static(SIDE * SIDE, speeds) / outcome.seconds,
        "of_best_single": best / outcome.seconds,
        "imbalance": outcome.imbalance,
    }


def simulated() -> dict[str, Any]:
    """Return the results of all cases, with speeds known beforehand and unknown."""
    results: dict[str, Any] = {}
    for name, slow in SIMULATED.items():
        results[name] = {
            "learned": simulate(slow, known=True),
            "first": simulate(slow, known=False),
        }
        first = results[name]["first"]
        print(
            f"simulated {name}: {first['of_best_static']:.3f} of the best fixed split,"
            f" imbalance {100 * first['imbalance']:.2f} %"
        )
    return results


def turns(devices: dict[str, tuple[str, ...]], n: int, repeats: int) -> dict[str, list[Report]]:
    """Multiply on each choice of devices by turns; a first round warms up and learns the speeds."""
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((n, n)), rng.standard_normal((n, n)), np.empty((n, n))
    reports: dict[str, list[Report]] = {name: [] for name in devices}
    for turn in range(repeats + 1):
        for name in sorted(devices, reverse=bool(turn % 2)):
            report = multiply(a, b, out=c, options=Options(devices=devices[name]))
            if turn:
                reports[name].append(report)
    error = float(np.max(np.abs(c[:64] - a[:64] @ b)))
    bound = n * np.finfo(float).eps * float(np.max(np.abs(a[:64]) @ np.abs(b)))
    if not error <= bound:
        raise SystemExit(f"the product is wrong: error {error:.3g}, more than {bound:.3g}")
    return reports


def figures(split: SplitReport) -> dict[str, Any]:
    """Return the figures of a split without the lists of tiles."""
    found = split.to_dict()
    for share in found["shares"].values():
        del share["tiles"]
    return found


def summarize(reports: dict[str, list[Report]], together: str) -> dict[str, Any]:
    """Return speeds, and the ratio to the best single device of the same round."""
    gflops = {name: [each.gflops for each in found] for name, found in reports.items()}
    rivals = [values for name, values in gflops.items() if name != together]
    ratios = [own / max(others) for own, *others in zip(gflops[together], *rivals, strict=True)]
    splits = [each.split for each in reports[together] if each.split is not None]
    imbalance = [split.imbalance for split in splits]
    ratio = statistics.median(ratios)
    print(
        f"{together}: {ratio:.3f} of the best alone (median of {len(ratios)}), imbalance"
        f" {100 * statistics.median(imbalance):.2f} %"
    )
    return {
        "gflops": {name: spread(values) for name, values in gflops.items()},
        "of_best_alone": spread(ratios),
        "imbalance": spread(imbalance),
        "seconds": spread([each.seconds for each in reports[together]]),
        "splits": [figures(split) for split in splits],
    }


def real(device: str, n: int, repeats: int) -> dict[str, Any]:
    """Measure halves against the whole, and a half with the host against each alone."""
    halves = tuple(f"{device}/2:{part}" for part in range(2))
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "halves": lambda: summarize(
            turns({"whole": (device,), "halves": halves}, n, repeats), "halves"
        ),
        "half and host": lambda: summarize(
            turns(
                {"half": halves[:1], "host": ("host",), "half and host": (halves[0], "host")},
                n,
                repeats,
            ),
            "half and host",
        ),
    }
    return {name: measure() for name, measure in cases.items()}


def main() -> None:
    """Measure and write bench/results/split.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--n", type=int, default=6144)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing written")
    args = parser.parse_args()
    where = environment()
    # Tuned kernels are part of the measurement; rates learned by earlier runs are not.
    with tempfile.TemporaryDirectory() as folder:
        if cache_folder().is_dir():
            shutil.copytree(
                cache_folder(), folder, ignore=lambda *_: ["rates.json"], dirs_exist_ok=True
            )
        os.environ["HDGEMM_CACHE"] = folder
        results = {"simulated": simulated()}
        n, repeats = (512, 1) if args.quick else (args.n, args.repeats)
        results |= {"device": args.device, "n": n, "real": real(args.device, n, repeats)}
    if not args.quick:
        save("split", results, where)


if __name__ == "__main__":
    main()
