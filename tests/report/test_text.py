"""Reports and plans as text and HTML: every number a user was promised is there."""

import sys
from dataclasses import replace

import pytest

import hdgemm
from hdgemm.options import Options
from hdgemm.pipeline.plan import (
    DeviceSpec,
    Expectation,
    Overlap,
    Plan,
    Problem,
    Slots,
    from_json,
)
from hdgemm.pipeline.plans import Plans
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.pipeline.walk import Layout
from hdgemm.report import build_report
from hdgemm.run.split_report import Share, SplitReport

PLAN = Plan(
    problem=Problem(m=1000, n=1000, k=2000),
    device=DeviceSpec("opencl:0", unified=False),
    strategy="data-placement",
    overlap=Overlap(),
    tile=(1000, 1000, 2000),
    a_slots=Slots(1, 16_000_000),
    b_slots=Slots(1, 16_000_000),
    c_slots=Slots(2, 8_000_000),
    up=Slots(4, 1_000_000),
    down=Slots(2, 1_000_000),
    layout=Layout(2000, 2000),
    host_limit=10_000_000,
    device_limit=50_000_000,
    expected=Expectation(2.0, {"load1": 0.5, "mult1": 1.5}, "mult1"),
)
EVENTS = (
    Event("opencl:0", "load1", 0, 0, 0, 0.0, 1.0, 32_000_000, 0),
    Event("opencl:0", "mult1", 0, 0, 0, 1.0, 3.0, 0, 4_000_000_000),
)


def a_report(planned, **changes):
    return build_report(
        [PLAN], Timeline(EVENTS, 4.0), planned_bytes=planned, peak_memory_bytes=9_000_000, **changes
    )


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_stage_table_has_work_rate_and_share():
    lines = words(str(a_report({"load1": 32_000_000})))
    assert "load1 1 32.0 MB 32.0 MB 1.00 s 32.0 MB/s 25.0 %" in lines
    assert "mult1 1 – – 2.00 s 2.00 GFLOP/s 50.0 %" in lines


def test_the_summary_compares_bytes_and_memory():
    speed, moved, peak = words(str(a_report({"load1": 32_000_000})))[-3:]
    assert speed == "4.00 s, 1.00 GFLOP/s on opencl:0; mult1 was the bottleneck"
    assert moved == "bytes moved: 32.0 MB, as planned, stage by stage"
    assert peak == "peak memory added: 9.00 MB of 10.0 MB allowed"


def test_the_summary_tells_when_bytes_differ():
    assert "+2 B against the plan" in str(a_report({"load1": 31_999_998}))
    # Equal in sum is not equal: each stage keeps to its own.
    planned = {"load1": 16_000_000, "load2": 16_000_000}
    assert "as planned" not in str(a_report(planned))


def test_phases_are_printed_with_their_expected_time():
    phases = {"calibrating": 0.0, "planning": 0.03, "multiplying": 4.0}
    report = replace(a_report({"load1": 32_000_000}), phases=phases)
    assert words(str(report))[-1] == (
        "phases, and as expected: planning 30.0 ms (–), multiplying 4.00 s (2.00 s)"
    )
    assert "phases" not in str(replace(report, phases={"calibrating": 0.0}))


def test_a_plan_tells_tiles_order_time_limit_bytes_and_memory():
    lines = words(str(PLAN))
    assert "C (1000 × 1000) := A (1000 × 2000) · B (2000 × 1000), float64" in lines
    assert "4.00 GFLOP on opencl:0, data-placement" in lines
    text = "\n".join(lines)
    assert "C 1000 × 1000, A 1000 × 2000, B 2000 × 1000" in text
    assert "wriggled order: bars 1, work units 1, steps 1, loads 2" in text
    assert "expected: 2.00 s, 2.00 GFLOP/s, limited by mult1" in text
    for line in (
        "load1 32.0 MB 500 ms", "load2 32.0 MB –", "store1 8.00 MB –", "mult1 – 1.50 s",
        "A tiles 1 16.0 MB", "C tiles 2 16.0 MB", "staging up 4 4.00 MB",
        "host, in all 6.00 MB of 10.0 MB", "device, in all 48.0 MB of 50.0 MB",
    ):  # fmt: skip
        assert line in lines


def test_plans_of_several_devices_stay_short():
    assert str(Plans([PLAN])) == str(PLAN)
    assert "nothing is multiplied" in str(Plans())
    many = str(Plans([PLAN] * 9))
    assert len(many.splitlines()) <= 25
    assert "and 5 more devices" in many


def test_a_report_of_many_devices_stays_short():
    share = Share(0.1, 0.1, 10**5, 1e9, 2e9, 0.0, 4.0, (Rect(0, 0, 100, 1000),))
    split = SplitReport({f"cuda:{number}": share for number in range(40)}, 0.01, 0.5)
    lines = str(replace(a_report({"load1": 32_000_000}), split=split)).splitlines()
    assert len(lines) == 25
    assert "more devices" in "\n".join(lines)
    assert "imbalance" in lines[-1]


def test_html_has_tables_and_pictures():
    pytest.importorskip("matplotlib")
    share = Share(1.0, 1.0, 10**6, 1e9, 2e9, 0.0, 4.0, (Rect(0, 0, 1000, 1000),))
    report = replace(a_report({}), split=SplitReport({"<b>": share}, 0.0, 0.5))
    assert PLAN._repr_html_().count("data:image/png;base64,") == 1
    assert report._repr_html_().count("data:image/png;base64,") == 2  # Gantt picture, tile map
    for html in (PLAN._repr_html_(), report._repr_html_(), Plans([PLAN, PLAN])._repr_html_()):
        assert "<td>mult1</td>" in html
        assert "<b>" not in html
    assert "nothing" in Plans()._repr_html_()


def test_html_needs_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for value in (PLAN, a_report({})):
        assert "<td>mult1</td>" in value._repr_html_()
        assert "image" not in value._repr_html_()


def test_no_sentinel_number_is_shown():
    plan = hdgemm.plan_gemm(60, 50, 40, options=Options(devices="host"))
    shown = (repr(plan), str(plan), plan.to_json(), repr(Plans([plan])))
    report = build_report([plan], Timeline((), 0.0), planned_bytes={})
    for text in (*shown, repr(report), str(report), report.to_json()):
        assert str(1 << 62) not in text
        assert len(repr(plan)) < 1500  # operations are left out
    assert from_json(plan.to_json()) == plan
