"""A small profile of this machine from end to end, and the simulated machines."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hdgemm.cli.app import app
from hdgemm.errors import InputError
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.planning.expectation import simulate
from hdgemm.profiling import profile, simulate_profile
from hdgemm.profiling.effort import Effort
from hdgemm.profiling.machine import measured_machine
from hdgemm.profiling.paired_runs import WindowPlan
from hdgemm.profiling.probes import RESOURCE_OF, ProbeSet
from hdgemm.simulation.ladder import work_unit_shape
from hdgemm.simulation.plans import Member, simulate_together
from hdgemm.simulation.systems import RADEON_HD5970, SYSTEMS

SMALL = Effort(
    idle=0.05,
    bus=0.01,
    bus_rounds=1,
    window=0.01,
    rounds=1,
    run=0.02,
    ladder=0.1,
    repeats=(1, 1),
    sweep=0.05,
)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def paper():
    return simulate_profile("hd5970")


def test_the_host_is_profiled_from_end_to_end(tmp_path):
    seen = []
    found = profile(
        "host", effort=SMALL, folder=tmp_path, progress=lambda part, what: seen.append(part)
    )
    assert found.complete
    assert {"initial", "double-buffering", "data-reuse", "data-placement"} <= set(found.ladder)
    assert set(found.bandwidth) == {"load1", "mult1", "store2"}  # no link: nothing to invent
    assert set(found.matrix) == {"load1", "store2", "disk", "mult1", "cores"}
    assert any("no PCIe link" in note for note in found.notes)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    runs = [row for row in found.predictions if row.what == "whole run"]
    assert len(runs) == 4
    assert all(row.predicted > 0 and row.measured > 0 for row in found.predictions)
    found.save(tmp_path / "out")
    values = json.loads((tmp_path / "out" / "report.json").read_text())
    assert values["ladder"]["initial"]["gflops"] > 0
    assert (tmp_path / "out" / "trace-initial.json").exists()
    left = {path.name for path in tmp_path.iterdir()} - {"out", "cache"}
    assert not left, "matrices and probe files are removed"


def test_an_interrupt_leaves_what_was_done(tmp_path):
    def interrupt(part, _what):
        if part > 0.1:
            raise KeyboardInterrupt

    found = profile("host", effort=SMALL, folder=tmp_path, progress=interrupt)
    assert not found.complete
    assert found.bandwidth == {} or found.matrix
    assert not found.ladder
    assert found.verdict is not None
    assert any("interrupted" in note for note in found.notes)
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_probes_give_the_machine_its_rates(tmp_path):
    device = open_device("host")
    with ProbeSet(device, tmp_path) as probes:
        assert set(probes.probes) <= set(RESOURCE_OF)
        plan = WindowPlan(probes.probes, 0.005, 1)
        list(plan.run())
        windows = plan.result()
    machine = measured_machine(device.spec, windows, 2)
    assert machine.flop_rate("float64") == windows.alone["mult1"][0].rate
    assert machine.disk_read == windows.alone["disk"][0].rate
    assert machine.memory >= 2 * machine.copy
    assert not list(tmp_path.iterdir())


def test_the_papers_figures_come_out(paper):
    assert len(paper.paper) == 11
    for row in paper.paper:
        assert abs(row.off) < 0.05, row


def test_the_papers_observations_hold_in_simulation(paper):
    assert paper.verdict is not None
    assert [each.confirmed for each in paper.verdict.observations] == [True, True, True]
    assert paper.scaling["kernel"].efficiency == pytest.approx(0.94)


def test_what_was_not_fitted_comes_near_the_papers_words(paper):
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


def test_a_report_is_written_and_compared_by_the_command(tmp_path, paper, monkeypatch):
    monkeypatch.setattr("hdgemm.simulation.profile.simulate_profile", lambda *_, **__: paper)
    report = tmp_path / "out" / "report.json"
    command = ["profile", "--simulate", "hd5970", "--out", str(report.parent)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert json.loads(report.read_text())["kind"] == "simulated"
    again = CliRunner().invoke(app, ["profile", "--compare", str(report), str(report)])
    assert again.exit_code == 0, again.output
    assert "0 of" in again.output


def test_an_unknown_system_is_refused():
    with pytest.raises(InputError, match="h200"):
        simulate_profile("hd5971")


def plan_of(shape=(4096, 4096, 1024)):
    from hdgemm.pipeline.plan import Problem
    from hdgemm.planning.build import Limits, build_plan

    system = RADEON_HD5970
    cut = work_unit_shape((2048, 2048), 4, "data-placement", shape[2])
    limits = Limits(system.staging, system.device.memory_bytes)
    return build_plan(Problem(*shape), system.device, "data-placement", cut, limits)


def test_one_member_alone_is_the_plain_simulation():
    plan, machine = plan_of(), RADEON_HD5970.machine
    alone = simulate(plan, machine)
    together = simulate_together([Member("one", plan, machine)])
    assert together.seconds == pytest.approx(alone.seconds)
    assert len(together.events) == len(alone.events)


def test_two_members_share_what_is_the_machines():
    plan, machine = plan_of(), RADEON_HD5970.machine
    alone = simulate(plan, machine).seconds
    two = simulate_together([Member("one", plan, machine), Member("two", plan, machine, 0.01)])
    assert alone < two.seconds < 2 * alone + 0.01
    first = min(event.start for event in two.events if event.device == "two")
    assert first >= 0.01


def test_a_device_on_the_hosts_cores_takes_them_from_copies():
    machine = replace(RADEON_HD5970.machine, cores=2)
    plan = plan_of()
    own = simulate(plan, machine)
    shared = simulate(plan, replace(machine, on_host_cores=True))
    # All transfers need a core meanwhile, of which the kernel has both.
    used = own.stages()
    moving = sum(used[stage].seconds for stage in ("load1", "load2", "store1", "store2"))
    assert own.seconds < shared.seconds <= own.seconds + moving


def test_every_system_has_a_source():
    for name, system in SYSTEMS.items():
        assert system.name == name
        assert system.source
        assert system.machine.source
