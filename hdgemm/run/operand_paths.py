"""How each operand reaches a device: used in place, moved by DMA, or copied through staging."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.layout import blas_takes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand
    from hdgemm.matrices.device_arrays import DeviceArray
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import OperandSpec, Problem
    from hdgemm.product.product import Product


@runtime_checkable
class ReachesHostMemory(Protocol):
    """A device that can use some of the application's host memory without staging."""

    def reaches(self, array: NDArray[Any]) -> bool:
        """Say whether DMA reaches all of an array: page-locked memory, to a GPU."""


@runtime_checkable
class TakesArrays(Protocol):
    """A device in whose memory other libraries allocate arrays."""

    def accept(self, array: DeviceArray) -> None:
        """Check that an array lies on this device, and wait for the work that writes it."""


def gpu_of(product: Product) -> str | None:
    """Return the name of the GPU that an operand lies on: C's first, then A's, then B's."""
    for operand in (product.c, product.a, product.b):
        if operand is not None and isinstance(operand.matrix, DeviceArrayMatrix):
            # An array without a device id is assumed to be on GPU 0; `accept` asks the driver.
            return f"cuda:{operand.matrix.device_array.device or 0}"
    return None


def problem_on(product: Product, device: Device, *, direct: str = "ABC") -> Problem:
    """Describe a product with a row-major C to the planner, with each operand's path to one device.

    An operand in the device's own memory is used in place, after its producer's work is done; on
    another GPU it is an `InputError`. One in page-locked memory, with the product's dtype and
    contiguous rows, moves by DMA if it is among the `direct` operands. All others are copied
    through staging; so is C where store2 adds beta·C to it.
    """
    problem = product.problem(device.spec)
    if device.spec.unified:
        return problem
    if problem.reads_c:
        direct = direct.replace("C", "")
    a = _with_path(product.a, problem.a, problem, device, direct="A" in direct)
    b = _with_path(product.b, problem.b, problem, device, direct="B" in direct)
    c = problem.c
    if product.c is not None:
        c = _with_path(product.c, c, problem, device, direct="C" in direct)
    return replace(problem, a=a, b=b, c=c)


def direct_operands(*, shared: bool, durable: bool) -> str:
    """Return the operands that may move by DMA without staging.

    Devices that share C report each tile that store2 writes. A durable run stores its plan, and a
    later process may have the same operands in memory that is not page-locked.
    """
    if durable:
        return ""
    return "AB" if shared else "ABC"


def _with_path(
    operand: Operand, spec: OperandSpec, problem: Problem, device: Device, *, direct: bool
) -> OperandSpec:
    """Return an operand's description with its path to the device."""
    matrix = operand.matrix
    if spec.path == "resident":
        if isinstance(matrix, DeviceArrayMatrix) and isinstance(device, TakesArrays):
            device.accept(matrix.device_array)
        return spec
    if not direct or operand.conj or not isinstance(device, ReachesHostMemory):
        return spec
    array = matrix.array
    return (
        replace(spec, path="direct")
        if blas_takes(array, np.dtype(problem.dtype)) and device.reaches(array)
        else spec
    )
