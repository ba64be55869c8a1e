"""The executor against NumPy: tiny tiles, injected faults, and a device that detects races."""

import gc
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm import Options, plan_gemm
from hdgemm.errors import CancelledRunError, DeviceError, HdgemmError
from hdgemm.matrices import arrays
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Wrapper
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from hdgemm.pipeline.dynamic_schedule import FixedSchedule
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import STAGES, OperandSpec, Problem, Slots, planned_bytes
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.slot_reuse import Batch
from hdgemm.pipeline.slots import Operands
from hdgemm.pipeline.timeline import MOST_EVENTS
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import OVERLAPS, Case as PlanCase, Limits
from hdgemm.planning.shapes import Shape
from tests.reference import assert_close_in_eps, reference_gemm

LIMITS = Limits(1 << 30, 1 << 30)
LADDER = ("initial", "double-buffering", "data-reuse", "data-placement")


class Case:
    """A product with its operands as stored, and a plan for it."""

    def __init__(
        self, extents, tile, *, strategy="data-placement", trans=(False, False), beta=0.0,
        slots=(2, 2, 2), depths=(1, 1), bars="columns", halvings=0, unified=False, seed=0,
    ):  # fmt: skip
        m, n, k = extents
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        self.c = rng.standard_normal((m, n)) if beta else np.full((m, n), np.nan)
        self.alpha, self.beta = 1.25, beta
        self.stored = (
            self.a.T.copy() if trans[0] else self.a,
            self.b.T.copy() if trans[1] else self.b,
        )
        problem = Problem(
            m, n, k, a=OperandSpec(trans[0]), b=OperandSpec(trans[1]), reads_c=beta != 0
        )
        device = HostDevice() if unified else RecordingDevice()
        kb = tile[2]
        # Only where loads overlap is a tile halved: elsewhere each part would load all of k anew.
        halvings = halvings if OVERLAPS[strategy].loads else 0
        shape = Shape(tile, min(k, depths[0] * kb), min(k, depths[1] * kb), slots, bars, halvings)
        self.plan = build_plan(PlanCase(problem, device.spec, strategy, LIMITS), shape)
        device.close()

    def run(self, device, **keywords):
        self.out = self.c.copy()
        a, b, out = (ArrayMatrix(x) for x in (*self.stored, self.out))
        return run_plan(
            self.plan, device, Operands(a, b, out, out, alpha=self.alpha, beta=self.beta),
            **keywords,
        )  # fmt: skip

    def check(self):
        assert_close_in_eps(
            self.out, self.a, self.b, alpha=self.alpha, beta=self.beta,
            c=self.c if self.beta else None,
        )  # fmt: skip


extents = st.tuples(*[st.sampled_from([1, 2, 3, 5, 7, 11, 13])] * 3)
tiles = st.tuples(*[st.integers(1, 5)] * 3)


@settings(max_examples=100, deadline=None)
@given(
    extents=extents,
    tile=tiles,
    strategy=st.sampled_from(LADDER),
    trans=st.tuples(st.booleans(), st.booleans()),
    beta=st.sampled_from([0.0, 1.0, -0.5]),
    slots=st.tuples(*[st.integers(1, 3)] * 3),
    depths=st.tuples(*[st.integers(1, 4)] * 2),
    bars=st.sampled_from(["rows", "columns"]),
    halvings=st.integers(0, 3),
    unified=st.booleans(),
    slab=st.sampled_from([16, arrays.SLAB_BYTES]),
)
def test_every_plan_computes_the_product_without_a_race(extents, tile, unified, slab, **plan):
    case = Case(extents, tile, unified=unified, **plan)
    device = HostDevice() if unified else RecordingDevice()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "SLAB_BYTES", slab)
        timeline = case.run(device)
    case.check()
    moved = {stage: stats.nbytes for stage, stats in timeline.stages().items()}
    assert {s: n for s, n in planned_bytes(case.plan).items() if n} == {
        s: n for s, n in moved.items() if n
    }
    device.close()
    if not unified:
        assert device.buffers == 0
        assert device.peak_held == case.plan.device_bytes


