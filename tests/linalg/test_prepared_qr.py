"""QR: the plan that is shown is the plan that runs, for every mode, output and shape."""

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from tests.linalg.matrices import random_matrix

pytest.importorskip("h5py")
pytest.importorskip("zarr")

OPTIONS = hdgemm.Options(host_memory="20MB", tile=(11, 9, 4), devices="host")
SHAPES = [(40, 26), (30, 30), (22, 37)]
FORMATS = {
    "npy": "{}.npy",
    "raw": "{}.bin::{}x{}:float64",
    "hdf5": "{}.h5::/M",
    "zarr": "{}.zarr::M",
}


def places(mode, form, shape):
    """Return `out` for a mode, in files of one format; None for arrays."""
    m, n = shape
    k = min(shape)
    extents = {"full": ((m, m), (m, n)), "economic": ((m, k), (k, n)),
               "raw": ((m, n), (k, n)), "r": (None, (k, n))}[mode]  # fmt: skip
    named = [
        None if each is None else FORMATS[form].format(name, *each)
        for name, each in zip("QR", extents, strict=True)
    ]
    return named[1] if mode == "r" else tuple(named)


def compare(plan, report):
    assert report.plan == plan.summary()
    moved = {stage: found.nbytes for stage, found in report.stages.items() if stage != "mult1"}
    assert moved == plan.planned_bytes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [None, *FORMATS])
@pytest.mark.parametrize("mode", ["full", "economic", "raw", "r"])
def test_the_plan_is_what_runs(folder, mode, form, shape):
    np.save("A.npy", random_matrix(*shape, "float64"))
    given = {
        "mode": mode,
        "out": None if form is None else places(mode, form, shape),
        "options": OPTIONS,
    }
    plan, reports = linalg.plan("qr", "A.npy", **given), []
    linalg.qr("A.npy", **given, report=reports.append)
    compare(plan, reports[-1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["full", "economic", "raw", "r"])
def test_the_plan_of_a_durable_run(folder, mode, shape):
    np.save("A.npy", random_matrix(*shape, "float64"))
    given = {
        "mode": mode, "out": places(mode, "npy", shape), "options": OPTIONS, "checkpoint": True,
    }  # fmt: skip
    plan, reports = linalg.plan("qr", "A.npy", **given), []
    linalg.qr("A.npy", **given, report=reports.append)
    compare(plan, reports[-1])


@pytest.mark.parametrize("mode", ["raw", "r"])
@pytest.mark.parametrize("source", ["file", "array"])
def test_the_plan_over_a(folder, mode, source):
    a = random_matrix(40, 26, "float64")
    np.save("A.npy", np.asfortranarray(a))
    a = np.asfortranarray(a) if source == "array" else "A.npy"
    given = {"mode": mode, "overwrite_a": True, "options": OPTIONS}
    plan, reports = linalg.plan("qr", a, **given), []
    linalg.qr(a, **given, report=reports.append)
    compare(plan, reports[-1])


def test_the_plan_of_tsqr(folder):
    np.save("A.npy", random_matrix(200, 8, "float64"))
    plan, reports = linalg.plan("qr", "A.npy", mode="r", options=OPTIONS), []
    linalg.qr("A.npy", mode="r", options=OPTIONS, report=reports.append)
    compare(plan, reports[-1])


def test_the_default_mode_of_a_plan_is_the_default_of_qr(folder):
    np.save("A.npy", random_matrix(300, 200, "float64"))
    plan, reports = linalg.plan("qr", "A.npy"), []
    linalg.qr("A.npy", report=reports.append)
    compare(plan, reports[-1])
    assert plan.planned_bytes["store2"] == 1_520_000
    # A matrix that is only described is planned, too.
    assert linalg.plan("qr", (300, 200)).planned_bytes["store2"] > 8 * 300 * 300
