"""Device memory that another process takes after planning: planned again, or an error."""

import gc
import logging
from contextlib import contextmanager

import numpy as np
import pytest

from hdgemm import Options
from hdgemm.blas.products import multiply
from hdgemm.errors import AllocationError, DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.cuda import driven_by
from hdgemm.pipeline.devices.recording import Fault as RecordedFault, RecordingDevice
from hdgemm.run.engine import REPLANS
from tests.pipeline.devices.cuda.cuda_bench import random
from tests.pipeline.devices.cuda.standin import StandIn
from tests.pipeline.devices.cuda.standin.blas import WORKSPACE_BYTES
from tests.pipeline.devices.cuda.standin.standin import CONTEXT_BYTES, Fault
from tests.reference import assert_close_in_eps

pytestmark = pytest.mark.usefixtures("one_blas_thread")

MB = 1 << 20
ROOM = 4 * MB
DEVICE = CONTEXT_BYTES + WORKSPACE_BYTES + ROOM
#: The first product, which warms cuBLAS up, takes memory before the plan does.
WARM_UP = 0
A, B, C = (random(shape, "float64", 1) for shape in ((300, 400), (400, 260), (300, 260)))


@contextmanager
def another_process(machine, takes):
    """Let another process take device memory: so many bytes before each of the next allocations."""
    api, waiting = machine.api(), list(takes)
    malloc = api.runtime.malloc

    def late(nbytes):
        if waiting and (taken := waiting.pop(0)):
            malloc(taken)
        return malloc(nbytes)

    api.runtime.malloc = late
    with driven_by(api):
        yield


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Hand out memory in small pieces and leave no headroom, so that small products fill a GPU."""
    monkeypatch.setattr("hdgemm.pipeline.devices.cuda.device._HEADROOM", 0)
    monkeypatch.setattr("hdgemm.pipeline.devices.cuda.device.ALLOCATION_BYTES", 1 << 14)
    monkeypatch.setattr("tests.pipeline.devices.cuda.standin.memory.PIECE", 1 << 14)


def run(out=None, **options):
    c = C.copy() if out is None else out
    options = Options(devices="cuda:0", **options)
    return multiply(A, B, c=c, out=c, alpha=2.0, beta=-1.0, options=options), c


def test_memory_taken_after_planning_makes_a_smaller_plan(caplog):
    machine = StandIn(device_bytes=DEVICE)
    with caplog.at_level(logging.WARNING), another_process(machine, [WARM_UP, 3 * MB]):
        report, c = run()
    assert_close_in_eps(c, A, B, alpha=2.0, beta=-1.0, c=C)
    (refused,) = report.plan["replanned"]
    assert report.plan["device_bytes"] < refused["refused_bytes"]
    assert report.plan["device_bytes"] <= 1 * MB
    assert "are free" in refused["because"]
    assert "planning again" in caplog.text
    assert report.moved_bytes == report.planned_bytes


def test_memory_taken_twice_is_planned_for_twice():
    machine = StandIn(device_bytes=DEVICE)
    with another_process(machine, [WARM_UP, 2 * MB, 0, 0, WARM_UP, MB]):
        report, c = run()
    assert 1 <= len(report.plan["replanned"]) <= REPLANS
    assert_close_in_eps(c, A, B, alpha=2.0, beta=-1.0, c=C)


def test_a_driver_that_keeps_refusing_is_an_error_with_numbers_and_c_is_as_before():
    warm_ups = {0, 2, 4}
    faults = [Fault("malloc", number, 2) for number in range(50) if number not in warm_ups]
    machine = StandIn(faults=faults)
    c = C.copy()
    with driven_by(machine.api()), pytest.raises(AllocationError) as caught:
        run(c)
    assert machine.count("malloc") == 2 * (REPLANS + 1)
    assert caught.value.requested > 0
    assert caught.value.planned >= caught.value.requested
    assert np.array_equal(c, C)
    del caught
    gc.collect()
    assert machine.leaks() == {}


def test_a_forced_tile_that_no_longer_fits_says_so_and_why():
    machine = StandIn(device_bytes=DEVICE)
    with (
        another_process(machine, [WARM_UP, int(3.7 * MB)]),
        pytest.raises(DoesNotFitError) as caught,
    ):
        run(tile=(256, 256, 128))
    assert caught.value.missing > 0
    assert isinstance(caught.value.__cause__, AllocationError)


@pytest.mark.parametrize("status", [2, 700])
def test_an_error_while_computing_is_not_planned_again(status):
    machine = StandIn(faults=[Fault("dgemm", 1, 13 if status == 2 else status)])
    with driven_by(machine.api()), pytest.raises(DeviceError):
        run(device_memory=MB)


class Shrinking(RecordingDevice):
    """Promises more than it has when it is first asked."""

    def __init__(self, promised, free, **more):
        super().__init__(promised, **more)
        self.free_bytes = free

    def allocate(self, nbytes):
        if self.held + nbytes > self.free_bytes:
            raise DoesNotFitError("taken by another process", requested=nbytes, available=0)
        return super().allocate(nbytes)


@pytest.fixture
def shrinking(monkeypatch):
    """Open devices that promise 4 MB, or what they are allowed, and have 700 KB."""
    opened = []

    def open_device(_, memory_bytes=None, *, threads=None, **more):
        opened.append(Shrinking(min(4 * MB, memory_bytes or 4 * MB), 700_000, **more))
        return opened[-1]

    monkeypatch.setattr("hdgemm.run.session.open_device", open_device)
    return opened


def test_a_device_that_does_not_tell_what_is_free_is_asked_for_less(shrinking):
    c = C.copy()
    options = Options(devices="recording", device_memory="1MB")
    report = multiply(A, B, out=c, beta=1.0, c=c, options=options)
    assert_close_in_eps(c, A, B, beta=1.0, c=C)
    assert len(shrinking) == 1 + len(report.plan["replanned"]) > 1
    assert all(device.buffers == 0 for device in shrinking)
    assert not any(call.kind == "upload" for device in shrinking[:-1] for call in device.calls)


def test_after_two_more_plans_the_refusal_is_the_callers(shrinking, monkeypatch):
    def refuse(_, nbytes):
        raise DoesNotFitError("nothing is free", requested=nbytes, available=0)

    monkeypatch.setattr(Shrinking, "allocate", refuse)
    with pytest.raises(AllocationError, match="nothing is free"):
        multiply(A, B, out=np.empty_like(C), options=Options(devices="recording"))
    assert len(shrinking) == REPLANS + 1


def test_a_fault_that_is_no_lack_of_memory_is_not_planned_again(shrinking, monkeypatch):
    monkeypatch.setattr(Shrinking, "allocate", RecordingDevice.allocate)
    monkeypatch.setattr(
        "hdgemm.run.session.open_device",
        lambda *_, **_more: (
            shrinking.append(RecordingDevice(fault=RecordedFault(0))) or shrinking[-1]
        ),
    )
    with pytest.raises(DeviceError, match="injected"):
        multiply(A, B, out=np.empty_like(C), options=Options(devices="recording"))
    assert len(shrinking) == 1
