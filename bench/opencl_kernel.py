"""The OpenCL kernel on matrices in device memory, against NumPy's BLAS and CLBlast.

    python -m bench.opencl_kernel [--devices opencl:0 opencl:1] [--dtypes float64 float32]
                                  [--sizes 2048 4096] [--repeats 5]

The contenders multiply the same random matrices on the same cores, by turns. Packing is a part of
uploading; its speed is reported separately, in GB/s.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.clblast import clblast_seconds
from bench.harness import environment, save, spread
from bench.opencl_pipeline import Resident
from hdgemm.pipeline.devices.opencl.names import locate
from hdgemm.pipeline.devices.opencl.tuning_cache import TuningCache
from hdgemm.pipeline.devices.opencl.tuning_process import random_matrix
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Device


def wall_seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def packing_speed(device: Device, a: NDArray[Any], repeats: int) -> float:
    """Return the median GB/s of uploading A from staging, which packs it."""
    rows, cols = a.shape
    staging = device.allocate_staging(a.nbytes)
    source = np.ndarray(a.shape, a.dtype, staging.array)
    source[...] = a
    slot = device.allocate(device.slot_bytes("A", rows, cols, a.dtype))
    block = Block(Tile("A", slot, rows, cols, cols, a.dtype), 0, 0, rows, cols)
    seconds = [
        wall_seconds(lambda: device.upload(source, block, ()).wait()) for _ in range(repeats + 1)
    ]
    device.synchronize()
    device.free(slot)
    device.free(staging)
    return a.nbytes / float(np.median(seconds[1:])) / 1e9


def in_turns(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each contender, by turns, after one turn to warm up."""
    taken: dict[str, list[float]] = {each: [] for each in contenders}
    for turn in range(repeats + 1):
        for each, seconds in contenders.items():
            took = seconds()
            if turn:
                taken[each].append(took)
    return taken


def compare(name: str, dtype: np.dtype[Any], n: int, repeats: int) -> dict[str, Any]:
    """Measure the kernel and its peers by turns; speeds in GFLOP/s."""
    rng = np.random.default_rng(n)
    a, b = (random_matrix(rng, (n, n), dtype) for _ in range(2))
    c = np.empty_like(a)
    flops = n**3 * flops_per_multiply_add(dtype.name)
    with closing(open_device(name)) as device, clblast_seconds(name, dtype, n) as clblast:
        resident = Resident(device, a, b)
        contenders: dict[str, Callable[[], float]] = {
            "kernel": resident.seconds,
            "numpy": lambda: wall_seconds(lambda: np.matmul(a, b, out=c)),
        }
        if clblast is not None:
            contenders["clblast"] = clblast
        taken = in_turns(contenders, repeats)
        resident.free()
        packing = packing_speed(device, a, repeats)
    gflops = {each: spread([flops / x / 1e9 for x in times]) for each, times in taken.items()}
    ratios = {
        each: gflops["kernel"]["median"] / gflops[each]["median"]
        for each in gflops
        if each != "kernel"
    }
    speeds = ", ".join(f"{each} {value['median']:.1f}" for each, value in gflops.items())
    print(f"{name} {dtype.name} n = {n}: {speeds} GFLOP/s; packing {packing:.1f} GB/s", flush=True)
    return {"gflops": gflops, "kernel_to": ratios, "packing_gbytes_per_second": packing}


def main() -> None:
    """Measure and write bench/results/opencl_kernel.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", nargs="+", default=["opencl:0"])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    where, results = environment(), {}
    for name in args.devices:
        facts = locate(name).facts
        for dtype in map(np.dtype, args.dtypes):
            shapes = TuningCache().shapes(facts, dtype)
            results[f"{name} {dtype.name}"] = {
                "platform": facts.platform,
                "driver": facts.driver,
                "shape": shapes.square.to_json(),
                "origin": shapes.origin,
                "sizes": {str(n): compare(name, dtype, n, args.repeats) for n in args.sizes},
            }
    save("opencl_kernel", results, where)


if __name__ == "__main__":
    main()
