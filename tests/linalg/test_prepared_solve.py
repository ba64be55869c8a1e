"""Solves, inverses and least squares run the plan that is shown, and refuse before they factor."""

import json
import os
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm import Options, linalg
from hdgemm.linalg.planning.factors import FactorsOfSolve
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.solving import factors
from tests.cli.test_factor import invoke
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import positive_definite, random_matrix

N, P = 40, 5
OPTIONS = Options(host_memory="30MB", tile=(1, 7, 3), devices="host")
SOLVES = {
    "general": {},
    "transposed": {"transposed": True},
    "over A": {"overwrite_a": True},
    "symmetric": {"assume_a": "sym"},
    "positive definite": {"assume_a": "pos"},
    "positive definite, lower": {"assume_a": "pos", "lower": True, "overwrite_a": True},
    "triangular": {"assume_a": "upper triangular"},
    "refined": {"refine": "float32"},
    "refined, symmetric": {"refine": "float32", "assume_a": "sym"},
}
CALLS = {
    **{f"solve, {name}": ("solve", arguments) for name, arguments in SOLVES.items()},
    "inv": ("inv", {}),
    "inv, over A": ("inv", {"overwrite_a": True}),
    "inv, symmetric": ("inv", {"assume_a": "sym", "lower": True}),
    "inv, positive definite": ("inv", {"assume_a": "pos"}),
    "inv, triangular": ("inv", {"assume_a": "lower triangular"}),
    "solve_triangular": ("solve_triangular", {"lower": True, "trans": 1}),
    "lstsq": ("lstsq", {}),
}
OUTS = {
    "array": None,
    "npy": "X.npy",
    "raw": "X.bin::{shape}:float64",
    "hdf5": "X.h5::X",
    "zarr": "X.zarr",
}
WHOLE = Options(host_memory="30MB", devices="host")
SOME = [("array", False, OPTIONS), ("npy", True, OPTIONS), ("npy", False, WHOLE)]
OTHERS = [
    pytest.param(*case, marks=pytest.mark.campaign)
    for case in product(OUTS, (False, True), (OPTIONS, WHOLE))
    if case not in SOME and case[:2] != ("array", True)  # refused
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", positive_definite(N, "float64"))
    np.save("T.npy", random_matrix(4 * N, N, "float64"))
    np.save("B.npy", random_matrix(N, P, "float64", seed=1))
    np.save("Y.npy", random_matrix(4 * N, P, "float64", seed=1))
    return tmp_path


def moved(counts):
    return {stage: count for stage, count in counts.items() if count}


@pytest.mark.parametrize(("out", "durable", "options"), [*SOME, *OTHERS])
@pytest.mark.parametrize("call", CALLS)
def test_the_plan_is_the_plan_that_runs(folder, call, out, durable, options):
    routine, arguments = CALLS[call]
    place = OUTS[out] and OUTS[out].format(shape=f"{N}x{N if routine == 'inv' else P}")
    a, b = ("T.npy", "Y.npy") if routine == "lstsq" else ("A.npy", "B.npy")
    given = {"out": place, "checkpoint": durable, "options": options, **arguments}
    before = sorted(path.name for path in folder.iterdir())
    shown = linalg.plan(routine, a, **({} if routine == "inv" else {"columns": b}), **given)
    assert sorted(path.name for path in folder.iterdir()) == before
    reports = []
    getattr(linalg, routine)(a, *(() if routine == "inv" else (b,)), report=reports.append, **given)
    [report] = reports
    assert report.plan == shown.summary()
    assert shown.host_bytes <= options.host_bytes
    if "refine" not in arguments:  # the number of steps is not known before the run
        assert moved(report.moved_bytes) == moved(shown.planned_bytes)
        flops = sum(part.flops for part in getattr(shown, "parts", (shown,)))
        assert report.gflops * report.seconds * 1e9 == pytest.approx(flops)


def test_a_run_that_goes_on_shows_its_recorded_plan(folder):
    how = {"out": "X.npy", "checkpoint": True}
    ample = Options(devices="host", host_memory="1GB")  # free memory changes meanwhile
    with pytest.raises(InterruptedRunError):
        linalg.solve("A.npy", "B.npy", options=OPTIONS, observer=interrupt_after(60), **how)
    shown = linalg.plan("solve", "A.npy", columns="B.npy", options=ample, **how)
    assert len(shown.parts[0].slabs) > 1
    reports = []
    for _ in range(2):
        linalg.solve("A.npy", "B.npy", options=ample, report=reports.append, **how)
        assert reports[-1].plan == shown.summary()
        shown = linalg.plan("solve", "A.npy", columns="B.npy", options=ample, **how)
    assert reports[1].resumption.finished


@pytest.mark.parametrize("memory", [1, 3_000_000])
@pytest.mark.parametrize("call", [
    partial(linalg.solve, "A.npy", "B.npy"),
    partial(linalg.solve, "A.npy", "B.npy", assume_a="pos"),
    partial(linalg.solve, "A.npy", "B.npy", refine="float32"),
    partial(linalg.inv, "A.npy"),
    partial(linalg.cond, "A.npy"),
])  # fmt: skip
def test_a_solution_that_does_not_fit_is_refused_before_the_factorisation(
    folder, monkeypatch, call, memory
):
    def plan_anyway(*_args, **_keywords):
        return SlabPlan.of_array("lu", N, N, "float64", memory)

    # The factorisation alone would fit.
    for module in ("lu", "cholesky"):
        monkeypatch.setattr(sys.modules[f"hdgemm.linalg.{module}"], "plan_for", plan_anyway)
    events = []
    options = Options(host_memory=memory, devices="host")
    with pytest.raises(hdgemm.DoesNotFitError, match=r"solve with (one column|a matrix)") as caught:
        call(options=options, observer=events.append)
    assert not events
    assert caught.value.available == memory
    assert caught.value.missing == caught.value.requested - memory
    before = {path.name for path in folder.iterdir()}
    assert before == {"A.npy", "B.npy", "T.npy", "Y.npy"}


def test_the_numbers_of_a_refusal_add_up():
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        linalg.plan("trsm", 1000, options=Options(host_memory=1))
    said = str(caught.value)
    needs = said.split("needs ")[1].split(";", maxsplit=1)[0]
    assert said.endswith(f"host_memory is 1 B: raise it by {needs}")
    memory = 1 + caught.value.missing
    assert linalg.plan("trsm", 1000, options=Options(host_memory=memory)).host_bytes <= memory


def test_factors_in_memory_count_in_what_is_missing(folder, monkeypatch):
    held = 4_999_999
    resident = replace(SlabPlan.of_array("lu", N, N, "float64", 5_000_000), host_bytes=held)
    monkeypatch.setattr(FactorsOfSolve, "plan_in_memory", lambda *_: resident)
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        linalg.solve("A.npy", "B.npy", out="X.npy", options=Options(host_memory=5_000_000))
    assert caught.value.requested > held
    assert caught.value.available == 5_000_000


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_ill_conditioned_systems_warn_as_scipys(folder, dtype):
    n = 12
    a = (scipy.linalg.hilbert(n) * (1 + 1j if dtype == "complex128" else 1)).astype(dtype)
    np.save("H.npy", a)
    good, b = random_matrix(n, n, dtype), np.ones(n, dtype)
    spd = (np.eye(n) + np.ones((n, n)) / np.finfo(dtype).eps).astype(dtype)
    for given in (a, "H.npy"):
        for structure in ("gen", "sym"):
            with pytest.warns(scipy.linalg.LinAlgWarning, match=r"rcond = .*e-") as caught:
                linalg.solve(given, b, assume_a=structure, options=Options(devices="host"))
            assert caught[0].filename == __file__
    for call in (
        lambda: linalg.inv(a),
        lambda: linalg.solve(spd, b, assume_a="pos"),
        lambda: linalg.inv(spd, assume_a="pos", lower=True),
    ):
        with pytest.warns(scipy.linalg.LinAlgWarning, match="rcond"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.solve(good, b)
        linalg.inv(good)
        linalg.solve(positive_definite(n, dtype), b, assume_a="pos")
        linalg.solve("H.npy", b, options=OPTIONS)  # factors in a file


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("lower", [False, True])
def test_estimates_of_the_condition_are_lapacks(dtype, lower):
    a, found = positive_definite(30, dtype), []
    other = np.tri(30, k=-1).astype(bool)
    one_triangle = np.where(other.T if lower else other, np.nan, a).astype(dtype)
    original = factors.PreparedFactors.rcond
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            factors.PreparedFactors, "rcond", lambda self: found.append(original(self)) or 1.0
        )
        linalg.solve(a, np.ones(30))
        linalg.solve(one_triangle, np.ones(30), assume_a="pos", lower=lower)
    norm = np.abs(a).sum(axis=0).max()
    getrf, gecon = scipy.linalg.get_lapack_funcs(("getrf", "gecon"), (a,))
    expected = gecon(getrf(a)[0], norm)[0]
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-3)


