"""The trace and the Gantt chart of a timeline."""

import itertools
import json
import sys

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import InputError
from hdgemm.pictures import gantt
from hdgemm.pictures.gantt import save_gantt
from hdgemm.pictures.trace import chrome_trace, save_trace
from hdgemm.pipeline.timeline import Event, Timeline

ONE = Timeline(
    (
        Event("host", "load1", 0, 0, 0, 0.0, 1.0, 2_000_000_000, 0),
        Event("host", "load1", 1, 0, 1, 0.5, 1.5, 1_000, 0),
        Event("host", "mult1", 0, 0, 0, 1.0, 3.0, 0, 4_000_000_000),
        Event("host", "store2", 0, 0, 0, 3.0, 3.5, 500, 0),
    ),
    3.5,
)
TWO = Timeline(
    tuple(
        Event(device, stage, number, number, number, number + 0.1 * lane, number + 0.9, 10, 0)
        for device in ("opencl:0", "opencl:1")
        for lane, stage in enumerate(("load1", "load2", "mult1", "store1", "store2"))
        for number in range(3)
    ),
    3.0,
)


def test_a_bounded_trace_has_the_first_and_the_last_events():
    trace = chrome_trace(TWO, most=7)
    starts = [entry["ts"] / 1e6 for entry in slices(trace)]
    everything = sorted(event.start for event in TWO.events)
    np.testing.assert_allclose(sorted(starts), [*everything[:4], *everything[-3:]])
    assert trace["otherData"] == {"events": 30, "left_out": 23}
    assert chrome_trace(TWO, most=30) == chrome_trace(TWO)


def test_a_factorisation_has_a_row_for_each_phase(tmp_path):
    reports = []
    hdgemm.linalg.lu_factor(
        np.eye(40) + 1, out=tmp_path / "LU.npy", report=reports.append,
        options=hdgemm.Options(tile=(1, 7, 3), host_memory="20MB"),
    )  # fmt: skip
    [report] = reports
    rows = ["load", "update", "panel", "store", "interchange"]
    assert list(gantt._rows(report.timeline.events)) == [("host", row) for row in rows]
    save_gantt(report.timeline, tmp_path / "gantt.png")
    on_device = [event._replace(device="opencl:0") for event in report.timeline.events]
    assert list(gantt._rows(on_device)) == [
        ("opencl:0", stage) for stage in ("load1", "mult1", "store2")
    ]


def slices(trace):
    return [entry for entry in trace["traceEvents"] if entry["ph"] == "X"]


def test_every_event_is_one_slice_in_microseconds():
    found = slices(chrome_trace(ONE))
    assert len(found) == len(ONE.events)
    mult = next(entry for entry in found if entry["cat"] == "mult1")
    assert (mult["ts"], mult["dur"]) == (1e6, 2e6)
    assert mult["args"] == {"unit": 0, "step": 0, "flops": 4_000_000_000, "GFLOP/s": 2.0}
    load = next(entry for entry in found if entry["name"] == "load1 0")
    assert load["args"]["GB/s"] == 2.0


def test_no_two_slices_of_one_row_overlap():
    rows = {}
    for entry in slices(chrome_trace(ONE)):
        rows.setdefault((entry["pid"], entry["tid"]), []).append(entry)
    assert len([row for row in rows if row[1] < 1000]) == 2  # load1 ran twice at once
    for entries in rows.values():
        entries.sort(key=lambda entry: entry["ts"])
        for earlier, later in itertools.pairwise(entries):
            assert earlier["ts"] + earlier["dur"] <= later["ts"]


def test_devices_are_processes_and_stages_are_named_rows():
    entries = chrome_trace(TWO)["traceEvents"]
    processes = {
        entry["pid"]: entry["args"]["name"] for entry in entries if entry["name"] == "process_name"
    }
    assert sorted(processes.values()) == ["opencl:0", "opencl:1"]
    rows = {
        (entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in entries
        if entry["name"] == "thread_name"
    }
    assert all(
        rows[entry["pid"], entry["tid"]] == entry["cat"] for entry in slices(chrome_trace(TWO))
    )


def test_an_event_of_no_length_has_no_rate(tmp_path):
    save_trace(Timeline((Event("host", "load1", 0, 0, 0, 1.0, 1.0, 8, 0),), 1.0), tmp_path / "t")
    assert slices(json.loads((tmp_path / "t").read_text()))[0]["args"]["GB/s"] is None


@pytest.mark.parametrize("timeline", [ONE, TWO], ids=["one device", "two devices"])
def test_gantt_is_a_small_png(timeline, tmp_path):
    pytest.importorskip("matplotlib")
    save_gantt(timeline, tmp_path / "gantt.png", title="a run")
    data = (tmp_path / "gantt.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) < 200_000


def test_a_report_draws_its_events(tmp_path):
    pytest.importorskip("matplotlib")
    reports = []
    hdgemm.linalg.svdvals(np.ones((40, 3)), report=reports.append)
    reports[0].save_gantt(tmp_path / "gantt.png")
    reports[0].save_trace(tmp_path / "trace.json")
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_gantt_colours_stages_apart(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    save_gantt(ONE, tmp_path / "gantt.png")
    pixels = (imread(tmp_path / "gantt.png")[..., :3] * 255).round().astype(int).reshape(-1, 3)
    colours = {tuple(pixel) for pixel in pixels.tolist()}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)} <= colours


def test_a_short_event_is_still_seen(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    blink = Event("host", "store2", 0, 0, 0, 50.0, 50.0001, 1, 0)
    save_gantt(Timeline((*ONE.events[:3], blink), 100.0), tmp_path / "gantt.png")
    pixels = (imread(tmp_path / "gantt.png")[..., :3] * 255).round().astype(int).reshape(-1, 3)
    green = (abs(pixels - (0x00, 0x9E, 0x73)).sum(axis=1) < 60).sum()
    assert green >= 10  # a line as high as its row


def test_many_events_stay_few_bars(tmp_path):
    pytest.importorskip("matplotlib")
    from hdgemm.pictures import gantt

    events = [
        Event("host", "load1", i, 0, 0, i * 1e-5, (i + 0.9) * 1e-5, 1, 0) for i in range(100_000)
    ]
    assert len(gantt._merged(events, gantt._RESOLUTION)) < 2_500


@pytest.mark.parametrize(("timeline", "label"), [(ONE, "time on host (s)"), (TWO, "time (s)")])
def test_gantt_has_units_and_names_every_row(timeline, label):
    pytest.importorskip("matplotlib")
    from hdgemm.pictures import gantt

    axes = gantt.new_figure(4, 4, "a test").add_subplot()
    rows = gantt._rows(timeline.events)
    gantt._draw(axes, rows, timeline.seconds)
    assert axes.get_xlabel().startswith(label)
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert [name.split()[-1] for name in names] == [stage for _, stage in rows]


def test_neighbouring_shades_differ_for_colour_blind_readers():
    """Lightness differs between the shades of a stage by at least 10 of 100."""
    from hdgemm.pictures.gantt import _SHADES

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def lightness(colour):
        return 116 * luminance(colour) ** (1 / 3) - 16

    for dark, light in _SHADES.values():
        assert lightness(light) - lightness(dark) >= 10


def test_gantt_refuses_an_empty_run(tmp_path):
    with pytest.raises(InputError, match="no event"):
        save_gantt(Timeline((), 1.0), tmp_path / "gantt.png")


def test_gantt_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"hdgemm\[plot\]"):
        save_gantt(ONE, tmp_path / "gantt.png")
