"""Durable factorisations: interrupted anywhere, resumed to the same bits, refused where unsafe."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.durable.audit import audit
from hdgemm.durable.earlier_run import DamagedError
from hdgemm.durable.journal import Journal
from hdgemm.linalg import (
    _checkpoint as checkpoint,
    cho_factor,
    cholesky,
    inv,
    lstsq,
    lu_factor,
    open as open_factors,
    qr,
    solve,
    solve_triangular,
)
from hdgemm.linalg.planning.slab import Columns
from tests.linalg.interruption import InterruptedRunError
from tests.linalg.matrices import positive_definite, random_matrix

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")
LAST = -(-N // 7) - 1


def interrupt(stage, slab, after=0):
    """Return an observer that raises at an operation of a slab, counted from its first one."""
    count = itertools.count(1)

    def observe(event):
        if event.stage == stage and event.unit == slab and next(count) > after:
            raise InterruptedRunError

    return observe


def matrix_for(call, dtype="float64"):
    return random_matrix(N, N, dtype) if call is lu_factor else positive_definite(N, dtype)


def report_of(call, *arguments, **named):
    reports = []
    call(*arguments, report=reports.append, **named)
    return reports[0]


CALLS = [lu_factor, cholesky, cho_factor]
#: The second store of slab 0 belongs to LU's last pass.
MOMENTS = [("load1", 3, 0), ("mult1", 2, 0), ("mult1", LAST, 0), ("store2", 2, 0), ("store2", 0, 1)]


@pytest.mark.parametrize("column", [9, N - 1])
def test_a_zero_pivot_before_an_interruption_is_named(tmp_path, column):
    a = random_matrix(N, N, "float64")
    a[:, column] = 0
    command = {"out": tmp_path / "F.npy", "options": SLABS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        lu_factor(a, observer=interrupt("mult1", 4), **command)
    for _ in ("resumed", "finished"):
        with pytest.warns(scipy.linalg.LinAlgWarning, match=f"number {column + 1} is"):
            lu_factor(a, **command)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "call",
    # cho_factor differs from cholesky only in the triangle that it leaves.
    [lu_factor, cholesky, pytest.param(cho_factor, marks=pytest.mark.campaign)],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, call, moment, in_place):
    monkeypatch.setattr("hdgemm.linalg._checkpoint.PIECE_BYTES", 3 * N * 8)
    for name, order in (("expected.npy", "F"), ("A.npy", "F"), ("B.npy", "C")):
        np.save(tmp_path / name, np.asarray(matrix_for(call), order=order))
    call(tmp_path / "expected.npy", overwrite_a=True, options=SLABS)
    for name in ("A.npy", "B.npy") if in_place else ("A.npy",):
        out = tmp_path / name if in_place else tmp_path / "F.npy"
        command = {"options": SLABS, "checkpoint": True}
        command |= {"overwrite_a": True} if in_place else {"out": out}
        stage, slab, after = moment
        if call is lu_factor or not after:
            with pytest.raises(InterruptedRunError):
                call(tmp_path / name, observer=interrupt(stage, slab, after), **command)
        report = report_of(call, tmp_path / name, **command)
        found, expected = np.load(out), np.load(tmp_path / "expected.npy")
        if call is cho_factor:
            found, expected = np.triu(found), np.triu(expected)
        np.testing.assert_array_equal(found, expected)
        assert report.moved_bytes == report.planned_bytes
        again = report_of(call, tmp_path / name, **command)
        assert again.resumption.finished
        assert again.resumption.kept == again.resumption.tiles
        if call is lu_factor:
            pivots = np.load(tmp_path / "expected.piv.npy")
            np.testing.assert_array_equal(np.load(out.with_suffix(".piv.npy")), pivots)
            np.testing.assert_array_equal(call(tmp_path / name, **command)[1], pivots)
        assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("*.redo"))


@pytest.mark.parametrize("slab", [1, 3, LAST])
def test_at_most_one_slab_is_computed_again(tmp_path, slab):
    a = random_matrix(N, N, "float64")
    command = {"out": tmp_path / "LU.npy", "options": SLABS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        lu_factor(a, observer=interrupt("store2", slab), **command)
    report = report_of(lu_factor, a, **command)
    # The interrupted store was recorded; its slab is done, or is the one that is lost.
    assert report.resumption.kept >= slab


@pytest.mark.parametrize(
    ("dtype", "outs"),
    [
        ("complex128", ("F.bin::40x40:complex128", "R.bin::40x40:complex128:F")),
        ("float32", ("N.h5::LU", "Z.zarr")),
    ],
)
def test_every_format_goes_on(tmp_path, dtype, outs):
    a = random_matrix(N, N, dtype)
    expected, pivots = lu_factor(a, out=tmp_path / "LU.npy", options=SLABS)
    for out in outs:
        command = {"out": f"{tmp_path}/{out}", "options": SLABS, "checkpoint": True}
        with pytest.raises(InterruptedRunError):
            lu_factor(a, observer=interrupt("store2", 3), **command)
        lu, found = lu_factor(a, **command)
        np.testing.assert_array_equal(np.asarray(lu), expected)
        np.testing.assert_array_equal(found, pivots)


@pytest.mark.parametrize("shape", [(40, 16), (16, 40)])
def test_rectangular_matrices_go_on(tmp_path, shape):
    a = random_matrix(*shape, "float64")
    expected, pivots = lu_factor(a, out=tmp_path / "E.npy", options=SLABS)
    command = {"out": tmp_path / "LU.npy", "options": SLABS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        lu_factor(a, observer=interrupt("store2", 1), **command)
    lu, found = lu_factor(a, **command)
    np.testing.assert_array_equal(lu, expected)
    np.testing.assert_array_equal(found, pivots)


_KILLED = """
import itertools, os, signal, sys
from pathlib import Path
import hdgemm, hdgemm.linalg
options = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")
hdgemm.linalg._checkpoint.PIECE_BYTES = 3 * 40 * 8
def run(folder, routine, in_place, observer=None):
    where = {"overwrite_a": True} if in_place else {"out": folder + "/F.npy"}
    getattr(hdgemm.linalg, routine)(folder + "/A.npy", options=options, checkpoint=True,
                                    observer=observer, **where)
