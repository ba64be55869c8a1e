"""Conclusions from given measurements."""

from dataclasses import replace

import pytest

from hdgemm.machine.rates import RESOURCES, assumed
from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, Problem
from hdgemm.planning.planner import plan_for
from hdgemm.profiling._contention import Bandwidth
from hdgemm.profiling._interference import Interference
from hdgemm.profiling._samples import Change, Sample
from hdgemm.profiling._verdict import RESOURCE_NAMES, Findings, gains_from_twice, judge
from hdgemm.profiling.results import Prediction, Profile, Rate, Rung

GAINS = {"device": 0.5, "pcie_up": 0.02, "pcie_down": 0.3, "host_memory": 0.01, "disk": 0.0}


def bandwidth(alone, contended):
    return Bandwidth("store1", Sample(alone), Sample(contended))


def rate(*gflops):
    return Rate(Sample(gflops), 100.0)


def rung(*gflops, predictions=()):
    return Rung(rate(*gflops), 2.0, {"mult1": 1.8, "load1": 0.4}, predictions)


LINKS = {
    "load2": bandwidth((10.0, 10.1), (9.9, 10.0)),
    "store1": bandwidth((10.0, 10.1), (5.6, 5.7)),
}
PROFILE = Profile(
    complete=True,
    setting={},
    ladder={"initial": rung(50.0, 51.0, 49.0), "data-placement": rung(80.0, 81.0, 79.0)},
    scaling={
        "kernel": rate(90.0),
        "one device": rate(80.0, 81.0, 79.0),
        "devices + CPU": rate(40.0, 41.0, 39.0),
        "CPU alone": rate(20.0, 21.0),
    },
    bandwidth=LINKS,
    cpu={"alone": 20.0, "within": 15.6},
)


def text(profile=PROFILE, **findings):
    return judge(profile, Findings(**{"gains": GAINS, **findings})).text


def confirmed(profile=PROFILE, **findings):
    observed = judge(profile, Findings(**{"gains": GAINS, **findings})).observations
    return [each.confirmed for each in observed]


