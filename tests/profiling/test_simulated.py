"""Profiles of simulated systems, and the paper's figures."""

import json

import pytest
from typer.testing import CliRunner

from hdgemm.cli.app import app
from hdgemm.errors import InputError
from hdgemm.profiling import simulate_profile


@pytest.fixture(scope="module")
def paper():
    return simulate_profile("hd5970")


def test_the_papers_figures_are_within_five_percent(paper):
    assert len(paper.paper) == 11
    for row in paper.paper:
        assert abs(row.off) < 0.05, row


def test_the_papers_observations_hold_in_simulation(paper):
    assert paper.verdict is not None
    assert [each.confirmed for each in paper.verdict.observations] == [True, True, True]
    assert paper.scaling["kernel"].efficiency == pytest.approx(0.94)


def test_figures_that_were_not_fitted_are_near_the_papers(paper):
    initial, best = paper.ladder["initial"], paper.ladder["data-placement"]
    # Section 2.2: mult takes more than 70 % of the initial program.
    assert initial.stage_seconds["mult1"] / initial.seconds > 0.68
    # Section 4.2: load2 and store1 take more than 60 % of the transfers' time.
    moving = {stage: busy for stage, busy in best.stage_seconds.items() if stage != "mult1"}
    assert (moving["load2"] + moving["store1"]) / sum(moving.values()) > 0.58
    # Section 4.3.1: prologue and epilogue take around 3 %.
    timeline = paper.timelines["data-placement"]
    steps = [event for event in timeline.events if event.stage == "mult1"]
    ends = steps[0].start + timeline.seconds - steps[-1].end
    assert ends / timeline.seconds == pytest.approx(0.03, abs=0.01)


def test_the_verdict_says_what_to_do_and_which_resource_limits(paper):
    what, limit = paper.verdict.text
    assert what.startswith("Use hybrid (devices and CPU): +12 % over ")
    assert limit.startswith("The device's kernel limits the run")
    assert "simulated machine" in limit


def test_the_matrix_holds_pairs_of_different_devices(paper):
    assert "mult1" not in paper.matrix["mult1"]
    # Both devices use one link up; load2 alone takes all of it.
    assert paper.matrix["load2"]["load2"].median == pytest.approx(0.5)
    assert paper.matrix["load2"]["mult1"].median == 1.0


def test_the_command_writes_a_report_and_compares_reports(tmp_path, paper, monkeypatch):
    monkeypatch.setattr("hdgemm.profiling.simulate_profile", lambda *_, **__: paper)
    report = tmp_path / "out" / "report.json"
    command = ["profile", "--simulate", "hd5970", "--out", str(report.parent)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Use hybrid")
    assert json.loads(report.read_text())["kind"] == "simulated"
    again = CliRunner().invoke(app, ["profile", "--compare", str(report), str(report)])
    assert again.exit_code == 0, again.output
    assert "0 of" in again.output


def test_an_unknown_system_is_refused():
    with pytest.raises(InputError, match="h200"):
        simulate_profile("hd5971")
