"""The formats that matrices are kept in, file to file under a memory limit, by turns.

    python -m bench.formats [--n 8192] [--memory 400MB] [--repeats 3] [--only npy --only hdf5]

Each turn runs in a process of its own inside a memory cgroup of the limit + 300 MB (needs root),
on files that are not in the page cache, and writes C in the same format; C is not compressed. A
share is the speed divided by the best in-RAM `numpy.matmul` of four, two before the turn's round
and two after it. Elements are random with the precision of float32, so that there is something to
compress. The cost of decompression shows in load1's busy seconds, beside the same plain format's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.file_to_file import ALLOWANCE, Case, ceiling
from bench.harness import (
    ROOT,
    MemoryCgroup,
    data_folder,
    drop_cached,
    environment,
    save,
    spread,
)
from hdgemm.options import parse_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = (1024, 1024)
#: The plain format that a compressed one is compared with.
PLAIN = {"hdf5-gzip": "hdf5", "zarr-zstd": "zarr", "zarr-blosc": "zarr"}
FORMATS = ("npy", "raw", "hdf5", "hdf5-gzip", "zarr", "zarr-zstd", "zarr-blosc")


def place(kind: str, folder: Path, name: str, n: int) -> str:
    """Return the name of a matrix of one format."""
    if kind == "npy":
        return f"{folder}/{name}.npy"
    if kind == "raw":
        return f"{folder}/{name}.bin::{n}x{n}:float64"
    return f"{folder}/{name}.h5::M" if kind.startswith("hdf5") else f"{folder}/{name}.zarr::M"


def target(kind: str, folder: Path, name: str, n: int) -> Any:
    """Create an empty matrix of one format that takes rows by slices."""
    if kind == "npy":
        path = folder / f"{name}.npy"
        return np.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=(n, n))
    if kind == "raw":
        return np.memmap(folder / f"{name}.bin", mode="w+", dtype="f8", shape=(n, n))
    chunk = tuple(min(n, extent) for extent in CHUNK)
    if kind.startswith("hdf5"):
        import h5py

        packed = {"chunks": chunk, "compression": "gzip", "compression_opts": 1, "shuffle": True}
        file = h5py.File(folder / f"{name}.h5", "w")
        return file.create_dataset("M", (n, n), "f8", **(packed if kind == "hdf5-gzip" else {}))
    import zarr
    from zarr.codecs import BloscCodec, ZstdCodec

    packers = {"zarr": None, "zarr-zstd": ZstdCodec(), "zarr-blosc": BloscCodec(typesize=8)}
    group = zarr.open_group(folder / f"{name}.zarr", mode="w")
    return group.create_array(
        "M", shape=(n, n), chunks=chunk, dtype="f8", compressors=packers[kind]
    )


def write(kind: str, folder: Path, name: str, n: int, seed: int) -> None:
    """Write the same random matrix in one format, in bands of rows."""
    rng, made = np.random.default_rng(seed), target(kind, folder, name, n)
    for row in range(0, n, CHUNK[0]):
        band: NDArray[np.float64] = rng.standard_normal((min(CHUNK[0], n - row), n), np.float32)
        made[row : row + len(band)] = band.astype(np.float64)
    if kind.startswith("hdf5"):
        made.file.close()
    elif not kind.startswith("zarr"):
        made.flush()


def turn(kind: str, folder: Path, n: int, memory: int) -> dict[str, Any]:
    """Multiply once, in this process; C is safe on disk when the call returns."""
    from hdgemm import Options
    from hdgemm.blas.products import multiply

    if module := {"hdf5": "h5py", "zarr": "zarr"}.get(kind.partition("-")[0]):
        importlib.import_module(module)  # seconds that are not the format's
    a, b, c = (place(kind, folder, name, n) for name in "ABC")
    began = time.perf_counter()
    report = multiply(a, b, out=c, options=Options(devices="host", host_memory=memory))
    return {"seconds": time.perf_counter() - began, "report": report.to_dict()}


def contend(kind: str, case: Case, folder: Path, time_limit: float) -> dict[str, Any]:
    """Give one format a turn under the limit, from cold files."""
    for old in folder.glob("C.*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    drop_cached(path for path in folder.rglob("*") if path.is_file())
    command = [sys.executable, "-m", "bench.formats", "--turn", kind, "--folder", str(folder)]
    command += ["--n", str(case.n), "--memory", str(case.memory)]
    with MemoryCgroup(case.memory + ALLOWANCE) as cgroup:
        outcome = cgroup.run(command, timeout=time_limit)
    result: dict[str, Any] = {"status": outcome.status, "cgroup_peak_bytes": outcome.peak_bytes}
    if outcome.status != "done":
        result["last_words"] = outcome.stderr.strip().splitlines()[-1:]
        print(f"{kind:>12}: {outcome.status} {result['last_words']}", flush=True)
        return result
    result |= json.loads(outcome.stdout.splitlines()[-1])
    result["gflops"] = case.flops / result["seconds"] / 1e9
    stages = result["report"]["stages"]
    result["load1_seconds"] = stages["load1"]["seconds"]
    busy, peak = result["load1_seconds"], (outcome.peak_bytes or 0) / 1e6
    print(f"{kind:>12}: {result['gflops']:7.1f} GFLOP/s, load1 {busy:.2f} s, peak {peak:.0f} MB")
    return result


def verified(kind: str, folder: Path, n: int) -> str:
    """Check the product that lies in the folder; return what the check says."""
    from hdgemm.verify import verify

    result = verify(*(place(kind, folder, name, n) for name in "ABC"))
    if not result.passed:
        raise SystemExit(f"{kind}: the product is wrong: {result}")
    return str(result)


def measure(case: Case, root: Path, kinds: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Give every format its turns, round by round, and return what they made of them."""
    folders = {kind: root / kind for kind in kinds}
    for kind, folder in folders.items():
        folder.mkdir()
        for seed, name in enumerate("AB", start=1):
            write(kind, folder, name, case.n, seed)
    in_ram = [ceiling(case)]
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(args.repeats):
        turns = {
            kind: contend(kind, case, folder, args.time_limit) for kind, folder in folders.items()
        }
        in_ram.append(ceiling(case))
        for kind, found in turns.items():
            if found["status"] == "done":
                found["verified"] = verified(kind, folders[kind], case.n)
                found["share_of_in_ram"] = found["gflops"] / max(*in_ram[-2], *in_ram[-1])
            runs[kind].append(found)
    sizes = {kind: stored_bytes(folder) for kind, folder in folders.items()}
    return {
        "n": case.n,
        "host_memory": case.memory,
        "cgroup_limit": case.memory + ALLOWANCE,
        "chunk": CHUNK,
        "in_ram_gflops": in_ram,
        "formats": {kind: summary(kind, runs, sizes[kind]) for kind in kinds},
    }


