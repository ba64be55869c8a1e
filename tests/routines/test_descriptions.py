"""Descriptions agree with the functions that they name, and with the files that these store."""

import inspect
import json

import numpy as np
import pytest
import scipy.linalg
from typer.testing import CliRunner

import hdgemm
from hdgemm import linalg
from hdgemm.cli.app import app_for
from hdgemm.errors import InputError
from hdgemm.matrices.factor_files import ARRAYS
from hdgemm.routines.description import Operand, Output, Routine, extents, load
from hdgemm.routines.registry import commands, planned, register

ROUTINES = {routine.name: routine for routine in planned().values()}


def invoke(*words):
    return CliRunner().invoke(app_for(words), words)


@pytest.mark.parametrize("name", ROUTINES)
def test_a_description_fits_its_functions(name):
    routine = ROUTINES[name]
    prepare = inspect.signature(load(routine.prepare)).parameters
    names = [operand.name for operand in routine.operands]
    assert list(prepare)[: len(names) + 2] == [*names, "out", "call"]
    function = inspect.signature(load(routine.function)).parameters
    positional = [each for each in function.values() if each.kind is not each.KEYWORD_ONLY]
    assert len(positional) >= len(routine.leading) + len(names)
    for parameter in routine.parameters:
        assert parameter.name in prepare
        assert parameter.name in function
        assert parameter.help.endswith(".")
    assert ("checkpoint" in function) == routine.durable
    assert ("out" in function) == routine.stores


@pytest.mark.parametrize("name", commands())
@pytest.mark.parametrize("mode", ["r", "raw", "economic", "full"])
def test_arrays_beside_a_factorisation_are_those_of_its_files(name, mode):
    routine = commands()[name]
    given = {**routine.defaults, **({"mode": mode} if name == "qr" else {})}
    first = routine.first(given)
    assert (first is not None) == routine.stores
    beside = tuple(each.name for each in routine.present(given, "beside"))
    assert beside == ARRAYS.get("" if first is None else first.factors, ())


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (20, 20)])
@pytest.mark.parametrize("mode", ["r", "raw", "economic", "full"])
def test_results_have_the_described_shapes(tmp_path, monkeypatch, shape, mode):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal(shape)
    np.save("A.npy", a)
    words = ["qr", "A.npy", "--out", "R.npy", "--mode", mode, "--quiet"]
    if mode in {"economic", "full"}:
        refused = invoke(*words)
        assert "qr also stores q: give --q" in str(refused.exception)
        words += ["--q", "Q.npy"]
    planned_run, run = invoke(*words, "--dry-run", "--json"), invoke(*words, "--json")
    assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
    moved = json.loads(run.stdout)["moved_bytes"]
    assert json.loads(planned_run.stdout)["read_bytes"] == moved["load1"]
    routine = commands()["qr"]
    sizes = routine.extents({"a": shape}, {})
    files = {"q": "Q.npy", "r": "R.npy", "qr": "R.npy", "tau": "R.tau.npy"}
    outputs = routine.present({"mode": mode}, "matrix", "beside")
    for output in outputs:
        assert np.load(files[output.name]).shape == output.shape(sizes, {"mode": mode})
    if mode == "raw":
        refused = invoke(*words, "--q", "Q.npy")
        assert "stores nothing in --q" in str(refused.exception)
        return
    if mode == "r":  # the default: --q asks for the economic Q
        assert invoke(*words, "--q", "Q.npy").exit_code == 0
    q, r = np.load("Q.npy"), np.load("R.npy")
    assert q.shape[1] == (shape[0] if mode == "full" else min(shape))
    np.testing.assert_allclose(q @ r, a, atol=1e-13)


def test_tall_matrices_have_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal((60, 5))
    np.save("T.npy", a)
    np.save("Y.npy", a[:, :2])
    calls = {
        "svdvals": ["--method", "gram"],
        "svd": ["--s", "s.npy", "--vh", "Vh.npy"],
        "cov": ["--ddof", "0"],
        "corrcoef": [],
        "pinv": [],
        "pca": ["--k", "2", "--standardize", "--components", "V.npy", "--mean", "mean.npy"],
        "ridge": ["--alphas", "0.1", "--alphas", "1", "--intercept"],
    }
    shapes = {"svdvals": (5, 1), "svd": (60, 5), "pinv": (5, 60), "pca": (60, 2), "ridge": (5, 4)}
    for name, words in calls.items():
        operands = ["T.npy", "Y.npy"] if name == "ridge" else ["T.npy"]
        given = [name, *operands, "--out", f"{name}.npy", *words, "--quiet", "--json"]
        planned_run, run = invoke(*given, "--dry-run"), invoke(*given)
        assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
        moved = json.loads(run.stdout)["moved_bytes"]
        assert json.loads(planned_run.stdout)["read_bytes"] == moved["load1"]
        assert np.load(f"{name}.npy").shape == shapes.get(name, (5, 5))
    np.testing.assert_allclose(np.load("cov.npy"), np.cov(a, rowvar=False, ddof=0), atol=1e-14)
    u, s, vh = np.load("svd.npy"), np.load("s.npy")[:, 0], np.load("Vh.npy")
    np.testing.assert_allclose(u * s @ vh, a, atol=1e-13)
    scaled = (a - np.load("mean.npy").T) / a.std(axis=0, ddof=1)
    np.testing.assert_allclose(np.load("pca.npy"), scaled @ np.load("V.npy").T, atol=1e-13)
    assert len(json.loads(run.stdout)["values"]["r2"]) == 2
    assert invoke("plan", "svd", "2000", "50").exit_code == 0


