"""Rates of a machine, from which the model computes seconds, and those assumed for its devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import DeviceSpec, Problem

#: Resources that operations share, one of which limits a run (HDGEMM, tables 1 and 2). Added are
#: the disk, the host's cores, and the interpreter, whose lock all lanes of the executor share.
RESOURCES: Final = (
    "device",
    "pcie_up",
    "pcie_down",
    "host_memory",
    "disk",
    "cores",
    "interpreter",
)

#: Bytes of one contiguous request to a file.
REQUEST_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one machine with one device, in bytes/s, flop/s and seconds.

    Parameters
    ----------
    host_bytes
        Bytes of host memory that a run takes where the options name no limit.
    cores
        Cores that copy, read and write; on the host device they also multiply.
    gemm
        The device's flop/s on large resident tiles, by dtype.
    depth_half, side_half
        The extents along k, and along m or n, at which fixed costs of a kernel call or an edge
        would take as long as the work: a tile runs at
        ``1 / (1 + depth_half/kb + side_half/mb + side_half/nb)`` of `gemm`.
    memory
        Rate of the host memory bus, reads and writes both counted.
    moves_c
        Each step of a product reads and writes its tile of C over the host memory bus, between
        multiplications. Plans of slabs count that on their own.
    copy
        Rate of one copying stage that runs alone, each byte counted once.
    pcie_up, pcie_down
        Rates of the link in each direction, with both in use.
    on_host_cores
        The device is the host's own processor: its kernel takes all cores, a transfer one.
    disk_read, disk_write
        Rates of the disk in either direction with no other load.
    decode
        Rate at which one core decodes a compressed format, in bytes of elements.
    request_seconds
        Core time of one request to a file.
    operation_seconds
        Time that the executor takes for one operation, whatever its size. All stages share it,
        since they share the interpreter.
    source
        Where the figures come from.
    """

    name: str = "default"
    host_bytes: int = 4 << 30
    cores: int = 2
    gemm: Mapping[str, float] = field(default_factory=lambda: {"float64": 140e9}, hash=False)
    depth_half: float = 1.0
    side_half: float = 2.0
    memory: float = 20e9
    moves_c: bool = False
    copy: float = 6e9
    pcie_up: float = 12e9
    pcie_down: float = 12e9
    on_host_cores: bool = False
    disk_read: float = 1.2e9
    disk_write: float = 1.0e9
    decode: float = 500e6
    request_seconds: float = 20e-6
    operation_seconds: float = 50e-6
    source: str = "a small server of 2025, assumed"

    def flop_rate(self, dtype: str) -> float:
        """Return the flop/s for a dtype, from its own figure or its sibling's.

        Complex arithmetic runs at the real rate, a real of half the bytes at twice the rate.
        """
        if dtype in self.gemm:
            return self.gemm[dtype]
        real_bytes = ELEMENT_TYPES[dtype].real_bytes
        for other, rate in self.gemm.items():
            if ELEMENT_TYPES[other].real_bytes == real_bytes:
                return rate
        other, rate = next(iter(self.gemm.items()))
        return rate * ELEMENT_TYPES[other].real_bytes / real_bytes

    def kernel_rate(self, problem: Problem, mb: Any, nb: Any, kb: Any) -> Any:
        """Return the flop/s of steps of these extents of a product; arrays or numbers.

        Sums in half of C's precision are read, and added to C, once for each `exact_terms` of k.
        """
        rate = self.flop_rate(problem.factor_dtype)
        moved = 2 * problem.tile_itemsize("C")
        if problem.exact_terms:
            moved += problem.tile_itemsize("A")
            kb = np.minimum(kb, problem.exact_terms)
        elif not self.moves_c:
            return rate * self.efficiency(mb, nb, kb)
        depth = rate * moved / (ELEMENT_TYPES[problem.dtype].flops * self.memory)
        return rate / (1 / self.efficiency(mb, nb, kb) + depth / kb)

    def efficiency(self, mb: Any, nb: Any, kb: Any) -> Any:
        """Return the part of `gemm` that a step of these extents reaches; arrays or numbers."""
        sides = self.side_half * (1 / mb + 1 / nb)
        return 1 / (1 + self.depth_half / kb + sides)


#: Assumed rates, for products too small to be worth a measurement.
HOST: Final = Machine(name="host")

OPENCL: Final = Machine(
    name="opencl",
    gemm={"float64": 100e9, "float32": 200e9},
    pcie_up=6e9,
    pcie_down=6e9,
    source="an OpenCL device on the host's own cores, assumed",
)

H200: Final = Machine(
    name="h200",
    cores=16,
    gemm={"float64": 60e12, "float32": 50e12},
    depth_half=8.0,
    side_half=8.0,
    memory=200e9,
    copy=40e9,
    pcie_up=55e9,
    pcie_down=55e9,
    disk_read=5e9,
    disk_write=3e9,
    source="cuBLAS DGEMM on GH200 at n = 16384 (60.7 Tflop/s, GEMMul8's results); PCIe 5 ×16",
)

#: Single-precision rate over double-precision rate of data-centre GPUs.
H200_FP64_RATIO: Final = 2


def assumed(device: DeviceSpec) -> Machine:
    """Return the rates assumed for a device of this kind."""
    kind = device.name.partition(":")[0]
    if kind == "cuda":
        return H200 if device.fp64_ratio <= H200_FP64_RATIO else _consumer_gpu(device.fp64_ratio)
    return HOST if device.unified else OPENCL


def _consumer_gpu(fp64_ratio: int) -> Machine:
    """Return the rates assumed for a GPU with few double-precision units."""
    single = H200.gemm["float32"]
    return replace(
        H200,
        name="consumer GPU",
        gemm={"float32": single, "float64": single / fp64_ratio},
        source=f"an H200 with double precision at 1/{fp64_ratio} of single precision, assumed",
    )
