"""One product by one contender, in a process of its own: `python -m bench.contender NAME ...`.

Prints one line of JSON: the seconds from the call to a C that is safe on disk. What a contender
imports is imported before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np


def hdgemm_product(a: Path, b: Path, c: Path, memory: int) -> dict[str, Any]:
    """C := A·B by hdgemm on the host device, within `memory` bytes."""
    from hdgemm import Options
    from hdgemm.blas.products import multiply

    return multiply(a, b, out=c, options=Options(devices="host", host_memory=memory)).to_dict()


def numpy_product(a: Path, b: Path, c: Path, memory: int) -> dict[str, Any]:  # noqa: ARG001
    """C := A·B by numpy.matmul on memory-mapped files."""
    left, right = np.load(a, mmap_mode="r"), np.load(b, mmap_mode="r")
    shape = (left.shape[0], right.shape[1])
    out = np.lib.format.open_memmap(c, mode="w+", dtype=left.dtype, shape=shape)
    np.matmul(left, right, out=out)
    out.flush()
    return {}


def dask_product(a: Path, b: Path, c: Path, memory: int) -> dict[str, Any]:  # noqa: ARG001
    """C := A·B by dask.array in chunks of 2048×2048, stored into a memory-mapped file."""
    import dask.array

    chunks = (2048, 2048)
    left, right = (dask.array.from_array(np.load(x, mmap_mode="r"), chunks) for x in (a, b))
    shape = (left.shape[0], right.shape[1])
    out = np.lib.format.open_memmap(c, mode="w+", dtype=left.dtype, shape=shape)
    dask.array.store(dask.array.matmul(left, right), out, lock=False)
    out.flush()
    return {}


CONTENDERS = {"hdgemm": hdgemm_product, "np.matmul": numpy_product, "dask.array": dask_product}
MODULES = {"hdgemm": "hdgemm.blas.products", "np.matmul": "numpy", "dask.array": "dask.array"}


def in_ram(n: int, repeats: int) -> dict[str, Any]:
    """Time numpy.matmul on random n×n float64 matrices in RAM, warmed up."""
    rng = np.random.default_rng(0)
    a, b = rng.random((n, n)), rng.random((n, n))
    c = np.empty((n, n))
    np.matmul(a[: n // 4], b, out=c[: n // 4])
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        np.matmul(a, b, out=c)
        seconds.append(time.perf_counter() - began)
    return {"n": n, "seconds": seconds, "gflops": [2 * n**3 / each / 1e9 for each in seconds]}


def main() -> None:
    """Run what the arguments say and print its result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*CONTENDERS, "in-ram"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.name == "in-ram":
        print(json.dumps(in_ram(args.n, args.repeats)))
        return
    a, b, c = (args.folder / f"{name}.npy" for name in "ABC")
    importlib.import_module(MODULES[args.name])
    began = time.perf_counter()
    report = CONTENDERS[args.name](a, b, c, args.memory)
    descriptor = os.open(c, os.O_RDWR)
    os.fsync(descriptor)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    print(json.dumps({"seconds": seconds, "report": report}))


if __name__ == "__main__":
    main()
