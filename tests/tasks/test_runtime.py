"""The runtime on the host: correct factors, fixed bits, first error, cancellation."""

import threading

import numpy as np
import pytest
import scipy.linalg

from hdgemm.errors import CancelledRunError, InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.tasks.runtime import Runtime
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tiles import TaskTile
from tests.tasks.factorisations import NAMES, factor, host, matrix_for, ratio

SHAPES = {"cholesky": [(40, 40)], "lu": [(40, 40), (40, 25), (25, 40)],
          "calu": [(40, 40), (40, 25), (25, 40)], "qr": [(40, 40), (40, 25), (25, 40)]}  # fmt: skip
CASES = [(name, shape) for name in NAMES for shape in SHAPES[name]]


def widths_of(shape):
    """Panels of changing width with a cut at the last row of a wide matrix."""
    first = [9, 8, 5, 3] if shape[1] >= 25 else []
    rest = shape[1] - sum(first)
    return [*first, *([rest] if rest else [])]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("lookahead", [True, False])
def test_ratio(name, shape, dtype, lookahead):
    a, widths = matrix_for(name, shape, dtype), widths_of(shape)
    with Runtime([host(lanes=2)]) as runtime:
        found = factor(name, runtime, a, widths, lookahead=lookahead)
    assert ratio(name, a, found, widths) < 30


@pytest.mark.parametrize("name", ["lu", "qr"])
def test_a_last_panel_that_is_wider_than_high(name):
    a = matrix_for(name, (25, 40))
    with Runtime([host(lanes=2)]) as runtime:
        found = factor(name, runtime, a, [10, 10, 10, 10])
    assert ratio(name, a, found, [10] * 4) < 30


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_do_not_depend_on_lanes_window_or_priorities(name):
    a, widths = matrix_for(name, (60, 60)), [7] * 8 + [4]
    results = []
    for lanes, window, priorities in [(1, 1, True), (2, 5, False), (3, 1000, True), (5, 64, True)]:
        with Runtime([host(lanes)], window=window, priorities=priorities) as runtime:
            results.append(factor(name, runtime, a, widths)[0].tobytes())
    assert len(set(results)) == 1


def test_pivots_are_lapacks():
    a = matrix_for("lu", (50, 50))
    with Runtime([host(lanes=2)]) as runtime:
        _, pivots = factor("lu", runtime, a, [16, 16, 16, 2])
    assert pivots.tolist() == scipy.linalg.lu_factor(a)[1].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_events_cover_all_tasks_and_the_observer_sees_them(name):
    seen = []
    with Runtime([host(lanes=2)], observer=seen.append) as runtime:
        array = matrix_for(name, (30, 30))
        factor(name, runtime, array, [10, 10, 10])
        timeline = runtime.finish()
    assert sorted(timeline.events) == sorted(seen)
    assert {event.device for event in seen} == {"host"}
    assert {event.unit for event in seen} == {0, 1, 2}


def test_a_matrix_that_is_not_positive_definite():
    a = matrix_for("cholesky", (40, 40))
    a[25, 25] = -1
    with pytest.raises(SingularMatrixError, match="order 26") as error, \
            Runtime([host(lanes=2)]) as runtime:  # fmt: skip
        factor("cholesky", runtime, a, [10] * 4)
    assert error.value.order == 26


def failing(number, calls, lock=threading.Lock()):  # noqa: B008
    def run():
        with lock:
            calls.append(number)
        if number == 3:
            raise ZeroDivisionError(number)

    return run


def test_the_first_error_stops_the_run_and_is_raised_once():
    calls, tile = [], TaskTile("x", 8)

    def insert_many(runtime):
        for number in range(1000):
            runtime.insert(Kernel("gemm", host=failing(number, calls)), writes=[tile])
        runtime.finish()

    with pytest.raises(ZeroDivisionError), Runtime([host(lanes=3)], window=4) as runtime:
        insert_many(runtime)
    assert calls == [0, 1, 2, 3]


def test_an_error_of_the_caller_stops_the_run():
    tile, running = TaskTile("x", 8), threading.Event()

    def interrupted():
        with Runtime([host()]) as runtime:
            runtime.insert(Kernel("gemm", host=running.set), writes=[tile])
            assert running.wait(240)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not [t for t in threading.enumerate() if t.name.startswith("hdgemm-task")]


def test_cancelling_stops_a_run_that_waits():
    cancel, tile = threading.Event(), TaskTile("x", 8)

    def cancelled():
        with Runtime([host()], cancel=cancel) as runtime:
            runtime.insert(Kernel("gemm", host=cancel.set), writes=[tile])
            runtime.insert(Kernel("gemm", host=lambda: cancel.wait(240)), writes=[tile])
            runtime.finish()

    with pytest.raises(CancelledRunError):
        cancelled()


def test_the_window_bounds_the_unfinished_tasks():
    gate, tile, most = threading.Event(), TaskTile("x", 8), []
    with Runtime([host()], window=7) as runtime:
        runtime.insert(Kernel("gemm", host=lambda: gate.wait(240)), writes=[tile])
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        for _ in range(50):
            runtime.insert(
                Kernel("gemm", host=lambda: most.append(runtime._dispatcher.graph.unfinished)),
                writes=[tile],
            )
        runtime.finish()
        opener.join()
    assert max(most) <= 7


def test_a_kind_that_no_device_runs_is_refused():
    with pytest.raises(InputError, match="no device can run fft"), Runtime([host()]) as runtime:
        runtime.insert(Kernel("fft"))


def test_no_tasks_and_empty_matrices():
    with Runtime([host()]) as runtime:
        assert runtime.finish().events == ()
    for name in NAMES:
        with Runtime([host()]) as runtime:
            found = factor(name, runtime, np.zeros((0, 0), order="F"), [])
        assert found[0].shape == (0, 0)
