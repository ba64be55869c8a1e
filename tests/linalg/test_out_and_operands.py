"""No result replaces the file of an operand."""

import numpy as np
import pytest

import hdgemm
from hdgemm import InputError, decomposition, linalg

#: Calls that name an operand's file as the place of a result.
CALLS = {
    "cov": lambda: linalg.cov("T.npy", out="T.npy"),
    "corrcoef": lambda: linalg.corrcoef("T.npy", out=("T.npy",)),
    "pca": lambda: decomposition.pca("T.npy", 3, out=(None, "T.npy", None)),
    "transform": lambda: decomposition.PCA(3).fit("T.npy").transform("T.npy", out="T.npy"),
    "svd": lambda: linalg.svd("T.npy", out=("T.npy", None, None)),
    "svdvals": lambda: linalg.svdvals("T.npy", out="T.npy"),
    "svds": lambda: linalg.svds("T.npy", 2, out=(None, None, "T.npy")),
    "eigsh": lambda: linalg.eigsh("S.npy", 2, out=(None, "S.npy")),
    "lstsq, a": lambda: linalg.lstsq("T.npy", "Y.npy", out="T.npy"),
    "lstsq, b": lambda: linalg.lstsq("T.npy", "Y.npy", out="Y.npy"),
    "ridge, a": lambda: linalg.ridge("T.npy", "Y.npy", 1.0, out="T.npy"),
    "ridge, b": lambda: linalg.ridge("T.npy", "Y.npy", 1.0, out="Y.npy"),
    "pinv": lambda: linalg.pinv("T.npy", out="T.npy"),
    "qr, R": lambda: linalg.qr("T.npy", mode="r", out="T.npy"),
    "qr, Q": lambda: linalg.qr("T.npy", mode="economic", out=("T.npy", "R.npy")),
    "qr_multiply, a": lambda: linalg.qr_multiply("S.npy", "L.npy", out=("S.npy", "R.npy")),
    "qr_multiply, c": lambda: linalg.qr_multiply("S.npy", "L.npy", out=("L.npy", "R.npy")),
    "qr_multiply, c by r": lambda: linalg.qr_multiply("S.npy", "L.npy", out=("P.npy", "L.npy")),
    "solve, a": lambda: linalg.solve("S.npy", "B.npy", out="S.npy"),
    "solve, b": lambda: linalg.solve("S.npy", "B.npy", out="B.npy"),
    "solve, link": lambda: linalg.solve("S.npy", "B.npy", out="link.npy"),
    "inv": lambda: linalg.inv("S.npy", out="S.npy", checkpoint=True),
    "inv, triangular": lambda: linalg.inv("L.npy", out="L.npy", assume_a="lower triangular"),
    "lu_factor": lambda: linalg.lu_factor("S.npy", out="S.npy"),
    "lu": lambda: linalg.lu("S.npy", out=("S.npy", "U.npy")),
    "cholesky": lambda: linalg.cholesky("S.npy", out="S.npy"),
    "solve_triangular": lambda: linalg.solve_triangular("L.npy", "B.npy", lower=True, out="L.npy"),
    "cho_solve": lambda: linalg.cho_solve(("L.npy", True), "B.npy", out="L.npy"),
    "trsm": lambda: hdgemm.trsm(1.0, "L.npy", "B.npy", lower=1, out="L.npy"),
    "trmm": lambda: hdgemm.trmm(1.0, "L.npy", "B.npy", lower=1, out="L.npy"),
    "syrk": lambda: hdgemm.syrk(1.0, "T.npy", out="T.npy"),
    "symm": lambda: hdgemm.symm(1.0, "S.npy", "B.npy", out="S.npy"),
    "matmul": lambda: hdgemm.matmul("S.npy", "S.npy", out="S.npy"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_result_replaces_the_file_of_an_operand(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    square = rng.random((12, 12)) + 12 * np.eye(12)
    given = {"T": rng.random((40, 6)), "Y": rng.random((40, 2)), "S": square + square.T,
             "L": np.tril(square), "B": rng.random((12, 3))}  # fmt: skip
    for name, matrix in given.items():
        np.save(f"{name}.npy", matrix)
    (tmp_path / "link.npy").symlink_to("S.npy")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"out is the file of an operand|out overlaps a"):
        call()
    assert sorted(tmp_path.iterdir()) == before
    for name, matrix in given.items():
        np.testing.assert_array_equal(np.load(f"{name}.npy"), matrix)


@pytest.mark.parametrize("out", ["s.zarr::A", "f.h5::A", "one.zarr"])
def test_no_result_replaces_an_operand_in_a_store(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for where in ("s.zarr::A", "s.zarr::B", "f.h5::A", "one.zarr"):
        with hdgemm.create(where, (12, 12)) as matrix:
            matrix[:] = 3 * np.eye(12)
    for call in (linalg.solve, linalg.solve_triangular):
        with pytest.raises(InputError, match="out is the file of an operand"):
            call(out, "s.zarr::B", out=out)
    linalg.solve("s.zarr::A", "s.zarr::B", out="s.zarr::X")
    with hdgemm.open(out) as matrix:
        np.testing.assert_array_equal(matrix.read(), 3 * np.eye(12))


@pytest.mark.parametrize("make", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize(
    "call",
    [
        lambda a, out: hdgemm.matmul(a, np.eye(12), out=out),
        lambda a, out: linalg.cholesky(a, out=out),
        lambda a, out: linalg.cov(a, out=out),
    ],
)
def test_no_result_replaces_an_operand_through_links(tmp_path, monkeypatch, make, call):
    monkeypatch.chdir(tmp_path)
    for where in ("A.h5::A", "A.zarr"):
        with hdgemm.create(where, (12, 12)) as matrix:
            matrix[:] = 3 * np.eye(12)
    getattr(tmp_path / "L.h5", make)(tmp_path / "A.h5")
    (tmp_path / "L.zarr").symlink_to("A.zarr")
    for where, out in (("A.h5::A", "L.h5::A"), ("A.zarr", "L.zarr")):
        with pytest.raises(InputError, match=r"out (is the file of an operand|overlaps a)"):
            call(where, out)
        with hdgemm.open(where) as matrix:
            np.testing.assert_array_equal(matrix.read(), 3 * np.eye(12))


def test_a_name_of_an_open_file_is_no_out(tmp_path):
    a = 3 * np.eye(12)
    with (tmp_path / "X.npy").open("wb") as file:
        for call in (lambda out: hdgemm.matmul(a, a, out=out), lambda o: linalg.inv(a, out=o)):
            with pytest.raises(InputError, match="a name of an open file"):
                call(f"/proc/self/fd/{file.fileno()}")