def test_determinants_of_cholesky_factors(folder):
    for dtype in ("float64", "complex128"):
        a = positive_definite(9, dtype)
        a[0, 1:], a[1:, 0] = a[0, 1:] / 2, a[1:, 0] / 2
        expected = np.linalg.slogdet(a)
        linalg.cholesky(a, lower=True, out="L.npy")
        for given in (
            linalg.cho_factor(a), linalg.cho_factor(a, lower=True), scipy.linalg.cho_factor(a),
            linalg.open("L.npy"),
        ):  # fmt: skip
            found = linalg.slogdet(given)
            np.testing.assert_allclose(found, expected, rtol=1e-10)
            assert type(found.sign) is type(expected.sign.item())
            np.testing.assert_allclose(linalg.det(given), np.linalg.det(a), rtol=1e-9)


@pytest.mark.parametrize("lower", [False, True])
def test_inverses_of_structures_are_scipys(folder, lower):
    a = positive_definite(N, "complex128")
    triangle = (np.tril if lower else np.triu)(a)
    for structure in ("her", "pos", "sym", "upper triangular", "lower triangular", "diagonal"):
        given = triangle if structure in ("her", "pos", "sym") else a
        if structure == "diagonal":
            given = np.diag(np.diag(a))
        np.save("S.npy", given)
        expected = scipy.linalg.inv(given, assume_a=structure, lower=lower)
        if structure == "sym":
            expected = np.linalg.inv(given + given.T - np.diag(np.diag(given)))
        for x in (given, "S.npy"):
            found = linalg.inv(x, assume_a=structure, lower=lower, options=OPTIONS)
            np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("structure", ["sym", "pos", "upper triangular"])