def killer(stage, slab, after):
    count = itertools.count(1)
    def observe(event):
        if event.stage == stage and event.unit == slab and next(count) > after:
            os.kill(os.getpid(), signal.SIGKILL)
    return observe
for line in sys.stdin.read().splitlines():
    folder, routine, in_place, stage, slab, after = line.split()
    for observer in (killer(stage, int(slab), int(after)), None):
        child = os.fork()
        if child == 0:
            run(folder, routine, in_place == "yes", observer)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert (os.WTERMSIG(status) == 9) if observer else status == 0, (line, status)
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    cases = [
        (call, in_place, *moment)
        for call in (lu_factor, cholesky)
        for in_place in ("no", "yes")
        for moment in ([MOMENTS[3], MOMENTS[4]] if call is lu_factor else [MOMENTS[1]])
    ]
    lines = []
    for number, (call, *rest) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.save(folder / "A.npy", matrix_for(call))
        call(folder / "A.npy", out=folder / "expected.npy", options=SLABS)
        lines.append(" ".join(map(str, (folder, call.__name__, *rest))))
    subprocess.run(
        [sys.executable, "-c", _KILLED], input="\n".join(lines), text=True, check=True,
        cwd=Path.cwd(), env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        timeout=400,
    )  # fmt: skip
    for number, (call, in_place, *_) in enumerate(cases):
        folder = tmp_path / str(number)
        found = np.load(folder / ("A.npy" if in_place == "yes" else "F.npy"))
        np.testing.assert_allclose(found, np.load(folder / "expected.npy"), rtol=1e-9, atol=1e-9)
        if call is lu_factor:
            assert (folder / ("A.piv.npy" if in_place == "yes" else "F.piv.npy")).exists()


def interrupted(tmp_path, call, a, **command):
    command = {"out": tmp_path / "F.npy", "options": SLABS, "checkpoint": True} | command
    with pytest.raises(InterruptedRunError):
        call(a, observer=interrupt("mult1", 3), **command)
    return command


