"""Files of low precision against the same elements in the dtype of the arithmetic, by turns.

    python -m bench.low_precision [--memory 400MB] [--order 16384] [--kernel-order 6144]

Where reading limits, a square A is multiplied by a few columns; where the kernel limits, by a
square B. Each turn runs in a process of its own inside a memory cgroup of the limit + 300 MB (needs
root), on files that are not in the page cache. A pair of turns gives one ratio; all products of a
case must have the same elements, whole numbers that each dtype holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.file_to_file import ALLOWANCE
from bench.harness import ROOT, MemoryCgroup, data_folder, drop_cached, environment, save, spread
from hdgemm.dtypes import CONVERTED
from hdgemm.matrices.layout import as_dtype
from hdgemm.options import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Dtypes of files, with the dtypes of the arithmetic, whose files they are compared with.
NARROW: Final = {name: CONVERTED[name] for name in ("int8", "float16", "bfloat16")}
DTYPES: Final = (*dict.fromkeys(NARROW.values()), *NARROW)
#: Columns of B where reading limits.
COLUMNS: Final = (1, 16, 64)
#: Largest magnitude of the elements: sums of 65,536 products are exact in float32.
_LARGEST: Final = 4
_BAND: Final = 1024


def write(folder: Path, name: str, shape: tuple[int, int], dtypes: Sequence[str]) -> None:
    """Write one random matrix in each dtype, in bands of rows."""
    rng = np.random.default_rng(shape)
    files = {
        dtype: np.lib.format.open_memmap(
            folder / f"{name}-{dtype}.npy", mode="w+", dtype=as_dtype(dtype), shape=shape
        )
        for dtype in dtypes
    }
    for row in range(0, shape[0], _BAND):
        rows = min(_BAND, shape[0] - row)
        band = rng.integers(-_LARGEST, _LARGEST, (rows, shape[1]), np.int8, endpoint=True)
        for file in files.values():
            file[row : row + rows] = band
    for file in files.values():
        file.flush()


def turn(folder: Path, b: str, dtype: str, memory: int) -> dict[str, Any]:
    """Multiply A by B once, in this process; C is safe on disk when the call returns."""
    from hdgemm import Options
    from hdgemm.blas.products import multiply

    files = [folder / f"{name}-{dtype}.npy" for name in ("A", b, "C")]
    began = time.perf_counter()
    report = multiply(*files[:2], out=files[2], options=Options(devices="host", host_memory=memory))
    seconds, stages = time.perf_counter() - began, report.to_dict()["stages"]
    busy = {name: stage["seconds"] for name, stage in stages.items()}
    return {"seconds": seconds, "stage_seconds": busy, "read_bytes": report.moved_bytes["load1"]}


def contend(folder: Path, b: str, dtype: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Give one dtype a turn under the limit, from cold files."""
    drop_cached(folder.glob("*.npy"))
    command = [sys.executable, "-m", "bench.low_precision", "--turn", b, dtype]
    command += ["--folder", str(folder), "--memory", str(asked.memory)]
    with MemoryCgroup(asked.memory + ALLOWANCE) as cgroup:
        outcome = cgroup.run(command, timeout=asked.time_limit)
    if outcome.status != "done":
        raise SystemExit(f"A·{b} {dtype}: {outcome.status}\n{outcome.stderr}")
    found = json.loads(outcome.stdout.splitlines()[-1])
    busy = ", ".join(f"{name} {value:.2f} s" for name, value in found["stage_seconds"].items())
    print(f"A·{b} {dtype:>8}: {found['seconds']:.2f} s; {busy}", flush=True)
    return {**found, "cgroup_peak_bytes": outcome.peak_bytes}


def measure(
    m: int, columns: Sequence[int], root: Path, asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Multiply an m×m A by B of some numbers of columns."""
    folder = root / f"{m}"
    folder.mkdir()
    write(folder, "A", (m, m), DTYPES)
    cases = [measure_case(m, n, folder, asked) for n in columns]
    for file in folder.iterdir():
        file.unlink()
    return cases


def measure_case(m: int, n: int, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Give every dtype its turns, and return the ratio of each pair of turns."""
    b = f"B{n}"
    write(folder, b, (m, n), DTYPES)
    runs: dict[str, list[dict[str, Any]]] = {dtype: [] for dtype in DTYPES}
    for number in range(asked.repeats):
        for dtype in DTYPES if number % 2 == 0 else DTYPES[::-1]:
            runs[dtype].append(contend(folder, b, dtype, asked))
    check_equal(folder)
    speeds = {dtype: speed(runs[wide], runs[dtype]) for dtype, wide in NARROW.items()}
    for dtype, found in speeds.items():
        print(f"A·{b} {dtype:>8}: {found['median']:.2f} of the speed of {NARROW[dtype]}")
    return {"m": m, "n": n, "wide": NARROW, "speed": speeds, "runs": runs}


def speed(peer: list[dict[str, Any]], own: list[dict[str, Any]]) -> dict[str, float | int]:
    """Return the speed in units of the peer's, by pairs of turns."""
    return spread([x["seconds"] / y["seconds"] for x, y in zip(peer, own, strict=True)])


def check_equal(folder: Path) -> None:
    """End the program where products of the same elements differ."""
    first, *others = (np.load(folder / f"C-{dtype}.npy", mmap_mode="r") for dtype in DTYPES)
    for row in range(0, len(first), _BAND):
        rows = slice(row, row + _BAND)
        if not all(np.array_equal(first[rows], other[rows]) for other in others):
            raise SystemExit(f"{folder.name}: products of the same elements differ")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and write bench/results/low_precision.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=parse_size, default=parse_size("400MB"))
    parser.add_argument("--order", type=int, default=16384, help="of A where reading limits")
    parser.add_argument("--columns", type=int, action="append", help="of B; default 1, 16 and 64")
    parser.add_argument(
        "--kernel-order", type=int, default=6144, help="where the kernel limits; 0 for no such case"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=100.0, help="seconds a turn has")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--turn", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.turn:
        print(json.dumps(turn(asked.folder, *asked.turn, asked.memory)))
        return
    where = environment()
    with data_folder(asked.data) as root:
        found = measure(asked.order, asked.columns or COLUMNS, root, asked)
        cases = [{"limits": "reading", **case} for case in found]
        if order := asked.kernel_order:
            found = measure(order, (order,), root, asked)
            cases += [{"limits": "the kernel", **case} for case in found]
    save("low_precision", {"host_memory": asked.memory, "cases": cases}, where)


if __name__ == "__main__":
    main()