def test_the_structure_of_given_factors_is_refused(structure):
    factors = linalg.lu_factor(positive_definite(9, "float64"))
    with pytest.raises(hdgemm.InputError, match="a are its factors"):
        linalg.inv(factors, assume_a=structure)


def test_the_matrix_of_a_permutation_is_refused_before_the_factorisation(folder):
    events = []
    with pytest.raises(hdgemm.DoesNotFitError, match="p_indices=True"):
        linalg.lu("A.npy", options=Options(host_memory=8 * N * N - 1), observer=events.append)
    assert not events


def test_scratch_files_go_elsewhere_where_the_folder_cannot_be_written(folder, monkeypatch):
    (folder / "results").mkdir()
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    folders, create = [], factors.ScratchFile.__init__
    monkeypatch.setattr(
        factors.ScratchFile, "__init__", lambda self, at: folders.append(at) or create(self, at)
    )
    monkeypatch.setattr(os, "access", lambda path, _mode: path != folder)
    for out in ("results/X.npy", "results/X.h5::X", None):
        linalg.solve("A.npy", "B.npy", out=out, options=OPTIONS)
    linalg.inv("A.npy", out="results/X.npy", options=OPTIONS)
    linalg.lu("A.npy", out=("results/L.npy", "U.npy"), options=OPTIONS)
    linalg.det("A.npy", options=OPTIONS)
    linalg.qr_multiply("A.npy", np.eye(N), options=OPTIONS)
    there, temporary = folder / "results", folder / "temporary"
    assert folders == [there, there, temporary, there, there, temporary, temporary]


def test_restart_needs_a_checkpoint(folder):
    for call in (
        partial(linalg.solve, "A.npy", "B.npy"), partial(linalg.lu_factor, "A.npy"),
        partial(hdgemm.matmul, "A.npy", "B.npy"), partial(linalg.lstsq, "T.npy", "Y.npy"),
    ):  # fmt: skip
        with pytest.raises(hdgemm.InputError, match="restart goes with checkpoint"):
            call(out="X.npy", restart=True)
    assert not (folder / "X.npy").exists()


