"""The number of copying threads: chosen from measured rates, used where a link waits for them."""

import threading

import numpy as np
import pytest

from hdgemm import Options
from hdgemm.run import copying
from hdgemm.blas import multiply
from hdgemm.machine.limits import cores
from hdgemm.matrices.transfer import Pool, copy_pool
from hdgemm.pipeline.devices.cuda import driven_by, open_device
from hdgemm.pipeline.devices.cuda.standin import StandIn
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.run.copy_threads import copy_rates, copy_threads

RATES = {1: 8e9, 2: 15e9, 4: 28e9, 8: 50e9, 16: 51e9}


@pytest.mark.parametrize(
    ("link", "threads"),
    [(5e9, 1), (8e9, 1), (12e9, 2), (25e9, 4), (48e9, 8), (1e12, 8), (50.5e9, 8)],
)
def test_the_fewest_that_keep_up(link, threads):
    assert copy_threads(RATES, link) == threads


def test_every_count_is_measured_once():
    rates = copy_rates(1 << 20)
    assert min(rates) == 1
    assert max(rates) <= cores()
    assert all(rate > 0 for rate in rates.values())
    assert copy_rates(1 << 20) is rates
    assert copy_threads(rates, 1.0) == 1


def test_a_pool_grows_and_shrinks():
    pool = Pool(2, "resized")
    for threads in (5, 1, 3):
        pool.resize(threads)
        assert pool.threads == threads
        seen, all_here = set(), threading.Barrier(threads, timeout=20)

        def piece(_, seen=seen, all_here=all_here):
            all_here.wait()
            seen.add(threading.get_ident())

        pool.run([piece] * threads)
        assert len(seen) == threads
        pool.run([lambda _: None] * 50)


@pytest.fixture
def measured(monkeypatch):
    """Let small products be measured, on a host whose copies have given rates."""
    monkeypatch.setattr(copying, "_WORTH_MEASURING", 1 << 20)
    monkeypatch.setattr(copying, "copy_rates", lambda _: RATES)
    monkeypatch.setattr("hdgemm.run.pinning._WORTH_LOCKING", 0)
    before = copy_pool().threads
    yield monkeypatch
    copy_pool().resize(before)


A, B = np.random.default_rng(1).random((2, 400, 400))


@pytest.mark.parametrize(("link", "limit", "threads"), [(25e9, None, 4), (55e9, 3, 3), (5e9, 2, 1)])
def test_as_many_threads_copy_as_keep_the_link_full(measured, link, limit, threads):
    machine = StandIn()
    with driven_by(machine.api()):
        measured.setattr("hdgemm.pipeline.devices.cuda.device.measure_link", lambda device: link)
        # Locking is made dear, so that the arrays are staged.
        measured.setattr(
            "hdgemm.pipeline.devices.cuda.device.CudaDevice.pin_cost", lambda _: (1.0, 1.0)
        )
        options = Options(devices="cuda:0", device_memory="2MB", threads=limit)
        report = multiply(A, B, options=options)
    assert report.plan["registration"]["copy_threads"] == copy_pool().threads == threads


@pytest.mark.parametrize("path", ["direct", "staged"])
def test_what_is_not_staged_or_small_is_not_measured(path):
    class NeverAsked:
        def link_rate(self):
            raise AssertionError("the link was measured")

    spec = OperandSpec(False, "memory", path, 8)
    extent = 400 if path == "staged" else 40_000
    problem = Problem(extent, extent, extent, "float64", spec, spec, spec)
    assert copying.fit_copy_threads(problem, Options(), NeverAsked()) is None
    assert copying.fit_copy_threads(problem, Options(), object()) is None


def test_the_link_is_measured_once_and_leaves_nothing_behind():
    machine = StandIn()
    with driven_by(machine.api()):
        device = open_device("cuda:0")
        held = machine.memory.held()
        first = device.link_rate()
        assert first > 0
        assert machine.memory.held() == held
        calls = len(machine.calls)
        assert device.link_rate() == first
        assert len(machine.calls) == calls
        device.close()