@pytest.mark.parametrize("more", [(), ("--assume-a", "pos"), ("--checkpoint",)])
def test_an_inverse_has_a_command(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal((40, 40))
    a = a @ a.T + 40 * np.eye(40)
    np.save("A.npy", a)
    given = "inv", "A.npy", "--out", "X.npy", *more, "--quiet", "--json"
    planned_run, run = invoke(*given, "--dry-run"), invoke(*given)
    assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
    np.testing.assert_allclose(np.load("X.npy") @ a, np.eye(40), atol=1e-13)


@pytest.mark.parametrize(
    ("more", "arguments"),
    [
        (("--lower",), {"lower": True}),
        (("--trans", "T"), {"trans": 1}),
        (("--lower", "--trans", "C", "--unit-diagonal"), {"lower": True, "trans": 2}),
        (("--lower", "--checkpoint"), {"lower": True}),
    ],
)
def test_triangular_systems_have_a_command(tmp_path, monkeypatch, more, arguments):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((30, 33))
    a, b = x[:, :30] / 30 + 1j * np.diag(x[0, :30]) + 5 * np.eye(30), x[:, 30:]
    np.save("A.npy", a)
    np.save("B.npy", b)
    given = "trsm", "A.npy", "B.npy", "--out", "X.npy", *more, "--quiet", "--json"
    planned_run, run = invoke(*given, "--dry-run"), invoke(*given)
    assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
    unit = "--unit-diagonal" in more
    exact = scipy.linalg.solve_triangular(a, b, unit_diagonal=unit, **arguments)
    np.testing.assert_allclose(np.load("X.npy"), exact, atol=1e-13)


@pytest.mark.parametrize(
    ("word", "name"),
    [("solve_triangular", "trsm"), ("lu_factor", "lu"), ("slogdt", "slogdet"), ("Solve", "solve")],
)
def test_an_unknown_command_is_told_the_name_that_is_meant(word, name):
    assert f"No such command '{word}': use {name}." in invoke(word, "A.npy").output
    unknown = invoke("nothing-like-it").output
    assert "No such command 'nothing-like-it'." in unknown


@pytest.mark.parametrize("trans", [True, False])
def test_largest_entries_have_a_command(tmp_path, monkeypatch, trans):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (30, 7)), rng.integers(-9, 9, (7, 20))
    for dtype in ("float32", "int16"):
        np.save("A.npy", a.astype(dtype))
        np.save("B.npy", (b.T if trans else b).astype(dtype))
        more = ("--trans-b",) if trans else ()
        given = "topk", "A.npy", "B.npy", "--out", "V.npy", "--indices", "I.npy", "--k", "4", *more
        planned_run, run = invoke(*given, "--dry-run", "--json"), invoke(*given, "--json", "-q")
        assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
        assert (
            json.loads(planned_run.stdout)["host_bytes"]
            == json.loads(run.stdout)["plan"]["host_bytes"]
        )
        order = np.argsort(-(a @ b), axis=1, kind="stable")[:, :4]
        np.testing.assert_array_equal(np.load("I.npy"), order)
        np.testing.assert_array_equal(np.load("V.npy"), np.take_along_axis(a @ b, order, axis=1))
        assert np.load("V.npy").dtype == ("int64" if dtype == "int16" else dtype)
    wrong = invoke(*(given[:-1] if trans else (*given, "--trans-b")))
    assert "they must be as many; trans_b transposes B" in str(wrong.exception)
    assert invoke("plan", "topk", "A.npy", "B.npy", *more).exit_code == 0
    assert "memory held" in invoke("plan", "topk", "30", "7", "20", *more).stdout
    assert invoke("plan", "lstsq", "30", "7", "2").exit_code == 0
    refused = invoke("plan", "solve", "30", "7", "2").exception
    assert "plan solve takes N, M N, or files, got 3 arguments" in str(refused)
    for words in ("30", "7"), ("A.npy",):
        refused = invoke("plan", "topk", *words).exception
        assert "topk takes M N and the columns of op(B), or the files A and B, got" in str(refused)