def test_damaged_slabs_are_counted(folder):
    how = {"out": folder / "X.npy", "options": OPTIONS, "checkpoint": True}
    with pytest.raises(InterruptedRunError):
        linalg.lu_factor("A.npy", observer=interrupt_after(60), **how)
    [part] = folder.glob(".X.npy.*.part")
    with part.open("r+b") as file:
        file.seek(-8 * N * N, 2)
        file.write(b"damaged!")
    reports = []
    lu, piv = linalg.lu_factor("A.npy", report=reports.append, **how)
    assert reports[0].resumption.damaged == 1
    np.testing.assert_allclose(
        linalg.lu_solve((lu, piv), np.ones(N)), np.linalg.solve(np.load("A.npy"), np.ones(N))
    )


@pytest.mark.parametrize("change", [
    {"facts": None}, {"facts": []}, {"facts": {}}, {"arrays": None}, {"arrays": [1]},
    {"matrix": None}, {"matrix": 3}, {"matrix": {"mtime_ns": 10**40}}, {"kind": []},
    {"kind": "cholesky", "facts": {}},
])  # fmt: skip
@pytest.mark.parametrize("routine", ["lu_factor", "cholesky"])
def test_a_damaged_description_is_an_input_error(folder, routine, change):
    getattr(linalg, routine)("A.npy", out="F.npy")
    description = folder / "F.factor.json"
    record = json.loads(description.read_text())
    description.write_text(json.dumps(record | change))
    if routine == "lu_factor" and change == {"facts": {}}:
        assert linalg.open("F.npy")
        return
    with pytest.raises(hdgemm.InputError, match=r"F\.factor\.json"):
        linalg.open("F.npy")
    if routine == "lu_factor":
        description.write_text(json.dumps(record))
        for damaged in (b"", b"PK\x03\x04 no archive"):
            (folder / "F.piv.npy").write_bytes(damaged)
            with pytest.raises(hdgemm.InputError, match=r"F\.piv\.npy"):
                linalg.open("F.npy")


@pytest.mark.parametrize("out", [
    "missing/X.h5::X", "text.h5::X", "old.h5::group", "old.h5::data/X", "missing/X.zarr",
    "text.h5::/X", "array.zarr::X", "group.zarr", "text.zarr::X", "A.npy/X.zarr", "broken.zarr::X",
])  # fmt: skip
def test_a_store_that_a_run_refuses_is_refused_by_a_dry_run(folder, out):
    import h5py
    import zarr

    for name in ("text.h5", "text.zarr"):
        (folder / name).write_text("no store")
    with h5py.File("old.h5", "w") as file:
        file.create_group("group")
        file["data"] = np.ones((2, 2))
    zarr.create_array("array.zarr", shape=(2, 2), dtype="f8")
    zarr.create_group("group.zarr")
    (folder / "broken.zarr").mkdir()
    (folder / "broken.zarr" / "zarr.json").write_text("{")
    words = ["solve", "A.npy", "B.npy", "--out", out]
    before = sorted(folder.rglob("*"))
    for more in ((), ("--dry-run",)):
        refused = invoke(*words, *more)
        assert refused.exception.exit_code == 2, (more, refused.output)
        assert sorted(folder.rglob("*")) == before
    for good in ("new.h5::X", "old.h5::deep/X", "new.zarr", "group.zarr::deep/X"):
        shown = invoke("solve", "A.npy", "B.npy", "--out", good, "--dry-run")
        assert shown.exit_code == 0, shown.output
        assert sorted(folder.rglob("*")) == before


def test_a_dry_run_refuses_a_durable_run_into_an_hdf5_file_that_exists(folder):
    import h5py

    with h5py.File("old.h5", "w") as file:
        file["data"] = np.ones((2, 2))
    for more in ((), ("--dry-run",)):
        words = ["solve", "A.npy", "B.npy", "--out", "old.h5::X", "--checkpoint", *more]
        assert "leave checkpoint out" in str(invoke(*words).exception)
