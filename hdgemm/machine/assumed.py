"""Assumed rates of kinds of devices, for products too small to be worth a measurement."""

from __future__ import annotations

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


def assumed(device: DeviceSpec) -> Machine:
    """Return the rates assumed for a device of this kind."""
    kind = device.name.partition(":")[0]
    if kind == "cuda":
        return H200
    return HOST if device.unified else OPENCL
