"""LU on a host and one recording device, with columns that move from the device to the host."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.tasks.factorise import factor
from hdgemm.tasks.machine import TaskMachine
from tests.tasks.factorisations import matrix_for, ratio

WIDTHS = [8] * 6


def factored(a, rate, fault=None, name="lu"):
    """Factor a copy with a device of this rate relative to the host's; returns what it did."""
    device = RecordingDevice(1 << 20, name="d", fault=fault)
    try:
        machine = TaskMachine.of({"d": device})
        host, other = machine.capabilities
        faster = {kind: rate * each for kind, each in other.rates.items()}
        machine = replace(
            machine, dealing="moving", leaf=10, capabilities=(host, replace(other, rates=faster))
        )
        array = np.array(a, order="F")
        found = factor(machine, name, array, widths=WIDTHS)
        return array, found, [call.kind for call in device.calls]
    finally:
        device.close()
        assert device.buffers == 0


@pytest.mark.parametrize("name", ["lu", "calu"])
@pytest.mark.parametrize(("rate", "products"), [(1.0, 3), (1e9, 15), (1e-9, 0)])
def test_the_device_updates_what_the_host_s_share_leaves(name, rate, products):
    """With equal rates the host has 3 of 6 columns, and the device leaves when 3 are left."""
    a = matrix_for("lu", (48, 48))
    array, found, kinds = factored(a, rate, name=name)
    assert ratio("lu", a, (array, found.pivots), WIDTHS) < 30
    assert kinds.count("gemm") == products


def test_columns_move_to_the_host_from_several_devices():
    a = matrix_for("calu", (48, 48))
    with ExitStack() as stack:
        devices = {name: RecordingDevice(1 << 20, name=name) for name in ("d", "e")}
        for device in devices.values():
            stack.callback(device.close)
        machine = replace(TaskMachine.of(devices, lanes=2), dealing="moving", leaf=10)
        array = np.array(a, order="F")
        found = factor(machine, "calu", array, widths=WIDTHS)
        assert ratio("calu", a, (array, found.pivots), WIDTHS) < 30
        # The host has 3 of 6 columns. Of the other updates each device has some.
        products = [sum(x.kind == "gemm" for x in each.calls) for each in devices.values()]
        assert min(products) > 0
        assert sum(products) == 3


def test_a_fast_device_alone_is_chosen_beside_a_slow_one():
    devices = {name: RecordingDevice(1 << 30, name=name) for name in ("fast", "slow")}
    machine = TaskMachine.of(devices)
    host, fast, slow = machine.capabilities
    rates = {"fast": 1e13, "slow": 1e5}
    pair = [replace(x, rates=dict.fromkeys(x.rates, rates[x.name])) for x in (fast, slow)]
    machine = replace(machine, capabilities=(host, *pair), lapack=1e10)
    assert tuple(machine.dealt("lu", (2000, 2000), [50] * 40, "float64").devices) == ("fast",)
    assert machine.choose("lu", (2000, 2000), None, "float64") is (
        machine.choose("lu", (2000, 2000), None, "float64")
    )
    machine = replace(machine, lapack=1e15)
    assert machine.dealt("lu", (2000, 2000), [50] * 40, "float64").dealing == "host"
    for device in devices.values():
        device.close()


@pytest.mark.parametrize("name", ["cholesky", "lu"])
def test_on_the_host_alone_lapack_factors(name):
    a, seen = matrix_for(name, (48, 48)), []
    array = np.array(a, order="F")
    found = factor(TaskMachine.of({}), name, array, widths=WIDTHS, observer=seen.append)
    assert ratio(name, a, (array, found.pivots), WIDTHS) < 30
    assert len(seen) == 1


@pytest.mark.parametrize("call", range(0, 40, 3))
def test_a_fault_of_the_device_is_raised(call):
    a = matrix_for("lu", (48, 48))
    try:
        array, found, _ = factored(a, 1.0, Fault(call, late=True), "calu")
    except DeviceError:
        return
    assert ratio("lu", a, (array, found.pivots), WIDTHS) < 30  # the run made fewer calls
