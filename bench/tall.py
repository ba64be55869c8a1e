"""Singular values and components of a tall file: hdgemm against scikit-learn, Dask and SciPy.

    python -m bench.tall [--rows 200000] [--columns 200] [--rounds 3] [--peers PYTHON]
    python -m bench.tall --rows 600000 --columns 500 --keep --only "SciPy svds"   # adds its figures

Each contender has a process of its own, in turns, from cold files, in one cgroup with a memory
limit, page cache included; those that took long run once. `--peers` is an interpreter that has
scikit-learn, Dask and SciPy. A result has seconds, the highest anonymous memory that the process
adds, and the largest error of the values in units of s[0], against LAPACK's values. The bound of
hdgemm is the sum over passes of max(bytes/β, flops/F), with the rate F of a square product and the
rate β at which a plain program reads the cold file, or copies it where a pass writes, all just
before.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import mmap
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.harness import MemoryCgroup

#: Rows unless others are asked for.
ROWS: Final = 200_000
#: Leading values that are asked for; memory of hdgemm; rows of a chunk of the peers.
K: Final = 20
MEMORY: Final = "400MB"
CHUNK: Final = 20_000
#: Memory of the cgroup; seconds after which a contender is not run again, and is killed.
LIMIT: Final = 1_500_000_000
LONG: Final = 15.0
LONGEST: Final = 150.0
#: Order of the square matrices that are multiplied to measure BLAS's rate.
PRODUCT: Final = 2500
#: Bytes of a block that the plain programs read and write.
BLOCK: Final = 32 << 20


def _passes(parts: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return bytes and operations of the passes of a plan."""
    found = []
    for part in parts:
        if "each" in part:
            found += part["count"] * _passes([part["each"]])
        elif "kernel_flops" in part:
            found.append({**part["planned_bytes"], "flops": part["flops"]})
    return found


class Rates(NamedTuple):
    """Bytes a second from a cold file, read and written in a copy; operations a second of BLAS."""

    read: float
    copy: float
    gemm: float

    @classmethod
    def measured(cls, path: Path) -> Self:
        """Return the rates of this moment."""
        return cls(_read_rate(path), _copy_rate(path), _gemm_rate())

    def bound(self, work: Sequence[dict[str, float]]) -> float:
        """Return the seconds that some passes take at least."""
        return sum(max(self._disk_seconds(x), x["flops"] / self.gemm) for x in work)

    def _disk_seconds(self, work: dict[str, float]) -> float:
        moved = work["load1"] + work.get("store2", 0)
        return moved / (self.copy if "store2" in work else self.read)


def _gemm_rate() -> float:
    """Return the operations a second of the fastest of some products of square matrices."""
    a, seconds = np.ones((PRODUCT, PRODUCT)), []
    for _ in range(4):
        began = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - began)
    return float(2 * PRODUCT**3 / min(seconds))


def _read_rate(path: Path) -> float:
    """Return the bytes a second at which a cold file is read in blocks."""
    from bench.harness import drop_cached

    drop_cached([path])
    block = bytearray(BLOCK)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(block):
            pass
    return path.stat().st_size / (time.perf_counter() - began)


def _copy_rate(path: Path) -> float:
    """Return the bytes a second, read and written, of a copy past the page cache, synced.

    A block is read while the one before it is written; less than a block at the end is left out.
    """
    from bench.harness import drop_cached

    drop_cached([path])
    blocks, written, copy = [mmap.mmap(-1, BLOCK) for _ in range(2)], 0, path.with_name("copy")
    began = time.perf_counter()
    target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    try:
        with path.open("rb", buffering=0) as stream, ThreadPoolExecutor(1) as writer:
            writing = None
            for block in itertools.cycle(blocks):
                count = stream.readinto(block)
                written += writing.result() if writing else 0
                if count < BLOCK:
                    break
                writing = writer.submit(os.write, target, block)
        os.fdatasync(target)
        return 2 * written / (time.perf_counter() - began)
    finally:
        os.close(target)
        copy.unlink()


def _of_hdgemm(call: Callable[..., Any], **keywords: Any) -> tuple[Any, dict[str, Any]]:
    from hdgemm import Options

    reports: list[Any] = []
    found = call("A.npy", options=Options(host_memory=MEMORY), report=reports.append, **keywords)
    plan = reports[-1].plan
    return found, {"work": _passes(plan["parts"])}


