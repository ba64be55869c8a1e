"""Progress: snapshots from events, by a clock that the test turns."""

import threading

import pytest

from hdgemm.pipeline.timeline import Event
from hdgemm.progress import ProgressMeter, Work

WORK = Work(flops=4_000, steps=4, units=1, store_bytes=800)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def mult(number, start, end, flops=1_000):
    return Event("host", "mult1", number, 0, number, start, end, 0, flops)


@pytest.fixture
def run():
    clock, seen = Clock(), []
    return clock, seen, ProgressMeter(WORK, seen.append, interval=0.1, clock=clock)


def test_percent_counts_steps_and_stores(run):
    clock, seen, meter = run
    for number in range(4):
        clock.now += 1.0
        meter(mult(number, number, number + 0.5))
    clock.now += 1.0
    meter(Event("host", "store2", 0, 0, 3, 4.0, 4.25, 400, 0))
    clock.now += 1.0
    meter(Event("host", "store2", 1, 0, 3, 5.0, 5.25, 400, 0))
    assert [round(each.percent) for each in seen] == [20, 40, 60, 80, 90, 100]
    assert [each.steps for each in seen] == [1, 2, 3, 4, 4, 4]
    assert seen[0].total_steps == 4


def test_speed_and_eta_follow_the_clock(run):
    clock, seen, meter = run
    clock.now += 2.0
    meter(mult(0, 0.0, 2.0))
    assert seen[0].elapsed == pytest.approx(2.0)
    assert seen[0].gflops == pytest.approx(1_000 / 2.0 / 1e9)
    assert seen[0].eta == pytest.approx(8.0)


def test_no_eta_before_the_first_step(run):
    clock, seen, meter = run
    clock.now += 1.0
    meter(Event("host", "load1", 0, 0, 0, 0.0, 1.0, 64, 0))
    assert seen[0].eta is None
    assert seen[0].percent == 0.0
    assert seen[0].limit == "load1"


def test_the_busiest_stage_limits(run):
    clock, seen, meter = run
    clock.now += 1.0
    meter(Event("host", "load1", 0, 0, 0, 0.0, 0.3, 64, 0))
    # Two requests at once keep the lane busy no longer than the union of both.
    meter(Event("host", "load1", 1, 0, 0, 0.0, 0.3, 64, 0))
    meter(mult(0, 0.3, 0.8))
    meter.finish()
    assert seen[-1].limit == "mult1"


def test_calls_keep_their_distance(run):
    clock, seen, meter = run
    for number in range(50):
        clock.now += 0.01
        meter(mult(number, 0.0, 0.0, flops=1))
    assert len(seen) in (4, 5)


def test_finish_always_tells(run):
    _, seen, meter = run
    meter.finish()
    assert len(seen) == 1


def test_a_run_with_nothing_to_do_is_done():
    seen = []
    ProgressMeter(Work(0, 0, 0, 0), seen.append).finish()
    assert seen[0].percent == 100.0


def test_what_the_callback_raises_reaches_the_caller_and_frees_the_lock():
    clock = Clock()

    def refuse(progress):
        raise RuntimeError("enough")

    meter = ProgressMeter(WORK, refuse, clock=clock)
    for _ in range(2):
        clock.now += 1.0
        with pytest.raises(RuntimeError, match="enough"):
            meter(mult(0, 0.0, 0.5))


def test_lanes_never_call_back_two_at_a_time():
    inside, worst = [], []

    def callback(progress):
        inside.append(None)
        worst.append(len(inside))
        inside.pop()

    meter = ProgressMeter(Work(8_000, 8_000, 0, 0), callback, interval=0.0)

    def lane():
        for number in range(2_000):
            meter(mult(number, 0.0, 0.0, flops=1))

    lanes = [threading.Thread(target=lane) for _ in range(4)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    meter.finish()
    assert max(worst) == 1
    assert meter._flops == 8_000
