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
        machine = replace(TaskMachine.of(devices, threads=2, lanes=True), dealing="moving", leaf=10)
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


def test_a_choice_of_devices_that_a_run_proves_wrong_is_left_to_lapack(monkeypatch):
    monkeypatch.setattr("hdgemm.tasks.machine._WORTH_A_CHOICE", 0.0)
    device = RecordingDevice(1 << 30, name="d")
    machine = TaskMachine.of({"d": device})
    host, other = machine.capabilities
    fast = replace(other, rates=dict.fromkeys(other.rates, 1e15), up=1e12, down=1e12)
    quick = replace(host, rates=dict.fromkeys(host.rates, 1e12))
    machine = replace(machine, capabilities=(quick, fast), lapack=1e9)
    a = matrix_for("lu", (48, 48))
    assert machine.choose("lu", a.shape, WIDTHS, a.dtype)[1].dealing != "host"
    machine.correct("lu", a.shape, WIDTHS, a.dtype, 1e-9)
    assert machine.choose("lu", a.shape, WIDTHS, a.dtype)[1].dealing != "host"
    factor(machine, "lu", a.copy("F"), widths=WIDTHS)  # takes longer than 74 us
    assert machine.choose("lu", a.shape, WIDTHS, a.dtype)[1].dealing == "host"
    device.close()


def test_panels_leave_the_cores_of_a_device_to_it():
    device = RecordingDevice(1 << 30, name="d")
    for cores, lanes, blas_threads in [(0, 4, 4), (1, 3, 3), (4, 1, 1), (9, 1, 1)]:
        device.host_cores = cores
        alone, split = (TaskMachine.of({"d": device}, threads=4, lanes=x) for x in (False, True))
        assert (alone.capabilities[0].lanes, alone.blas_threads, alone.threads) == (
            1,
            blas_threads,
            4,
        )
        assert (split.capabilities[0].lanes, split.blas_threads, split.threads) == (lanes, 1, 4)
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
