"""Bytes held and moved, with primes so that a wrong term shows."""

from dataclasses import replace

import numpy as np
import pytest

from hdgemm.machine.rates import Machine
from hdgemm.options import Options
from hdgemm.pipeline.plan import NO_SLOTS, DeviceSpec, OperandSpec, Problem, planned_bytes
from hdgemm.pipeline.slots import PHASE_BYTES
from hdgemm.planning.build import build_plan
from hdgemm.planning.byte_counts import slot_bytes, staging
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.planner import plan_for
from hdgemm.planning.shapes import Shape, Shapes, least_need

M, N, K = 101, 103, 107
MB, NB, KB = 13, 17, 19
HOST = DeviceSpec()
GPU = DeviceSpec("cuda:0", unified=False)
PACKED = DeviceSpec("opencl:0", unified=False, granularity=(8, 24, 4))
FILE = OperandSpec(place="file")
SHAPE = Shape((MB, NB, KB), 3 * KB, 2 * KB, (5, 7, 2))


@pytest.mark.parametrize(
    ("operand", "rows", "cols", "dense", "packed"),
    [
        ("A", MB, KB, 13 * 19 * 8, 16 * 20 * 8),
        ("B", KB, NB, 19 * 17 * 8, 20 * 24 * 8),
        ("C", MB, NB, 13 * 17 * 8, 13 * 17 * 8),
    ],
)
def test_slots_take_the_tile_in_the_device_s_granularity(operand, rows, cols, dense, packed):
    problem = Problem(M, N, K)
    assert slot_bytes(problem, GPU, operand, rows, cols) == dense
    assert slot_bytes(problem, PACKED, operand, rows, cols) == packed


def test_a_file_s_tile_has_room_for_its_phase_where_it_is_read_in_place():
    problem = Problem(M, N, K, a=FILE)
    assert slot_bytes(problem, HOST, "A", MB, KB) == MB * KB * 8 + PHASE_BYTES
    assert slot_bytes(problem, HOST, "B", KB, NB) == KB * NB * 8
    assert slot_bytes(problem, GPU, "A", MB, KB) == MB * KB * 8


def test_slots_hold_elements_as_they_are_multiplied():
    problem = Problem(M, N, K, dtype="complex64", a=OperandSpec(itemsize=16))
    assert slot_bytes(problem, GPU, "A", MB, KB) == MB * KB * 8


def case(problem, device=GPU, strategy="data-placement", limit=10**6):
    return Case(problem, device, strategy, Limits(limit, limit))


def test_a_plan_holds_what_its_slots_and_rings_take():
    plan = build_plan(case(Problem(M, N, K)), SHAPE)
    assert plan.a_slots.total == 5 * MB * 3 * KB * 8
    assert plan.b_slots.total == 7 * 2 * KB * NB * 8
    assert plan.c_slots.total == 2 * MB * NB * 8
    assert plan.device_bytes == (5 * MB * 3 * KB + 7 * 2 * KB * NB + 2 * MB * NB) * 8
    assert plan.host_bytes == plan.up.total + plan.down.total


def test_the_kernel_s_own_staging_counts_as_host_memory():
    plan = build_plan(case(Problem(M, N, K), strategy="data-reuse"), SHAPE)
    assert plan.device_bytes == (5 * MB * 3 * KB + 7 * 2 * KB * NB) * 8
    assert plan.down == NO_SLOTS
    assert plan.host_bytes == plan.up.total + 2 * MB * NB * 8


@pytest.mark.parametrize("room", [3_000, 10_000, 10**6, 10**9])
@pytest.mark.parametrize("place", ["memory", "file"])
def test_staging_stays_within_its_room_and_holds_a_row(room, place):
    problem = Problem(M, N, K, a=OperandSpec(trans=True, place=place), c=OperandSpec(place=place))
    tiles = {"A": (MB, KB), "B": (KB, NB), "C": (MB, NB)}
    up, down = (ring.slots() for ring in staging(case(problem, limit=room), tiles, 2))
    phase = PHASE_BYTES if place == "file" else 0
    assert up.nbytes >= max(MB * 8 + phase, NB * 8)
    assert down.nbytes >= NB * 8 + phase
    if room > 2 * (MB * 8 + PHASE_BYTES):
        assert up.total + down.total <= room


def test_what_is_not_staged_needs_no_ring():
    direct = OperandSpec(path="direct")
    tiles = {"A": (MB, KB), "B": (KB, NB), "C": (MB, NB)}
    assert staging(case(Problem(M, N, K, a=direct, b=direct)), tiles, 2).up.slots() == NO_SLOTS
    assert staging(case(Problem(M, N, K, c=direct)), tiles, 2).down.slots() == NO_SLOTS
    rings = staging(case(Problem(M, N, K), HOST), tiles, 2)
    assert [ring.slots() for ring in rings] == [NO_SLOTS, NO_SLOTS]


@pytest.mark.parametrize("device", [HOST, GPU, PACKED])
@pytest.mark.parametrize("strategy", ["data-placement", "data-reuse"])
@pytest.mark.parametrize("reads_c", [False, True])
def test_the_search_counts_what_the_plan_holds(device, strategy, reads_c):
    problem = Problem(M, N, K, a=FILE, c=FILE, reads_c=reads_c)
    planned = case(problem, device, strategy, 10**7)
    plan = build_plan(planned, SHAPE)
    one, many = least_need(planned, SHAPE), least_need(planned, Shapes.of(SHAPE))
    assert [int(np.asarray(x).item()) for x in many] == [int(x) for x in one]
    assert one.device == plan.device_bytes
    rings = plan.up.total + plan.down.total
    assert one.host <= plan.host_bytes <= one.host + rings
    assert one.largest == max(x.nbytes for x in (plan.a_slots, plan.b_slots, plan.c_slots))


def test_bytes_of_each_stage():
    problem = Problem(
        M, N, K, dtype="float64", a=OperandSpec(itemsize=4), c=OperandSpec(itemsize=4), reads_c=True
    )
    plan = plan_for(problem, Options(tile=(MB, NB, KB)), GPU, Machine())
    a_area = sum(x.rect.rows * x.rect.cols for x in plan.course.loads() if x.operand == "A")
    b_area = sum(x.rect.rows * x.rect.cols for x in plan.course.loads() if x.operand == "B")
    assert planned_bytes(plan) == {
        "load1": a_area * 4 + b_area * 8,
        "load2": (a_area + b_area) * 8,
        "mult1": 0,
        "store1": M * N * 8,
        "store2": 2 * M * N * 4,
    }


def test_what_is_used_in_place_is_not_moved():
    resident = OperandSpec(path="resident")
    problem = Problem(M, N, K, b=resident, c=resident)
    plan = plan_for(problem, Options(tile=(MB, NB, KB)), HOST, Machine())
    moved = planned_bytes(plan)
    assert moved == dict.fromkeys(moved, 0) | {"load1": moved["load1"]}
    assert moved["load1"] >= M * K * 8
    assert plan.b_slots == plan.c_slots == NO_SLOTS
    whole = plan_for(replace(problem, a=resident), Options(host_memory=1), HOST, Machine())
    assert whole.in_place
    assert not any(planned_bytes(whole).values())
    assert whole.host_bytes == 0
