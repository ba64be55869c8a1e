"""The load balance in virtual time, compared with the best fixed split and the best device."""

import pytest

from bench.split import best_static
from bench.virtual_pool import Speed, run_pool
from hdgemm.run.balance import PoolMember

SIDE = 16000
ELEMENTS = SIDE * SIDE
RATE = 1e6
#: Seconds that two devices of this rate need together.
EVEN = ELEMENTS / (2 * RATE)


def members(speeds, known, tile=(2000, 2000)):
    return {
        name: PoolMember(
            tile, speed.steps[0][0] if known else 0.2 * RATE, known,
            "bottom" if name == "cpu" else "top",
        )
        for name, speed in speeds.items()
    }  # fmt: skip


def run(speeds, known, **keywords):
    outcome = run_pool(SIDE, SIDE, members(speeds, known, **keywords), speeds)
    assert sum(outcome.elements.values()) == ELEMENTS
    return outcome


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("tile", [(2000, 2000), (2000, 8000)])
@pytest.mark.parametrize("slower", [1, 3, 10, 30])
def test_steady_speeds(slower, known, tile):
    speeds = {"gpu": Speed.steady(RATE), "cpu": Speed.steady(RATE / slower)}
    outcome = run(speeds, known, tile=tile)
    assert outcome.seconds <= 1.02 * best_static(ELEMENTS, speeds)
    assert outcome.imbalance <= 0.02


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("tile", [(2000, 2000), (2000, 8000)])
@pytest.mark.parametrize(
    "cpu",
    [
        Speed(((RATE, EVEN / 2), (RATE / 10, 1.0))),
        Speed(((RATE / 10, EVEN / 2), (RATE, 1.0))),
        Speed(((RATE, EVEN / 2), (RATE / 3, 1.0))),
        Speed(((RATE, EVEN / 10), (RATE / 10, EVEN / 10)), repeats=True),
        Speed(((RATE, EVEN / 100), (RATE / 3, EVEN / 100)), repeats=True),
    ],
    ids=["falls", "rises", "falls-to-a-third", "periodic", "fast-periodic"],
)
def test_speeds_that_change_in_mid_run(cpu, known, tile):
    speeds = {"gpu": Speed.steady(RATE), "cpu": cpu}
    outcome = run(speeds, known, tile=tile)
    assert outcome.seconds <= 1.05 * best_static(ELEMENTS, speeds)
    assert outcome.imbalance <= 0.02


@pytest.mark.parametrize("known", [True, False])
def test_three_devices(known):
    speeds = {name: Speed.steady(RATE / by) for name, by in (("a", 1), ("b", 3), ("cpu", 10))}
    outcome = run(speeds, known)
    assert outcome.seconds <= 1.02 * best_static(ELEMENTS, speeds)
    assert outcome.imbalance <= 0.02


def test_learned_speeds_that_are_wrong():
    speeds = {"gpu": Speed.steady(RATE), "cpu": Speed.steady(RATE / 10)}
    swapped = {
        "gpu": PoolMember((2000, 2000), RATE / 10, measured=True),
        "cpu": PoolMember((2000, 2000), RATE, measured=True, side="bottom"),
    }
    assert run_pool(SIDE, SIDE, swapped, speeds).seconds <= 1.05 * best_static(ELEMENTS, speeds)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("overhead", [0.0, 0.005, 0.01])
@pytest.mark.parametrize("slower", [1, 10, 100, 1000])
def test_never_slower_than_the_best_alone(slower, overhead, known):
    """`overhead` is the cost of a piece relative to the time of a full tile."""
    extra = overhead * 2000 * 2000 / RATE
    speeds = {"gpu": Speed.steady(RATE, extra), "cpu": Speed.steady(RATE / slower, extra)}
    alone = run_pool(SIDE, SIDE, members({"gpu": speeds["gpu"]}, True), {"gpu": speeds["gpu"]})
    assert run(speeds, known).seconds <= 1.01 * alone.seconds