def test_a_sample_has_a_median_and_a_spread():
    assert Sample((3.0, 1.0, 2.0)).median == 2.0
    assert Sample((3.0, 1.0, 2.0)).spread == pytest.approx(1.0)
    assert Sample((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert Sample(()).median == Sample((7.0,)).spread == 0.0


def test_a_change_within_the_noise_is_not_clear():
    clear = Change.between(Sample((50.0, 51.0)), Sample((58.0, 58.5)))
    assert clear.clear
    assert clear.words() == "+15 %"
    noisy = Change.between(Sample((50.0, 70.0)), Sample((58.0, 58.5)))
    assert not noisy.clear
    assert "too noisy to tell" in noisy.words()
    assert Change(0.0, 1.0, 0.0).effect == 0.0


def test_the_first_line_says_what_to_do():
    assert text()[0] == (
        "Use data-placement without the CPU: +100 % over hybrid (devices and CPU)."
    )


def test_the_fastest_configuration_is_the_advice():
    faster = replace(PROFILE, scaling={**PROFILE.scaling, "devices + CPU": rate(96.0, 97.0)})
    assert text(faster)[0].startswith("Use hybrid (devices and CPU): +21 % over data-placement")
    close = replace(PROFILE, scaling={**PROFILE.scaling, "devices + CPU": rate(70.0, 85.0)})
    assert "differ by less than the noise" in text(close)[0]
    # The host's matrices lie in files: its strategies are compared with one another.
    assert text(unified=True)[0] == "Use data-placement: +60 % over initial."


@pytest.mark.parametrize("resource", ["pcie_up", "pcie_down", "host_memory", "disk", "cores"])
def test_the_second_line_names_the_resource_that_gains_most(resource):
    gains = {"device": 0.1, "disk": 0.0, "cores": 0.0, resource: 0.4}
    verdict = judge(PROFILE, Findings(gains=gains))
    assert verdict.limit == resource
    assert verdict.gain == 0.4
    assert "limits the run; doubling its rate would gain +40 %" in verdict.text[1]


def test_every_resource_of_the_model_has_a_name_and_a_gain():
    assert set(RESOURCES) == set(RESOURCE_NAMES)
    slow = judge(PROFILE, Findings(gains={"device": 0.1, "interpreter": 0.4}))
    assert slow.text[1].startswith(
        "The executor's time for an operation limits the run; halving it would gain +40 %"
    )


def test_a_run_that_waits_for_its_kernel():
    assert text()[1].startswith(
        "The device's kernel limits the run, as it should; doubling the rate of the link"
    )
    idle = judge(PROFILE, Findings(gains={"device": 0.001, "disk": 0.002}))
    assert idle.limit == "device"
    assert "doubling the rate of the disk would gain +0 %" in idle.text[1]


@pytest.mark.parametrize(("measured", "word"), [(1.05, "(sure: "), (1.4, "(not sure: ")])
def test_the_second_line_says_how_sure_the_model_is(measured, word):
    predictions = (
        Prediction("initial", "whole run", 1.0, measured),
        Prediction("initial", "mult1", 1.0, 9.0),
    )
    profile = replace(PROFILE, ladder={"initial": rung(50.0, predictions=predictions)})
    assert word in text(profile)[1]
    assert [row.far_off for row in profile.predictions] == [measured > 1.1, True]


def test_load_by_others_is_all_that_is_said():
    found = Interference("disk", 0.4, "others move 0.70 GB/s on it")
    loaded = text(replace(PROFILE, interference=(found,)), unsteady=["It varies."])
    assert loaded[0] == (
        "Other processes take about 40% of the disk (others move 0.70 GB/s on it)."
    )
    assert loaded[1].startswith("Repeat the profile")
    assert len(loaded) == 2
    assert text(unsteady=["It varies."])[0] == "It varies."
    unknown = replace(PROFILE, interference=(Interference("host_memory", None, "why"),))
    assert text(unknown)[0].startswith("Other processes take a part of host memory bandwidth")


def test_a_profile_without_measurements_has_a_verdict():
    verdict = judge(Profile(complete=False, setting={}), Findings())
    assert verdict.limit == "device"
    assert verdict.text == ()
    assert [each.confirmed for each in verdict.observations] == [None, None, None]


@pytest.mark.parametrize(("resource", "slow"), [("device", "gemm"), ("host_memory", "memory")])
def test_twice_of_the_slow_resource_gains_most(resource, slow):
    machine = replace(assumed(DeviceSpec("opencl:0")), copy=40e9, memory=80e9)
    rate = {"float64": 1e9} if slow == "gemm" else 0.1e9
    machine = replace(machine, **{slow: rate})
    options = Options(tile=(256, 256, 256), strategy="data-placement")
    device = DeviceSpec("opencl:0", unified=False, memory_bytes=1 << 30, max_buffer_bytes=1 << 30)
    gains = gains_from_twice(plan_for(Problem(1024, 1024, 512), options, device, machine), machine)
    assert max(gains, key=gains.__getitem__) == resource
    assert 0.5 < gains[resource] <= 1.0
    assert set(gains) == set(RESOURCES)


def test_the_papers_observations():
    first, second, third = judge(PROFILE, Findings(gains=GAINS, contenders=2)).observations
    assert (first.confirmed, second.confirmed, third.confirmed) == (True, True, True)
    assert first.why == "with 2 devices at work load2 keeps 99%, store1 keeps 56%"
    assert "78%" in third.why
    denied = replace(
        PROFILE,
        bandwidth={"store1": bandwidth((10.0, 10.1), (9.9, 10.0))},
        cpu={"alone": 20.0, "within": 19.4},
    )
    assert confirmed(denied, gains={**GAINS, "host_memory": 0.2}) == [False, False, False]
    noisy = replace(PROFILE, bandwidth={"store1": bandwidth((10.0, 30.0), (5.0, 5.0))})
    assert confirmed(noisy)[0] is None
    assert confirmed(unified=True)[0] is None
    assert confirmed(on_host_cores=True) == [None, True, None]
