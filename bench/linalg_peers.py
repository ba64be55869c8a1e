"""Factorisations by hdgemm, Dask, and NumPy or SciPy on memory maps, under one memory limit.

    python -m bench.linalg_peers --n 8192 --memory 600MB [--routines lu cholesky qr] [--peers dask]

Each turn is a process inside a memory cgroup of the limit + 300 MB (needs root; without it there is
no limit). Reported are seconds, peak memory and the residual ||A·x - F·x|| / (eps·||A||·||x||·n) of
the product F of the factors with a random x, or how the turn ended. `--matrix reversed` is the
permutation that reverses all rows: it needs pivots from outside the diagonal chunk.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
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
)
from bench.linalg import ALLOWANCE, test_matrix
from hdgemm.options import parse_size

ROUTINES = ("lu", "cholesky", "qr")
PEERS = ("hdgemm", "dask", "memmap")
#: Columns of a chunk of Dask's.
CHUNK = 1024


def make_matrix(path: Path, n: int, kind: str) -> None:
    """Write a symmetric positive definite matrix, or the permutation that reverses rows."""
    if kind != "reversed":
        test_matrix(path, n, "cholesky", "C")
        return
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, n))
    out[np.arange(n), np.arange(n)[::-1]] = 1.0
    out.flush()


def by_hdgemm(routine: str, folder: Path, memory: int, x: Any) -> tuple[float, Any]:
    """Factor file to file; return seconds and the product of the factors with x."""
    import hdgemm.linalg

    keywords: dict[str, Any] = {
        "options": hdgemm.Options(host_memory=memory, devices="host"),
        "out": folder / "F.npy",
    }
    began = time.perf_counter()
    if routine == "lu":
        lu, pivots = hdgemm.linalg.lu_factor(folder / "A.npy", **keywords)
        seconds = time.perf_counter() - began
        return seconds, _interchanged(_lower(lu, _upper(lu, x)), pivots)
    if routine == "cholesky":
        u = hdgemm.linalg.cholesky(folder / "A.npy", **keywords)
        seconds = time.perf_counter() - began
        return seconds, _upper(u, _upper(u, x), transposed=True)
    keywords["out"] = (folder / "Q.npy", folder / "F.npy")
    q, r = hdgemm.linalg.qr(folder / "A.npy", mode="economic", **keywords)
    seconds = time.perf_counter() - began
    return seconds, _times(q, _times(r, x))


def by_dask(routine: str, folder: Path, memory: int, x: Any) -> tuple[float, Any]:  # noqa: ARG001
    """Factor with dask.array, results stored into memory maps."""
    import dask.array

    a = np.load(folder / "A.npy", mmap_mode="r")
    # Dask takes square chunks of one size for LU and Cholesky, and whole rows for QR.
    chunk = next(size for size in range(CHUNK, 0, -1) if len(a) % size == 0)
    chunks = (CHUNK, -1) if routine == "qr" else (chunk, chunk)
    array = dask.array.from_array(a, chunks)
    began = time.perf_counter()
    call = getattr(dask.array.linalg, routine)
    found = call(array)
    found = found if isinstance(found, tuple) else (found,)
    outs = [
        np.lib.format.open_memmap(
            folder / f"D{k}.npy", mode="w+", dtype=part.dtype, shape=part.shape
        )
        for k, part in enumerate(found)
    ]
    dask.array.store(list(found), outs, lock=False)
    seconds = time.perf_counter() - began
    if routine == "cholesky":
        return seconds, _upper(outs[0], _upper(outs[0], x), transposed=True)
    product = x
    for factor in reversed(outs):
        product = _times(factor, product)
    return seconds, product


def by_memmap(routine: str, folder: Path, memory: int, x: Any) -> tuple[float, Any]:  # noqa: ARG001
    """Factor a memory map with NumPy (Cholesky, QR) or SciPy (LU); results are in RAM."""
    import scipy.linalg

    a = np.load(folder / "A.npy", mmap_mode="r")
    began = time.perf_counter()
    if routine == "lu":
        lu, pivots = scipy.linalg.lu_factor(a, check_finite=False)
        seconds = time.perf_counter() - began
        return seconds, _interchanged(_lower(lu, _upper(lu, x)), pivots)
    if routine == "cholesky":
        low = np.linalg.cholesky(a)
        seconds = time.perf_counter() - began
        return seconds, _upper(low.T, _upper(low.T, x), transposed=True)
    q, r = np.linalg.qr(a)
    seconds = time.perf_counter() - began
    return seconds, _times(q, _times(r, x))


def _times(matrix: Any, x: Any) -> Any:
    rows = [np.asarray(matrix[at : at + CHUNK]) @ x for at in range(0, len(matrix), CHUNK)]
    return np.concatenate(rows)


def _upper(matrix: Any, x: Any, *, transposed: bool = False) -> Any:
    """Return U·x, or U^T·x, of the upper triangle of a matrix."""
    y = np.zeros_like(x)
    for at in range(0, len(matrix), CHUNK):
        part = np.triu(np.asarray(matrix[at : at + CHUNK]), at)
        if transposed:
            y += part.T @ x[at : at + CHUNK]
        else:
            y[at : at + CHUNK] = part @ x
    return y


def _lower(matrix: Any, x: Any) -> Any:
    """Return L·x of the unit lower triangle of a matrix."""
    y = x.copy()
    for at in range(0, len(matrix), CHUNK):
        y[at : at + CHUNK] += np.tril(np.asarray(matrix[at : at + CHUNK]), at - 1) @ x
    return y


def _interchanged(y: Any, pivots: Any) -> Any:
    """Return P^T·y for LAPACK's interchanges."""
    for row in reversed(range(len(pivots))):
        other = int(pivots[row])
        y[[row, other]] = y[[other, row]]
    return y