def stored_bytes(folder: Path) -> int:
    """Return the bytes of A and B on disk."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(
        path.stat().st_size for path in files if path.relative_to(folder).parts[0][0] in "AB"
    )


def summary(kind: str, runs: dict[str, list[dict[str, Any]]], nbytes: int) -> dict[str, Any]:
    """Return one format's share of in-RAM BLAS, and what decompressing took."""
    done = [each for each in runs[kind] if each["status"] == "done"]
    found: dict[str, Any] = {"stored_bytes_of_a_and_b": nbytes, "runs": runs[kind]}
    if not done:
        return found
    found["share_of_in_ram"] = spread([each["share_of_in_ram"] for each in done])
    found["load1_seconds"] = spread([each["load1_seconds"] for each in done])
    plain = [e["load1_seconds"] for e in runs.get(PLAIN.get(kind, ""), []) if e["status"] == "done"]
    if plain:
        more = found["load1_seconds"]["median"] - spread(plain)["median"]
        found["decompression_seconds"] = more
    share = found["share_of_in_ram"]["median"]
    print(f"{kind:>12}: {share:.3f} of in-RAM BLAS (median), decompression "
          f"{found.get('decompression_seconds', 0.0):.2f} s of load1")  # fmt: skip
    return found


def main() -> None:
    """Measure the formats and write bench/results/formats.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--memory", type=parse_size, default=parse_size("400MB"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="append", choices=FORMATS)
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a turn has")
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--name", default="formats", help="of the result")
    parser.add_argument("--turn", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        print(json.dumps(turn(args.turn, args.folder, args.n, args.memory)))
        return
    where = environment()
    case = Case(args.n, args.memory, f"{args.n}:{args.memory}")
    with data_folder(args.data) as root:
        results = measure(case, root, list(args.only or FORMATS), args)
    save(args.name, results, where)


if __name__ == "__main__":
    main()