def hdgemm_svdvals() -> tuple[Any, dict[str, Any]]:
    """Return all values, in one pass."""
    from hdgemm import linalg

    return _of_hdgemm(linalg.svdvals)


def hdgemm_svd() -> tuple[Any, dict[str, Any]]:
    """Return all values; U goes into a file."""
    from hdgemm import linalg

    (_, s, _), facts = _of_hdgemm(linalg.svd, out=("U.npy", None, None))
    return s, facts


def hdgemm_svds() -> tuple[Any, dict[str, Any]]:
    """Return the leading values and vectors."""
    from hdgemm import linalg

    (_, s, _), facts = _of_hdgemm(linalg.svds, k=K)
    return s, facts


def hdgemm_pca() -> tuple[Any, dict[str, Any]]:
    """Return the leading components."""
    from hdgemm.decomposition import PCA

    fitted, facts = _of_hdgemm(PCA(K).fit)
    return fitted.singular_values_, facts


def incremental_pca() -> tuple[Any, dict[str, Any]]:
    """Return scikit-learn's components, in batches."""
    from sklearn.decomposition import IncrementalPCA

    a = np.load("A.npy", mmap_mode="r")
    return IncrementalPCA(K, batch_size=CHUNK).fit(a).singular_values_, {}


def _dask() -> Any:
    import dask.array

    return dask.array.from_array(np.load("A.npy", mmap_mode="r"), (CHUNK, -1))


def dask_svd() -> tuple[Any, dict[str, Any]]:
    """Return all values; U goes into a file."""
    import dask.array

    a = _dask()
    u, s, _ = dask.array.linalg.svd(a)
    out = np.lib.format.open_memmap("U.npy", mode="w+", dtype=a.dtype, shape=a.shape)
    _, s = dask.compute(dask.array.store(u, out, lock=False, compute=False), s)
    out.flush()
    return s, {}


def dask_compressed() -> tuple[Any, dict[str, Any]]:
    """Return the leading values by Halko's method with four power iterations."""
    import dask.array

    _, s, _ = dask.array.linalg.svd_compressed(_dask(), K, n_power_iter=4, seed=0)
    return s.compute(), {}


def scipy_svds() -> tuple[Any, dict[str, Any]]:
    """Return the leading values and vectors by ARPACK, with an operator over a memory map."""
    from scipy.sparse.linalg import aslinearoperator, svds

    return svds(aslinearoperator(np.load("A.npy", mmap_mode="r")), K)[1][::-1], {}


CONTENDERS: Final = {
    "hdgemm svdvals": (hdgemm_svdvals, "hdgemm.linalg"),
    "hdgemm svd": (hdgemm_svd, "hdgemm.linalg"),
    "dask.array.linalg.svd": (dask_svd, "dask.array"),
    "hdgemm svds": (hdgemm_svds, "hdgemm.linalg"),
    "SciPy svds": (scipy_svds, "scipy.sparse.linalg"),
    "dask.array.linalg.svd_compressed": (dask_compressed, "dask.array"),
    "hdgemm PCA": (hdgemm_pca, "hdgemm.decomposition"),
    "scikit-learn IncrementalPCA": (incremental_pca, "sklearn.decomposition"),
}


def _anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


def contend(name: str) -> None:
    """Run one contender in this process; print what it took and found as JSON."""
    call, module = CONTENDERS[name]
    importlib.import_module(module)
    before, peak, stop = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], _anonymous() - before)

    sampler = threading.Thread(target=watch)
    sampler.start()
    began = time.perf_counter()
    s, facts = call()
    seconds = time.perf_counter() - began
    stop.set()
    sampler.join()
    print(
        json.dumps({"seconds": seconds, "peak_bytes": peak[0], "s": list(map(float, s)), **facts})
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Let all contenders take their turns, and save what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("/tmp"), help="where matrices go")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument(
        "--only",
        action="append",
        choices=CONTENDERS,
        help="run this one, and keep the saved figures of the others, of the same size",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the matrix for a further run (0 rounds make it)"
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.contender:
        os.chdir(asked.data)
        contend(asked.contender)
        return 0
    from bench.harness import MemoryCgroup, environment, save

    where = environment()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.only or CONTENDERS}
    with _matrix(asked) as (folder, exact), MemoryCgroup(LIMIT) as group:
        for _ in range(asked.rounds):
            for name, outcomes in found.items():
                if not outcomes or outcomes[-1]["seconds"] < LONG:
                    outcomes.append(_turn(name, asked.peers, folder, group, exact))
                    print(name, outcomes[-1], flush=True)
    if asked.rounds:
        save(_name(asked), _results(asked, found, where), where)
    return 0


