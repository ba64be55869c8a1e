"""What a profile concludes, from made-up measurements."""

import json
import re

import pytest

from hdgemm.errors import InputError
from hdgemm.profiling.compare import compare, load_report
from hdgemm.profiling.conclusions import Advice, Interference
from hdgemm.profiling.output import save_profile
from hdgemm.profiling.paired_runs import WindowPlan, Windows, Work
from hdgemm.profiling.probes import Probe
from hdgemm.profiling.results import Bandwidth, Prediction, Profile, Rate, Rung, SizePoint
from hdgemm.profiling.sample import Change, Sample
from hdgemm.profiling.verdict import Findings, judge

DOUBLED = {"device": 0.5, "pcie_up": 0.02, "pcie_down": 0.3, "host_memory": 0.01, "disk": 0.0}


def sample(*values):
    return Sample(values)


def rung(gflops, **stages):
    return Rung(Rate(Sample(gflops), 100.0), 2.0, stages or {"mult1": 1.8, "load1": 0.4})


def bandwidth(alone, contended):
    return Bandwidth(Sample(alone), Sample(contended))


LADDER = {
    "initial": rung((50.0, 51.0, 49.0)),
    "double-buffering": rung((58.0, 58.5, 57.5)),
    "data-reuse": rung((59.0, 75.0, 45.0)),
}
LINKS = {
    "load2": bandwidth((10.0, 10.1), (9.9, 10.0)),
    "store1": bandwidth((10.0, 10.1), (5.6, 5.7)),
}


def findings(**changed):
    given = {"ladder": LADDER, "bandwidth": LINKS, "doubled": {**DOUBLED, "device": 0.0}}
    return Findings(**{**given, **changed})


def test_a_sample_knows_its_middle_and_its_spread():
    assert sample(3.0, 1.0, 2.0).median == 2.0
    assert sample(3.0, 1.0, 2.0).spread == pytest.approx(1.0)
    assert sample(1.0, 2.0, 3.0, 4.0, 5.0).spread == pytest.approx(2 / 3)
    assert sample().median == sample(7.0).spread == 0.0


def test_an_effect_within_the_noise_cannot_be_told():
    clear = Change.between(sample(50.0, 51.0), sample(58.0, 58.5))
    assert clear.clear
    assert clear.words() == "+15 %"
    noisy = Change.between(sample(50.0, 70.0), sample(58.0, 58.5))
    assert not noisy.clear
    assert "too noisy to tell" in noisy.words()


@pytest.mark.parametrize("resource", ["pcie_up", "pcie_down", "host_memory", "disk", "cores"])
def test_the_verdict_names_what_twice_as_much_of_helps_most(resource):
    verdict = judge(findings(doubled={"device": 0.1, "disk": 0.0, "cores": 0.0, resource: 0.4}))
    assert verdict.limit == resource
    assert verdict.gain == 0.4
    assert "+40 %" in verdict.text[0]


def test_a_run_that_waits_for_its_kernel_is_said_to():
    assert judge(findings(doubled=DOUBLED)).limit == "device"
    idle = judge(findings(doubled={"device": 0.001, "disk": 0.002}))
    assert idle.limit == "device"
    assert "less than 3%" in idle.text[0]


def test_nothing_measured_still_gives_a_verdict():
    verdict = judge(Findings(ladder={}, bandwidth={}, doubled={}))
    assert verdict.limit == "device"
    assert [each.confirmed for each in verdict.observations] == [None, None, None]


def test_the_verdict_begins_with_who_interferes():
    found = Interference("disk", 0.4, "others move 0.70 GB/s on the disk")
    verdict = judge(findings(interference=[found], advice=[Advice("pinned arrays", 0.12)]))
    assert "takes the disk" in verdict.text[0]
    assert any("pinned arrays: +12 % (model)" in line for line in verdict.text)
    unknown = judge(findings(interference=[Interference("host_memory", None, "why")]))
    assert "part of it is gone (why)" in unknown.text[0]


def test_what_is_too_noisy_to_tell_is_said_before_what_limits():
    verdict = judge(findings(noise=["Too noisy to tell."]))
    assert verdict.text[0] == "Too noisy to tell."
    assert "limits" in verdict.text[1]


def test_steps_of_the_ladder_are_told_or_not():
    text = judge(findings()).text
    assert "double-buffering over initial: +16 %" in text
    assert any(line.startswith("data-reuse over") and "too noisy" in line for line in text)


def test_predictions_that_are_far_off_are_pointed_at():
    near, far = Prediction("initial", "run", 1.0, 1.09), Prediction("initial", "mult1", 1.0, 0.8)
    assert not near.far_off
    assert far.far_off
    text = judge(findings(predictions=[near, far])).text
    assert any("1 of 2 predictions" in line and "mult1" in line for line in text)