@pytest.mark.parametrize("strategy", LADDER)
@pytest.mark.parametrize("slow", ["upload", "gemm", "download"])
def test_no_race_whatever_is_slow(strategy, slow):
    case = Case((12, 10, 8), (3, 4, 2), strategy=strategy, beta=2.0)
    device = RecordingDevice(pace=lambda kind, amount: 0.002 if kind == slow else 0.0)
    case.run(device)
    case.check()
    device.close()


def slow_copies(monkeypatch, fails=lambda _: False):
    """Let copies of slabs take their time, each another, and some of them fail; return them."""
    monkeypatch.setattr(arrays, "SLAB_BYTES", 16)
    right, seen, lock = arrays._copy, [], threading.Lock()

    def copy(target, source):
        with lock:
            seen.append(target.nbytes)
            number = len(seen)
        time.sleep((number * 7 % 5) * 1e-4)
        if fails(number):
            raise MemoryError("no memory for a copy")
        right(target, source)

    monkeypatch.setattr(arrays, "_copy", copy)
    return seen


@pytest.mark.parametrize("strategy", LADDER)
@pytest.mark.parametrize("unified", [False, True])
def test_copies_that_overlap_give_the_product(monkeypatch, strategy, unified):
    slow_copies(monkeypatch)
    case = Case((13, 11, 8), (5, 4, 3), strategy=strategy, beta=2.0, unified=unified)
    device = HostDevice() if unified else RecordingDevice()
    timeline = case.run(device)
    case.check()
    for stage in ("load1", "store2"):  # one row of a picture
        events = [event for event in timeline.events if event.stage == stage]
        assert all(a.end <= b.start for a, b in pairwise(events))
    device.close()


@pytest.mark.parametrize("at", [1, 2, 30, 90])
def test_no_copy_runs_after_one_that_failed(monkeypatch, at):
    seen = slow_copies(monkeypatch, fails=lambda number: number == at)
    case, device = Case((13, 11, 8), (5, 4, 3)), RecordingDevice()
    with pytest.raises(MemoryError, match="no memory for a copy"):
        case.run(device)
    assert device.buffers == 0
    count = len(seen)
    time.sleep(0.01)
    assert len(seen) == count
    device.close()


def test_the_same_plan_gives_the_same_bits():
    case = Case((23, 19, 31), (5, 4, 3))
    results = []
    for _ in range(3):
        device = RecordingDevice()
        case.run(device)
        results.append(case.out.tobytes())
        device.close()
    assert len(set(results)) == 1


def count_calls(case):
    device = RecordingDevice()
    case.run(device)
    device.close()
    return len(device.calls)


@pytest.mark.parametrize("strategy", LADDER)
@pytest.mark.parametrize("late", [False, True])
def test_a_fault_at_any_call_surfaces_once_and_frees_everything(strategy, late):
    case = Case((6, 5, 4), (3, 3, 2), strategy=strategy, beta=1.0)
    for call in range(count_calls(case)):
        device = RecordingDevice(fault=Fault(call, late=late))
        with pytest.raises(DeviceError, match=r"injected|failed"):
            case.run(device)
        assert device.buffers == 0
        device.close()
    lanes = {f"hdgemm-{stage}" for stage in STAGES}
    assert not [thread for thread in threading.enumerate() if thread.name in lanes]


class FailingMatrix(Wrapper):
    """Fails at the n-th read or write."""

    def __init__(self, matrix, at):
        super().__init__(matrix)
        self.left = at

    def count(self):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "the disk went away")

    def read(self, row, col, out):
        self.count()
        super().read(row, col, out)

    def write(self, row, col, tile):
        self.count()
        super().write(row, col, tile)


