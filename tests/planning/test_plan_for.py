"""The one way to a plan: every byte of the limit is accounted for, alone and with members."""

from dataclasses import replace

import pytest

from hdgemm.errors import DoesNotFitError
from hdgemm.machine.rates import H200, HOST
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.pipeline.plans import Plans
from hdgemm.pipeline.validate import validate
from hdgemm.planning.case import case_for
from hdgemm.planning.planner import plan_for

FILE = OperandSpec(place="file")
RESIDENT = OperandSpec(path="resident")
IN_FILES = Problem(701, 709, 719, a=FILE, b=FILE, c=FILE)
IN_RAM = Problem(701, 709, 719)
GPU = DeviceSpec("cuda:0", unified=False, memory_bytes=10**6 + 3)
LIMIT = 2_000_003


@pytest.mark.parametrize("device", [DeviceSpec(), GPU])
@pytest.mark.parametrize("verify", [False, "tiles"])
@pytest.mark.parametrize("problem", [IN_FILES, IN_RAM])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_plan_leaves_room_for_bounce_buffers_and_checks(device, verify, problem, members):
    options = Options(host_memory=LIMIT, verify=verify)
    plan = plan_for(problem, options, device, HOST, members=members)
    share = LIMIT // members
    room = share - share * members // (2 if problem.in_files else 8) // members
    assert plan.host_limit == share
    assert plan.host_bytes <= (room - room // 32 if verify else room)
    checked_device = verify and not device.unified
    memory = device.limit() or share
    allowed = memory - (memory // 32 if checked_device else 0)
    assert plan.device_limit == allowed
    assert plan.device_bytes <= allowed
    if members == 1:
        validate(plan)


@pytest.mark.parametrize(
    ("device", "problem", "verify", "members", "host", "on_device"),
    [
        # An eighth of the whole is reserved beside the plan, half of it with files, and a 32nd of
        # the rest for checks. Each of three members has 666,667 of 2,000,003 bytes.
        (DeviceSpec(), IN_RAM, False, 1, 2_000_003 - 250_000, LIMIT),
        (DeviceSpec(), IN_RAM, False, 3, 666_667 - 83_333, 666_667),
        (DeviceSpec(), IN_FILES, False, 1, 2_000_003 - 1_000_001, LIMIT),
        (DeviceSpec(), IN_FILES, False, 3, 666_667 - 333_333, 666_667),
        (DeviceSpec(), IN_FILES, "tiles", 1, 1_000_002 - 31_250, LIMIT),
        (GPU, IN_RAM, False, 1, 1_750_003, 1_000_003),
        (GPU, IN_RAM, "tiles", 1, 1_750_003 - 54_687, 1_000_003 - 31_250),
        (GPU, IN_FILES, "tiles", 3, 333_334 - 10_416, 1_000_003 - 31_250),
    ],
)
def test_the_limits_of_a_case_are_exact(device, problem, verify, members, host, on_device):
    options = Options(host_memory=LIMIT, verify=verify)
    case = case_for(problem, options, device, HOST, members)
    assert (case.limits.host, case.limits.device) == (host, on_device)
    assert case.machine.host_bytes == LIMIT // members


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("verify", [False, "tiles"])
@pytest.mark.parametrize("tile", [None, (5, 6, 4)])
@pytest.mark.parametrize("limit", [1, 5_000])
def test_the_memory_that_is_asked_for_is_enough(members, verify, tile, limit):
    """Tiles get half of a small limit: twice the bytes that they lack are missing."""
    problem = replace(IN_FILES, m=12, n=10, k=9)

    def plan(memory):
        options = Options(host_memory=memory, verify=verify, tile=tile)
        return plan_for(problem, options, DeviceSpec(), HOST, members=members)

    with pytest.raises(DoesNotFitError) as caught:
        plan(limit)
    assert (caught.value.limit, caught.value.available) == ("host_memory", limit)
    assert caught.value.requested == limit + caught.value.missing
    plan(caught.value.requested)
    with pytest.raises(DoesNotFitError):
        plan(caught.value.requested - 1)


def test_large_limits_leave_at_most_the_buffers_themselves():
    options = Options(host_memory="10GB", verify="tiles")
    case = case_for(IN_FILES, options, DeviceSpec(), HOST, 1)
    assert case.limits.host == 10**10 - (12 << 20) - (4 << 20) - (32 << 20)


def test_the_machine_limits_the_host_memory_where_the_options_do_not():
    machine = replace(HOST, host_bytes=LIMIT)
    by_machine = plan_for(IN_FILES, Options(), DeviceSpec(), machine)
    by_options = plan_for(IN_FILES, Options(host_memory=LIMIT), DeviceSpec(), HOST)
    assert by_machine == by_options


@pytest.mark.parametrize("members", [2, 3])
def test_a_member_s_plan_leaves_tiles_to_balance_with(members):
    n = 4096
    spec = DeviceSpec("cuda:0", unified=False, memory_bytes=1 << 30)
    plan = plan_for(Problem(n, n, n), Options(host_memory="8GB"), spec, H200, members=members)
    assert (plan.problem.m, plan.problem.n) == (n, n)
    assert plan.tile[0] <= max(256, -(-n // (2 * members)))
    assert plan.tile[1] <= n // 2
    assert plan.expected is not None
    assert plan.expected.seconds >= plan.problem.flops / H200.flop_rate("float64") / 2
    text = str(Plans([plan] * members))
    assert "without the other devices, expected: " in text
    assert "steps" not in text


def test_a_product_in_place_is_one_call():
    problem = Problem(60, 50, 40, a=RESIDENT, b=RESIDENT, c=RESIDENT)
    plan = plan_for(problem, Options(), DeviceSpec(), HOST)
    assert plan.in_place
    assert (plan.counts[1:], plan.host_bytes) == ((1, 1, 0), 0)
    assert not plan_for(problem, Options(tile=(16, 16, 16)), DeviceSpec(), HOST).in_place
    assert not plan_for(problem, Options(), DeviceSpec(), HOST, members=2).in_place
