"""Factorisations and solves as jobs: admission, plan, result, arrays beside it, client."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hdgemm import linalg
from hdgemm.cli.app import app
from hdgemm.client import Client
from hdgemm.errors import InputError
from hdgemm.options import Options
from hdgemm.routines.registry import commands
from hdgemm.server.backend import Call, JobWatch, Problem, Source
from hdgemm.server.hdgemm_backend import HdgemmLibrary
from hdgemm.server.plans import plan_problem
from hdgemm.server.runner import describe
from tests.opencl import usable_opencl
from tests.server.harness import (
    LIMIT,
    InProcess,
    Live,
    application,
    finished,
    live,
    make_settings,
    submit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

N = 60
SMALL = {"host_memory": "30MB", "tile": [1, 16, 8], "threads": 1}


def matrices(root: Path) -> None:
    x = np.random.default_rng(0).standard_normal((N, N))
    np.save(root / "a.npy", x @ x.T + N * np.eye(N))
    np.save(root / "b.npy", x[:, :2])
    np.save(root / "tall.npy", np.vstack([x, x + 1, 2 * x])[:, :7])
    np.save(root / "rhs.npy", np.ones((3 * N, 1)))


@pytest.fixture(scope="module")
def folder(real: Live) -> Path:
    """A folder of the server's root, with the matrices."""
    made = real.settings.roots[0] / "linalg"
    made.mkdir()
    matrices(made)
    return made


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_square_of_a_matrix_without_columns_may_be_too_large(
    real: Live, folder: Path, dry_run: bool
) -> None:
    with (folder / "wide.npy").open("wb") as stream:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 0)}
        np.lib.format.write_array_header_1_0(stream, header)
    inputs = {"a": {"path": "linalg/wide.npy"}}
    refused = real.http.post(
        "/v1/processes/syrk/execution", json={"inputs": inputs, "dry_run": dry_run}
    )
    assert refused.status_code == 422, refused.text
    assert "bytes" in refused.json()["detail"]


@pytest.mark.parametrize("process", ["svds", "eigsh", "pca"])
def test_more_pairs_than_any_file_holds_are_refused_as_such(
    real: Live, folder: Path, process: str
) -> None:
    assert folder.is_dir()
    inputs = {"a": {"path": "linalg/a.npy"}, "k": 2**53}
    at = f"/v1/processes/{process}/execution"
    refused = real.http.post(at, json={"inputs": inputs, "dry_run": True})
    assert refused.status_code == 422, refused.text
    assert refused.json()["detail"].endswith(f"got {2**53}")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[InProcess]:
    settings = make_settings(tmp_path)
    matrices(settings.roots[0])
    with application(settings) as app:
        yield InProcess(app)


def execute(client: Any, process: str, **body: Any) -> Any:
    return client.post(f"/v1/processes/{process}/execution", json=body)


def test_a_factorisation_is_planned_computed_and_opened(real: Live, folder: Path) -> None:
    process, a = "lu", {"path": "linalg/a.npy"}
    out = {"path": f"linalg/{process}.npy"}
    body = {"a": a, "output": out, "options": SMALL}
    planned = execute(real.http, process, inputs=body, dry_run=True).json()
    assert planned["output"]["shape"] == [N, N]
    job = finished(real.http, submit(real.http, process, **body))
    assert job["status"] == "successful", job["error"]
    assert job["report"]["plan"]["kind"] == process
    assert job["report"]["plan"]["host_bytes"] == planned["needs"]["host_bytes"]
    assert job["report"]["moved_bytes"] == job["report"]["planned_bytes"]
    factors = linalg.open(folder / f"{process}.npy")
    x = linalg.lu_solve(factors, np.ones(N))
    np.testing.assert_allclose(np.load(folder / "a.npy") @ x, np.ones(N), atol=1e-9)
    left = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert not left
    refused = execute(real.http, process, inputs=body)
    assert refused.status_code == 409