@pytest.mark.parametrize("operand", ["a", "c"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_failing_host_stage_surfaces_and_frees_everything(operand, at):
    case = Case((8, 6, 4), (2, 3, 2))
    out = np.zeros((8, 6))
    stores = {"a": ArrayMatrix(case.a), "c": ArrayMatrix(out)}
    stores[operand] = FailingMatrix(stores[operand], at)
    device = RecordingDevice()
    with pytest.raises(OSError, match="the disk went away"):
        run_plan(
            case.plan, device, Operands(stores["a"], ArrayMatrix(case.b), stores["c"], stores["c"])
        )
    assert device.buffers == 0
    device.close()


def test_cancelling_stops_within_an_operation_per_lane():
    case = Case((40, 40, 20), (2, 2, 2))
    cancel = threading.Event()
    device = RecordingDevice(pace=lambda kind, amount: 0.01)
    seen = []

    def observer(event):
        seen.append(event)
        if len(seen) >= 5:
            cancel.set()

    with pytest.raises(CancelledRunError):
        case.run(device, observer=observer, cancel=cancel)
    assert device.buffers == 0
    assert len(seen) < case.plan.counts.steps // 4
    device.close()


def test_what_an_observer_raises_stops_the_run():
    case = Case((8, 8, 8), (2, 2, 2))
    device = RecordingDevice()

    def observer(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        case.run(device, observer=observer)
    assert device.buffers == 0
    device.close()


def test_memory_is_refused_before_any_operation():
    case = Case((8, 8, 8), (4, 4, 4))
    device = RecordingDevice(memory_bytes=case.plan.device_bytes - 1)
    with pytest.raises(MemoryError, match="held"):
        case.run(device)
    assert device.buffers == 0
    assert not [call for call in device.calls if call.kind in ("upload", "gemm", "download")]
    device.close()


@pytest.mark.parametrize("unified", [False, True])
def test_a_refused_thread_stops_the_run_and_frees_everything(unified, monkeypatch):
    case = Case((8, 8, 8), (4, 4, 4), unified=unified)
    real = threading.Thread.start

    def start(thread):
        if thread.name == "hdgemm-store2":
            raise RuntimeError("can't start new thread")
        real(thread)

    device = HostDevice() if unified else RecordingDevice()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(HdgemmError, match="refused to start a thread"):
        case.run(device)
    assert unified or device.buffers == 0
    assert not [each for each in threading.enumerate() if each.name.startswith("hdgemm-mult")]
    device.close()


def test_inputs_are_never_written():
    case = Case((9, 8, 7), (4, 3, 2), beta=0.5)
    for array in case.stored:
        array.flags.writeable = False
    device = RecordingDevice()
    case.run(device)
    case.check()
    device.close()


def test_staging_rings_of_one_piece_work():
    case = Case((9, 8, 7), (4, 3, 2), beta=0.5)
    row = 7 * 8
    case.plan = replace(case.plan, up=Slots(1, row), down=Slots(1, row))
    device = RecordingDevice()
    case.run(device)
    case.check()
    device.close()


def test_schedule_needs_only_what_came_before():
    case = Case((12, 11, 10), (3, 4, 2), slots=(3, 2, 2), depths=(2, 1))
    schedule = build_schedule(case.plan)
    done = dict.fromkeys(schedule, 0)
    left = sum(len(ops) for ops in schedule.values())
    while left:
        ready = [
            stage
            for stage, ops in schedule.items()
            if done[stage] < len(ops)
            and all(done[s] >= count for s, count in ops[done[stage]].needs)
        ]
        assert ready, f"deadlock at {done}"
        for stage in ready:
            done[stage] += 1
        left -= len(ready)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("conj", [False, True])
def test_other_dtypes_and_conjugation_on_the_way(dtype, conj):
    rng = np.random.default_rng(5)
    parts = [rng.standard_normal((2, 7, 7)) for _ in range(2)]
    a, b = ((p[0] + 1j * p[1] if dtype[0] == "c" else p[0]).astype(dtype) for p in parts)
    problem = Problem(
        7, 7, 7, dtype, *(OperandSpec(itemsize=np.dtype(dtype).itemsize) for _ in range(3))
    )
    device = RecordingDevice()
    shape = Shape((3, 2, 4), 4, 4, (2, 2, 2))
    plan = build_plan(PlanCase(problem, device.spec, "data-placement", LIMITS), shape)
    out = np.zeros((7, 7), dtype)
    store = ArrayMatrix(out)
    run_plan(plan, device, Operands(ArrayMatrix(a), ArrayMatrix(b), store, store, conj_a=conj))
    assert_close_in_eps(out, a.conj() if conj else a, b)
    assert reference_gemm(1.0, a, b).dtype == out.dtype
    device.close()


class PlanFeed:
    """Gives the units of a plan, one at a time."""

    def __init__(self, plan):
        self.plan = plan
        self.left = list(plan.units)
        self.planned = list(plan.course.planned())
        self.stopped = False

    def draw(self):
        if not self.left or self.stopped:
            return None
        unit = self.left.pop(0)
        return Batch(unit, tuple(p for p in self.planned if p.unit == unit))

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize("unified", [False, True])
def test_units_drawn_one_by_one_compute_the_same_bits(unified):
    case = Case((13, 11, 9), (3, 4, 2), beta=0.5, unified=unified)
    device = HostDevice() if unified else RecordingDevice()
    planned = case.run(device)
    bits = case.out.tobytes()
    case.out[...] = case.c
    store = ArrayMatrix(case.out)
    stored = (ArrayMatrix(x) for x in case.stored)
    operands = Operands(*stored, store, store, alpha=case.alpha, beta=case.beta)
    feed = PlanFeed(case.plan)
    grown = run_plan(case.plan, device, operands, feed=feed)
    assert case.out.tobytes() == bits
    assert grown.stages().keys() == planned.stages().keys()
    assert feed.stopped
    device.close()


def test_a_unit_is_drawn_while_the_one_before_multiplies():
    case = Case((13, 11, 9), (3, 4, 9))
    third_drawn, multiplied = threading.Event(), []

    class Feed(PlanFeed):
        def draw(self):
            batch = super().draw()
            if batch is not None and batch.unit.number == 2:
                third_drawn.set()
            return batch

    def pace(kind, amount):
        if kind == "gemm":
            multiplied.append(kind)
            # The second unit multiplies until the third is drawn, which takes the first one's end.
            assert len(multiplied) != 2 or third_drawn.wait(240.0)
        return 0.0

    device = RecordingDevice(pace=pace)
    case.out = case.c.copy()
    store = ArrayMatrix(case.out)
    stored = (ArrayMatrix(x) for x in case.stored)
    operands = Operands(*stored, store, store, alpha=case.alpha)
    run_plan(case.plan, device, operands, feed=Feed(case.plan))
    case.check()
    device.close()


def test_a_fault_ends_a_run_whose_feed_would_go_on():
    case = Case((13, 11, 9), (3, 4, 2))
    device = RecordingDevice(fault=Fault(20))
    store = ArrayMatrix(np.zeros((13, 11)))
    operands = Operands(*(ArrayMatrix(x) for x in case.stored), store, store)
    feed = PlanFeed(case.plan)
    with pytest.raises(DeviceError, match="injected"):
        run_plan(case.plan, device, operands, feed=feed)
    assert feed.stopped
    assert device.buffers == 0
    device.close()


def test_freed_memory_is_really_freed():
    case = Case((8, 8, 8), (4, 4, 4), unified=True)
    case.run(HostDevice())
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "PageBuffer" and o.nbytes]


def test_a_long_run_keeps_few_events_and_all_sums():
    case = Case((48, 48, 48), (2, 2, 2))
    device = HostDevice()
    timeline = case.run(device)
    device.close()
    case.check()
    stages = timeline.stages()
    assert sum(stats.operations for stats in stages.values()) > MOST_EVENTS
    assert len(timeline.events) <= MOST_EVENTS
    moved = {stage: stats.nbytes for stage, stats in stages.items() if stats.nbytes}
    assert moved == {stage: n for stage, n in planned_bytes(case.plan).items() if n}
    flops = sum(stats.flops for stats in stages.values())
    assert flops == case.plan.problem.flops


def test_an_interrupted_stop_of_a_schedule_leaves_its_lock_free():
    class Interrupted(threading.Condition):
        def __enter__(self):
            super().__enter__()
            raise KeyboardInterrupt  # Ctrl-C, when the lock is acquired

    plan = plan_gemm(100, 100, 100, options=Options(devices="host", host_memory="60MB"))
    source = FixedSchedule(plan)
    source._changed = Interrupted()
    with suppress(KeyboardInterrupt):
        source.stop()
    free = []
    lane = threading.Thread(target=lambda: free.append(source._changed.acquire(timeout=1)))
    lane.start()
    lane.join()
    assert free == [True]