def test_determinants_have_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal((40, 40))
    singular = a.copy()
    singular[:, 3] = 0
    for x in (a, np.asfortranarray(a), a.astype("float32"), a + 1j * a.T, singular):
        np.save("A.npy", x)
        expected = np.linalg.slogdet(x.astype(np.result_type(x, np.float64)))
        for more in ((), ("--tile", "1,7,3")):
            given = "slogdet", "A.npy", "--quiet", *more
            planned_run, run = invoke(*given, "--json", "--dry-run"), invoke(*given)
            assert planned_run.exit_code == run.exit_code == 0, run.output + str(run.exception)
            stored = json.loads(planned_run.stdout)["disk_bytes"]
            assert stored == (x.nbytes if more else 0)
            sign, logarithm = run.stdout.splitlines()
            found = complex(*map(float, sign.split())), float(logarithm)
            np.testing.assert_allclose(found, expected, rtol=1e-5 if x.itemsize == 4 else 1e-12)
            words = invoke("det", *given[1:]).stdout.split()
            exact = expected[0] * np.exp(expected[1])
            np.testing.assert_allclose(complex(*map(float, words)), exact, rtol=1e-4)
    assert "logabsdet: -inf" in invoke("slogdet", "A.npy").stdout
    np.save("B.npy", 1e300 * np.eye(2))
    with pytest.warns(RuntimeWarning, match="take slogdet"):
        assert invoke("det", "B.npy", "-q").stdout == "inf\n"
    (tmp_path / "B.npy").unlink()
    report = json.loads(invoke("slogdet", "A.npy", "-q", "--json").stdout)
    assert report["values"] == {"sign": 0.0, "logabsdet": "-inf"}
    assert report["plan"] == json.loads(invoke("slogdet", "A.npy", "--dry-run", "--json").stdout)
    assert report["plan"]["kind"] == "slogdet"
    assert [part["kind"] for part in report["plan"]["parts"]] == ["lu"]
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]
    np.save("A.npy", a[:5])
    assert "a must be square" in str(invoke("slogdet", "A.npy").exception)
    assert invoke("plan", "slogdet", "2000").exit_code == 0


@pytest.mark.parametrize("name", ["fro", "max", "nuc", "1", "-1", "2", "-2", "inf", "-inf"])
def test_norms_have_a_command(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal((30, 5))
    np.save("A.npy", a)
    exact = np.abs(a).max() if name == "max" else None
    if exact is None:
        exact = np.linalg.norm(a, name if name in {"fro", "nuc"} else float(name))
    run = invoke("norm", "A.npy", "--ord", name, "--quiet", "--json")
    assert run.exit_code == 0, run.output + str(run.exception)
    assert json.loads(run.stdout)["values"]["norm"] == pytest.approx(exact, rel=1e-13)
    assert linalg.norm(a, name) == pytest.approx(exact, rel=1e-13)
    assert invoke("norm", "A.npy", "--ord", name, "--dry-run").exit_code == 0


def test_extents_are_bound_by_name():
    routine = ROUTINES["lstsq"]
    assert routine.extents({"a": (7, 3), "b": (7, 2)}, {}) == {"m": 7, "n": 3, "p": 2, "k": 3}
    for shapes, text in (
        ({"a": (7, 3), "b": (3, 2)}, "A has 7 rows, and B 3 rows: they must be as many"),
    ):
        with pytest.raises(InputError, match=text):
            routine.extents(shapes, {})
    with pytest.raises(InputError, match="A is 3×4: cholesky takes square matrices"):
        ROUTINES["cholesky"].extents({"a": (3, 4)}, {})


@pytest.mark.parametrize("name", ["lu", "lu_factor", "New", "a-b", ""])
def test_a_name_that_is_taken_or_is_none_is_refused(name):
    toy = Routine(
        name=name, title="", summary="", function="", prepare="", outputs=(),
        operands=(Operand("a", "m", "n"),),
    )  # fmt: skip
    with pytest.raises(InputError):
        register(toy)


def test_a_value_is_in_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tall = np.random.default_rng(0).standard_normal((40, 3)) @ np.ones((3, 5))
    np.save("T.npy", tall)
    np.save("Y.npy", np.ones((40, 1)))
    done = invoke("lstsq", "T.npy", "Y.npy", "--out", "X.npy", "--json", "--quiet")
    assert json.loads(done.stdout)["values"] == {"rank": 1}
    assert "rank: 1" in invoke("lstsq", "T.npy", "Y.npy", "--out", "X.npy").stdout


def test_plans_of_described_matrices_need_no_file():
    for name, routine in planned().items():
        given = {"columns": 20} if len(routine.operands) > 1 else {}
        shown = linalg.plan(name, (200, 200), **given, **routine.defaults)
        assert shown.host_bytes > 0
    with pytest.raises(hdgemm.InputTypeError, match="has no argument shape"):
        linalg.plan("lu", 10, shape=3)


def test_outputs_without_an_option_are_not_first():
    output = Output(name="s", shape=extents("k"), kind="value")
    assert not output.first


def test_lu_chooses_pivots_by_a_tournament(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = np.random.default_rng(0).standard_normal((300, 300))
    np.save("A.npy", a)
    words = ["lu", "A.npy", "--out", "LU.npy", "--tile", "8,8,32", "--pivoting", "tournament"]
    done = invoke(*words, "--quiet")
    assert done.exit_code == 0, done.exception
    options = hdgemm.Options(tile=(8, 8, 32))
    tournament, partial = (
        linalg.lu_factor("A.npy", out=f"{each}.npy", pivoting=each, options=options).piv
        for each in ("tournament", "partial")
    )
    assert (np.load("LU.piv.npy") == tournament).all()
    assert (tournament != partial).any()