CALLS = {"hdgemm": by_hdgemm, "dask": by_dask, "memmap": by_memmap}


def one_turn(peer: str, routine: str, folder: Path, memory: int) -> dict[str, float]:
    """Factor once, in this process; return seconds and the residual."""
    a = np.load(folder / "A.npy", mmap_mode="r")
    x = np.random.default_rng(1).random((len(a), 1)) - 0.5
    seconds, product = CALLS[peer](routine, folder, memory, x)
    norm = max(
        float(np.abs(a[at : at + CHUNK]).sum(axis=1).max()) for at in range(0, len(a), CHUNK)
    )
    error = float(np.abs(_times(a, x) - product).max())
    unit = 2.0**-53 * norm * float(np.abs(x).max()) * len(a)
    return {"seconds": seconds, "residual": error / unit}


def measure(routine: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Let all peers factor by turns; return what was found."""
    turns: dict[str, list[dict[str, Any]]] = {peer: [] for peer in args.peers}
    for _ in range(args.repeats):
        for peer in args.peers:
            for name in ("F.npy", "Q.npy"):
                (folder / name).unlink(missing_ok=True)
            drop_cached([folder / "A.npy"])
            command = [
                sys.executable, "-m", "bench.linalg_peers", "--turn", peer, routine,
                "--folder", str(folder), "--memory", str(args.memory),
            ]  # fmt: skip
            if os.geteuid() != 0:
                outcome = run(command, timeout=args.time_limit)
            else:
                with MemoryCgroup(args.memory + ALLOWANCE) as cgroup:
                    outcome = cgroup.run(command, timeout=args.time_limit)
            found: dict[str, Any] = {"status": outcome.status, "peak_bytes": outcome.peak_bytes}
            if outcome.status == "done":
                found |= json.loads(outcome.stdout.splitlines()[-1])
            else:
                found["last_words"] = outcome.stderr.strip().splitlines()[-1:]
            turns[peer].append(found)
            print(routine, peer, found, flush=True)
    result: dict[str, Any] = {"turns": turns}
    ours = turns.get("hdgemm", [])
    for peer, theirs in turns.items():
        pairs = [(x, y) for x, y in zip(ours, theirs, strict=True)
                 if peer != "hdgemm" and x["status"] == y["status"] == "done"]  # fmt: skip
        if pairs:
            result[f"of_{peer}"] = spread([y["seconds"] / x["seconds"] for x, y in pairs])
    return result


def main() -> None:
    """Measure all routines and write bench/results/linalg_peers.json; or take one turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--memory", type=parse_size, default=parse_size("100MB"))
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--matrix", choices=("random", "reversed"), default="random")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds of one turn")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--name", default="linalg_peers", help="of the result")
    parser.add_argument("--turn", nargs=2, metavar=("PEER", "ROUTINE"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        peer, routine = args.turn
        print(json.dumps(one_turn(peer, routine, args.folder, args.memory)))
        return
    where = environment()
    with data_folder(args.data) as folder:
        make_matrix(folder / "A.npy", args.n, args.matrix)
        results = {routine: measure(routine, folder, args) for routine in args.routines}
    shape = {"n": args.n, "host_memory": args.memory, "matrix": args.matrix}
    save(args.name, {**shape, **results}, where)


if __name__ == "__main__":
    main()
