"""Whole plans on a CUDA device, with streams in every order that CUDA allows."""

import gc
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.pipeline.devices.cuda import driven_by, open_device
from hdgemm.pipeline.devices.cuda.device import GRANULARITY
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem, planned_bytes
from hdgemm.pipeline.slots import Operands
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.shapes import Shape
from tests.pipeline.devices.cuda.cuda_bench import own_pages, page_locked, random
from tests.pipeline.devices.cuda.standin import Fault, StandIn
from tests.pipeline.devices.cuda.test_device import OPENED, ORDERS
from tests.reference import DTYPES, assert_close_in_eps

pytestmark = pytest.mark.usefixtures("one_blas_thread")

LADDER = ("initial", "double-buffering", "data-reuse", "data-placement")
SPEC = DeviceSpec("cuda:0", False, 1 << 30, 1 << 30, GRANULARITY)


class Run:
    """A product, its plan, and a run of it on a stand-in."""

    def __init__(
        self, extents, tile, *, strategy="data-placement", dtype="float64", trans=(False, False),
        beta=0.0, slots=(2, 2, 2), direct="",
    ):  # fmt: skip
        m, n, k = extents
        self.a, self.b = random((m, k), dtype, 1), random((k, n), dtype, 2)
        self.c = random((m, n), dtype, 3) if beta else np.full((m, n), np.nan, dtype)
        self.alpha, self.beta, self.direct = 1.25, beta, direct
        self.stored = [
            own_pages(x.T if t else x) for x, t in zip((self.a, self.b), trans, strict=True)
        ]
        specs = [
            OperandSpec(t, path="direct" if name in direct else "staged", itemsize=self.a.itemsize)
            for name, t in zip("ABC", (*trans, False), strict=True)
        ]
        problem = Problem(m, n, k, dtype, *specs, reads_c=beta != 0)
        shape = Shape(tile, tile[2], tile[2], slots)
        limits = Limits(1 << 30, 1 << 30)
        self.plan = build_plan(Case(problem, SPEC, strategy, limits), shape)

    def on(self, standin):
        self.out = own_pages(self.c)
        with driven_by(standin.api()):
            device = open_device("cuda:0")
        locked = [
            array
            for name, array in zip("ABC", (*self.stored, self.out), strict=True)
            if name in self.direct
        ]
        standin.calls.clear()
        a, b, c = (ArrayMatrix(x) for x in (*self.stored, self.out))
        with closing(device), page_locked(standin, *locked):
            return run_plan(
                self.plan, device, Operands(a, b, c, c, alpha=self.alpha, beta=self.beta)
            )

    def check(self):
        assert_close_in_eps(
            self.out, self.a, self.b, alpha=self.alpha, beta=self.beta,
            c=self.c if self.beta else None,
        )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    extents=st.tuples(*[st.sampled_from([1, 2, 3, 5, 7, 11])] * 3),
    tile=st.tuples(*[st.integers(1, 5)] * 3),
    strategy=st.sampled_from(LADDER),
    dtype=st.sampled_from(DTYPES),
    trans=st.tuples(st.booleans(), st.booleans()),
    beta=st.sampled_from([0.0, -0.5]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 100),
)
def test_every_plan_comes_out_right_in_every_order(
    extents, tile, strategy, dtype, trans, beta, order, seed
):
    run = Run(extents, tile, strategy=strategy, dtype=dtype, trans=trans, beta=beta)
    standin = StandIn(order=order, seed=seed)
    timeline = run.on(standin)
    run.check()
    planned = planned_bytes(run.plan)
    assert {s: stats.nbytes for s, stats in timeline.stages().items()} == {
        stage: nbytes for stage, nbytes in planned.items() if nbytes or stage in timeline.stages()
    }


@pytest.mark.parametrize("direct", ["A", "B", "AB", "C", "ABC"])
@pytest.mark.parametrize("order", ["lazy", "ahead:2", "ahead:3", "ahead:4"])
def test_page_locked_operands_move_without_staging(direct, order):
    run = Run((40, 50, 60), (16, 16, 16), trans=(True, False), direct=direct)
    timeline = run.on(StandIn(order=order))
    run.check()
    stages = timeline.stages()
    assert ("store2" in stages) == ("C" not in direct)
    assert ("load1" in stages) == (direct not in ("AB", "ABC"))
    assert stages["load2"].nbytes == planned_bytes(run.plan)["load2"]


