"""Factorisations in files, opened again."""

import json

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm import linalg
from tests.linalg.matrices import positive_definite, random_matrix

N = 30
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


@pytest.mark.parametrize("out", ["LU.npy", "LU.bin::30x30:float64", "LU.bin::30x30:float64:F"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_lu_is_opened_and_solved(tmp_path, out, checkpoint):
    a, b = random_matrix(N, N, "float64"), np.ones(N)
    linalg.lu_factor(a, out=f"{tmp_path}/{out}", options=SLABS, checkpoint=checkpoint)
    factors = linalg.open(f"{tmp_path}/{out}")
    np.testing.assert_allclose(a @ linalg.lu_solve(factors, b), b, atol=1e-9)
    lu, piv = factors
    np.testing.assert_allclose(a @ scipy.linalg.lu_solve((np.asarray(lu), piv), b), b, atol=1e-9)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("call", [linalg.cholesky, linalg.cho_factor])
def test_cholesky_is_opened_and_solved(tmp_path, call, lower):
    a, b = positive_definite(N, "complex128"), np.ones(N)
    call(a, lower, out=tmp_path / "L.npy", options=SLABS)
    factors = linalg.open(tmp_path / "L.npy")
    assert factors.lower is lower
    np.testing.assert_allclose(a @ linalg.cho_solve(factors, b), b, atol=1e-9)


def test_factors_in_place_of_a_file(tmp_path):
    a = random_matrix(N, N, "float64")
    np.save(tmp_path / "A.npy", a)
    linalg.lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
    x = linalg.lu_solve(linalg.open(tmp_path / "A.npy"), np.ones(N))
    np.testing.assert_allclose(a @ x, np.ones(N), atol=1e-9)


def test_what_does_not_belong_together_is_refused(tmp_path):
    linalg.lu_factor(random_matrix(N, N, "float64"), out=tmp_path / "LU.npy", options=SLABS)
    pivots = np.load(tmp_path / "LU.piv.npy")
    np.save(tmp_path / "LU.piv.npy", pivots[::-1])
    with pytest.raises(hdgemm.InputError, match="checksum differs"):
        linalg.open(tmp_path / "LU.npy")
    (tmp_path / "LU.piv.npy").unlink()
    with pytest.raises(hdgemm.InputError, match="cannot read"):
        linalg.open(tmp_path / "LU.npy")
    np.save(tmp_path / "LU.npy", np.eye(N))
    with pytest.raises(hdgemm.InputError, match=r"another factorisation.*its content"):
        linalg.open(tmp_path / "LU.npy")
    np.save(tmp_path / "B.npy", np.eye(N))
    with pytest.raises(hdgemm.InputError, match="not known as a factorisation"):
        linalg.open(tmp_path / "B.npy")
    description = json.loads((tmp_path / "LU.factor.json").read_text())
    for text in ("{", "[]", "null", "7", json.dumps(description | {"kind": "svd"})):
        (tmp_path / "B.factor.json").write_text(text)
        with pytest.raises(hdgemm.InputError, match="describes no factorisation"):
            linalg.open(tmp_path / "B.npy")
