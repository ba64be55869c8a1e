"""From the caller's arrays to locked operands of a run, and back to unlocked ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from hdgemm.run import pinning
from hdgemm.matrices.base import Operand
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.product.product import Multiplication
from hdgemm.options import Options
from hdgemm.run.pinning import chosen_paths
from hdgemm.pipeline.devices.cuda.registration import PinSeconds
from hdgemm.pipeline.devices.cuda.standin import Fault
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.planning.planner import plan_problem
from tests.pipeline.devices.cuda.cuda_bench import Bench, own_pages

OPTIONS = Options(device_memory="40MB", host_memory="256MB")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Let arrays of a test's size be worth locking, and locking cost nothing."""
    monkeypatch.setattr(pinning, "_WORTH_LOCKING", 1 << 12)


def product(a, b, c, *, beta=0.0, trans=False, conj=False):
    old = Operand(ArrayMatrix(c)) if beta else None
    left = Operand(ArrayMatrix(a), trans, conj)
    right, out = Operand(ArrayMatrix(b)), Operand(ArrayMatrix(c))
    return Multiplication(left, right, out, old, 1.0, beta, np.dtype(c.dtype))


def arrays(n=1024, dtype="float64"):
    return [own_pages(np.ones((n, n), dtype)) for _ in range(3)]


def slow_copies(monkeypatch):
    """Let the planner expect much of direct operands."""
    true_plan = plan_problem

    def plan(problem, options, device, *, host_limit):
        made = true_plan(problem, options, device, host_limit=host_limit)
        staged = sum(problem.spec(name).path == "staged" for name in "ABC")
        return SimpleNamespace(expected=SimpleNamespace(seconds=1.0 + staged), plan=made)

    monkeypatch.setattr(pinning, "plan_problem", plan)


def chosen(bench, work):
    problem = work.problem(bench.device.spec)
    return chosen_paths(work, problem, OPTIONS, bench.device)


def paths(problem):
    return [problem.spec(name).path for name in "ABC"]


def test_arrays_are_locked_for_the_run_and_no_longer(monkeypatch):
    slow_copies(monkeypatch)
    bench = Bench()
    a, b, c = arrays()
    with chosen(bench, product(a, b, c)) as chosen_one:
        assert chosen_one.choice.register == ("A", "B", "C")
        assert paths(chosen_one.choice.problem) == ["direct"] * 3
        assert all(map(bench.device.is_pinned, (a, b, c)))
        summary = chosen_one.summary()
        assert summary["paths"] == dict.fromkeys("ABC", "direct")
        assert summary["registered"] == ["A", "B", "C"]
        assert summary["register_seconds"] == chosen_one.lock_seconds > 0
    assert not any(map(bench.device.is_pinned, (a, b, c)))


def test_locked_arrays_go_directly_and_stay_locked():
    bench = Bench()
    a, b, c = arrays(64)
    with bench.device.register(a):
        with chosen(bench, product(a, b, c)) as chosen_one:
            assert paths(chosen_one.choice.problem)[0] == "direct"
            assert "A" not in chosen_one.choice.register
        assert bench.device.is_pinned(a)


def test_what_dma_cannot_take_is_staged(monkeypatch):
    slow_copies(monkeypatch)
    a, b, c = arrays()
    reversed_rows, single = b[::-1], np.ones((1024, 1024), "float32")
    with chosen(Bench(), product(a, reversed_rows, c)) as chosen_one:
        assert paths(chosen_one.choice.problem) == ["direct", "staged", "direct"]
    with chosen(Bench(), product(a, single, c)) as chosen_one:  # load1 converts it
        assert paths(chosen_one.choice.problem) == ["direct", "staged", "direct"]
    with chosen(Bench(), product(a, b, c, conj=True)) as chosen_one:
        assert paths(chosen_one.choice.problem) == ["staged", "direct", "direct"]
    with chosen(Bench(), product(a, b, c, beta=1.0)) as chosen_one:  # store2 adds beta·C
        assert paths(chosen_one.choice.problem) == ["direct", "direct", "staged"]


def test_an_array_that_the_driver_refuses_goes_through_staging(monkeypatch):
    slow_copies(monkeypatch)
    bench = Bench(faults=[Fault("hostRegister", 1, 1)])  # the first one measures the cost
    a, b, c = arrays()
    with chosen(bench, product(a, b, c)) as chosen_one:
        assert paths(chosen_one.choice.problem) == ["staged", "direct", "direct"]
        assert [bench.device.is_pinned(x) for x in (a, b, c)] == [False, True, True]
    assert not bench.device.is_pinned(b)


def test_dear_locking_is_left_alone(monkeypatch):
    slow_copies(monkeypatch)
    bench = Bench()
    monkeypatch.setattr(type(bench.device), "pin_cost", lambda _self: PinSeconds(1.0, 1.0))
    with chosen(bench, product(*arrays())) as chosen_one:
        assert chosen_one.choice.register == ()
    assert bench.standin.count("hostRegister") == 0


def test_nothing_to_choose():
    bench = Bench()
    small = [np.ones((4, 4)) for _ in range(3)]
    with chosen(bench, product(*small)) as chosen_one:
        assert chosen_one is None
    host, work = HostDevice(), product(*arrays(64))
    with chosen_paths(work, work.problem(host.spec), OPTIONS, host) as chosen_one:
        assert chosen_one is None


def test_the_cost_is_measured_once():
    bench = Bench()
    first = bench.device.pin_cost()
    assert bench.device.pin_cost() is first
    assert bench.standin.count("hostRegister") == 1