def test_another_command_is_refused(tmp_path):
    np.save(tmp_path / "A.npy", matrix_for(cholesky))
    command = interrupted(tmp_path, cholesky, tmp_path / "A.npy")
    with pytest.raises(hdgemm.InputError, match="belongs to another run: lower was False, is True"):
        cholesky(tmp_path / "A.npy", lower=True, **command)
    with pytest.raises(hdgemm.InputError, match="routine was cholesky, is lu_factor"):
        lu_factor(tmp_path / "A.npy", **command)
    with pytest.raises(hdgemm.InputError, match="had 7 and 3 columns"):
        cholesky(tmp_path / "A.npy", **command | {"options": hdgemm.Options(tile=(1, 8, 3))})
    with pytest.raises(hdgemm.InputError, match="allowed are now"):
        cholesky(tmp_path / "A.npy", **command | {"options": hdgemm.Options(host_memory=1000)})
    with pytest.raises(hdgemm.InputError, match="the routine was cholesky, is multiply"):
        hdgemm.multiply(
            tmp_path / "A.npy", tmp_path / "A.npy", out=tmp_path / "F.npy", checkpoint=True
        )
    np.save(tmp_path / "A.npy", 2 * matrix_for(cholesky))
    with pytest.raises(hdgemm.InputError, match="A has changed"):
        cholesky(tmp_path / "A.npy", **command)
    report = report_of(cholesky, tmp_path / "A.npy", **command, restart=True)
    assert report.resumption.kept == 0


@pytest.mark.parametrize("shape", [(40, 40), (40, 16), (16, 40)])
@pytest.mark.parametrize("in_place", [False, True])
def test_reflectors_of_qr_go_on_to_the_same_bits(tmp_path, shape, in_place):
    np.save(tmp_path / "A.npy", random_matrix(*shape, "complex128"))
    (expected, tau), _ = qr(tmp_path / "A.npy", mode="raw", out=tmp_path / "E.npy", options=SLABS)
    command = {"mode": "raw", "options": SLABS, "checkpoint": True}
    command |= {"overwrite_a": True} if in_place else {"out": tmp_path / "QR.npy"}
    with pytest.raises(InterruptedRunError):
        qr(tmp_path / "A.npy", observer=interrupt("mult1", 2), **command)
    for _ in range(2):
        report = report_of(qr, tmp_path / "A.npy", **command)
        assert report.resumption.kept >= 1
        out = tmp_path / ("A.npy" if in_place else "QR.npy")
        np.testing.assert_array_equal(np.load(out), expected)
        np.testing.assert_array_equal(np.load(out.with_suffix(".tau.npy")), tau)
    assert report.resumption.finished
    factors = open_factors(out)
    np.testing.assert_array_equal(factors.qr, expected)
    np.testing.assert_array_equal(factors.tau, tau)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_factor_is_audited(tmp_path, call, in_place):
    np.save(tmp_path / "A.npy", np.asfortranarray(matrix_for(call)))
    where = {"overwrite_a": True} if in_place else {"out": tmp_path / "F.npy"}
    call(tmp_path / "A.npy", options=SLABS, checkpoint=True, **where)
    out = tmp_path / ("A.npy" if in_place else "F.npy")
    assert audit(out).passed
    np.load(out, mmap_mode="r+")[20, 20] += 1
    assert len(audit(out).damaged) == 1


def test_two_runs_on_one_journal_are_refused(tmp_path):
    a = matrix_for(lu_factor)
    command = interrupted(tmp_path, lu_factor, a)
    with (
        Journal(tmp_path / ".F.npy.hdgemm-journal"),
        pytest.raises(hdgemm.InputError, match="another run is at work"),
    ):
        lu_factor(a, **command)
    lu_factor(a, **command)


def test_a_damaged_slab_is_computed_again(tmp_path):
    a = matrix_for(lu_factor)
    command = interrupted(tmp_path, lu_factor, a)
    [part] = tmp_path.glob("*.part")
    np.load(part, mmap_mode="r+")[0, 8] += 1  # in slab 1
    report = report_of(lu_factor, a, **command)
    assert report.resumption.kept == 1
    expected, _ = lu_factor(a, out=tmp_path / "E.npy", options=SLABS)
    np.testing.assert_array_equal(np.load(tmp_path / "F.npy"), expected)


@pytest.mark.parametrize("column", [1, 7 * LAST])
def test_a_changed_matrix_in_place_is_refused(tmp_path, column):
    np.save(tmp_path / "A.npy", np.asfortranarray(matrix_for(lu_factor)))
    command = interrupted(tmp_path, lu_factor, tmp_path / "A.npy", out=None, overwrite_a=True)
    np.load(tmp_path / "A.npy", mmap_mode="r+")[0, column] += 1
    with pytest.raises(DamagedError, match="restore the old elements"):
        lu_factor(tmp_path / "A.npy", **command)
    with pytest.raises(hdgemm.InputError, match="half updated"):
        lu_factor(tmp_path / "A.npy", **command, restart=True)
    with pytest.raises(hdgemm.InputError, match="half updated"):
        hdgemm.multiply(np.eye(N), np.eye(N), out=np.load(tmp_path / "A.npy", "r+"))
    with pytest.raises(hdgemm.InputError, match="half updated"):
        lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
    np.save(tmp_path / "A.npy", np.asfortranarray(matrix_for(lu_factor)))
    lu_factor(tmp_path / "A.npy", **command, restart=True)
    hdgemm.multiply(np.eye(N), np.eye(N), out=np.load(tmp_path / "A.npy", "r+"))


