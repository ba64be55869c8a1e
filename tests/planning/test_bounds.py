"""What is too large or too slow to plan is refused, or named, from the numbers alone."""

import math

import pytest

from hdgemm.errors import DoesNotFitError
from hdgemm.machine.rates import HOST, OPENCL
from hdgemm.options import Options
from hdgemm.pipeline.plan import (
    DeviceSpec,
    OperandSpec,
    Problem,
    from_json,
    planned_bytes,
)
from hdgemm.pipeline.validate import validate
from hdgemm.planning.planner import plan_for

FILE = OperandSpec(place="file")
OPENCL_CPU = DeviceSpec(
    "opencl:0", unified=False, memory_bytes=24 << 30, max_buffer_bytes=12 << 30,
    granularity=(8, 48, 1),
)  # fmt: skip


@pytest.mark.parametrize("tile", [(1, 1, 1), (3, 1, 7), (1, 5000, 1)])
@pytest.mark.parametrize("device", [DeviceSpec(), OPENCL_CPU])
def test_a_tile_may_cut_a_product_into_any_number_of_steps(tile, device):
    problem = Problem(5003, 5009, 5011)
    plan = plan_for(problem, Options(tile=tile), device, HOST)
    parts = [-(-extent // size) for extent, size in zip((5003, 5009, 5011), tile, strict=True)]
    assert plan.counts.steps >= math.prod(parts)


@pytest.mark.parametrize("n", [20_000, 10**6, 10**9])
def test_the_memory_that_a_refusal_names_is_enough(n):
    problem = Problem(n, n, n, "float32", *[FILE] * 3)
    with pytest.raises(DoesNotFitError) as caught:
        plan_for(problem, Options(host_memory=2_000), DeviceSpec(), HOST)
    enough = caught.value.requested
    assert enough < 100_000
    plan = plan_for(problem, Options(host_memory=enough), DeviceSpec(), HOST)
    assert plan.host_bytes <= enough
    with pytest.raises(DoesNotFitError):
        plan_for(problem, Options(host_memory=enough - 1), DeviceSpec(), HOST)


def test_staging_of_single_rows_is_planned_for_a_large_product():
    problem = Problem(32_768, 32_768, 32_768)
    plan = plan_for(problem, Options(host_memory=60_000), OPENCL_CPU, OPENCL)
    assert plan.host_bytes <= 60_000


@pytest.mark.parametrize("memory", ["100MB", "8GB"])
@pytest.mark.parametrize("extents", [(10**9,) * 3, (123_457, 1, 10**8), (1, 10**9, 3)])
def test_a_plan_of_any_size_is_small(extents, memory):
    problem = Problem(*extents, "float32", *[FILE] * 3)
    plan = plan_for(problem, Options(host_memory=memory), DeviceSpec(), HOST)
    validate(plan)
    assert len(plan.to_json()) < 2_500
    assert from_json(plan.to_json()) == plan
    assert plan.expected.seconds > 0
    assert planned_bytes(plan)["store2"] == 8 * extents[0] * extents[1]


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
    assert plan.counts.steps < 100
    assert plan.expected.seconds < 0.5


def test_a_tile_is_padded_to_the_device_s_granularity_in_the_model():
    one = plan_for(Problem(8, 48, 10**6), Options(), OPENCL_CPU, OPENCL).expected
    other = plan_for(Problem(1, 1, 10**6), Options(), OPENCL_CPU, OPENCL).expected
    kernels = [plan.stage_seconds["mult1"] for plan in (one, other)]
    assert kernels[1] > kernels[0] / 3
