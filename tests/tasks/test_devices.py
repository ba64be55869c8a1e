"""Factorisations on the host and on recording devices, which detect races and inject faults."""

import threading

import pytest

from hdgemm.errors import CancelledRunError, DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.tasks.runtime import Runtime
from tests.tasks.factorisations import NAMES, device, factor, host, matrix_for, ratio

SHAPES = {"cholesky": [(40, 40)], "lu": [(40, 40), (40, 25), (25, 40)],
          "calu": [(40, 40), (40, 25), (25, 40)], "qr": [(40, 40), (40, 25), (25, 40)]}  # fmt: skip
CASES = [(name, shape) for name in NAMES for shape in SHAPES[name]]
#: Workspace of a device in these tests: operands of one update.
WORKSPACE = 40 * 40 * 8 * 5


def widths_of(shape):
    return [9, 8, 8, *([8, 7] if shape[1] == 40 else [])]


def run(name, a, limits, weights, *, faults=(), on_host=True, **how):
    """Factor a matrix on recording devices of some memory, and check that they are left clean."""
    devices = {
        f"d{i}": RecordingDevice(limit + WORKSPACE, name=f"d{i}", fault=dict(faults).get(i))
        for i, limit in enumerate(limits)
    }
    capabilities = [
        host(1, 1e9 if on_host else 1e-3),
        *(device(f"d{i}", memory_bytes=limit) for i, limit in enumerate(limits)),
    ]
    try:
        with Runtime(capabilities, devices, **how) as runtime:
            return factor(name, runtime, a, widths_of(a.shape), weights), devices
    finally:
        assert all(each.buffers == 0 for each in devices.values())
        for each in devices.values():
            each.close()


@pytest.mark.parametrize("weights", [None, {"d0": 1, "d1": 3}, {"d0": 2, "d1": 1, "host": 1}])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_ratio(name, shape, weights):
    a = matrix_for(name, shape, "complex128" if weights and "host" in weights else "float64")
    found, devices = run(name, a, [10**6, 10**6], weights)
    assert ratio(name, a, found, widths_of(shape)) < 30
    if weights and shape == (40, 40):
        assert all({"gemm", "upload"} <= {c.kind for c in d.calls} for d in devices.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_ratio_in_memory_smaller_than_the_matrix(name, shape, dtype):
    a = matrix_for(name, shape, dtype)
    limit = (2 if name == "cholesky" else 3) * 9 * shape[0] * a.itemsize
    found, devices = run(name, a, [limit], {"d0": 1}, on_host=False, priorities=False)
    assert ratio(name, a, found, widths_of(shape)) < 30
    assert devices["d0"].peak_held <= limit + WORKSPACE
    whole = run(name, a, [10**6], {"d0": 1}, on_host=False, priorities=False)[1]
    downloads = [sum(c.kind == "download" for c in each["d0"].calls) for each in (devices, whole)]
    assert downloads[0] >= downloads[1]
    assert downloads[0] > downloads[1] or shape != (40, 40)


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_on_one_device_do_not_depend_on_the_window_or_lanes(name):
    a = matrix_for(name, (40, 40))
    weights = {"d0": 1, "d1": 1}
    results = {
        run(name, a, [10**6] * 2, weights, window=window, priorities=priorities)[0][0].tobytes()
        for window, priorities in [(1, True), (6, False), (1000, True)]
    }
    assert len(results) == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_each_call_is_raised_once(name, late):
    a = matrix_for(name, (40, 40))
    weights = {"d0": 1, "d1": 1}
    calls = run(name, a, [10**6] * 2, weights)[1]["d0"].calls
    for number in range(0, len(calls), 1 if len(calls) < 60 else 3):
        with pytest.raises(DeviceError, match=r"injected fault|failed"):
            run(name, a, [10**6] * 2, weights, faults={0: Fault(number, late=late)}.items())


@pytest.mark.parametrize("name", NAMES)
def test_panels_that_do_not_fit_a_device(name):
    a = matrix_for(name, (40, 40))
    with pytest.raises(DoesNotFitError, match="choose narrower panels"):
        run(name, a, [1000], {"d0": 1})


def test_cancelling_frees_the_devices():
    cancel, a = threading.Event(), matrix_for("lu", (40, 40))
    with pytest.raises(CancelledRunError):
        run("lu", a, [10**6], {"d0": 1}, cancel=cancel, observer=lambda event: cancel.set())


def test_events_count_the_bytes_that_moved():
    a = matrix_for("cholesky", (40, 40))
    events = []
    _, devices = run("cholesky", a, [10**6], {"d0": 1}, observer=events.append)
    for stage, kind in (("load2", "upload"), ("store1", "download")):
        moved = sum(call.amount for call in devices["d0"].calls if call.kind == kind)
        assert sum(event.nbytes for event in events if event.stage == stage) == moved > 0