def _name(asked: argparse.Namespace) -> str:
    """Return the name of the result: other rows than the default's have a result of their own."""
    return "tall" if asked.rows == ROWS else f"tall_{asked.rows}"


def _results(
    asked: argparse.Namespace, found: dict[str, list[dict[str, Any]]], where: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of the contenders that ran, and the saved ones of the others."""
    from bench.harness import RESULTS

    sizes = {"rows": asked.rows, "columns": asked.columns, "k": K, "memory_limit": LIMIT}
    contenders = {}
    if asked.only and (saved := RESULTS / f"{_name(asked)}.json").exists():
        earlier = json.loads(saved.read_text())
        if {name: earlier[name] for name in sizes} == sizes:
            contenders = earlier["contenders"]
    measured = {"when": where["when"], "commit": where["commit"]}
    contenders |= {name: _of_rounds(outcomes) | measured for name, outcomes in found.items()}
    return {
        **sizes,
        "contenders": {name: contenders[name] for name in CONTENDERS if name in contenders},
    }


def _turn(
    name: str, peers: str, folder: Path, group: MemoryCgroup, exact: tuple[Any, Any]
) -> dict[str, Any]:
    """Run one contender; return seconds, memory, error, and the seconds of its bound."""
    from bench.harness import ROOT, drop_cached

    ours = name.startswith("hdgemm")
    rates = Rates.measured(folder / "A.npy") if ours else None
    drop_cached([folder / "A.npy"])
    python = sys.executable if ours else peers
    command = [python, "-P", str(ROOT / "bench" / "tall.py"), "--contender", name]
    done = group.run([*command, "--data", str(folder)], timeout=LONGEST)
    (folder / "U.npy").unlink(missing_ok=True)
    if done.status != "done":
        print(done.stderr)
        return {"status": done.status, "seconds": done.seconds}
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if (work := outcome.pop("work", None)) is not None and rates is not None:
        outcome |= {"bound": rates.bound(work), **rates._asdict()}
    s, reference = np.array(outcome.pop("s")), exact["PCA" in name]
    outcome["error"] = float(np.abs(s - reference[: len(s)]).max() / reference[0])
    return outcome


def _of_rounds(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the spread of what a contender took."""
    from bench.harness import spread

    if "status" in outcomes[-1]:
        return outcomes[-1]
    found: dict[str, Any] = {
        "seconds": spread([each["seconds"] for each in outcomes]),
        "peak_bytes": max(each["peak_bytes"] for each in outcomes),
        "error": max(each["error"] for each in outcomes),
    }
    if "bound" in outcomes[0]:
        found["of_bound"] = spread([each["seconds"] / each["bound"] for each in outcomes])
        found |= {name: spread([each[name] for each in outcomes]) for name in Rates._fields}
    return found


@contextmanager
def _matrix(asked: argparse.Namespace) -> Iterator[tuple[Path, tuple[Any, Any]]]:
    """Give a folder with A, and the singular values of A and of the centred A."""
    folder: Path = asked.data / f"tall-{asked.rows}x{asked.columns}"
    values = folder / "values.npy"
    try:
        if not values.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(values, _values(folder / "A.npy", asked.rows, asked.columns))
        whole, centred = np.load(values)
        yield folder, (whole, centred)
    finally:
        if not asked.keep:
            shutil.rmtree(folder)


def _values(path: Path, rows: int, columns: int) -> Any:
    """Write A; return the singular values of A and of the centred A, by LAPACK."""
    random = np.random.default_rng(0)
    a = np.lib.format.open_memmap(path, "w+", np.float64, (rows, columns))
    for start in range(0, rows, CHUNK):
        block = random.standard_normal((min(CHUNK, rows - start), columns))
        a[start : start + CHUNK] = block / np.arange(1, columns + 1)
    return np.array([_by_blocks(a, np.zeros(columns)), _by_blocks(a, a.mean(axis=0))])


def _by_blocks(a: Any, shift: Any) -> Any:
    """Return the singular values of A with `shift` subtracted from each row."""
    r = np.zeros((0, a.shape[1]))
    for start in range(0, len(a), CHUNK):
        r = np.linalg.qr(np.vstack([r, a[start : start + CHUNK] - shift]), mode="r")
    return np.linalg.svd(r, compute_uv=False)


if __name__ == "__main__":
    sys.exit(main())
