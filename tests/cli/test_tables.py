"""Reports and plans as tables: every number a user was promised is there."""

import io

from rich.console import Console

from hdgemm.cli.tables import (
    memory_table,
    plan_lines,
    planned_stage_table,
    stage_table,
    summary_lines,
)
from hdgemm.pipeline.plan import (
    DeviceSpec,
    Expectation,
    Load,
    Overlap,
    Plan,
    Problem,
    Rect,
    Slots,
    Step,
    WorkUnit,
)
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.report import build_report

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
    loads=(
        Load("A", Rect(0, 0, 1000, 2000), 0, 0),
        Load("B", Rect(0, 0, 2000, 1000), 0, 0),
    ),
    units=(WorkUnit(0, 0, Rect(0, 0, 1000, 1000), 0, 0, 0),),
    steps=(Step(0, 0, 0, 2000, 0, 1),),
    host_limit=10_000_000,
    device_limit=50_000_000,
    expected=Expectation(2.0, {"load1": 0.5, "mult1": 1.5}, "mult1"),
)
EVENTS = (
    Event("opencl:0", "load1", 0, 0, 0, 0.0, 1.0, 32_000_000, 0),
    Event("opencl:0", "mult1", 0, 0, 0, 1.0, 3.0, 0, 4_000_000_000),
)


def shown(table):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]


def a_report(planned):
    return build_report(
        [PLAN], Timeline(EVENTS, 4.0), planned_bytes=planned, peak_memory_bytes=9_000_000
    )


def test_the_stage_table_has_work_rate_and_share():
    rows = {line[0]: line for line in shown(stage_table(a_report({"load1": 32_000_000})))}
    words = " ".join(rows["load1"])
    assert words == "load1 1 32.0 MB 32.0 MB 1.00 s 0.03 GB/s 25.0 %"
    assert " ".join(rows["mult1"]) == "mult1 1 – – 2.00 s 2.0 GFLOP/s 50.0 %"


def test_the_summary_compares_bytes_and_memory():
    speed, moved, peak = summary_lines(a_report({"load1": 32_000_000}))
    assert speed == "4.00 s, 1.0 GFLOP/s on opencl:0; mult1 was the bottleneck"
    assert moved == "bytes moved: 32000000 (32.0 MB), as planned, stage by stage"
    assert peak == "peak memory added: 9.00 MB of 10.0 MB allowed"


def test_the_summary_tells_when_bytes_differ():
    assert "+2 against the plan" in summary_lines(a_report({"load1": 31_999_998}))[1]
    # Equal in sum is not equal: each stage keeps to its own.
    planned = {"load1": 16_000_000, "load2": 16_000_000}
    assert "as planned" not in summary_lines(a_report(planned))[1]


def test_a_plan_tells_tiles_order_time_and_limit():
    text = "\n".join(plan_lines(PLAN))
    assert "C (1000 × 1000) := A (1000 × 2000) · B (2000 × 1000), float64" in text
    assert "C 1000 × 1000, A 1000 × 2000, B 2000 × 1000" in text
    assert "wriggled order: bars 1, work units 1, steps 1, loads 2" in text
    assert "2.00 s, 2.0 GFLOP/s, limited by mult1" in text


def test_a_plan_tells_bytes_per_stage():
    rows = {line[0]: line for line in shown(planned_stage_table(PLAN))}
    assert rows["load1"][1] == rows["load2"][1] == "32000000"
    assert rows["store1"][1] == rows["store2"][1] == "8000000"
    assert rows["mult1"][-2:] == ["1.50", "s"]


def test_a_plan_tells_memory_by_kind():
    rows = [" ".join(line) for line in shown(memory_table(PLAN))]
    assert "A tiles 1 16.0 MB" in rows
    assert "C tiles 2 16.0 MB" in rows
    assert "staging up 4 4.00 MB" in rows
    assert "host, in all 6.00 MB of 10.0 MB" in rows
    assert "device, in all 48.0 MB of 50.0 MB" in rows
