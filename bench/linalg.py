"""Factorisations from file to file under a real memory limit, against SciPy in RAM, by turns.

    python -m bench.linalg --n 16384 --memory 1.5GB [--routines cholesky lu_factor qr] [--repeats 3]
    python -m bench.linalg --n 12288 --memory 1GB --devices cuda:0 --name linalg_cuda
    python -m bench.linalg --routines lstsq --rows 2000000 --columns 500 --memory 1GB

Every turn measures DGEMM and SciPy's routine in RAM in one process without a limit, then hdgemm's
from file to file in a process inside a memory cgroup of the limit + 300 MB (needs root; without it
there is no limit, nor where another device than the host updates slabs: its driver takes memory of
its own). Both have the matrix in the same order (SciPy copies a row-major one), and use memory that
the machine has provided before, see `warm_memory`. Ratios are of LAPACK's operation counts per
second. The factors are checked by HPL's residual of one system, which must be below 16; QR's
factors by ||A·x - Q·(R·x)||, in the same unit.

`lstsq` of a tall matrix is compared with the time to read its file, with the time of the same call
on arrays in RAM, and with SciPy's on arrays in RAM; the arrays have fewer rows, and their times are
scaled to all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

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
    warm_memory,
)
from bench.linalg_checks import qr_ratio, tall_from_file, tall_in_ram, tall_matrix
from hdgemm.options import parse_size

#: What a process needs besides the run's own memory: the interpreter, NumPy, SciPy, BLAS.
ALLOWANCE = 300 * 10**6
#: HPL accepts ||A·x - b|| / (eps·(||A||·||x|| + ||b||)·n) below this, in infinity norms.
SOUND = 16.0


def flops(routine: str, n: int) -> float:
    """Return LAPACK's operation count."""
    return {"gemm": 2.0, "cholesky": 1 / 3, "lu_factor": 2 / 3, "qr": 4 / 3}[routine] * n**3


#: Arguments of a routine beside the matrix.
MODES: dict[str, dict[str, Any]] = {"qr": {"mode": "raw"}}


def test_matrix(path: Path, n: int, routine: str, order: str) -> None:
    """Write a symmetric positive definite matrix; for LU, HPL's random one: rows of a diagonally
    dominant matrix would not be interchanged.
    """
    rng = np.random.default_rng(n)
    vector = rng.standard_normal(n)
    whole = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float64, shape=(n, n), fortran_order=order == "F"
    )
    out = whole.T if order == "F" else whole
    for first in range(0, n, 1024):
        if routine == "lu_factor":
            out[first : first + 1024] = rng.random((min(1024, n - first), n)) - 0.5
            continue
        rows = np.arange(first, min(first + 1024, n))[:, np.newaxis]
        columns = np.arange(n)
        out[first : first + 1024] = vector[rows] * vector + np.cos(rows - columns)
        out[rows[:, 0], rows[:, 0]] += n
    whole.flush()


