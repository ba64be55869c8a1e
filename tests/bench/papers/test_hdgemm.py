"""HDGEMM's machine in virtual time: its figures, and plans of several devices."""

import json

import pytest

from bench.papers.__main__ import PAPERS, main
from bench.papers.hd5970 import CHIP, MACHINE, STAGING, Member, run_at_once
from bench.papers.hdgemm import BEST, FITTED, LADDER, SHAPE, bars, plan, work_unit_tiling
from hdgemm.pipeline.plan import Problem
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.expectation import simulate
from hdgemm.profiling._verdict import gains_from_twice


@pytest.fixture(scope="module")
def compared():
    return PAPERS["hdgemm"]()


def test_the_papers_figures_are_within_five_percent(compared):
    fitted = compared.figures[: len(FITTED)]
    assert len(fitted) == 11
    for row in fitted:
        assert abs(row.off) < 0.05, row


def test_figures_that_were_not_fitted_are_near_the_papers(compared):
    mult, link, ends, balance = (row.simulated for row in compared.figures[len(FITTED) :])
    assert mult > 0.68
    assert link > 0.58
    assert ends == pytest.approx(0.03, abs=0.01)
    assert balance > 0.9


def test_the_papers_observations_hold(compared):
    kept = {row.figure: row.simulated for row in compared.figures}
    # Contention on the link limits two chips; the CPUs' part gains from more memory bandwidth.
    assert kept["store1 with two chips (Figure 9)"] < 0.9
    assert kept["the CPUs beside two chips (Figure 11)"] < 0.9
    # The chips' part gains little from it.
    gains = gains_from_twice(plan(BEST, SHAPE), MACHINE)
    assert gains["host_memory"] < 0.03
    assert max(gains, key=gains.get) == "device"
    scaling = compared.speeds["scaling"]
    mixed, chips = scaling["two chips and CPUs"].gflops, scaling["two chips"].gflops
    assert mixed / chips == pytest.approx(1.12, abs=0.005)


def test_the_command_prints_the_ladder_as_json(compared, capsys, monkeypatch):
    monkeypatch.setitem(PAPERS, "hdgemm", lambda: compared)
    assert main(["hdgemm", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    ladder = printed["ladder"]
    assert list(ladder) == list(LADDER)
    assert ladder["data-placement"] == pytest.approx(404.8, abs=0.1)
    assert sorted(ladder.values()) == list(ladder.values())
    assert printed["figures"][0]["off"] == pytest.approx(-0.011, abs=1e-3)


def test_the_command_prints_tables_and_draws_timelines(compared, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(PAPERS, "hdgemm", lambda: compared)
    assert main(["hdgemm", "--pictures", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["data-placement", "404.8", "87%"] for line in lines)
    assert any(line.startswith("one chip, GFLOP/s") and line.endswith("-0.8 %") for line in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"timeline-{strategy}.png" for strategy in LADDER
    )
    for wrong in (["hd5971"], ["linpack", "--pictures", str(tmp_path)]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


@pytest.fixture(scope="module")
def small():
    tiling = work_unit_tiling((2048, 2048), BEST, 1024)
    problem = Problem(4096, 4096, 1024)
    return build_plan(Case(problem, CHIP, BEST, Limits(STAGING, CHIP.memory_bytes)), tiling)


def test_one_member_runs_as_its_plan_alone(small):
    alone = simulate(small, MACHINE)
    together = run_at_once([Member("one", small)]).timeline
    assert together.seconds == pytest.approx(alone.seconds)
    assert len(together.events) == len(alone.events)


def test_two_members_share_the_host_and_the_link(small):
    alone = simulate(small, MACHINE).seconds
    two = run_at_once([Member("one", small), Member("two", small, 0.01)])
    assert alone < two.timeline.seconds < 2 * alone + 0.01
    second = two.of_device("two")
    assert min(event.start for event in second.events) >= 0.01
    assert len(second.events) == len(two.of_device("one").events)
    assert 0.9 < two.balance <= 1
    assert two.gflops == pytest.approx(2 * small.flops / two.timeline.seconds / 1e9)
    mult1 = second.stages()["mult1"]
    assert two.busy_rate("two", "mult1") == pytest.approx(mult1.flops / mult1.seconds / 1e9)
    assert two.busy_rate("three", "mult1") == 0.0


def test_chips_that_start_at_once_share_the_whole_link_up(small):
    """Each keeps half of its rate, since load2 alone takes all of the link."""
    alone = run_at_once([Member("one", small)]).busy_rate("one", "load2")
    two = run_at_once([Member("one", small), Member("two", small)])
    first = next(event for event in two.of_device("two").events if event.stage == "load2")
    rate = first.nbytes / (first.end - first.start) / 1e9
    assert rate == pytest.approx(alone / 2, rel=0.01)


def test_every_offset_is_run():
    assert len({run.timeline.seconds for run in bars((8192, 4096, 1024))}) > 1
