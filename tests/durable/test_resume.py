"""Runs that are cut off, and go on: the same bits, nothing done twice, nothing left behind."""

import json
import re
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from hdgemm.blas.products import dgemm, matmul, multiply
from hdgemm.cli.app import app
from hdgemm.errors import CancelledRunError, InputError
from hdgemm.options import Options
from tests.durable.durable_case import TILE, Case, Killer, Stop, killed, shared_case

MODES = ("new", "over", "replace", "update")


@pytest.fixture(params=MODES)
def case(request, tmp_path_factory):
    return shared_case(tmp_path_factory, request.param)


def test_a_whole_run_gives_the_bits_of_a_plain_one_and_cleans_up(case):
    report = case.run()
    assert case.sha() == case.expected
    assert case.leftovers() == []
    assert (report.resumption.kept, report.resumption.finished) == (0, False)
    assert report.resumption.tiles > 40
    assert report.planned_bytes == report.moved_bytes


def test_a_finished_run_says_so_and_does_nothing(case):
    case.run()
    before = case.path("C").stat()
    # A run that is killed after its last record leaves its redo log.
    case.journal.with_name(f"{case.journal.name}.redo").touch()
    report = case.run()
    assert case.leftovers() == []
    assert report.resumption.finished
    assert report.resumption.kept == report.resumption.tiles
    assert report.stages == {}
    assert case.path("C").stat() == before
    assert json.loads(report.to_json())["resumption"]["finished"] is True


@pytest.mark.parametrize("count", [1, 48])
def test_a_run_cut_off_goes_on(case, count):
    assert case.run_until(count)
    report = case.run()
    assert case.sha() == case.expected
    assert case.leftovers() == []
    # A clean stop records all that is stored.
    assert report.resumption.kept >= count
    assert report.resumption.damaged == 0
    assert report.planned_bytes == report.moved_bytes
    done = report.stages["mult1"].flops if report.stages else 0
    assert done < 2 * 300 * 150 * 280


def test_a_run_may_be_cut_off_often(case):
    for count in (3, 1, 9, 2, 5):
        assert case.run_until(count)
    report = case.run()
    assert case.sha() == case.expected
    assert report.resumption.kept >= 20


def test_nothing_is_published_before_it_is_whole(tmp_path):
    case = Case(tmp_path)
    case.run_until(30)
    assert not case.path("C").exists()
    [part] = case.leftovers()
    assert part.endswith(".part")


def test_an_input_error_keeps_a_run_only_where_tiles_are_done(case):
    stage = "load1"

    def observe(event):
        if event.stage == stage and event.number >= 20 * (stage == "store2"):
            raise InputError("A is wrong")

    before = {path: path.read_bytes() for path in case.folder.iterdir()}
    with pytest.raises(InputError, match=r"A is wrong\Z"):
        case.run(observer=observe)
    assert {path: path.read_bytes() for path in case.folder.iterdir()} == before
    stage = "store2"
    with pytest.raises(InputError, match="A is wrong; what the run has finished is kept"):
        case.run(observer=observe)
    assert case.run().resumption.kept >= 20
    assert case.sha() == case.expected


def test_cancelling_keeps_what_is_done(case):
    cancel = threading.Event()

    def observe(event):
        if event.stage == "store2" and event.number >= 20:
            cancel.set()
            time.sleep(0.2)  # and for each tile after it, until the run has seen it

    with pytest.raises(CancelledRunError):
        case.run(observer=observe, cancel=cancel)
    assert case.run().resumption.kept >= 20
    assert case.sha() == case.expected


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_dtypes_and_orders(tmp_path, dtype, order):
    case = Case(tmp_path, "update", dtype=dtype, order=order)
    assert case.run_until(11)
    assert case.run().resumption.kept >= 11
    assert case.sha() == case.expected


@pytest.mark.parametrize("strategy", ["initial", "double-buffering", "data-reuse"])
def test_strategies(tmp_path, strategy):
    case = Case(tmp_path, strategy=strategy)
    assert case.run_until(11)
    case.run()
    assert case.sha() == case.expected


def test_a_journal_elsewhere(tmp_path):
    case = Case(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    journal = elsewhere / "journal"
    assert case.run_until(11, checkpoint=journal)
    assert case.run(checkpoint=journal).resumption.journal == str(journal)
    assert case.sha() == case.expected
    assert not case.journal.exists()
    journal.unlink()
    elsewhere.rmdir()


def test_matmul_and_dgemm_take_it_too(tmp_path):
    case = Case(tmp_path)
    out = tmp_path / "D.npy"
    c = matmul(case.path("A"), case.path("B"), out, options=case.options, checkpoint=True)
    assert (tmp_path / ".D.npy.hdgemm-journal").exists()
    d = dgemm(1.0, case.path("A"), case.path("B"), out=out, options=case.options, checkpoint=True)
    np.testing.assert_array_equal(c, d)


def test_operands_in_memory(tmp_path):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((90, 50)), rng.standard_normal((50, 70))
    options = Options(tile=(16, 16, 16), devices="host")
    out = tmp_path / "C.npy"
    plain = np.array(matmul(a, b, tmp_path / "R.npy", options=options))

    def observe(event):
        if event.stage == "store2" and event.number == 9:
            raise Stop

    with pytest.raises(Stop):
        multiply(a, b, out=out, options=options, checkpoint=True, observer=observe)
    with pytest.raises(InputError, match="A has changed: its content"):
        multiply(a + 1, b, out=out, options=options, checkpoint=True)
    assert multiply(a, b, out=out, options=options, checkpoint=True).resumption.kept >= 9
    np.testing.assert_array_equal(np.load(out), plain)


def _killed_run(folder, mode, number):
    case = Case.__new__(Case)
    case.folder, case.mode = folder, mode
    case.options = Options(tile=TILE, devices="host")
    case.run(observer=Killer(number))


@pytest.mark.parametrize("mode", ["new", pytest.param("update", marks=pytest.mark.campaign)])
def test_killed_at_any_moment(tmp_path, mode):
    case = Case(tmp_path, mode)
    events = []
    case.run(observer=events.append)
    case.reset()
    killed(_killed_run, tmp_path, mode, len(events) // 3)
    # What is left has fewer events.
    killed(_killed_run, tmp_path, mode, len(events) // 4)
    assert case.run().resumption.kept > 0
    assert case.sha() == case.expected
    assert case.leftovers() == []


def test_the_command_line_says_what_it_found(tmp_path):
    case = Case(tmp_path)
    case.run_until(9, alpha=1.0)
    command = ["multiply", str(case.path("A")), str(case.path("B")), "--out", str(case.path("C"))]
    runner = CliRunner()
    result = runner.invoke(app, [*command, "--checkpoint"])
    assert result.exit_code == 0
    assert re.search(r"\d+ of 48 tiles done already", result.output)
    result = runner.invoke(app, [*command, "--checkpoint"])
    assert "an earlier run had stored all 48 tiles of C" in result.output
    result = runner.invoke(app, [*command, "--checkpoint", "--alpha", "2"])
    assert isinstance(result.exception, InputError) or "alpha was 1.0, is 2.0" in result.output
    assert result.exit_code != 0