def in_ram(routine: str, n: int, order: str) -> dict[str, float]:
    """Return GFLOP/s of DGEMM and of SciPy's routine on arrays in RAM, warmed up."""
    import scipy.linalg

    call = partial(getattr(scipy.linalg, routine), **MODES.get(routine, {}))
    a = np.array(np.random.default_rng(0).random((n, n)), order=order)
    a -= 0.5
    if routine != "lu_factor":
        a += a.T
        a[np.arange(n), np.arange(n)] += n
    c = np.ones((n, n))
    np.matmul(a[: n // 4], a, out=c[: n // 4])
    call(a[: n // 4, : n // 4])
    began = time.perf_counter()
    np.matmul(a, a, out=c)
    multiplied = time.perf_counter() - began
    del c
    warm_memory(a.nbytes)  # SciPy copies a row-major array
    began = time.perf_counter()
    call(a, overwrite_a=True, check_finite=False)
    factored = time.perf_counter() - began
    return {
        "gemm": flops("gemm", n) / multiplied / 1e9,
        "scipy": flops(routine, n) / factored / 1e9,
    }


def from_file(routine: str, folder: Path, memory: int, devices: str) -> dict[str, Any]:
    """Factor A.npy into F.npy within `memory` bytes; return seconds by stage and in all."""
    import hdgemm.linalg

    events: list[Any] = []
    options = hdgemm.Options(host_memory=memory, devices=devices)
    # Measures the rates of a machine that has none in its cache, which is once in its life.
    call = {"out": folder / "F.npy", "options": options, **MODES.get(routine, {})}
    hdgemm.linalg.plan(routine, folder / "A.npy", **call)
    warm_memory(memory)
    began = time.perf_counter()
    getattr(hdgemm.linalg, routine)(folder / "A.npy", observer=events.append, **call)
    seconds = time.perf_counter() - began
    stages: dict[str, dict[str, float]] = {}
    for event in events:
        stage = stages.setdefault(event.stage, {"seconds": 0.0, "bytes": 0, "operations": 0})
        stage["seconds"] += event.end - event.start
        stage["bytes"] += event.nbytes
        stage["operations"] += 1
    return {"seconds": seconds, "stages": stages}


def residual(routine: str, folder: Path, memory: int) -> dict[str, float]:
    """Solve one system with the stored factors; return seconds and HPL's ratio."""
    import hdgemm.linalg

    options = hdgemm.Options(host_memory=memory, devices="host")
    n = hdgemm.open(folder / "A.npy").shape[0]
    b = np.random.default_rng(1).random((n, 1)) - 0.5
    if routine == "qr":
        return {"hpl_ratio": qr_ratio(folder, b)}
    drop_cached([folder / "F.npy"])
    began = time.perf_counter()
    if routine == "cholesky":
        x = hdgemm.linalg.cho_solve((folder / "F.npy", False), b, options=options)
    else:
        pivots = np.load(folder / "F.piv.npy")
        x = hdgemm.linalg.lu_solve((folder / "F.npy", pivots), b, options=options)
    seconds = time.perf_counter() - began
    reading = read_seconds(folder / "F.npy")
    norm = 0.0
    error = np.empty_like(b)
    with hdgemm.open(folder / "A.npy") as a:
        for first in range(0, n, 512):
            rows = a[first : first + 512, :].read()
            norm = max(norm, float(np.abs(rows).sum(axis=1).max()))
            error[first : first + 512] = rows @ x - b[first : first + 512]
    unit = 2.0**-53 * (norm * np.abs(x).max() + np.abs(b).max()) * n
    return {
        "solve_seconds": seconds, "read_seconds": reading, "solve_of_reading": seconds / reading,
        "hpl_ratio": float(np.abs(error).max() / unit),
    }  # fmt: skip


def read_seconds(path: Path) -> float:
    """Return the time to read a stored matrix once, by blocks in its own order."""
    import hdgemm

    drop_cached([path])
    with hdgemm.open(path) as matrix:
        lines = matrix.T if matrix.order == "F" else matrix
        rows, cols = lines.shape
        step = max(1, (32 << 20) // (cols * 8))
        buffer = np.empty((step, cols))
        began = time.perf_counter()
        for first in range(0, rows, step):
            part = lines[first : first + step, :]
            part.read(buffer[: part.shape[0]])
        return time.perf_counter() - began


def measure_tall(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure `lstsq` by turns; print and return what was found."""
    ram_rows = min(args.rows, args.ram_rows)
    scale = args.rows / ram_rows
    ours: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    for _ in range(args.repeats):
        ram = ["--turn", "ram", "lstsq", "--rows", str(ram_rows), "--columns", str(args.columns)]
        peers.append(turn(ram, None, args.time_limit))
        drop_cached([folder / "A.npy"])
        file = ["--turn", "file", "lstsq", "--folder", str(folder), "--memory", str(args.memory)]
        ours.append(turn(file, args.memory, args.time_limit))
        print("lstsq", peers[-1], ours[-1], flush=True)
    result: dict[str, Any] = {"hdgemm": ours, "in_ram": peers, "in_ram_rows": ram_rows}
    if all(x["status"] == "done" for x in (*ours, *peers)):
        pairs = list(zip(ours, peers, strict=True))
        for name, best in {
            "of_reading": [x["read_seconds"] for x, _ in pairs],
            "of_kernel": [scale * peer["kernel"] for _, peer in pairs],
            "of_slower": [max(x["read_seconds"], scale * peer["kernel"]) for x, peer in pairs],
            "of_scipy": [scale * peer["scipy"] for _, peer in pairs],
        }.items():
            ratios = [seconds / x["seconds"] for seconds, x in zip(best, ours, strict=True)]
            result[name] = spread(ratios)
            print(f"lstsq: {name} {result[name]['median']:.3f} (median)")
    return result


def turn(command: list[str], memory: int | None, time_limit: float) -> dict[str, Any]:
    """Run this module in a process of its own, inside a cgroup where there is a limit."""
    whole = [sys.executable, "-m", "bench.linalg", *command]
    if memory is None or os.geteuid() != 0:
        outcome = run(whole, timeout=time_limit)
    else:
        with MemoryCgroup(memory + ALLOWANCE) as cgroup:
            outcome = cgroup.run(whole, timeout=time_limit)
    if outcome.status != "done":
        return {"status": outcome.status, "last_words": outcome.stderr.strip().splitlines()[-1:]}
    result: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return {"status": "done", "cgroup_peak_bytes": outcome.peak_bytes} | result


def measure(routine: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one routine by turns; print and return what was found."""
    ram_n = args.ram_n or min(args.n, 8192)
    ours: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    for _ in range(args.repeats):
        ram = ["--turn", "ram", routine, "--n", str(ram_n), "--order", args.order]
        peers.append(turn(ram, None, args.time_limit))
        # To free a sparse file of many extents takes seconds on some file systems.
        (folder / "F.npy").unlink(missing_ok=True)
        drop_cached([folder / "A.npy"])
        file = ["--turn", "file", routine, "--folder", str(folder), "--memory", str(args.memory)]
        limit = args.memory if args.devices == "host" else None
        ours.append(turn([*file, "--devices", args.devices], limit, args.time_limit))
        print(routine, peers[-1], ours[-1], flush=True)
    speeds = [flops(routine, args.n) / x["seconds"] / 1e9 for x in ours if x["status"] == "done"]
    result: dict[str, Any] = {"hdgemm": ours, "in_ram": peers, "in_ram_n": ram_n}
    if speeds and all(peer["status"] == "done" for peer in peers):
        for name in ("gemm", "scipy"):
            ratios = [ours / peer[name] for ours, peer in zip(speeds, peers, strict=False)]
            result[f"of_{name}"] = spread(ratios)
            print(f"{routine}: {spread(ratios)['median']:.3f} of in-RAM {name} (median)")
    return result


def one_turn(kind: str, routine: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure in RAM or from a file, in this process."""
    if routine == "lstsq":
        if kind == "ram":
            return tall_in_ram(args.rows, args.columns)
        return tall_from_file(args.folder, args.memory)
    if kind == "ram":
        return in_ram(routine, args.n, args.order)
    done = from_file(routine, args.folder, args.memory, args.devices)
    return done | residual(routine, args.folder, args.memory)


def main() -> None:
    """Measure all routines and write bench/results/linalg.json; or take one turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--order", choices=("C", "F"), default="C", help="of A, in both turns")
    parser.add_argument("--ram-n", type=int, help="order of the matrices in RAM, at most 8192")
    parser.add_argument("--memory", type=parse_size, default=parse_size("100MB"))
    parser.add_argument("--devices", default="host", help="which update slabs")
    parser.add_argument("--routines", nargs="+", default=["cholesky", "lu_factor"])
    parser.add_argument("--rows", type=int, default=100_000, help="of lstsq's matrix")
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--ram-rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds of one turn")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--name", default="linalg", help="of the result")
    parser.add_argument("--turn", nargs=2, metavar=("KIND", "ROUTINE"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        print(json.dumps(one_turn(*args.turn, args)))
        return
    where = environment()
    with data_folder(args.data) as folder:
        results = {}
        for routine in args.routines:
            if routine != "lstsq":
                test_matrix(folder / "A.npy", args.n, routine, args.order)
                results[routine] = measure(routine, folder, args)
        if "lstsq" in args.routines:
            tall_matrix(folder, args.rows, args.columns)
            results["lstsq"] = measure_tall(folder, args)
    save(
        args.name,
        {
            "n": args.n,
            "order": args.order,
            "host_memory": args.memory,
            "devices": args.devices,
            **results,
        },
        where,
    )
    worst = max(
        (x.get("hpl_ratio", 0.0) for result in results.values() for x in result["hdgemm"]),
        default=0.0,
    )
    if worst >= SOUND:
        raise SystemExit(f"a factorisation is wrong: HPL's ratio is {worst}")


if __name__ == "__main__":
    main()
