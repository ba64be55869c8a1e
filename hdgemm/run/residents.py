"""Operands that lie in a GPU's memory already: where the product belongs, and taking them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hdgemm.matrices.device_arrays import DeviceArrayMatrix

if TYPE_CHECKING:
    from hdgemm.matrices.device_arrays import DeviceArray
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Problem
    from hdgemm.product.product import Multiplication


@runtime_checkable
class TakesArrays(Protocol):
    """A device whose memory other libraries' arrays lie in."""

    def accept(self, array: DeviceArray) -> None:
        """Check that an array lies on this device, and wait for its maker."""


def home(product: Multiplication) -> str | None:
    """Return the name of the GPU that an operand lies on; C's before A's and B's."""
    for operand in (product.c, product.a, product.b):
        if isinstance(operand.matrix, DeviceArrayMatrix):
            # Who does not say where it lies has one GPU to lie on; `accept` asks the driver.
            return f"cuda:{operand.matrix.device_array.device or 0}"
    return None


def accept_residents(product: Multiplication, problem: Problem, device: Device) -> None:
    """Let a device take the operands that a plan uses in place.

    Raises
    ------
    InputError
        When one lies on another GPU.
    """
    for operand, spec in (
        (product.a, problem.a),
        (product.b, problem.b),
        (product.c, problem.c),
    ):
        matrix = operand.matrix
        if (
            spec.path == "resident"
            and isinstance(matrix, DeviceArrayMatrix)
            and isinstance(device, TakesArrays)
        ):
            device.accept(matrix.device_array)
