"""Task graphs in virtual time: schedules of known length, and the options that shorten them."""

import pytest

from hdgemm.errors import DoesNotFitError
from hdgemm.tasks._panel_widths import panel_widths
from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, deal, even_widths, update_weights
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tiles import TaskTile
from hdgemm.tasks.virtual_time import VirtualRun
from tests.tasks.factorisations import device, host

N, WIDTH = 4096, 128


def run(name, capabilities, weights=None, *, lookahead=True, **how):
    virtual = VirtualRun(capabilities, **how)
    columns = BlockColumns.cut(
        (N, N), [WIDTH] * (N // WIDTH), lower=name == "cholesky", weights=weights
    )
    ALGORITHMS[name](columns, virtual.insert, lookahead=lookahead)
    return virtual, virtual.finish()


def test_a_chain_on_one_lane_takes_the_sum_of_its_tasks():
    virtual, tile = VirtualRun([host(rate=100.0)]), TaskTile("x", 8)
    for _ in range(5):
        virtual.insert(Kernel("gemm", 200), reads=[tile], writes=[tile])
    assert virtual.finish().seconds == pytest.approx(10.0)


def test_independent_tasks_fill_the_lanes():
    virtual = VirtualRun([host(lanes=3, rate=100.0)])
    for _ in range(6):
        virtual.insert(Kernel("gemm", 200), writes=[TaskTile("x", 8)])
    assert virtual.finish().seconds == pytest.approx(4.0)


def test_transfers_overlap_the_running_task_and_results_come_back():
    gpu = device("gpu", 100.0, up=10.0, down=20.0)
    virtual = VirtualRun([gpu])
    for _ in range(2):
        tile = TaskTile("x", 40)
        virtual.insert(Kernel("gemm", 1000), reads=[tile], writes=[tile])
    timeline = virtual.finish()
    # 4 s up; 10 s, 10 s of work, the second upload beside the first task; 2 s down, twice.
    assert timeline.seconds == pytest.approx(4 + 20 + 4)
    assert [event.stage for event in timeline.events].count("load2") == 2


def test_a_task_runs_where_its_data_is_unless_another_device_is_sooner():
    slow, fast = device("slow", 100.0, up=1.0), device("fast", 300.0, up=1.0)
    virtual, tile = VirtualRun([slow, fast]), TaskTile("x", 50)
    virtual.insert(Kernel("gemm", 100), reads=[tile], writes=[tile], where="slow")
    virtual.insert(Kernel("gemm", 100), reads=[tile], writes=[tile])
    virtual.insert(Kernel("gemm", 100), writes=[TaskTile("y", 50)])
    events = [event for event in virtual.finish().events if event.stage == "mult1"]
    assert {event.number: event.device for event in events} == {0: "slow", 1: "slow", 2: "fast"}


def test_a_device_smaller_than_the_matrix_evicts_and_writes_back():
    column = N * WIDTH * 8
    limited = device("gpu", 1e12, memory_bytes=6 * column)
    virtual, timeline = run("lu", [host(rate=1e10), limited])
    residency = virtual.dispatcher.residency
    assert residency.peak_bytes["gpu"] <= 6 * column
    whole = run("lu", [host(rate=1e10), device("gpu", 1e12)])[1]
    assert timeline.seconds > whole.seconds
    assert timeline.stages()["store1"].nbytes > whole.stages()["store1"].nbytes


def test_a_device_that_cannot_hold_one_task_says_so():
    virtual = VirtualRun([device("gpu", memory_bytes=100)])
    with pytest.raises(DoesNotFitError, match="choose narrower panels") as error:
        virtual.insert(Kernel("gemm"), reads=[TaskTile("a", 80)], writes=[TaskTile("b", 80)])
    assert error.value.requested == 80


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_window_bounds_the_tasks(name):
    virtual, timeline = run(name, [host(), device("gpu", 1e10)], window=50)
    assert virtual.most_unfinished == 50
    assert timeline.seconds > 0


def test_columns_are_dealt_in_proportion():
    owners = deal(23, {"k20c": 10, "phi": 8, "beta": 5})
    assert [owners.count(name) for name in ("k20c", "phi", "beta")] == [10, 8, 5]
    assert deal(6, {"a": 1, "b": 1}) == ["a", "b"] * 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_columns_in_proportion_beat_uniform_ones_with_devices_of_1_to_3(name):
    machine = [host(rate=5e11), device("slow", 1e11, up=1e12, down=1e12),
               device("fast", 3e11, up=1e12, down=1e12)]  # fmt: skip
    uniform = run(name, machine, {"slow": 1, "fast": 1})[1].seconds
    dealt = run(name, machine, {"slow": 1, "fast": 3})[1].seconds
    assert uniform / dealt >= 1.25


@pytest.mark.parametrize("name", ALGORITHMS)
def test_lookahead_and_priorities_hide_the_panels(name):
    machine = [host(rate=3e10), device("gpu", 1e12, up=1e12, down=1e12, memory=1e12)]
    weights = {"gpu": 1}
    best = run(name, machine, weights)[1].seconds
    assert best <= run(name, machine, weights, priorities=False)[1].seconds
    assert best < run(name, machine, weights, lookahead=False)[1].seconds


def test_the_host_takes_what_the_panels_leave_it():
    update = Kernel("gemm", 10**9)
    machine = [host(rate=1e11), device("gpu", 1e12)]
    weights = update_weights(machine, update, 0.0, "getrf")
    assert weights == pytest.approx({"host": 1e11, "gpu": 1e12})
    assert update_weights(machine, update, 0.05, "getrf")["host"] < 1e11
    assert "host" not in update_weights(machine, update, 1.0, "getrf")


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("shape", [(3000, 3000), (3000, 500), (500, 3000), (5, 5), (0, 7), (7, 0)])
def test_panels_cover_all_columns_and_get_narrower(name, shape):
    machine = [host(rate=3e10), device("gpu", 1e12, latency=1e-5)]
    widths = panel_widths(name, shape, machine)
    assert sum(widths) == shape[1]
    assert all(width > 0 for width in widths)
    if shape == (3000, 3000):
        factored = widths[:-1]
        assert sorted(factored, reverse=True) == list(factored)
        assert factored[0] > factored[-1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_panels_of_the_model_are_about_as_fast_as_the_best_of_one_width(name):
    """The model has the steps one after the other, virtual time has lookahead."""
    machine = [host(rate=3e10), device("gpu", 1e12, up=1e11, down=1e11, memory=1e11, latency=1e-5)]
    n = 2048

    def seconds(widths):
        virtual = VirtualRun(machine)
        cut = BlockColumns.cut((n, n), widths, lower=name == "cholesky", weights={"gpu": 1})
        ALGORITHMS[name](cut, virtual.insert)
        return virtual.finish().seconds

    chosen = seconds(panel_widths(name, (n, n), machine))
    assert chosen < 1.3 * min(seconds(even_widths(n, width)) for width in (64, 128, 256, 512))
