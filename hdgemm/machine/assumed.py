"""Machines as data: figures to plan and simulate with, each with its source."""

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
    operation_seconds=10e-6,
    source="cuBLAS DGEMM on GH200 at n = 16384 (60.7 Tflop/s, GEMMul8's results); PCIe 5 ×16",
)

#: One Cypress chip of a Radeon HD 5970 and the Xeon X5650 host beside it (HDGEMM, table 3).
#: Beyond the paper's text are assumed: `depth_half`, `memory` (as far as copies reach it),
#: `copy`, the four rates of the link, `multiply_memory`. See docs/paper.md.
HD5970: Final = Machine(
    name="hd5970",
    cores=12,
    gemm={"float64": 0.94 * 464e9},
    depth_half=80.0,
    side_half=0.0,
    memory=12.5e9,
    copy=3.75e9,
    pcie_up=2.6e9,
    pcie_down=1.2e9,
    remote_write=1.06e9,
    link_up=2.6e9,
    link_down=1.3e9,
    multiply_memory=4.8e9,
    disk_read=0.1e9,
    disk_write=0.1e9,
    source="HDGEMM, table 3 and section 4; assumptions in docs/paper.md",
)

#: A GH200 class machine: the H200's kernel behind NVLink-C2C.
GH200: Final = replace(
    H200,
    name="gh200",
    cores=72,
    memory=450e9,
    copy=150e9,
    pcie_up=350e9,
    pcie_down=280e9,
    source="cuBLAS DGEMM on GH200 at n = 16384 (GEMMul8's results); NVLink-C2C at 450 GB/s a way "
    "and LPDDR5X at 500 GB/s, nominal, taken at four fifths and nine tenths",
)


def assumed(device: DeviceSpec) -> Machine:
    """Return figures for a device of this kind on a machine nobody measured."""
    kind = device.name.partition(":")[0]
    if kind == "cuda":
        return H200
    return HOST if device.unified else OPENCL
