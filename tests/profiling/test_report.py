"""Reports: saved values, the page, and the comparison of two reports."""

import json
import re

import pytest
from typer.testing import CliRunner

from hdgemm.cli.app import app
from hdgemm.errors import InputError
from hdgemm.profiling._contention import Bandwidth
from hdgemm.profiling._samples import Sample
from hdgemm.profiling._verdict import Findings, judge
from hdgemm.profiling.compare import compare, load_report
from hdgemm.profiling.report import sections
from hdgemm.profiling.results import Prediction, Profile, Rate, Rung, SizePoint


def rung(*gflops):
    predictions = (Prediction("run", "whole run", 1.0, 1.2),)
    return Rung(Rate(Sample(gflops), 100.0), 2.0, {"mult1": 1.8, "load1": 0.4}, predictions)


def made_up(scale=1.0):
    profile = Profile(
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
        ladder={"initial": rung(50.0 * scale, 51.0 * scale), "data-reuse": rung(70.0, 80.0)},
        scaling={"kernel": Rate(Sample((90.0,)), 100.0)},
        sizes=(SizePoint(8, 8, 4, Rate(Sample((9.0,)), 10.0), "k = m/2"),),
        bandwidth={"store1": Bandwidth("store1", Sample((10.0, 10.1)), Sample((5.6, 5.7)))},
        matrix={"load1": {"all": Sample((0.5,))}},
        cpu={"alone": 20.0, "within": 15.0},
        imbalance=0.02,
    )
    findings = Findings(gains={"device": 0.0, "disk": 0.3})
    return Profile(**{**vars(profile), "verdict": judge(profile, findings)})


def test_the_report_holds_the_documented_keys():
    values = json.loads(json.dumps(made_up().to_dict(), allow_nan=False))
    assert values["ladder"]["initial"]["gflops"] == pytest.approx(50.5)
    assert values["ladder"]["initial"]["efficiency"] == pytest.approx(0.505)
    assert values["ladder"]["initial"]["stage_shares"] == {"mult1": 0.9, "load1": 0.2}
    assert values["scaling"]["kernel"] == pytest.approx(
        {"gflops": 90, "efficiency": 0.9, "peak_gflops": 100, "spread": 0, "repeats": 1}
    )
    assert values["bandwidth"]["store1"]["kept"] == pytest.approx(5.65 / 10.05)
    assert {"alone", "contended", "unit", "spread"} <= set(values["bandwidth"]["store1"])
    assert values["matrix"]["load1"]["all"]["count"] == 1
    assert {"text", "limit", "gain", "observations"} == set(values["verdict"])


def test_every_column_of_a_table_has_cells_in_every_row():
    sectioned = {each.table.title: each for each in sections(made_up().to_dict())}
    found = {title: section.table for title, section in sectioned.items()}
    assert len(found) == 5
    for table in found.values():
        assert {len(row) for row in table.rows} == {len(table.heads)}
        assert all(cell for row in table.rows for cell in row)
        assert all(table.heads)
    assert found["Strategies"].rows[1][2].startswith("+49 %")
    assert found["Predicted and measured time"].rows[0][-1] == "no"
    assert "15 GFLOP/s within" in sectioned["Scaling"].remarks[0]
    assert "2.0%" in sectioned["Scaling"].remarks[1]


def test_the_page_makes_no_request_to_a_network(tmp_path):
    made_up().save(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "some &lt;b&gt;CPU&lt;/b&gt;" in page
    outside = re.sub(r'"data:image/png;base64,[^"]*"', '""', page)
    assert outside != page
    assert not re.search(r"(src|href|srcset)=\"[^\"]+\"|https?://|@import|url\(", outside)
    assert "prefers-color-scheme: dark" in page
    first = outside.index("The disk limits the run")
    assert first < outside.index("<table>"), "the verdict comes before the tables"
    assert json.loads((tmp_path / "report.json").read_text())["device"] == "opencl:0"
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_profile_says_so(tmp_path):
    empty = Profile(complete=False, setting=made_up().setting)
    empty.save(tmp_path)
    assert "Interrupted" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_two_reports_are_compared_figure_by_figure():
    old, new = made_up().to_dict(), made_up(scale=1.2).to_dict()
    new["versions"] = {"python": "3.12"}
    found = compare(old, new)
    first = found.differences[0]
    assert first.figure == "ladder, initial, GFLOP/s"
    assert first.change.effect == pytest.approx(0.2)
    assert first.change.clear
    noisy = next(row for row in found.differences if row.figure.startswith("ladder, data-reuse"))
    assert noisy.words == "too noisy to tell"
    assert found.settings == (("versions, python", "3.11", "3.12"),)
    assert "+20.0 %" in found.text()


def test_the_command_writes_a_report_and_compares_reports(tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.profiling.profile", lambda *_, **__: made_up())
    report = tmp_path / "out" / "report.json"
    result = CliRunner().invoke(app, ["profile", "--out", str(report.parent)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("The disk limits the run")
    assert json.loads(report.read_text())["device"] == "opencl:0"
    again = CliRunner().invoke(app, ["profile", "--compare", str(report), str(report)])
    assert again.exit_code == 0, again.output
    assert "0 of" in again.output


def test_a_file_that_is_not_a_report_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(InputError, match=r"x\.json"):
        load_report(path)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="not the report"):
        load_report(path)
