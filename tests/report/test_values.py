"""The report: what it sums, what it saves."""

import copy
import json
import pickle

import pytest

from hdgemm.pipeline.plan import (
    NO_SLOTS,
    DeviceSpec,
    Expectation,
    Overlap,
    Plan,
    Problem,
    Slots,
    summarize,
)
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.pipeline.walk import Layout
from hdgemm.report import build_report, versions

EVENTS = (
    Event("host", "load1", 0, 0, 0, 0.0, 1.0, 3_000, 0),
    Event("host", "load1", 1, 0, 1, 0.5, 2.0, 3_000, 0),
    Event("host", "mult1", 0, 0, 0, 1.0, 2.5, 0, 70_000),
    Event("host", "mult1", 1, 0, 1, 3.0, 4.0, 0, 50_000),
    Event("host", "store2", 0, 0, 1, 4.0, 4.5, 400, 0),
)
PLANNED = {"load1": 6_000, "store2": 400}


def a_plan():
    return Plan(
        problem=Problem(m=5, n=10, k=1200),
        device=DeviceSpec(),
        strategy="data-placement",
        overlap=Overlap(),
        tile=(5, 10, 600),
        a_slots=Slots(2, 24_000),
        b_slots=Slots(2, 48_000),
        c_slots=Slots(1, 400),
        up=NO_SLOTS,
        down=NO_SLOTS,
        layout=Layout(600, 600),
        host_limit=10**6,
        device_limit=10**6,
        expected=Expectation(4.0, {"mult1": 3.0}, "mult1"),
    )


@pytest.fixture
def report():
    timeline = Timeline(EVENTS, 5.0)
    return build_report([a_plan()], timeline, planned_bytes=PLANNED, peak_memory_bytes=123)


def test_a_report_is_pickled_and_copied(report):
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    assert again.to_json() == report.to_json()
    assert copy.deepcopy(report) == report


def test_stages_sum_their_events(report):
    load = report.stages["load1"]
    assert (load.operations, load.nbytes, load.planned_bytes) == (2, 6_000, 6_000)
    assert load.seconds == pytest.approx(2.0)  # overlapping operations count once
    assert load.gbytes_per_second == pytest.approx(3e-6)
    assert load.gflops is None
    mult = report.stages["mult1"]
    assert mult.gflops == pytest.approx(120_000 / 2.5 / 1e9)
    assert mult.gbytes_per_second is None
    assert list(report.stages) == ["load1", "mult1", "store2"]


def test_speed_is_the_work_done_over_the_wall_time(report):
    assert report.gflops == pytest.approx(120_000 / 5.0 / 1e9)
    assert report.limit == "mult1"


def test_moved_and_planned_bytes_are_kept_apart():
    planned = {"load1": 9_999, "load2": 50, "store2": 400}
    report = build_report([a_plan()], Timeline(EVENTS, 5.0), planned_bytes=planned)
    assert report.moved_bytes == {"load1": 6_000, "load2": 0, "mult1": 0, "store2": 400}
    assert report.planned_bytes == {"load1": 9_999, "load2": 50, "mult1": 0, "store2": 400}
    assert report.stages["load2"].operations == 0


def test_json_has_what_it_promises(report, tmp_path):
    report.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["seconds"] == 5.0
    assert saved["gflops"] == pytest.approx(report.gflops)
    assert saved["peak_memory_bytes"] == 123
    assert saved["stages"]["load1"]["operations"] == 2
    assert saved["stages"]["load1"]["bytes"] == 6_000
    assert saved["stages"]["load1"]["seconds"] == pytest.approx(2.0)
    assert saved["planned_bytes"] == {"load1": 6_000, "mult1": 0, "store2": 400}
    assert saved["plan"]["tile"] == [5, 10, 600]
    assert saved["plan"]["expected_limit"] == "mult1"
    assert saved["devices"] == ["host"]
    assert {"python", "numpy", "scipy"} <= set(saved["versions"])


def test_a_run_without_events_reports_zeros():
    report = build_report([a_plan()], Timeline((), 0.0), planned_bytes={})
    assert report.gflops == 0.0
    assert report.limit is None
    assert not report.stages
    json.loads(report.to_json())


def test_a_report_cannot_be_changed(report):
    with pytest.raises(AttributeError):
        report.seconds = 1.0


def test_the_summary_is_plain_values():
    summary = summarize(a_plan())
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["m"], summary["n"], summary["k"]) == (5, 10, 1200)
    assert (summary["units"], summary["steps"], summary["loads"]) == (1, 2, 4)
    assert summary["device_bytes"] == 2 * 24_000 + 2 * 48_000 + 400


def test_versions_name_only_what_is_installed():
    assert all(versions().values())