def test_a_damaged_record_of_a_slab_that_was_interchanged_is_refused(tmp_path):
    a = matrix_for(lu_factor)
    command = {"out": tmp_path / "F.npy", "options": SLABS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        lu_factor(a, observer=interrupt("store2", 2, 1), **command)
    journal = tmp_path / ".F.npy.hdgemm-journal"
    lines = journal.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"done", b"gone")
    journal.write_bytes(b"\n".join(lines))
    with pytest.raises(DamagedError, match=r"damaged in lines \[3\]"):
        lu_factor(a, **command)
    lu_factor(a, **command, restart=True)
    expected, _ = lu_factor(a, out=tmp_path / "E.npy", options=SLABS)
    np.testing.assert_array_equal(np.load(tmp_path / "F.npy"), expected)


def test_a_crash_after_the_last_record_leaves_no_redo_log(tmp_path):
    a = matrix_for(lu_factor)
    for _ in range(2):
        lu_factor(a, out=tmp_path / "F.npy", options=SLABS, checkpoint=True)
        redo = tmp_path / ".F.npy.hdgemm-journal.redo"
        assert not redo.exists()
        redo.touch()  # as a run leaves it that is killed before it is removed


def test_a_draft_that_is_gone_is_named(tmp_path):
    a = matrix_for(cholesky)
    command = interrupted(tmp_path, cholesky, a)
    [part] = tmp_path.glob("*.part")
    part.unlink()
    with pytest.raises(hdgemm.InputError, match="is gone; restart=True"):
        cholesky(a, **command)


def test_a_finished_factor_that_was_changed_is_refused(tmp_path):
    a = matrix_for(cholesky)
    cholesky(a, out=tmp_path / "F.npy", options=SLABS, checkpoint=True)
    np.load(tmp_path / "F.npy", mmap_mode="r+")[0, 0] += 1
    with pytest.raises(hdgemm.InputError, match="no longer what the run left"):
        cholesky(a, out=tmp_path / "F.npy", options=SLABS, checkpoint=True)


def test_not_positive_definite_leaves_nothing(tmp_path):
    with pytest.raises(np.linalg.LinAlgError, match="order 1 "):
        cholesky(-np.eye(N), out=tmp_path / "F.npy", options=SLABS, checkpoint=True)
    assert not list(tmp_path.iterdir())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