@pytest.mark.parametrize("strategy", LADDER)
def test_the_bytes_that_the_driver_copies_are_the_plans(strategy):
    run, standin = Run((40, 30, 50), (16, 16, 16), strategy=strategy), StandIn()
    run.on(standin)
    moved = {1: 0, 2: 0}
    for call in standin.calls:
        if call.name == "memcpyAsync":
            moved[call.args[3]] += call.args[2]
        elif call.name == "memcpy2DAsync":
            moved[call.args[6]] += call.args[4] * call.args[5]
    planned = planned_bytes(run.plan)
    assert moved == {1: planned["load2"], 2: planned.get("store1", 0)}
    assert standin.count("dgemm") == run.plan.counts.steps


def test_the_mult_lane_enqueues_the_next_kernel_before_the_last_one_ends():
    """While inputs are there, the next kernel is enqueued before the last one is waited for."""
    run, standin = Run((64, 64, 64), (16, 16, 16), slots=(4, 4, 2)), StandIn()
    run.on(standin)
    names = [c.name for c in standin.calls if c.name in ("dgemm", "streamSynchronize", "malloc")]
    last = len(names) - 1 - names[::-1].index("dgemm")
    first = names.index("dgemm")
    assert set(names[first : last + 1]) == {"dgemm"}


def test_the_same_plan_gives_the_same_bits():
    results = []
    for order in ORDERS:
        run = Run((33, 35, 37), (16, 16, 16))
        run.on(StandIn(order=order))
        results.append(run.out.tobytes())
    assert len(set(results)) == 1


FAULTS = (
    Fault("malloc", 1, 2),
    Fault("hostRegister", 1, 2),
    Fault("memcpyAsync", 2, 1),
    Fault("memcpyAsync", 2, 719, late=True),
    Fault("dgemm", 3, 13),
    Fault("dgemm", 3, 700, late=True),
    Fault("eventSynchronize", 9, 999),
    Fault("eventCreateWithFlags", 9, 2),
    Fault("streamWaitEvent", 2, 400),
    Fault("eventElapsedTime", 3, 600),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}-{fault.status}")
def test_a_failing_call_surfaces_once_and_everything_is_given_back(fault):
    run, standin = Run((40, 30, 50), (16, 16, 16)), StandIn(faults=[fault], order="lazy")
    with pytest.raises((DeviceError, DoesNotFitError)) as caught:
        run.on(standin)
    assert f"asked to fail at call {fault.number}" in str(caught.value.__cause__)
    if fault.status == 2:
        assert isinstance(caught.value, DoesNotFitError)
    del caught
    gc.collect()
    if fault.status not in (700, 719, 999):  # a lost context takes everything with it
        assert standin.leaks() == {}


def test_events_do_not_pile_up_over_a_long_run():
    run, standin = Run((64, 64, 96), (8, 8, 8)), StandIn(order="random", seed=1)
    run.on(standin)
    assert run.plan.counts.steps > 500
    assert standin.count("eventCreateWithFlags") < 100


def test_intervals_of_one_stream_do_not_overlap():
    run = Run((64, 64, 64), (16, 16, 16))
    timeline = run.on(StandIn(order="random", seed=2))
    for stage in ("load2", "mult1", "store1"):
        events = [event for event in timeline.events if event.stage == stage]
        for before, after in pairwise(events):
            assert before.start <= before.end <= after.start + 1e-6


def test_device_memory_taken_by_another_process_is_an_error_with_numbers():
    device_bytes = OPENED + (4 << 20)
    run, standin = Run((64, 64, 64), (32, 32, 32)), StandIn(device_bytes=device_bytes)
    with pytest.raises(DoesNotFitError) as caught:
        run.on(standin)
    numbers = caught.value.numbers
    assert numbers["total"] == device_bytes
    assert numbers["missing"] == numbers["requested"] - numbers["free"] > 0
