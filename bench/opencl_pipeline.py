"""The whole OpenCL pipeline against its own kernel alone, device memory a fraction of the data.

    python -m bench.opencl_pipeline [--device opencl:0] [--n 4096] [--fraction 8] [--repeats 3]

Both multiply the same random float64 matrices in RAM, by turns. The kernel alone works on matrices
that are in device memory already: the speed of a pipeline that hides every copy.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import environment, save, spread
from hdgemm.blas.products import multiply
from hdgemm.options import Options
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.registry import open_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Operand


class Resident:
    """A, B and C of one product, each in one tile in device memory."""

    def __init__(self, device: Device, a: NDArray[Any], b: NDArray[Any]) -> None:
        self._device = device
        self._blocks = {
            "A": self._block("A", a.shape, a.dtype),
            "B": self._block("B", b.shape, b.dtype),
            "C": self._block("C", (a.shape[0], b.shape[1]), a.dtype),
        }
        for name, array in (("A", a), ("B", b)):
            device.upload(array, self._blocks[name], ()).wait()

    def _block(self, operand: Operand, shape: tuple[int, int], dtype: np.dtype[Any]) -> Block:
        rows, cols = shape
        nbytes = self._device.slot_bytes(operand, rows, cols, dtype)
        tile = Tile(operand, self._device.allocate(nbytes), rows, cols, cols, dtype)
        return Block(tile, 0, 0, rows, cols)

    def seconds(self) -> float:
        """Return the seconds of one kernel call by the device's own clock where it has one."""
        began = time.perf_counter()
        a, b, c = (self._blocks[name] for name in "ABC")
        done = self._device.gemm(1.0, a, b, 0.0, c, ())
        done.wait()
        interval = done.interval()
        return time.perf_counter() - began if interval is None else interval[1] - interval[0]

    def free(self) -> None:
        """Give the device its memory back."""
        self._device.synchronize()
        for block in self._blocks.values():
            self._device.free(block.tile.buffer)


def kernel_speed(name: str, a: NDArray[Any], b: NDArray[Any], flops: int) -> float:
    """Return the kernel's best of two in GFLOP/s, after one to warm up."""
    device = open_device(name)
    try:
        resident = Resident(device, a, b)
        resident.seconds()
        best = min(resident.seconds() for _ in range(2))
        resident.free()
    finally:
        device.close()
    return flops / best / 1e9


def main() -> None:
    """Measure and write bench/results/opencl_pipeline.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--fraction", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    where = environment()
    n, rng = args.n, np.random.default_rng(0)
    a, b, c = rng.standard_normal((n, n)), rng.standard_normal((n, n)), np.empty((n, n))
    data = a.nbytes + b.nbytes + c.nbytes
    options = Options(
        devices=args.device, device_memory=data // args.fraction, host_memory=data // 2
    )
    kernel, pipeline, reports = [], [], []
    for _ in range(args.repeats):
        kernel.append(kernel_speed(args.device, a, b, 2 * n**3))
        reports.append(multiply(a, b, out=c, options=options))
        pipeline.append(reports[-1].gflops)
        print(f"kernel {kernel[-1]:.1f}, pipeline {pipeline[-1]:.1f} GFLOP/s", flush=True)
    error = float(np.max(np.abs(c[:64] - a[:64] @ b)))
    bound = n * np.finfo(float).eps * float(np.max(np.abs(a[:64]) @ np.abs(b)))
    if not error <= bound:
        raise SystemExit(f"the product is wrong: error {error:.3g}, more than {bound:.3g}")
    best = max(range(args.repeats), key=pipeline.__getitem__)
    print(f"{args.device}: pipeline {max(pipeline) / max(kernel):.3f} of its kernel alone")
    results = {
        "device": args.device,
        "n": n,
        "data_bytes": data,
        "device_memory": data // args.fraction,
        "kernel_gflops": spread(kernel),
        "pipeline_gflops": spread(pipeline),
        "share_best": max(pipeline) / max(kernel),
        "report": reports[best].to_dict(),
    }
    save("opencl_pipeline", results, where)


if __name__ == "__main__":
    main()
