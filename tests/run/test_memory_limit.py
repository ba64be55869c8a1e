"""The promise of `host_memory`: anonymous and shared pages that a run adds to its process.

They are measured from outside; `python -m bench.campaigns.memory_limits` tries every combination of
format, conversion, beta, transposition, check and device.
"""

from pathlib import Path

import numpy as np
import pytest

import hdgemm
from bench.campaigns.memory_limits import LIMIT, make_operands, measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    path = tmp_path_factory.mktemp("operands")
    make_operands(path)
    return path


@pytest.fixture
def peak(folder):
    """Return the peak in bytes of one call in a process of its own."""
    with measured(folder, LIMIT) as measure:
        yield measure


#: A kernel that backs memory with huge pages counts one as soon as a part of it is touched.
HUGE_PAGE = 2 << 20

CASES = {
    "npy": {"a": "x.npy", "b": "y.npy"},
    "Fortran order, transposed, beta": {
        "a": "f.npy", "b": "y.npy", "trans_a": True, "trans_b": True, "beta": 0.5, "c": "f.npy",
    },
    "float32 to float64, checked tiles": {
        "a": "x4.npy", "b": "y.npy", "options": {"verify": "tiles"},
    },
    "gzip in HDF5": {"a": "x.h5::/x", "b": "x.h5::/x"},
    "Zarr": {"a": "x.zarr", "b": "x.zarr"},
    "float32 to Zarr": {"a": "x4.npy", "b": "x4.npy", "out": "out.zarr"},
}  # fmt: skip

#: Each takes 5 s of processor time; the others have the same formats and conversions.
LONG = ("npy", "float32 to float64, checked tiles", "Zarr")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.campaign] if case in LONG else []) for case in CASES],
)
def test_a_run_stays_within_host_memory(folder, peak, case):
    call = dict(CASES[case])
    call.setdefault("out", "out.npy")
    for name in ("a", "b", "c", "out"):
        if name in call:
            call[name] = f"{folder}/{call[name]}"
    assert peak(**call) <= LIMIT + HUGE_PAGE


@pytest.mark.parametrize(("available", "warned"), [(1000, True), (10**9, False)])
@pytest.mark.parametrize("call", [hdgemm.matmul, hdgemm.linalg.solve, hdgemm.linalg.lstsq])
def test_a_plan_that_holds_more_than_is_available_warns_once(
    tmp_path, monkeypatch, caplog, call, available, warned
):
    monkeypatch.setattr("hdgemm.run.session._WORTH_ASKING", 1)
    monkeypatch.setattr("hdgemm.run.session.available_bytes", lambda: available)
    options = hdgemm.Options(host_memory="100GB", devices="host", tile=(32, 32, 32))
    np.save(tmp_path / "A.npy", np.eye(90))
    with hdgemm.Session(options) as session:
        for _ in range(2):
            call(tmp_path / "A.npy", tmp_path / "A.npy", session=session)
    found = [x.getMessage() for x in caplog.records if "are available here" in x.getMessage()]
    assert len(found) == warned
    assert all("1.00 kB are available" in text for text in found)
