"""Reports of factorisations: phases, bytes, speed by LAPACK's counts, table, picture, JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.linalg import cholesky, lu_factor
from hdgemm.linalg.planning._pricing import PHASES
from hdgemm.pictures.gantt import save_gantt
from tests.linalg.matrices import positive_definite

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


def report_of(call, *operands, **arguments):
    reports = []
    call(*operands, report=reports.append, **arguments)
    [report] = reports
    return report


@pytest.mark.parametrize("call", [cholesky, lu_factor])
def test_a_file_has_every_phase_predicted_and_measured(tmp_path, call):
    a = positive_definite(40, "float64")
    report = report_of(call, a, out=tmp_path / "F.npy", options=SLABS)
    phases = [phase for phase in PHASES if phase != "interchange" or call is lu_factor]
    assert set(report.phases) == set(phases)
    expected = report.plan["expected_phase_seconds"]
    assert all(expected[phase] > 0 for phase in phases)
    assert report.moved_bytes == report.planned_bytes
    assert report.plan["host_bytes"] <= report.plan["host_limit"] == 20_000_000
    count = 40**3 / 3 if call is cholesky else 2 * 40**3 / 3
    assert report.gflops == pytest.approx(int(count) / report.seconds / 1e9)


@pytest.mark.parametrize("columns", [0, 2])
def test_one_pass_over_rows_is_predicted(tmp_path, columns):
    np.save(tmp_path / "T.npy", np.random.default_rng(0).random((90, 5)))
    options = hdgemm.Options(tile=(10, 1, 1), host_memory="20MB", threads=2)
    arguments = {"out": tmp_path / "X.npy", "options": options}
    if columns:
        np.save(tmp_path / "Y.npy", np.ones((90, columns)))
        report = report_of(linalg.lstsq, tmp_path / "T.npy", tmp_path / "Y.npy", **arguments)
        plan = linalg.plan("lstsq", tmp_path / "T.npy", columns=columns, **arguments)
    else:
        report = report_of(linalg.qr, tmp_path / "T.npy", mode="r", **arguments)
        plan = linalg.plan("qr", tmp_path / "T.npy", mode="r", **arguments)
    assert report.plan == plan.summary()
    expected = report.plan["expected_phase_seconds"]
    assert set(report.phases) == set(expected) == {"load", "panel", "update"}
    assert all(seconds > 0 for seconds in expected.values())
    assert max(expected.values()) <= report.plan["expected_seconds"] <= sum(expected.values())
    assert "expected: " in str(plan)


@pytest.mark.parametrize("call", [cholesky, lu_factor])
def test_an_array_is_reported_too(call):
    a = positive_definite(40, "float64")
    report = report_of(call, a)
    assert report.moved_bytes == report.planned_bytes
    assert "panel" in report.phases


def test_a_failed_run_has_no_report(tmp_path):
    reports = []
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(-np.eye(20), out=tmp_path / "L.npy", options=SLABS, report=reports.append)
    assert not reports
    assert not list(tmp_path.iterdir())


def test_table_picture_and_json_are_those_of_products(tmp_path):
    report = report_of(
        lu_factor, positive_definite(40, "float64"), out=tmp_path / "F.npy", options=SLABS
    )
    values = json.loads(report.to_json())
    assert values["plan"]["kind"] == "lu"
    assert set(values["phases"]) == set(PHASES)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["stage", "load1", "mult1", "store2"]
    assert any("as planned" in line for line in lines)
    save_gantt(report.timeline, tmp_path / "gantt.png")
    assert (tmp_path / "gantt.png").stat().st_size > 0


def calls(folder):
    """Return calls with operands in files, by name; each takes keywords."""
    a, b = folder / "A.npy", folder / "B.npy"
    return {
        "solve": lambda **rest: linalg.solve(a, b, **rest),
        "inv": lambda **rest: linalg.inv(a, **rest),
        "lu_solve": lambda **rest: linalg.lu_solve((a, np.arange(N)), b, **rest),
        "cho_solve": lambda **rest: linalg.cho_solve((a, True), b, **rest),
        "solve_triangular": lambda **rest: linalg.solve_triangular(a, b, **rest),
        "syrk": lambda **rest: hdgemm.syrk(1.0, a, **rest),
        "her2k": lambda **rest: hdgemm.her2k(1.0, a, a, trans=1, lower=1, **rest),
        "symm": lambda **rest: hdgemm.symm(1.0, a, b, **rest),
        "trmm": lambda **rest: hdgemm.trmm(1.0, a, b, **rest),
        "trsm": lambda **rest: hdgemm.trsm(1.0, a, b, **rest),
    }


@pytest.mark.parametrize("name", sorted(calls(Path())))
def test_every_call_reports_what_it_moved_as_planned(tmp_path, name):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    np.save(tmp_path / "B.npy", np.ones((N, 12)))
    call = calls(tmp_path)[name]
    options = hdgemm.Options(tile=(9, 7, 3), host_memory="20MB", devices="host")
    report = report_of(call, out=tmp_path / "X.npy", options=options)
    assert report.moved_bytes == report.planned_bytes
    assert sum(report.moved_bytes.values()) > 0
    assert report.plan["dtype"] == "float64"
    assert report.timeline.events
    assert json.loads(report.to_json())["gflops"] > 0
    assert str(report)
    save_gantt(report.timeline, tmp_path / "gantt.png")


@pytest.mark.parametrize(
    ("routine", "shape", "columns", "expected"),
    [
        ("lu", (1, 1), 1, "1 slab of 1 column\n"),
        ("solve_triangular", (9, 9), 1, "1 triangular system of order 9, 1 right-hand side, float"),
        ("solve_triangular", (9, 9), 1, "1 group of 1 column of B; "),
        ("solve_triangular", (9, 9), 5, "1 group of 5 columns of B; "),
        ("lstsq", (9, 1), 1, "TSQR of a 9 × 1 float64 matrix, 1 right-hand side: "),
    ],
)
def test_numbers_and_nouns_of_plans_agree(routine, shape, columns, expected):
    options = hdgemm.Options(host_memory="80MB", devices="host")
    assert expected in str(hdgemm.linalg.plan(routine, shape, columns=columns, options=options))