def test_the_papers_observations():
    first, second, third = judge(findings(contenders=2, cpu_kept=0.78)).observations
    assert first.confirmed is True
    assert "store1 keeps 56%" in first.why
    assert second.confirmed is True
    assert third.confirmed is True
    quick = {"store1": bandwidth((10.0, 10.1), (9.9, 10.0))}
    slow = {**DOUBLED, "host_memory": 0.2}
    denied = judge(findings(bandwidth=quick, doubled=slow, cpu_kept=0.97)).observations
    assert [each.confirmed for each in denied] == [False, False, False]
    noisy = {"store1": bandwidth((10.0, 30.0), (5.0, 5.0))}
    assert judge(findings(bandwidth=noisy)).observations[0].confirmed is None
    assert judge(findings(unified=True)).observations[0].confirmed is None
    same = judge(findings(on_host_cores=True, cpu_kept=0.5)).observations
    assert [each.confirmed for each in same] == [None, True, None]


def test_the_matrix_relates_each_pair_to_the_rate_alone():
    windows = Windows(
        alone={"load1": (Work(100, 1.0),), "store1": (Work(50, 1.0),)},
        pairs={
            ("load1", "store1"): (Work(60, 1.0),),
            ("store1", "load1"): (Work(50, 1.0),),
        },
        stages={},
        everything={"load1": (Work(30, 1.0),)},
    )
    matrix = windows.matrix()
    assert matrix["load1"]["store1"].median == pytest.approx(0.6)
    assert matrix["store1"]["load1"].median == pytest.approx(1.0)
    assert matrix["load1"]["all"].median == pytest.approx(0.3)
    assert "load1" not in matrix["load1"]


def test_windows_run_alone_in_pairs_and_together():
    probes = {name: Probe(name, lambda: 1, "GB/s") for name in ("load1", "mult1", "disk")}
    plan = WindowPlan(probes, 0.001, 2)
    said = list(plan.run())
    assert len(said) == len(plan) == 2 * (3 + 3 + 1)  # the stages together are one of the pairs
    result = plan.result()
    assert set(result.alone) == set(probes)
    assert len(result.alone["disk"]) == 2
    assert ("mult1", "load1") in result.pairs
    assert set(result.stages) == {"load1", "mult1"}
    assert set(result.everything) == set(probes)


def test_a_probe_that_fails_ends_its_window():
    def fail():
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        list(WindowPlan({"disk": Probe("disk", fail, "GB/s")}, 0.01, 1).run())


def made_up(scale=1.0, **more):
    ladder = {"initial": rung((50.0 * scale, 51.0 * scale)), "data-reuse": rung((70.0, 80.0))}
    return Profile(
        kind="measured",
        complete=True,
        setting={
            "device": "opencl:0",
            "product": {"m": 8, "n": 8, "k": 4, "dtype": "float64", "place": "memory"},
            "rates_from": "probes",
            "machine": {"cpu": "some <b>CPU</b>", "cores": 2},
            "versions": {"python": "3.11"},
            "command": "hdgemm profile",
            "when": "2026-11-21T12:00:00+00:00",
        },
        ladder=ladder,
        scaling={"kernel": Rate(sample(90.0), 100.0)},
        sizes=(SizePoint(8, 8, 4, Rate(sample(9.0), 10.0), "k = m/2"),),
        bandwidth=LINKS,
        matrix={"load1": {"all": sample(0.5)}},
        verdict=judge(findings()),
        **more,
    )


def test_the_report_holds_what_was_promised():
    values = json.loads(json.dumps(made_up().to_dict(), allow_nan=False))
    assert values["ladder"]["initial"]["gflops"] == pytest.approx(50.5)
    assert values["ladder"]["initial"]["efficiency"] == pytest.approx(0.505)
    assert values["scaling"]["kernel"] == pytest.approx(
        {"gflops": 90, "efficiency": 0.9, "peak_gflops": 100, "spread": 0, "repeats": 1}
    )
    assert values["bandwidth"]["store1"]["kept"] == pytest.approx(5.65 / 10.05)
    assert {"alone", "contended"} <= set(values["bandwidth"]["load2"])


def test_the_page_asks_nothing_of_any_network(tmp_path):
    save_profile(made_up(), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "some &lt;b&gt;CPU&lt;/b&gt;" in page
    outside = re.sub(r'"data:image/png;base64,[^"]*"', '""', page)
    assert outside != page
    assert not re.search(r"(src|href|srcset)=\"[^\"]+\"|https?://|@import|url\(", outside)
    assert "prefers-color-scheme: dark" in page
    assert json.loads((tmp_path / "report.json").read_text())["device"] == "opencl:0"
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_profile_says_so(tmp_path):
    empty = Profile(kind="measured", complete=False, setting=made_up().setting)
    save_profile(empty, tmp_path)
    assert "Interrupted" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_two_reports_are_compared_figure_by_figure():
    old, new = made_up().to_dict(), made_up(scale=1.2).to_dict()
    new["versions"] = {"python": "3.12"}
    found = compare(old, new)
    first = found.differences[0]
    assert first.figure == "ladder, initial, GFLOP/s"
    assert first.change == pytest.approx(0.2)
    assert first.clear
    noisy = next(row for row in found.differences if row.figure.startswith("ladder, data-reuse"))
    assert noisy.words == "too noisy to tell"
    assert found.settings == (("versions, python", "3.11", "3.12"),)
    assert "+20.0 %" in found.text()


def test_what_is_no_report_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(InputError, match=r"x\.json"):
        load_report(path)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="no report"):
        load_report(path)
