"""LU on a host and one recording device, with columns that move from the device to the host."""

from dataclasses import replace

import numpy as np
import pytest

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.tasks.factorise import TaskMachine
from tests.tasks.factorisations import matrix_for, ratio

WIDTHS = [8] * 6


def factor(a, rate, fault=None):
    """Factor a copy with a device of this rate relative to the host's; returns what it did."""
    device = RecordingDevice(1 << 20, name="d", fault=fault)
    try:
        machine = TaskMachine.of({"d": device})
        host, other = machine.capabilities
        faster = {kind: rate * each for kind, each in other.rates.items()}
        machine = replace(
            machine, dealing="moving", capabilities=(host, replace(other, rates=faster))
        )
        array = np.array(a, order="F")
        found = machine.factor("lu", array, widths=WIDTHS)
        return array, found, [call.kind for call in device.calls]
    finally:
        device.close()
        assert device.buffers == 0


@pytest.mark.parametrize(("rate", "products"), [(1.0, 3), (1e9, 15), (1e-9, 0)])
def test_the_device_updates_what_the_host_s_share_leaves(rate, products):
    """With equal rates the host has 3 of 6 columns, and the device leaves when 3 are left."""
    a = matrix_for("lu", (48, 48))
    array, found, kinds = factor(a, rate)
    assert ratio("lu", a, (array, found.pivots), WIDTHS) < 30
    assert kinds.count("gemm") == products


@pytest.mark.parametrize("call", range(0, 40, 3))
def test_a_fault_of_the_device_is_raised(call):
    a = matrix_for("lu", (48, 48))
    try:
        array, found, _ = factor(a, 1.0, Fault(call, late=True))
    except DeviceError:
        return
    assert ratio("lu", a, (array, found.pivots), WIDTHS) < 30  # the run made fewer calls
