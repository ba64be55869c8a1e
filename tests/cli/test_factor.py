"""The commands of linear algebra: results, plans, reports, exit codes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm import linalg
from hdgemm.cli.app import app_for
from hdgemm.options import Options

N = 40
SMALL = ["--host-memory", "30MB", "--tile", "1,7,3"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((N, N))
    np.save("A.npy", x @ x.T + N * np.eye(N))
    np.save("B.npy", x[:, :3])
    np.save("T.npy", np.vstack([x, x + 1, x - 1, x * 2, x * 3])[:, :8])
    return tmp_path


def invoke(*words):
    words = [str(word) for word in words]
    return CliRunner().invoke(app_for(words), words)


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


def report_of(*words):
    result = invoke(*words, "--json", "--quiet")
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["cholesky", "cholesky --lower", "lu"])
def test_a_factorisation_is_durable_reported_and_planned(files, name):
    name, *more = name.split()
    command = [name, "A.npy", "--out", "F.npy", *SMALL, "--checkpoint", *more]
    plan = json.loads(invoke(*command, "--dry-run", "--json").stdout)
    assert not (files / "F.npy").exists()
    report = report_of(*command, "--gantt", "g.png", "--trace", "t.json", "--report", "r.json")
    assert report["moved_bytes"] == report["planned_bytes"]
    assert report["plan"]["read_bytes"] == plan["read_bytes"]
    assert report["plan"]["host_bytes"] == plan["host_bytes"]
    assert report["plan"]["slabs"] == len(plan["slabs"])
    assert json.loads((files / "r.json").read_text()) == report
    assert (files / "g.png").stat().st_size > 0
    assert (files / "t.json").stat().st_size > 0
    assert report_of(*command)["resumption"]["finished"]
    assert invoke("verify", f"--{name}", "A.npy", "F.npy").exit_code == 0
    assert invoke("verify", "--solve", "A.npy", "F.npy", "F.npy").exit_code == 1
    a = np.load("A.npy")
    factors = linalg.open("F.npy")
    solved = (linalg.lu_solve if name == "lu" else linalg.cho_solve)(factors, np.ones(N))
    np.testing.assert_allclose(a @ solved, np.ones(N), atol=1e-10)


def test_in_place_and_tables(files):
    result = invoke("lu", "A.npy", "--in-place", *SMALL)
    assert result.exit_code == 0, result.output
    assert "as planned, stage by stage" in result.stdout
    assert "interchange" in result.stdout
    assert (files / "A.piv.npy").exists()
    assert "give --out, or --in-place" in str(invoke("lu", "A.npy").exception)
    refused = invoke("lu", "A.npy", "--in-place", "--out", "L.npy")
    assert "--out names L.npy, --in-place overwrites A: leave one out" in str(refused.exception)


@pytest.mark.parametrize("extra", [[], ["--assume-a", "pos"], ["--refine"]])
def test_solve(files, extra):
    words = ["solve", "A.npy", "B.npy", "--out", "X.npy", *SMALL, "--checkpoint", *extra]
    report = report_of(*words, "--gantt", "g.png")
    assert (files / "g.png").stat().st_size > 0
    np.testing.assert_allclose(np.load("A.npy") @ np.load("X.npy"), np.load("B.npy"), atol=1e-10)
    assert report["plan"]["kind"] == "solve"
    assert report["stages"]["mult1"]["flops"] > 0
    assert {"load", "update", "panel", "store"} <= set(report["phases"])
    if "--refine" not in extra:  # the number of corrections is not known beforehand
        assert report["moved_bytes"] == report["planned_bytes"]
    assert report_of(*words)["resumption"]["finished"]


def test_lstsq_qr_and_syrk(files):
    np.save("b.npy", np.ones((5 * N, 1)))
    report_of("lstsq", "T.npy", "b.npy", "--out", "X.npy", "--host-memory", "30MB")
    tall = np.load("T.npy")
    expected = np.linalg.lstsq(tall, np.ones((5 * N, 1)), rcond=None)[0]
    np.testing.assert_allclose(np.load("X.npy"), expected, atol=1e-10)
    report_of("qr", "T.npy", "--out", "R.npy", "--host-memory", "30MB")
    report_of("qr", "A.npy", "--out", "Q.npy", "--mode", "raw", *SMALL, "--checkpoint")
    assert invoke("verify", "--qr", "A.npy", "Q.npy").exit_code == 0
    np.save("A.npy", np.load("A.npy") + 1e-6)
    assert invoke("verify", "--qr", "A.npy", "Q.npy").exit_code == 1
    r = np.load("R.npy")
    np.testing.assert_allclose(r.T @ r, tall.T @ tall, atol=1e-9)
    report_of("syrk", "T.npy", "--out", "C.npy", "--trans", "--lower", "--host-memory", "30MB")
    np.testing.assert_allclose(np.load("C.npy"), np.tril(tall.T @ tall), atol=1e-9)


@pytest.mark.parametrize("words", [["lu", "100000"], ["cholesky", "100000"], ["qr", "900", "400"]])
def test_plans_say_slabs_bytes_time_and_disk(words):
    result = invoke("plan", *words, "--host-memory", "8GB")
    assert result.exit_code == 0, result.output
    for text in ("bytes read", "memory held", "disk space", "expected:", "limited by"):
        assert text in result.stdout
    assert re.search(r"\d slabs? of [\d,]+ columns", result.stdout)
    values = json.loads(invoke("plan", *words, "--host-memory", "8GB", "--json").stdout)
    assert values["host_bytes"] <= 8_000_000_000
    assert values["disk_bytes"] > 0


def test_the_plan_of_a_file_is_the_plan_that_runs(files):
    options = Options(host_memory="20MB", devices="host")
    for name, call in (("lu", linalg.lu_factor), ("cholesky", linalg.cholesky)):
        shown = linalg.plan(name, "A.npy", out="F.npy", options=options)
        reports = []
        call("A.npy", out="F.npy", options=options, report=reports.append)
        assert reports[0].plan == shown.summary()
        printed = invoke("plan", name, "A.npy", "--out", "F.npy", "--host-memory", "20MB")
        assert f"{name} of a {N} × {N} float64 matrix" in printed.stdout
    for routine in ("lstsq", "qr"):
        printed = invoke("plan", routine, "200000", "50").stdout
        assert "TSQR" in printed
        assert "limited by" in printed


@pytest.mark.parametrize(
    "out", ["F.npy", f"F.bin::{N}x{N}:float64", f"F.bin::{N}x{N}:float64:F", "F.h5::F", "F.zarr::F"]
)
def test_the_plan_of_every_format_of_the_factor_is_the_plan_that_runs(files, out):
    options = Options(tile=(1, 7, 3), devices="host")
    for routine, arguments in (
        ("lu_factor", {}), ("cholesky", {}), ("cholesky", {"lower": True}),
        ("qr", {"mode": "raw"}), ("qr", {"mode": "r"}),
    ):  # fmt: skip
        shown = linalg.plan(routine, "A.npy", out=out, options=options, **arguments).summary()
        reports = []
        call = getattr(linalg, routine)
        call("A.npy", out=out, options=options, report=reports.append, **arguments)
        for name in ("slab_columns", "block_columns", "slabs", "host_bytes", "read_bytes"):
            assert reports[0].plan[name] == shown[name], (routine, arguments, name)


def test_the_plan_of_a_triangular_solve_is_the_plan_that_runs(files):
    rhs, options = np.ones((N, 5)), Options(host_memory="20MB", tile=(1, 2, 30), devices="host")
    np.save("rhs.npy", rhs)
    for name, call in (
        ("trsm", lambda **how: hdgemm.trsm(1.0, "A.npy", "rhs.npy", **how)),
        ("solve_triangular", lambda **how: linalg.solve_triangular("A.npy", "rhs.npy", **how)),
    ):
        shown, reports = linalg.plan(name, "A.npy", columns=5, out="X.npy", options=options), []
        call(out="X.npy", options=options, report=reports.append)
        assert reports[0].plan == shown.summary()
    printed = invoke("plan", "trsm", "A.npy", "rhs.npy", "--tile", "1,2,30").stdout
    assert "3 groups of 2 columns" in printed
    assert invoke("plan", "trsm", "5000", "3", "--host-memory", "50MB").exit_code == 0
    assert invoke("plan", "trsm", "5000", "--host-memory", "50MB", "--json").exit_code == 0


@pytest.mark.parametrize("tile", [None, (1, 7, 3)])
@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"transposed": True}, {"refine": "float32"}, {"assume_a": "pos"},
        {"assume_a": "pos", "lower": True}, {"assume_a": "upper triangular"},
    ],
)  # fmt: skip
def test_the_plan_of_a_solve_is_the_plan_that_runs(files, arguments, tile):
    a = np.load("A.npy")
    np.save("P.npy", np.triu(a) if "triangular" in str(arguments) else a @ a.T + N * np.eye(N))
    np.save("rhs.npy", np.ones((N, 5)))
    options, reports = Options(host_memory="20MB", tile=tile, devices="host"), []
    shown = linalg.plan(
        "solve", "P.npy", columns="rhs.npy", out="X.npy", options=options, **arguments
    )
    linalg.solve(
        "P.npy", "rhs.npy", out="X.npy", options=options, report=reports.append, **arguments
    )
    assert reports[0].plan == shown.summary()
    assert shown.host_bytes <= options.host_bytes
    if "refine" not in arguments:  # the number of steps is not known before the run
        assert nonzero(reports[0].moved_bytes) == nonzero(shown.planned_bytes)


@pytest.mark.parametrize(("memory", "trans"), [("4.5MB", 0), ("4.5MB", 1), ("20MB", 1)])
def test_the_plan_of_a_symmetric_product_is_the_plan_that_runs(files, memory, trans):
    options, reports = Options(host_memory=memory, devices="host"), []
    shown = linalg.plan("syrk", "T.npy", trans=trans, out="C.npy", options=options)
    hdgemm.syrk(1.0, "T.npy", trans=trans, out="C.npy", options=options, report=reports.append)
    assert reports[0].moved_bytes == reports[0].planned_bytes
    assert nonzero(reports[0].moved_bytes) == nonzero(shown.planned_bytes)
    assert reports[0].plan["parts"][0] == shown.summary()["parts"][0]
    assert shown.host_bytes <= options.host_bytes
    assert all(part["expected_seconds"] > 0 for part in shown.summary()["parts"])
    assert "expected: " in str(shown).splitlines()[-1]


def test_the_plan_of_an_inverse_is_the_plan_that_runs(files):
    options, reports = Options(host_memory="20MB", tile=(1, 7, 3), devices="host"), []
    shown = linalg.plan("inv", "A.npy", out="X.npy", options=options)
    linalg.inv("A.npy", out="X.npy", options=options, report=reports.append)
    assert reports[0].plan == shown.summary()
    assert nonzero(reports[0].moved_bytes) == nonzero(shown.planned_bytes)
    assert f"{N} right-hand sides" in invoke("plan", "inv", str(N)).stdout
    for name in ("trmm", "symm"):  # they have no plan of their own
        refused = invoke("plan", name, "1000")
        assert refused.exception.exit_code == 2
        assert re.search(rf"plans for cholesky.* inv.*: not {name}", str(refused.exception))


def test_plans_of_solves_and_symmetric_products_are_printed(files):
    np.save("rhs.npy", np.ones((N, 5)))
    for words, text in (
        (["plan", "solve", "100000", "3", "--host-memory", "8GB"], "2 triangular systems"),
        (["plan", "solve", "A.npy", "rhs.npy"], "5 right-hand sides"),
        (["solve", "A.npy", "rhs.npy", "--out", "X.npy", "--dry-run"], "in all: bytes read"),
        (["plan", "syrk", "200000", "2000", "--trans-a"], "diagonal block of order 2000"),
        (["plan", "syrk", "50000", "60000", "--host-memory", "1GB"], "in all: bytes read"),
        (["syrk", "T.npy", "--out", "C.npy", "--trans", "--dry-run"], "memory held"),
        (["qr", "T.npy", "--out", "C.npy", "--dry-run"], "TSQR of a 200 × 8"),
    ):
        printed = invoke(*words)
        assert printed.exit_code == 0, printed.output
        assert text in printed.stdout
        values = json.loads(invoke(*words, "--json").stdout)
        assert values["host_bytes"] > 0
        assert values["read_bytes"] > 0
    assert not {"C.npy", "X.npy"} & {path.name for path in files.iterdir()}
    with pytest.raises(hdgemm.InputError, match="they must be as many"):
        linalg.plan("solve", "A.npy", columns="T.npy")


def test_errors_have_the_exit_codes_of_products(files):
    np.save("N.npy", -np.eye(N))
    cases = [
        (["cholesky", "N.npy", "--out", "F.npy", *SMALL], "not positive definite", 1),
        (["lu", "A.npy", "--out", "F.npy", "--host-memory", "1MB"], "raise it by", 3),
        (["lu", "missing.npy", "--out", "F.npy"], "missing.npy", 2),
        (["lu", "A.npy", "--out", "A.npy", "--no-clobber"], "--no-clobber", 2),
        (["solve", "A.npy", "T.npy", "--out", "X.npy"], "rows", 2),
    ]
    for words, text, code in cases:
        result = invoke(*words)
        assert text in str(result.exception)
        assert result.exception.exit_code == code
    assert not (files / "F.npy").exists()


def stored_as(store, a):
    """Return an array in this order, or the location of a file or store with its elements."""
    if store == "zarr":
        with hdgemm.create("P.zarr", a.shape) as stored:
            stored.write(a)
        return "P.zarr"
    place = np.asarray(a, order=store[-1])
    if "array" in store:
        return place
    np.save("P.npy", place)
    return "P.npy"


@pytest.mark.parametrize(
    ("store", "durable"),
    [
        *((store, False) for store in ("C", "F", "array C", "array F", "zarr")),
        ("F", True),
        *(
            pytest.param(x, True, marks=pytest.mark.campaign)
            for x in ("C", "array C", "array F", "zarr")
        ),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        {"overwrite_a": True}, {"overwrite_a": True, "transposed": True},
        {"overwrite_a": True, "assume_a": "pos"}, {"refine": "float32"}, {"assume_a": "pos"},
        {"assume_a": "her", "refine": "float32"}, {"assume_a": "lower triangular"},
    ],
)  # fmt: skip
def test_the_plan_of_a_solve_is_that_of_its_storage(files, arguments, store, durable):
    a = np.load("A.npy")
    a = np.tril(a) if "triangular" in str(arguments) else a @ a.T + N * np.eye(N)
    place = stored_as(store, a)
    if durable and store == "zarr" and "overwrite_a" in arguments:
        return  # refused: the library decides when a chunk reaches the disk
    np.save("rhs.npy", np.ones((N, 5), np.complex128 if "refine" in arguments else np.float64))
    reports, how = [], {"out": "X.npy", "checkpoint": durable} | arguments
    how["options"] = Options(host_memory="20MB", tile=(1, 7, 3), devices="host")
    shown = linalg.plan("solve", place, columns="rhs.npy", **how)
    linalg.solve(place, "rhs.npy", report=reports.append, **how)
    assert reports[0].plan == shown.summary()
    if "refine" not in arguments:
        assert nonzero(reports[0].moved_bytes) == nonzero(shown.planned_bytes)


@pytest.mark.parametrize("store", ["C", "F", "array C", "array F", "zarr"])
@pytest.mark.parametrize("routine", ["lu_factor", "cholesky", "cho_factor"])
@pytest.mark.parametrize("over", [False, True])
def test_the_plan_of_factors_without_an_out_is_that_of_an_array_or_of_a(
    files, routine, store, over
):
    a = np.load("A.npy")
    a = a @ a.T + N * np.eye(N)
    place = stored_as(store, a)
    reports, options = [], Options(host_memory="20MB", tile=(1, 7, 3), devices="host")
    shown = linalg.plan(routine, place, overwrite_a=over, options=options)
    getattr(linalg, routine)(place, overwrite_a=over, options=options, report=reports.append)
    assert reports[0].plan == shown.summary()
    assert nonzero(reports[0].planned_bytes) == nonzero(reports[0].moved_bytes)


@pytest.mark.parametrize("order", ["²", "9" * 5000])
def test_extents_that_python_cannot_read_are_input_errors(files, order):
    assert isinstance(invoke("plan", "lu", order).exception, hdgemm.InputError)


def test_a_plan_of_an_order_needs_no_folder_to_write_to(monkeypatch):
    monkeypatch.chdir("/proc")  # where even root creates nothing
    for words in (["syrk", "3000"], ["lu", "3000"], ["solve", "3000"]):
        result = invoke("plan", *words, "--host-memory", "50MB")
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("shape", [(40, 40), (40, 30), (30, 40)])
@pytest.mark.parametrize("given", [{}, {"overwrite_a": True}, {"checkpoint": True}])
@pytest.mark.parametrize("out", [None, "R.npy", "R.h5::R"])
def test_the_plan_of_r_has_the_bytes_that_move(tmp_path, monkeypatch, shape, given, out):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.random.default_rng(0).standard_normal(shape))
    if "checkpoint" in given and out != "R.npy":
        pytest.skip("a durable run needs a file of its own")
    options = Options(tile=(1, 7, 3), devices="host", host_memory="30MB")
    with hdgemm.Session(options) as session:  # one set of rates
        given = {**given, "mode": "r", "out": out, "session": session}
        shown, reports = linalg.plan("qr", "A.npy", **given), []
        linalg.qr("A.npy", **given, report=reports.append)
    assert nonzero(shown.planned_bytes) == nonzero(reports[0].moved_bytes)
    assert reports[0].plan == shown.summary()


@pytest.mark.parametrize("words", [["lu", "A.npy"], ["qr", "A.npy"], ["solve", "A.npy", "b.npy"],
                                   ["lstsq", "A.npy", "b.npy"]])  # fmt: skip
@pytest.mark.parametrize("out", ["folder", "X.csv", "/proc/X.npy", "X.bin::3x4:float64"])
def test_a_dry_run_refuses_the_outputs_that_a_run_refuses(files, words, out):
    np.save("b.npy", np.ones((N, 2)))
    Path("folder").mkdir()
    before = sorted(Path().iterdir())
    shown, run = (invoke(*words, "--out", out, *more) for more in (["--dry-run"], ["--quiet"]))
    assert shown.exit_code == run.exit_code != 0
    assert str(shown.exception) == str(run.exception)
    assert sorted(Path().iterdir()) == before
    assert invoke(*words, "--out", "X.npy", "--dry-run").exit_code == 0
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("shape", [(40, 40), (40, 30), (30, 40)])
@pytest.mark.parametrize("in_file", [True, False])
def test_the_plan_of_reflectors_in_an_array_has_the_bytes_of_r(tmp_path, shape, in_file):
    a, reports = np.random.default_rng(0).standard_normal(shape), []
    np.save(tmp_path / "A.npy", a)
    options = Options(tile=(1, 7, 3), devices="host")
    operand = tmp_path / "A.npy" if in_file else a
    shown = linalg.plan("qr", operand, mode="raw", options=options)
    linalg.qr(operand, mode="raw", options=options, report=reports.append)
    assert nonzero(shown.planned_bytes) == nonzero(reports[0].moved_bytes)


@pytest.mark.parametrize("routine", ["qr", "lu_factor", "cholesky"])
def test_the_plan_of_an_array_on_devices_is_the_plan_that_runs(routine):
    pytest.importorskip("pyopencl", reason="needs the extra opencl")
    a, reports = np.random.default_rng(0).standard_normal((40, 40)), []
    options = Options(devices="opencl:0", host_memory="200MB")
    shown = linalg.plan(routine, a, options=options)
    getattr(linalg, routine)(a @ a.T, options=options, report=reports.append)
    assert nonzero(shown.planned_bytes) == nonzero(reports[0].planned_bytes)
    assert shown.summary() == reports[0].plan


def test_a_list_is_not_overwritten_in_the_plan_either():
    rows, reports = np.random.default_rng(0).standard_normal((40, 40)).tolist(), []
    given = {"overwrite_a": True, "options": Options(tile=(1, 7, 3), devices="host")}
    shown = linalg.plan("lu_factor", rows, **given)
    linalg.lu_factor(rows, **given, report=reports.append)
    assert nonzero(shown.planned_bytes) == nonzero(reports[0].moved_bytes)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("lu A.npy --out F.npy", "F.piv.npy"),
        ("lu A.npy --in-place", "A.piv.npy"),
        ("lu A.npy --out F.bin::40x40:float64", "F.bin-piv.npy"),
        ("qr T.npy --out F.npy --mode raw", "F.tau.npy"),
        ("cholesky A.npy --out F.npy", "F.factor.json"),
    ],
)
def test_no_clobber_keeps_files_beside_the_factors(files, words, kept):
    (files / kept).write_bytes(b"mine")
    refused = invoke(*words.split(), "--no-clobber", *SMALL)
    assert f"{kept} exists, and --no-clobber keeps it" in str(refused.exception)
    assert (files / kept).read_bytes() == b"mine"


def test_no_clobber_keeps_pivots_without_their_matrix(files):
    assert invoke("lu", "A.npy", "--out", "F.npy", *SMALL).exit_code == 0
    (files / "F.npy").unlink()
    refused = invoke("syrk", "A.npy", "--out", "F.npy", "--no-clobber", *SMALL[:2])
    assert "F.piv.npy exists" in str(refused.exception)
    assert invoke("qr", "T.npy", "--out", "R.npy", "--no-clobber", *SMALL).exit_code == 0


@pytest.mark.parametrize(
    ("words", "large", "small", "read"),
    [
        ("syrk Tall.npy", "", "--trans", "6.40 kB"),
        ("multiply Tall.npy Tall.npy", "--trans-b", "--trans-a", "12.8 kB"),
    ],
)
def test_a_result_that_dwarfs_its_operands_is_asked_about(
    files, monkeypatch, words, large, small, read
):
    np.save("Tall.npy", np.ones((400, 2)))
    monkeypatch.setattr("hdgemm.cli.output._LARGE_BYTES", 1_000_000)
    words = [*words.split(), "--out", "C.npy", "--quiet"]
    dwarfs = [*words, *large.split()]
    refused = invoke(*dwarfs)
    asked = f"the result has 1.28 MB, the operands have {read}"
    assert str(refused.exception).startswith(f"{asked}: pass --yes")
    assert not Path("C.npy").exists()
    assert invoke(*dwarfs, "--dry-run").exit_code == 0
    assert invoke(*words, small).exit_code == 0
    assert np.load("C.npy").shape == (2, 2)
    assert invoke(*dwarfs, "--yes").exit_code == 0
    assert np.load("C.npy").shape == (400, 400)


def test_an_old_c_counts_as_an_operand(files, monkeypatch):
    np.save("Tall.npy", np.ones((400, 2)))
    np.save("C.npy", np.zeros((400, 400)))
    monkeypatch.setattr("hdgemm.cli.output._LARGE_BYTES", 1_000_000)
    words = "multiply Tall.npy Tall.npy --trans-b --beta 1 --c C.npy --out C.npy --quiet"
    assert invoke(*words.split()).exit_code == 0


def test_quiet_prints_the_value_alone(files):
    shown = invoke("norm", "T.npy", "--quiet", *SMALL[:2])
    assert float(shown.stdout) == pytest.approx(np.linalg.norm(np.load("T.npy")))
    assert invoke("svdvals", "T.npy", "--out", "s.npy", "--quiet").output == ""


def test_every_result_of_svd_needs_a_place(files):
    refused = invoke("svd", "T.npy", "--out", "U.npy", "--s", "s.npy")
    assert "Missing option '--vh'" in refused.output


@pytest.mark.parametrize(
    ("words", "text"),
    [(("eig", "100"), "use hdgemm.linalg.eigsh"),
     (("nothing", "100"), "neither a file nor a routine with a plan; there are plans for cho")],
)  # fmt: skip
def test_a_plan_of_an_unknown_routine_lists_the_routines(files, words, text):
    said = str(invoke("plan", *words).exception)
    assert text in said
    assert "svdvals, svd," in said


@pytest.mark.parametrize("word", ["multiply", "matmul", "gemm"])
def test_a_plan_of_a_product_may_name_it(files, word):
    said = str(invoke("plan", word, "100").exception)
    assert "three extents M N K or two files A B, got '100'" in said
    for operands in (("30", "40", "50"), ("A.npy", "A.npy")):
        given = *operands, "--host-memory", "1GB"  # the default follows what is free
        assert invoke("plan", word, *given).output == invoke("plan", *given).output


def test_a_missing_folder_is_made_by_the_command_in_the_error(files):
    for out in ("no/U.npy", "no/U.h5::U"):
        said = str(invoke("cholesky", "A.npy", "--out", out).exception)
        assert f"create it: mkdir -p {files}/no" in said