#: Calls with A in A.npy and b in b.npy, by the names of their routines.
DURABLE = {
    "lu_factor": lambda how: lu_factor("A.npy", out="X.npy", **how),
    "lu_factor in place": lambda how: lu_factor("A.npy", overwrite_a=True, **how),
    "cholesky": lambda how: cholesky("A.npy", out="X.npy", **how),
    "qr": lambda how: qr("A.npy", out=("X.npy", "R.npy"), **how),
    "qr of rows": lambda how: qr("T.npy", mode="r", out="X.npy", **how),
    "solve": lambda how: solve("A.npy", "b.npy", out="X.npy", **how),
    "inv": lambda how: inv("A.npy", out="X.npy", **how),
    "lstsq": lambda how: lstsq("T.npy", "b.npy", out="X.npy", **how),
    "solve_triangular": lambda how: solve_triangular("A.npy", "b.npy", out="X.npy", **how),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = positive_definite(N, "float64")
    for name, matrix in (("A", a), ("T", a[:, :5]), ("b", random_matrix(N, 12, "float64"))):
        np.save(f"{name}.npy", np.asfortranarray(matrix))
    return tmp_path


@pytest.mark.parametrize("call", DURABLE)
def test_an_input_error_before_the_first_slab_leaves_nothing(folder, call):
    for name in ("A", "T"):
        np.save(f"{name}.npy", np.full_like(np.load(f"{name}.npy"), np.nan))
    before = names(folder)
    with pytest.raises(hdgemm.InputError, match="infs or NaNs") as caught:
        DURABLE[call]({"options": SLABS, "checkpoint": True})
    assert names(folder) == before
    assert "kept" not in str(caught.value)


@pytest.mark.parametrize("call", ["lu_factor", "cholesky", "qr", "solve", "inv"])
def test_an_input_error_keeps_finished_slabs_and_says_so(folder, call):
    a = np.load("A.npy")
    a[-1, -1] = np.nan
    np.save("A.npy", a)
    before, reports = names(folder), []
    durable = {"options": SLABS, "checkpoint": True}
    with pytest.raises(hdgemm.InputError, match=r"NaNs; what the run has finished is kept.*--rest"):
        DURABLE[call](durable)
    assert len(names(folder)) > len(before)
    DURABLE[call](durable | {"check_finite": False, "report": reports.append})
    assert reports[-1].moved_bytes == reports[-1].planned_bytes
    assert reports[-1].resumption.kept > 0


def test_an_input_error_keeps_the_rows_that_are_reduced(folder):
    tall = random_matrix(2000, 5, "float64")
    tall[-1, 0] = np.nan
    np.save("T.npy", tall)
    before = names(folder)
    rows = hdgemm.Options(tile=(50, 5, 5), host_memory="30MB")
    with pytest.raises(hdgemm.InputError, match="what the run has finished is kept"):
        qr("T.npy", mode="r", out="X.npy", options=rows, checkpoint=True)
    assert len(names(folder)) > len(before)


def test_a_wrong_right_hand_side_keeps_the_factors(folder):
    b, reports = np.load("b.npy"), []
    np.save("b.npy", np.full_like(b, np.nan))
    durable = {"options": SLABS, "checkpoint": True}
    with pytest.raises(hdgemm.InputError, match="what the run has finished is kept"):
        DURABLE["solve"](durable)
    np.save("b.npy", b)
    DURABLE["solve"](durable | {"report": reports.append})
    assert reports[0].stages["mult1"].flops <= 2 * N**2 * 12  # not factored again
    assert not [name for name in names(folder) if "work" in name]


@pytest.mark.parametrize(
    "reserving",
    ["hdgemm.matrices.draft.allocate", "hdgemm.durable.place.sync", "hdgemm.durable.redo_log.sync"],
)
def test_an_interrupt_before_the_first_record_leaves_nothing(folder, monkeypatch, reserving):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = names(folder)
    monkeypatch.setattr(reserving, interrupted)
    with pytest.raises(KeyboardInterrupt):
        DURABLE["lu_factor"]({"options": SLABS, "checkpoint": True})
    assert names(folder) == before


def test_other_options_do_not_remove_a_run_without_slabs(tmp_path):
    command = {"out": tmp_path / "LU.npy", "checkpoint": True}
    a = random_matrix(N, N, "float64")
    with pytest.raises(InterruptedRunError):
        lu_factor(a, options=SLABS, observer=interrupt("load1", 0), **command)
    left = names(tmp_path)
    with pytest.raises(hdgemm.InputError, match="belongs to another run"):
        lu_factor(a, options=hdgemm.Options(tile=(1, 9, 3), host_memory="30MB"), **command)
    assert names(tmp_path) == left != []


def test_memory_and_compressed_stores_have_no_checkpoint(tmp_path):
    a = matrix_for(cholesky)
    for given in ({}, {"overwrite_a": True}, {"out": np.empty((N, N))}):
        with pytest.raises(hdgemm.InputError, match="checkpoint needs"):
            cholesky(a.copy(), checkpoint=True, **given)
    with h5py.File(tmp_path / "S.h5", "w") as file:
        file.create_dataset("F", (N, N), "f8", chunks=(5, 5), compression="gzip")
    with h5py.File(tmp_path / "S.h5", "r+") as file, pytest.raises(hdgemm.InputError):
        cholesky(a, out=file["F"], checkpoint=True)


def test_a_journal_elsewhere(tmp_path):
    a = matrix_for(lu_factor)
    command = interrupted(tmp_path, lu_factor, a, checkpoint=tmp_path / "journal")
    assert (tmp_path / "journal").exists()
    assert report_of(lu_factor, a, **command).resumption.kept > 0


def test_pieces_cover_a_slab(tmp_path):
    with hdgemm.create(tmp_path / "M.npy", (N, N), order="F") as stored:
        rects = checkpoint.pieces_of(Columns(7, 14, 0), stored.operand, 3 * N * 8)
        assert [(rect.row, rect.rows) for rect in rects] == [(7, 3), (10, 3), (13, 1)]
