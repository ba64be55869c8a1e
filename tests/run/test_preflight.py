"""The plan that is shown beforehand is the plan that runs."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

import hdgemm
from hdgemm.errors import DoesNotFitError, InputError, InputTypeError
from hdgemm.pipeline.plan import from_json, summarize
from tests.opencl import usable_opencl

N = 400
CASES = {
    "files": {"host_memory": "4MB"},
    "in RAM": {"host_memory": "1GB"},
    "OpenCL": {"devices": "opencl:0", "host_memory": "8MB", "device_memory": "6MB"},
    "checked tiles": {"host_memory": "6MB", "verify": "tiles"},
    "two devices": {"devices": ("host", "opencl:0"), "host_memory": "24MB"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(3)
    for name in "abc":
        np.save(folder / f"{name}.npy", rng.standard_normal((N, N)))
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("a", data=np.load(folder / "a.npy"), chunks=(96, 128))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "cache"))


def operands(files, case):
    if case == "in RAM":
        return [np.load(files / f"{name}.npy") for name in "ab"]
    return [files / "a.npy", files / "b.npy"]


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_a_call_is_the_plan_in_its_report(files, tmp_path, case, beta):
    if "opencl:0" in CASES[case].get("devices", ()):
        usable_opencl()
    options = hdgemm.Options(**CASES[case])
    keywords = {"beta": beta, "c": files / "c.npy"} if beta else {}
    call = {"out": tmp_path / "out.npy", "options": options, **keywords}
    plans = hdgemm.plan(*operands(files, case), **call)
    report = hdgemm.multiply(*operands(files, case), **call)
    assert plans.summary() == dict(report.plan)
    assert len(plans) == len(report.devices)


def test_chunks_of_hdf5_are_planned_for(files, tmp_path):
    call = {"out": tmp_path / "out.npy", "options": hdgemm.Options(host_memory="4MB")}
    [plan] = hdgemm.plan(f"{files}/a.h5::a", files / "b.npy", **call)
    assert plan.problem.a.chunk == (96, 128)
    report = hdgemm.multiply(f"{files}/a.h5::a", files / "b.npy", **call)
    assert summarize(plan) == dict(report.plan)


@pytest.mark.parametrize("zarr_out", [False, True])
def test_the_command_line_shows_the_plan_that_runs(files, tmp_path, zarr_out):
    out = f"{tmp_path}/out.zarr" if zarr_out else f"{tmp_path}/out.npy"
    shown = subprocess.run(
        [sys.executable, "-m", "hdgemm", "plan", f"{files}/a.npy", f"{files}/b.npy", "--out", out,
         "--host-memory", "4MB", "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    report = hdgemm.multiply(
        files / "a.npy", files / "b.npy", out=out, options=hdgemm.Options(host_memory="4MB")
    )
    assert json.loads(json.dumps(summarize(from_json(shown.stdout)))) == json.loads(
        json.dumps(dict(report.plan))
    )


def test_a_product_of_nothing_has_no_plan():
    assert hdgemm.plan(np.ones((3, 0)), np.ones((0, 4))) == []


def test_from_the_call_to_the_executor_are_few_frames(files, tmp_path, monkeypatch):
    import traceback

    from hdgemm.run import engine

    seen = []
    execute = engine.run_plan

    def watched(*args, **keywords):
        seen.extend(traceback.extract_stack()[:-1])
        return execute(*args, **keywords)

    monkeypatch.setattr(engine, "run_plan", watched)
    hdgemm.matmul(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy",
                  options=hdgemm.Options(host_memory="4MB"))  # fmt: skip
    names = [frame.name for frame in seen]
    frames = seen[names.index("matmul") :]
    assert len(frames) <= 8, [frame.name for frame in frames]
    assert len({frame.filename for frame in frames}) <= 6


def test_a_first_calibration_is_a_phase_of_its_own(files, tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.machine.calibration.WORTH_MEASURING", 0)
    monkeypatch.setattr("hdgemm.machine.calibration.MOST_SECONDS", 0.3)
    options = hdgemm.Options(devices="host", host_memory="4MB")
    phases = []

    def product(**keywords):
        return hdgemm.multiply(
            files / "a.npy", files / "b.npy", out=tmp_path / "c.npy", options=options, **keywords
        )

    first = product(progress=lambda snapshot: phases.append(snapshot.phase))
    assert phases[0] == "calibrating"
    assert phases[-1] == "multiplying"
    assert first.phases["calibrating"] > 0
    assert product().phases["calibrating"] == 0.0


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (InputError, "m, n and k must be a whole", lambda: hdgemm.plan_gemm(float("nan"), 3, 3)),
        (InputError, "m, n and k must be a whole", lambda: hdgemm.plan_gemm(3, "3", 3)),
        (InputError, r"less than 2\*\*62", lambda: hdgemm.plan_gemm(3, 3, 10**30)),
        (InputError, r"threads .* less than 2\*\*31", lambda: hdgemm.Options(threads=1 << 40)),
        (InputError, "rounds", lambda: hdgemm.verify(*[np.eye(2)] * 3, rounds="x")),
        (InputTypeError, "'gray8'", lambda: hdgemm.plan_gemm(3, 3, 3, "gray8")),
        (InputTypeError, "'gray8'", lambda: hdgemm.create("x.npy", (3, 3), "gray8")),
        (InputTypeError, "'gray8'", lambda: hdgemm.create("x.bin::3x3:float64", (3, 3), "gray8")),
        (InputTypeError, "'gray8'", lambda: hdgemm.linalg.plan("lu", 10, dtype="gray8")),
        (InputTypeError, "uint64", lambda: hdgemm.linalg.plan("lu", 10, dtype="uint64")),
        (
            InputTypeError,
            "no argument assum_a; it takes assume_a, lower, transposed, refine, overwrite_a",
            lambda: hdgemm.linalg.plan("solve", 10, assum_a="pos"),
        ),
        (
            InputTypeError,
            "no argument lower, mode; it takes dtype",
            lambda: hdgemm.linalg.plan("lstsq", (10, 2), mode="r", lower=True),
        ),
        (InputError, "refine must be", lambda: hdgemm.linalg.plan("solve", 9, refine="float16")),
        (InputTypeError, "got int", lambda: hdgemm.execute(3, *[np.eye(2)] * 3)),
        (
            InputTypeError,
            r"plan\[0\] and so on, got Plans",
            lambda: hdgemm.execute(hdgemm.plan(*[np.eye(2)] * 2), *[np.eye(2)] * 3),
        ),
        (
            InputError,
            "transpose one: .T of an array or an opened matrix, or trans_a or trans_b of multiply",
            lambda: hdgemm.plan(np.ones((2, 3)), np.ones((2, 3))),
        ),
    ],
)
def test_wrong_extents_dtypes_and_plans_are_refused(error, match, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        call()
    assert not list(tmp_path.glob("x.*"))


def test_a_plan_of_integers_runs_again_with_an_exact_integer_result(tmp_path):
    a, b = np.full((3, 4), 2**40 + 1), np.full((4, 2), 7)
    (planned,) = hdgemm.plan(a, b)
    hdgemm.execute(from_json(planned.to_json()), a, b, tmp_path / "c.npy")
    c = np.load(tmp_path / "c.npy")
    assert c.dtype == np.int64
    np.testing.assert_array_equal(c, a @ b)
    with pytest.raises(InputError, match="may exceed what float64 holds exactly"):
        hdgemm.execute(planned, a, b * 2**20, tmp_path / "d.npy")
    assert not (tmp_path / "d.npy").exists()
    (rounded,) = hdgemm.plan(a, b * 2**20, dtype="float64")
    hdgemm.execute(rounded, a, b * 2**20, tmp_path / "d.npy", dtype="float64")
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), a @ (b * 2.0**20))


def test_a_result_that_is_larger_than_memory_has_no_plan():
    tall = np.broadcast_to(1.0, (5_000_000, 1))  # 200 TB: more than there are addresses
    with pytest.raises(DoesNotFitError, match="200,000,000,000,000 bytes") as refused:
        hdgemm.plan(tall, tall.T)
    assert refused.value.requested == 8 * 5_000_000**2
    with pytest.raises(DoesNotFitError):
        hdgemm.linalg.plan("syrk", tall)


def test_a_plan_of_many_parts_is_printed_in_25_lines(tmp_path):
    options = hdgemm.Options(devices="host", host_memory="64MB")
    plan = hdgemm.linalg.plan("syrk", (20_000, 9_000), out=tmp_path / "c.npy", options=options)
    text = str(plan)
    assert len(plan.parts) > 3
    assert len(text.splitlines()) <= 25
    assert "more parts" in text
