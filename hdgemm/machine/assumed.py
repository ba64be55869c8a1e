"""Assumed rates of kinds of devices, for products too small to be worth a measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hdgemm.machine.rates import Machine

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import DeviceSpec

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
    """Return figures for a GPU whose double-precision units are few."""
    single = H200.gemm["float32"]
    return replace(
        H200,
        name="consumer GPU",
        gemm={"float32": single, "float64": single / fp64_ratio},
        source=f"an H200 with double precision at 1/{fp64_ratio} of single precision, assumed",
    )
