"""Factorisations in files, opened again."""

import json
import os

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


def names(folder):
    """Names of the files that are no journals."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    "replace",
    [
        lambda a, f: hdgemm.matmul(a, a, out=f),
        lambda a, f: hdgemm.matmul(a, a, out=f, checkpoint=True),
        lambda a, f: linalg.solve(a, a, out=f, options=SLABS),
        lambda a, f: linalg.solve(a, a, out=f, options=SLABS, checkpoint=True),
    ],
)
def test_another_result_leaves_no_files_of_a_factorisation(tmp_path, replace):
    a, factors = positive_definite(N, "float64"), tmp_path / "F.npy"
    linalg.lu_factor(a, out=factors, options=SLABS)
    np.save(tmp_path / "F.tau.npy", a)  # belongs to nothing
    replace(a, factors)
    assert names(tmp_path) == ["F.npy", "F.tau.npy"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_factorisation_of_another_kind_replaces_the_files_beside_it(
    tmp_path, in_place, checkpoint
):
    a, factors = positive_definite(N, "float64"), tmp_path / "F.npy"
    linalg.lu_factor(a, out=factors, options=SLABS)
    if in_place:
        stored = np.lib.format.open_memmap(factors, "r+")
        stored[...] = a
        linalg.cholesky(factors, overwrite_a=True, options=SLABS, checkpoint=checkpoint)
    else:
        linalg.cholesky(a, out=factors, options=SLABS, checkpoint=checkpoint)
    assert names(tmp_path) == ["F.factor.json", "F.npy"]
    x = linalg.cho_solve(linalg.open(factors), np.ones(N))
    np.testing.assert_allclose(a @ x, np.ones(N), atol=1e-9)


def test_a_matrix_that_took_the_name_of_the_pivots_is_kept(tmp_path):
    a = positive_definite(N, "float64")
    linalg.lu_factor(a, out=tmp_path / "F.npy", options=SLABS)
    hdgemm.matmul(a, a, out=tmp_path / "F.piv.npy")
    hdgemm.matmul(a, a, out=tmp_path / "F.npy")
    assert names(tmp_path) == ["F.npy", "F.piv.npy"]


def test_factors_of_other_formats_share_no_pivots(tmp_path):
    b = np.ones(N)
    places = [f"{tmp_path}/LU{end}" for end in (".npy", ".bin::30x30:float64", "", ".NPY")]
    matrices = {place: random_matrix(N, N, "float64", seed=len(place)) for place in places}
    for place, a in matrices.items():
        linalg.lu_factor(a, out=place, options=SLABS)
    for place, a in matrices.items():
        np.testing.assert_allclose(a @ linalg.lu_solve(linalg.open(place), b), b, atol=1e-9)
    assert (tmp_path / "LU.bin-piv.npy").exists()


def test_pivots_of_an_earlier_version_beside_a_raw_file_are_read(tmp_path):
    a, b = random_matrix(N, N, "float64"), np.ones(N)
    linalg.lu_factor(a, out=f"{tmp_path}/LU.bin::30x30:float64", options=SLABS)
    for end in ("piv.npy", "factor.json"):
        (tmp_path / f"LU.bin-{end}").rename(tmp_path / f"LU.{end}")
    x = linalg.lu_solve(linalg.open(f"{tmp_path}/LU.bin::30x30:float64"), b)
    np.testing.assert_allclose(a @ x, b, atol=1e-9)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_r_is_not_stored_where_tau_goes(tmp_path, checkpoint):
    a = random_matrix(N, N, "float64")
    out = (tmp_path / "F.npy", tmp_path / "F.tau.npy")
    with pytest.raises(hdgemm.InputError, match=r"F\.tau\.npy is another result"):
        linalg.qr(a, mode="raw", out=out, options=SLABS, checkpoint=checkpoint)
    assert names(tmp_path) == []


def test_a_damaged_description_claims_nothing(tmp_path):
    a, description = positive_definite(N, "float64"), tmp_path / "F.factor.json"
    np.save(tmp_path / "F.piv.npy", a)
    for text in ("{", "[]", "null", '{"arrays": 7}', '{"arrays": ["piv"]}', "[" * 100_000):
        description.write_text(text)
        hdgemm.matmul(a, a, out=tmp_path / "F.npy")
        assert description.read_text() == text
    np.testing.assert_array_equal(np.load(tmp_path / "F.piv.npy"), a)


@pytest.mark.parametrize("name", ["F.factor.json", "F.piv.npy"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_file_beside_a_factor_is_a_regular_one(tmp_path, name, kind):
    """A FIFO would wait for ever, and /dev/zero has no end."""
    a = np.random.default_rng(0).standard_normal((8, 8))
    linalg.lu_factor(a, out=tmp_path / "F.npy")
    other = tmp_path / name
    other.unlink()
    if kind == "fifo":
        os.mkfifo(other)
    else:
        other.symlink_to("/dev/zero")
    with pytest.raises(hdgemm.InputError, match=name):
        linalg.open(tmp_path / "F.npy")


def test_an_array_beside_a_factor_that_exceeds_the_memory_is_refused(tmp_path):
    linalg.lu_factor(np.eye(8), out=tmp_path / "F.npy")
    with (tmp_path / "F.piv.npy").open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (1 << 55,)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(hdgemm.InputError, match=r"F\.piv\.npy"):
        linalg.open(tmp_path / "F.npy")


@pytest.mark.parametrize("content", [b'{"kind": "mill"}', b"[1, 2]", b"notes", b"\xff", b""])
def test_a_file_that_no_factorisation_wrote_is_kept(tmp_path, content):
    (tmp_path / "LU.factor.json").write_bytes(content)
    with pytest.raises(hdgemm.InputError, match="written by no factorisation"):
        linalg.lu_factor(np.eye(N), out=tmp_path / "LU.npy", options=SLABS)
    assert (tmp_path / "LU.factor.json").read_bytes() == content
    assert not (tmp_path / "LU.npy").exists()
