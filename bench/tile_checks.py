"""What checking each C tile costs, and that clean tiles pass.

    python -m bench.tile_checks overhead [--sizes 1024 2048 4096] [--files 4096] [--repeats 15]
    python -m bench.tile_checks clean [--tiles 100000]

`overhead` takes turns with and without `verify="tiles"`: in RAM, and file to file within a memory
limit; the ratio is of each pair of neighbours. `clean` multiplies products in small tiles of all
dtypes, with scales from one end of the dtype's range to the other, NaN, Inf and overflow, and
counts alarms.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import ROOT, data_folder, drop_cached, environment, save, spread
from hdgemm.blas.products import multiply
from hdgemm.errors import WrongTileError
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.report import Report

DTYPES = ("float32", "float64", "complex64", "complex128")
KINDS = ("plain", "scaled", "balanced", "overflow", "nonfinite", "sparse")
#: Tiles of a clean product: its extents over the tile's.
SIDE = 12


def in_turns(run: Callable[[bool], Report], repeats: int) -> dict[str, Any]:
    """Time a run without and with checks, one after the other, beginning with either."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    checked: list[float] = []
    for each in (False, True):
        run(each)
    for turn in range(repeats):
        for checks in (turn % 2 == 0, turn % 2 == 1):
            began = time.perf_counter()
            report = run(checks)
            seconds[checks].append(time.perf_counter() - began)
            if report.checks is not None:
                checked.append(report.checks.seconds)
    ratios = [with_ / without for with_, without in zip(seconds[True], seconds[False], strict=True)]
    return {
        "seconds_without": spread(seconds[False]),
        "seconds_with": spread(seconds[True]),
        "ratio": spread(ratios),
        "ratio_of_best": min(seconds[True]) / min(seconds[False]),
        "checks_seconds": spread(checked),
        "checks_part_of_run": min(checked) / min(seconds[False]),
    }


def options(checks: bool, **more: Any) -> Options:
    """Return the options of one turn."""
    return Options(devices="host", verify="tiles" if checks else False, **more)


def in_ram(n: int, repeats: int) -> dict[str, Any]:
    """Measure arrays in RAM."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    c = np.empty((n, n))
    return in_turns(lambda checks: multiply(a, b, out=c, options=options(checks)), repeats)


def file_to_file(n: int, memory: str, repeats: int, data: Path) -> dict[str, Any]:
    """Measure cold files within a memory limit."""
    with data_folder(data) as folder:
        a, b, c = (folder / f"{name}.npy" for name in "ABC")
        for seed, path in enumerate((a, b)):
            random_matrix(path, n, n, seed, "float64")

        def run(checks: bool) -> Report:
            c.unlink(missing_ok=True)
            drop_cached([a, b])
            return multiply(a, b, out=c, options=options(checks, host_memory=memory))

        return {"memory": memory, **in_turns(run, repeats)}


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes."""
    found: dict[str, Any] = {"in_ram": {}, "file_to_file": {}}
    for n in args.sizes:
        # Short runs are repeated until their noise averages out.
        repeats = max(args.repeats, args.repeats * (2048 // n) ** 2)
        found["in_ram"][str(n)] = show(f"n = {n}, in RAM", in_ram(n, repeats))
    for n in args.files:
        measured = file_to_file(n, args.memory, args.repeats, args.data)
        found["file_to_file"][str(n)] = show(f"n = {n}, files, {args.memory}", measured)
    return found


def show(what: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Print one row, and return it."""
    ratio = measured["ratio"]["median"]
    best, part = measured["ratio_of_best"], measured["checks_part_of_run"]
    print(f"{what}: {ratio:.4f} (median of pairs), {best:.4f} (best), checks {part:.4f} of the run",
          flush=True)  # fmt: skip
    return measured


def draw(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray[Any, Any]:
    """Return normal random numbers of a dtype."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def trouble(
    rng: np.random.Generator, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], kind: str
) -> None:
    """Make data that is hard on a check."""
    info = np.finfo(a.dtype)
    real = a.real.dtype
    if kind == "scaled":
        for x in (a, b):
            exponents = rng.integers(info.minexp // 2, info.maxexp // 2 - 8, x.shape)
            x[...] *= (2.0**exponents).astype(real)
    elif kind == "balanced":
        scale = (2.0 ** rng.integers(info.minexp // 3, info.maxexp // 3, b.shape[0])).astype(real)
        a[...] *= scale
        b[...] /= scale[:, np.newaxis]
    elif kind == "overflow":
        a[rng.integers(0, len(a), 3)] *= real.type(float(info.max) ** 0.5 * 4)
        b[...] *= real.type(float(info.max) ** 0.5 / 4)
    elif kind == "nonfinite":
        for x in (a, b):
            x.flat[rng.integers(0, x.size, 3)] = rng.choice([np.nan, np.inf, -np.inf], 3)
    elif kind == "sparse":
        for x in (a, b):
            x[rng.random(x.shape) < 0.95] = 0


def clean(args: argparse.Namespace) -> dict[str, Any]:
    """Multiply until enough tiles have passed, and count those that did not."""
    rng = np.random.default_rng(args.seed)
    counts = {kind: dict.fromkeys(("tiles", "alarms", "looked_closer"), 0) for kind in KINDS}
    worst, tiles, number = 0.0, 0, 0
    while tiles < args.tiles:
        kind, dtype = KINDS[number % len(KINDS)], DTYPES[number // len(KINDS) % len(DTYPES)]
        mb, nb, kb = (int(each) for each in rng.integers(8, 65, 3))
        m, n, k = SIDE * mb - 3, SIDE * nb - 2, int(rng.integers(1, 4)) * kb - 1
        a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
        trouble(rng, a, b, kind)
        # A C of other strides takes the tiles through slots.
        c = np.empty((m, 2 * n), dtype)[:, ::2]
        try:
            report = multiply(a, b, alpha=float(rng.choice([1.0, -0.375, 3e3])), out=c,
                              options=options(True, tile=(mb, nb, kb)))  # fmt: skip
        except WrongTileError as error:
            print(f"false alarm: {error}")
            counts[kind]["alarms"] += 1
            continue
        finally:
            number += 1
        checks = report.checks
        if checks is None:
            raise SystemExit("nothing was checked")
        tiles += checks.tiles
        counts[kind]["tiles"] += checks.tiles
        counts[kind]["alarms"] += checks.recomputed
        counts[kind]["looked_closer"] += checks.looked_closer
        worst = max(worst, checks.worst)
    alarms = sum(each["alarms"] for each in counts.values())
    print(f"{tiles} clean tiles, {alarms} alarms, worst deviation {worst:.3g} of its bound")
    return {"tiles": tiles, "alarms": alarms, "worst": worst, "by_kind": counts}


def main() -> None:
    """Measure and write bench/results/tile_checks_*.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overhead", "clean"])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 2048, 4096])
    parser.add_argument("--files", type=int, nargs="*", default=[4096])
    parser.add_argument("--memory", default="200MB")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tiles", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    args = parser.parse_args()
    where = environment()
    measured = overhead(args) if args.what == "overhead" else clean(args)
    save(f"tile_checks_{args.what}", measured, where)


if __name__ == "__main__":
    main()