def test_a_norm_is_a_value_of_the_report(real: Live, folder: Path) -> None:
    inputs = {"a": {"path": "linalg/a.npy"}, "ord": "inf", "options": SMALL}
    assert execute(real.http, "norm", inputs=inputs, dry_run=True).status_code == 200
    job = finished(real.http, submit(real.http, "norm", **inputs))
    assert job["status"] == "successful", job["error"]
    exact = np.linalg.norm(np.load(folder / "a.npy"), np.inf)
    np.testing.assert_allclose(job["report"]["values"]["norm"], exact)
    wrong = execute(real.http, "norm", inputs={**inputs, "ord": "3"})
    assert wrong.status_code == 422
    with Client(real.url) as client:
        job = client.compute("norm", folder / "a.npy", ord=np.inf, options=SMALL).wait()
        np.testing.assert_allclose(job.values()["norm"], exact)


def test_a_routine_without_factors_is_not_called_factoring(real: Live, folder: Path) -> None:
    job = finished(real.http, submit(real.http, "cov", a={"path": "linalg/a.npy"}))
    assert job["status"] == "successful", job["error"]
    entered = [one["phase"] for one in job["phases"]]
    assert "computing" in entered
    assert "factoring" not in entered


@pytest.mark.parametrize("process", ["gemm", "lu"])
def test_a_folder_that_the_service_may_not_write_is_named_itself(
    client: InProcess, monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    a = {"path": "a.npy"}
    inputs = {"a": a, "output": {"path": "F.npy"}, **({"b": a} if process == "gemm" else {})}
    answer = execute(client, process, inputs=inputs, dry_run=True)
    assert answer.status_code == 422, answer.text
    root = client.app.state.service.settings.roots[0]
    assert f"the service may not write into the folder {root}" in answer.json()["detail"]


def test_a_determinant_is_two_values_and_its_scratch_file_is_reserved(
    real: Live, folder: Path
) -> None:
    inputs = {"a": {"path": "linalg/a.npy"}, "options": SMALL}
    planned = execute(real.http, "slogdet", inputs=inputs, dry_run=True).json()
    assert planned["needs"]["disk_bytes"] == 8 * N * N
    in_memory = {**inputs, "options": {"host_memory": "30MB"}}
    planned = execute(real.http, "slogdet", inputs=in_memory, dry_run=True).json()
    assert planned["needs"]["disk_bytes"] == 0
    job = finished(real.http, submit(real.http, "slogdet", **inputs))
    assert job["status"] == "successful", job["error"]
    assert job["output"] is None
    found = job["report"]["values"]
    sign, logarithm = np.linalg.slogdet(np.load(folder / "a.npy"))
    assert found == {"sign": sign, "logabsdet": pytest.approx(logarithm)}
    with Client(real.url) as client:
        job = client.compute("slogdet", np.zeros((3, 3))).wait()
        assert job.values() == {"sign": 0.0, "logabsdet": "-inf"}
        job = client.compute("slogdet", np.diag([3.0, 4j])).wait()
        assert job.values() == {"sign": [0.0, 1.0], "logabsdet": pytest.approx(np.log(12))}
        with pytest.raises(InputError, match="slogdet takes square matrices"):
            client.compute("slogdet", folder / "tall.npy")


@pytest.mark.parametrize(
    ("process", "number", "warning"),
    [
        ("det", 1e300, "the determinant is beyond the range of floating point, inf is returned"),
        ("lu", 0.0, "Diagonal number 2 is exactly zero"),
    ],
)
def test_the_warnings_of_a_job_reach_its_user(
    real: Live, process: str, number: float, warning: str
) -> None:
    with Client(real.url) as client:
        job = client.compute(process, np.diag([1.0, number, 1e300])).wait(timeout=LIMIT)
        (told,) = job.report()["warnings"]
        assert told.startswith(warning)
        assert f" WARNING {told}\n" in job.log()
    watched = CliRunner().invoke(app, ["watch", job.id, "--url", real.url])
    assert watched.stderr.endswith(f"hdgemm: warning: {told}\n")


def test_a_failed_job_promises_no_command_that_goes_on(real: Live, folder: Path) -> None:
    x = np.load(folder / "a.npy")
    x[-1, -1] = np.nan
    np.save(folder / "late.npy", x)
    inputs = {"a": {"path": "linalg/late.npy"}, "options": SMALL}
    job = finished(real.http, submit(real.http, "lu", **inputs))
    at = f"row {N - 1}, column {N - 1}"
    assert job["error"]["detail"] == f"a has nan at {at}: it must not contain infs or NaNs"


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_largest_entries_are_two_arrays(real: Live, folder: Path, dtype: str) -> None:
    a = np.random.default_rng(0).integers(-9, 9, (40, 6)).astype(dtype)
    np.save(folder / f"{dtype}.npy", a)
    at = {"path": f"linalg/{dtype}.npy"}
    inputs = {"a": at, "b": at, "k": 3, "trans_b": True, "options": {"host_memory": "30MB"}}
    planned = execute(real.http, "topk", inputs=inputs, dry_run=True).json()
    wide = a.astype("int64" if dtype == "int8" else dtype)
    assert (planned["output"]["shape"], planned["output"]["dtype"]) == ([40, 3], wide.dtype.name)
    assert planned["needs"]["host_bytes"] > 16 << 20
    assert planned["needs"]["disk_bytes"] >= 40 * 3 * 16
    order = np.argsort(-(wide @ wide.T), axis=1, kind="stable")[:, :3]
    with Client(real.url) as client:
        job = client.job(submit(real.http, "topk", **inputs)).wait(timeout=LIMIT)
        np.testing.assert_array_equal(job.array("indices"), order)
        exact = np.take_along_axis(wide @ wide.T, order, axis=1)
        np.testing.assert_array_equal(job.result(), exact)
    refused = execute(real.http, "topk", inputs={**inputs, "trans_b": False})
    assert refused.status_code == 422
    assert "trans_b transposes B" in refused.text


def test_a_scratch_file_without_disk_is_refused(tmp_path: Path) -> None:
    library = "hdgemm.server.hdgemm_backend:HdgemmLibrary"
    settings = make_settings(tmp_path, library=library, min_free_disk=1 << 60)
    matrices(settings.roots[0])
    with live(settings) as started:
        inputs = {"a": {"path": "a.npy"}, "options": SMALL}
        refused = execute(started.http, "slogdet", inputs=inputs)
        assert refused.status_code == 507
        assert refused.json()["requested"] == 8 * N * N
        in_memory = {**inputs, "options": {"host_memory": "30MB"}}
        assert execute(started.http, "slogdet", inputs=in_memory).status_code == 201


def test_the_client_downloads_factors_and_pivots(real: Live, folder: Path) -> None:
    a = np.load(folder / "a.npy")
    with Client(real.url) as client:
        options = Options(host_memory="30MB", tile=(1, 16, 8), threads=1)
        job = client.compute("lu", a, options=options).wait(timeout=LIMIT)
        x = linalg.lu_solve((job.result(), job.array("piv")), np.ones(N))
    np.testing.assert_allclose(a @ x, np.ones(N), atol=1e-9)


def test_the_commands_fetch_every_array_and_show_values(
    real: Live, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--url", real.url], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.strip() if words[0] == "submit" else done.output

    tall = str(folder / "tall.npy")
    job = run("submit", "--process", "svd", tall)
    assert "successful" in run("watch", job)
    told = run("fetch", job, "u.npy")
    assert "also stored s and vh: give --s FILE, --vh FILE or --all" in told
    told = json.loads(run("fetch", job, "u.npy", "--all", "--vh", "V.npy", "--json"))
    arrays = {name: each["path"] for name, each in told["arrays"].items()}
    assert arrays == {"s": "u.s.npy", "vh": "V.npy"}
    run("fetch", job, "--s", "s.npy")
    u, s, vh = (np.load(name) for name in ("u.npy", "s.npy", "V.npy"))
    np.testing.assert_allclose(u * s.ravel() @ vh, np.load(tall), atol=1e-9)
    for words, text in (
        ((), "give OUT"),
        (("--all",), "give OUT"),
        (("x.npy", "--piv", "p.npy"), "stores no piv"),
        (("x.npy", "--s", "x.npy"), "name another for --s"),
        (("x.npy", "--s", "s.npy", "--no-clobber"), "exists, and --no-clobber"),
    ):
        with pytest.raises(InputError, match=text):
            run("fetch", job, *words)
    job = run("submit", "--process", "norm", tall)
    assert f"norm: {np.linalg.norm(np.load(tall)):g}" in run("watch", job)
    with pytest.raises(InputError, match="stored no matrix; its values: hdgemm job watch"):
        run("fetch", job, "x.npy")
    assert not Path("x.npy").exists()


@pytest.mark.ci
def test_devices_take_part_where_they_are_named(tmp_path: Path) -> None:
    if "opencl:0" not in usable_opencl():
        pytest.skip("opencl:0 cannot be used")
    settings = make_settings(
        tmp_path,
        library="hdgemm.server.hdgemm_backend:HdgemmLibrary",
        devices=("host", "opencl:0"),
    )
    matrices(settings.roots[0])
    with live(settings) as started:
        for process, name in (("lu", "a"), ("svdvals", "tall"), ("slogdet", "a")):
            body = {"a": {"path": f"{name}.npy"}, "options": SMALL}
            for named, used in ((["host"], ["host"]), (["opencl:0"], ["host", "opencl:0"])):
                inputs = {**body, "options": {**SMALL, "devices": named}}
                job = finished(started.http, submit(started.http, process, **inputs))
                assert job["status"] == "successful", job["error"]
                assert job["report"]["devices"] == used
            job = finished(started.http, submit(started.http, process, **body))
            assert job["report"]["devices"] == ["host"]
        refused = execute(started.http, "lu", inputs={**body, "options": {"devices": ["opencl:7"]}})
        assert refused.status_code == 422
        assert "opencl:7, which no worker has" in refused.text
        refused = execute(started.http, "norm", inputs=inputs)
        assert refused.status_code == 422
        assert "devices" in refused.text


def computed(folder: Path, routine: str, *operands: str, **parameters: Any) -> Any:
    """Run a routine as a job's process does."""
    files = dict(zip("ab", (folder / name for name in operands), strict=False))
    call = Call(
        process=routine, operands=files, out=folder / f"{routine}.npy", parameters=parameters
    )
    seen: list[Any] = []
    watch = JobWatch(seen.append, threading.Event())
    outcome = HdgemmLibrary().run(call, Options(host_memory="30MB", devices="host"), watch)
    assert outcome.report["stages"]["mult1"]["operations"] > 0
    return np.load(call.out)


def test_every_routine_computes_what_its_process_says(tmp_path: Path) -> None:
    matrices(tmp_path)
    a, b, tall, rhs = (np.load(tmp_path / f"{name}.npy") for name in ("a", "b", "tall", "rhs"))
    u = computed(tmp_path, "cholesky", "a.npy", lower=False)
    np.testing.assert_allclose(u.T @ u, a, atol=1e-9)
    x = computed(tmp_path, "solve", "a.npy", "b.npy", assume_a="pos", lower=True, refine=None)
    np.testing.assert_allclose(a @ x, b, atol=1e-9)
    x = computed(tmp_path, "trsm", "a.npy", "b.npy", lower=True, trans="T", unit_diagonal=False)
    np.testing.assert_allclose(np.tril(a).T @ x, b, atol=1e-9)
    x = computed(tmp_path, "inv", "a.npy", assume_a="gen", lower=False)
    np.testing.assert_allclose(a @ x, np.eye(N), atol=1e-11)
    r = computed(tmp_path, "qr", "tall.npy", mode="r")
    np.testing.assert_allclose(r.T @ r, tall.T @ tall, atol=1e-9)
    c = computed(tmp_path, "syrk", "tall.npy", lower=True, trans=True)
    np.testing.assert_allclose(c, np.tril(tall.T @ tall), atol=1e-9)
    least = computed(tmp_path, "lstsq", "tall.npy", "rhs.npy")
    np.testing.assert_allclose(least, np.linalg.lstsq(tall, rhs, rcond=None)[0], atol=1e-10)


def test_a_matrix_that_is_not_positive_definite_fails_by_its_input(tmp_path: Path) -> None:
    np.save(tmp_path / "negative.npy", -np.eye(N))
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite") as caught:
        computed(tmp_path, "cholesky", "negative.npy", lower=True)
    assert describe(caught.value)["origin"] == "user"


def test_shapes_and_members_are_checked_before_a_job_is_accepted(client: InProcess) -> None:
    tall = {"path": "tall.npy"}
    for process, inputs, text in (
        ("cholesky", {"a": tall}, "square"),
        ("solve", {"a": {"path": "a.npy"}, "b": tall}, "must be as many"),
        ("solve", {"a": {"path": "a.npy"}}, "b"),
        ("lu", {"a": tall, "lower": True}, "lower"),
        ("qr", {"a": tall, "mode": "upper"}, "mode"),
        ("lstsq", {"a": {"path": "b.npy"}, "b": tall}, "must be as many"),
    ):
        answer = execute(client, process, inputs=inputs)
        assert answer.status_code in (400, 422), answer.text
        assert text in answer.text
    unknown = execute(client, "solve_triangular", inputs={"a": tall})
    assert unknown.status_code == 404
    assert "'solve_triangular': use trsm; known are" in unknown.json()["detail"]


def test_a_symmetric_product_is_planned_before_it_runs(client: InProcess) -> None:
    tall = {"path": "tall.npy"}
    for trans, order in ((False, 3 * N), (True, 7)):
        inputs = {"a": tall, "trans": trans, "options": {"host_memory": "30MB"}}
        planned = execute(client, "syrk", inputs=inputs, dry_run=True).json()
        assert planned["output"]["shape"] == [order, order]
        problem = Problem(
            process="syrk", m=order, n=order, dtype="float64", parameters={"trans": trans},
            operands={"a": Source((3 * N, 7), "float64")},
        )  # fmt: skip
        demand = plan_problem(problem, Options(host_memory="30MB"))
        assert 0 < demand.host_bytes <= 30_000_000
        assert demand.plan["kind"] == "syrk"


def test_processes_are_described(client: InProcess) -> None:
    beside = {"lu": {"piv"}, "qr": {"q", "tau"}, "svd": {"s", "vh"}, "svds": {"s", "vh"}}
    beside |= {"eigsh": {"v"}, "pca": {"components", "mean"}, "topk": {"indices"}}
    for process in commands():
        arrays = beside.get(process, set())
        described = client.get(f"/v1/processes/{process}").json()
        assert described["inputs"]["a"]["minOccurs"] == 1
        assert described["title"]
        result = {"c"} if commands()[process].stores else set()
        assert set(described["outputs"]) == {*result, *arrays, "report"}
    at = "/v1/processes/solve"
    assert "refine" in client.get(at).json()["inputs"]


def lu_files(folder: Path) -> set[str]:
    """Names of the files of a factorisation F.npy that lie in a folder."""
    return {path.name for path in folder.iterdir()} & {"F.npy", "F.piv.npy", "F.factor.json"}


@pytest.mark.parametrize("first", ["lu", "gemm"])
def test_no_two_jobs_write_the_pivots(client: InProcess, first: str) -> None:
    a = {"path": "a.npy"}
    jobs = [("lu", {"a": a, "output": {"path": "F.npy"}})]
    jobs.append(("gemm", {"a": a, "b": a, "output": {"path": "F.piv.npy"}}))
    for process, inputs in sorted(jobs, key=lambda each: each[0] != first):
        answer = execute(client, process, inputs=inputs)
        assert answer.status_code == (201 if process == first else 409), answer.text
    assert "will write" in answer.json()["detail"]
    assert "name another file, or submit when it has ended" in answer.json()["detail"]
    assert "F.piv.npy" in answer.json()["detail"]
    others = {"a": a, "b": a, "output": {"path": "F.tau.npy"}}
    assert execute(client, "gemm", inputs=others).status_code == 201


def test_a_job_does_not_replace_its_input_by_pivots(client: InProcess) -> None:
    root = client.app.state.service.settings.roots[0]
    (root / "a.npy").rename(root / "F.piv.npy")
    output = {"path": "F.npy", "overwrite": True}
    answer = execute(client, "lu", inputs={"a": {"path": "F.piv.npy"}, "output": output})
    assert answer.status_code == 422
    assert "is an input of the same job" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("process", "array", "parameters", "advice"),
    [
        ("pca", "mean", {"mean": True}, ": set mean to true among the inputs"),
        ("qr", "q", {"mode": "economic"}, ""),
    ],
)
def test_an_output_that_is_not_stored_cannot_be_chosen(
    real: Live, folder: Path, process: str, array: str, parameters: dict[str, Any], advice: str
) -> None:
    assert folder.is_dir()
    body = {"inputs": {"a": {"path": "linalg/tall.npy"}}, "outputs": {array: {}}, "dry_run": True}
    refused = execute(real.http, process, **body)
    text = f"outputs.{array}: a {process} job with these inputs stores no {array}{advice}"
    assert (refused.status_code, refused.json()["detail"]) == (422, text)
    body["inputs"] |= parameters
    assert execute(real.http, process, **body).status_code == 200


def test_files_beside_a_result_are_outputs(real: Live, tmp_path: Path) -> None:
    folder = real.settings.roots[0] / "beside"
    folder.mkdir()
    matrices(folder)
    body: dict[str, Any] = {"a": {"path": "beside/a.npy"}, "options": SMALL}
    taken = {**body, "output": {"path": "beside/F.npy"}}
    np.save(folder / "F.piv.npy", np.zeros(3))
    assert execute(real.http, "lu", inputs=taken).status_code == 409
    assert execute(real.http, "cholesky", inputs=taken, dry_run=True).status_code == 200
    (folder / "F.piv.npy").unlink()

    job = finished(real.http, submit(real.http, "lu", **taken))
    pivots = f"/v1/jobs/{job['jobID']}/results/piv"
    assert real.http.get(pivots).status_code == 200
    (folder / "F.npy").rename(folder / "G.npy")
    product = {"a": body["a"], "b": body["a"], "output": {"path": "beside/F.npy"}}
    refused = execute(real.http, "gemm", inputs=product)
    assert refused.status_code == 409
    assert "F.piv.npy exists" in refused.json()["detail"]

    product["output"]["overwrite"] = True
    assert real.http.get(pivots).status_code == 409
    done = finished(real.http, submit(real.http, "gemm", **product))
    assert done["status"] == "successful", done["error"]
    assert lu_files(folder) == {"F.npy"}
    assert real.http.get(f"/v1/jobs/{done['jobID']}/results/piv").status_code == 404
    again = {**taken, "output": product["output"]}
    assert finished(real.http, submit(real.http, "lu", **again))["status"] == "successful"
    assert lu_files(folder) == {"F.npy", "F.piv.npy", "F.factor.json"}
    linalg.open(folder / "F.npy")
    np.save(folder / "F.piv.npy", np.zeros(3))
    assert real.http.get(pivots).status_code == 409
