"""What is too large or too slow to plan is refused, or named, from the numbers alone."""

import pytest

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.machine.rates import HOST, OPENCL
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.planning.planner import plan_for
from hdgemm.planning.search import MOST_STEPS

FILE = OperandSpec(place="file")
OPENCL_CPU = DeviceSpec(
    "opencl:0", unified=False, memory_bytes=24 << 30, max_buffer_bytes=12 << 30,
    granularity=(8, 48, 1),
)  # fmt: skip


def steps_of(problem, tile):
    m, n, k = problem.m, problem.n, problem.k
    mb, nb, kb = tile
    return -(-m // mb) * -(-n // nb) * -(-k // kb)


@pytest.mark.parametrize("tile", [(1, 1, 1), (3, 1, 7), (1, 5000, 1)])
@pytest.mark.parametrize("device", [DeviceSpec(), OPENCL_CPU])
def test_a_tile_with_too_many_steps_is_refused_with_one_that_works(tile, device):
    problem = Problem(5003, 5009, 5011)
    with pytest.raises(InputError, match="steps") as caught:
        plan_for(problem, Options(tile=tile), device, HOST)
    assert caught.value.steps == steps_of(problem, tile) > MOST_STEPS
    enough = caught.value.tile
    assert str(enough) in str(caught.value)
    assert steps_of(problem, enough) <= MOST_STEPS
    assert all(x % y == 0 or x in (5003, 5009, 5011) for x, y in zip(enough, tile, strict=True))


@pytest.mark.campaign
def test_the_search_takes_no_tiles_with_too_many_steps(caplog):
    problem = Problem(20_000, 20_000, 20_000, a=FILE, b=FILE, c=FILE)
    with pytest.raises(DoesNotFitError) as caught:
        plan_for(problem, Options(host_memory=100_000), DeviceSpec(), HOST)
    # Half of a small limit is for bounce buffers.
    enough = 2 * caught.value.requested
    plan = plan_for(problem, Options(host_memory=enough), DeviceSpec(), HOST)
    assert "expected to take" in caplog.text
    assert len(plan.steps) <= MOST_STEPS
    assert plan.host_bytes <= enough


@pytest.mark.campaign  # plans half a million steps
def test_staging_of_single_rows_is_refused_for_a_large_product():
    problem = Problem(32_768, 32_768, 32_768)
    with pytest.raises(DoesNotFitError, match="operations") as caught:
        plan_for(problem, Options(host_memory=60_000), OPENCL_CPU, OPENCL)
    enough = caught.value.requested
    plan = plan_for(problem, Options(host_memory=2 * enough), OPENCL_CPU, OPENCL)
    assert plan.host_bytes <= 2 * enough


def test_a_slow_plan_is_a_warning_with_both_times(caplog):
    problem = Problem(1500, 1500, 1500, a=FILE, b=FILE, c=FILE)
    plan = plan_for(problem, Options(host_memory="100kB"), DeviceSpec(), HOST)
    assert caplog.text.count("16 times the memory") == 1
    assert plan.expected.seconds > 10
    # The cached plan warns as well.
    assert plan_for(problem, Options(host_memory="100kB"), DeviceSpec(), HOST) == plan
    assert caplog.text.count("16 times the memory") == 2


def test_steps_of_a_long_inner_product_are_deep():
    # Steps of 4096 took eight times as long as this product needs.
    plan = plan_for(Problem(3, 3, 10**7), Options(), OPENCL_CPU, OPENCL)
    assert len(plan.steps) < 100
    assert plan.expected.seconds < 0.5


def test_a_tile_is_padded_to_the_device_s_granularity_in_the_model():
    one = plan_for(Problem(8, 48, 10**6), Options(), OPENCL_CPU, OPENCL).expected
    other = plan_for(Problem(1, 1, 10**6), Options(), OPENCL_CPU, OPENCL).expected
    kernels = [plan.stage_seconds["mult1"] for plan in (one, other)]
    assert kernels[1] > kernels[0] / 3
