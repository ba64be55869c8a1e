"""Places of operands and results: another working directory, results over each other or over A."""

import contextlib
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm import linalg
from hdgemm.matrices.transfer import BOUNCE_BYTES
from tests.linalg.matrices import positive_definite, random_matrix
from tests.unnamed_files import without_unnamed_files

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")
CALLS = {
    "cholesky": lambda how: linalg.cholesky("S.npy", out="C.npy", **how),
    "lu_factor": lambda how: linalg.lu_factor("S.npy", out="C.npy", **how),
    "lu": lambda how: linalg.lu("S.npy", out=("C.npy", "U.npy"), **how),
    "qr": lambda how: linalg.qr("S.npy", out=("C.npy", "R.npy"), **how),
    "qr_multiply": lambda how: linalg.qr_multiply("S.npy", "B.npy", out=("C.npy", "R.npy"), **how),
    "solve": lambda how: linalg.solve("S.npy", "B.npy", out="C.npy", **how),
    "solve pos": lambda how: linalg.solve("S.npy", "B.npy", assume_a="pos", out="C.npy", **how),
    "solve float32": lambda how: linalg.solve(
        "S.npy", "B.npy", refine="float32", out="C.npy", **how
    ),
    "inv": lambda how: linalg.inv("S.npy", out="C.npy", **how),
    "lstsq": lambda how: linalg.lstsq("S.npy", "B.npy", out="C.npy", **how),
    "solve_triangular": lambda how: linalg.solve_triangular("S.npy", "B.npy", out="C.npy", **how),
    "syrk": lambda how: hdgemm.syrk(1.0, "S.npy", out="C.npy", **how),
    "trsm": lambda how: hdgemm.trsm(1.0, "S.npy", "B.npy", out="C.npy", **how),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_change_of_directory_during_a_call(tmp_path, monkeypatch, call):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    # Before the call, so that monkeypatch goes back to the first directory.
    np.save("S.npy", np.asfortranarray(positive_definite(N, "float64")))
    np.save("B.npy", random_matrix(N, 40, "float64"))
    CALLS[call]({"options": SLABS, "observer": lambda _: monkeypatch.chdir(other)})
    assert (tmp_path / "C.npy").exists()
    assert list(other.iterdir()) == []


def open_folders():
    """Return the folders of the files that this process has open and that have no name."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(entry.readlink())
    return {link.parent for link in links if link.name.endswith(" (deleted)")}


@pytest.mark.parametrize(("version", "unnamed"), [(2, True), (3, True), (3, False)])
def test_scratch_files_lie_beside_a_zarr_store_without_a_name(
    tmp_path, monkeypatch, version, unnamed
):
    if not unnamed:
        without_unnamed_files(monkeypatch)
    n = 16
    s, b = positive_definite(n, "float64"), random_matrix(n, 2, "float64")
    zarr.open_group(tmp_path / "A.zarr", mode="w", zarr_format=version).create_array("g/S", data=s)
    before = sorted((tmp_path / "A.zarr").rglob("*"))
    beside, names = [], set()

    def callbacks(_):
        assert sorted((tmp_path / "A.zarr").rglob("*")) == before
        beside[-1] |= tmp_path in open_folders()
        names.update(path.name for path in tmp_path.iterdir())

    how = {"options": SLABS, "observer": callbacks}
    place = f"{tmp_path / 'A.zarr'}::g/S"
    unit = 30 * n * np.finfo(np.float64).eps * np.linalg.norm(s)
    calls = (
        lambda: linalg.solve(place, b, **how),
        lambda: linalg.solve(place, b, assume_a="pos", lower=True, **how),
        lambda: linalg.solve(place, b, assume_a="pos", **how),
        lambda: linalg.solve(place, b, refine="float32", **how),
        lambda: linalg.inv(place, **how) @ b,
    )
    for call in calls:
        beside.append(False)
        found = call()
        assert np.linalg.norm(s @ found - b) <= unit * np.linalg.norm(found)
    for call in (linalg.det, partial(linalg.qr_multiply, c=np.eye(n))):
        beside.append(False)
        call(place, **how)
    assert all(beside)
    linalg.lu(place, **how)
    # Killed at any time, the process leaves nothing: a file without a name ends with it.
    assert names == {"A.zarr"}
    q, r = linalg.qr(place, out=tuple(f"{tmp_path / 'F.zarr'}::{name}" for name in "QR"), **how)
    assert np.linalg.norm(np.asarray(q) @ np.asarray(r) - s) <= unit
    assert {path.name for path in tmp_path.iterdir()} == {"A.zarr", "F.zarr"}
    names = {path.name for path in (tmp_path / "F.zarr").rglob("*")}
    assert not any("hdgemm" in name for name in names)


def test_two_results_are_apart(tmp_path):
    a = random_matrix(N, N, "float64")
    whole = np.zeros((N, N + 1))
    places = [
        (tmp_path / "L.npy", tmp_path / "sub" / ".." / "L.npy"),
        (whole[:, :N], whole[:, 1:]),
        (tmp_path / "L.npy", tmp_path / "link.npy"),
        (f"{tmp_path}/L.bin::{N}x{N}:float64", f"{tmp_path}/L.bin::{N}x{N}:float64:F"),
        (f"{tmp_path}/F.zarr::L", f"{tmp_path}/sub/link.zarr::L"),
    ]
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.npy").symlink_to("L.npy")
    (tmp_path / "sub" / "link.zarr").symlink_to("../F.zarr")
    for place in places:
        for call in (linalg.lu, linalg.qr):
            with pytest.raises(hdgemm.InputError, match="two results overlap"):
                call(a, out=place, options=SLABS)
    assert {path.name for path in tmp_path.iterdir()} == {"sub", "link.npy"}


@pytest.mark.parametrize("mapped", [False, True])
def test_a_solution_over_its_triangle_is_refused(tmp_path, mapped):
    np.save(tmp_path / "A.npy", np.asfortranarray(positive_definite(N, "float64")))
    a = np.load(tmp_path / "A.npy", mmap_mode="r+") if mapped else np.load(tmp_path / "A.npy")
    before, b, pivots = np.array(a), np.ones((N, 7)), np.arange(N)
    calls = (
        lambda: linalg.solve_triangular(a, b, out=a[:, :7]),
        lambda: linalg.lu_solve((a, pivots), b, out=a[:, 3:10]),
        lambda: linalg.cho_solve((a, True), b, out=a[:, 3:10]),
        lambda: hdgemm.trsm(1.0, a, b, out=a[:, :7]),
        lambda: hdgemm.trsm(1.0, a, b.T, side=1, out=a[:7]),
        lambda: linalg.solve(a, b, refine="float32", out=a[:, :7]),
        lambda: linalg.solve(a, a[:, :7], refine="float32", out=a[:, :7]),
    )
    for call in calls:
        with pytest.raises(hdgemm.InputError, match="out overlaps"):
            call()
        np.testing.assert_array_equal(a, before)


def test_q_may_take_the_place_of_a_file(tmp_path):
    a = random_matrix(N, 20, "float64")
    np.save(tmp_path / "A.npy", np.asfortranarray(a))
    place = np.load(tmp_path / "A.npy", mmap_mode="r+")
    q, r = linalg.qr(
        tmp_path / "A.npy", mode="economic", out=(place, tmp_path / "R.npy"), options=SLABS
    )
    np.testing.assert_allclose(q @ r, a, atol=1e-12)


def raw_qr(a, out):
    return linalg.qr(a, mode="raw", out=out, options=SLABS)


def lu_factor(a, out):
    return linalg.lu_factor(a, out=out, options=SLABS)


@pytest.mark.parametrize(("name", "call"), [("F.piv.npy", lu_factor), ("F.tau.npy", raw_qr)])
def test_an_array_beside_the_factors_does_not_replace_the_matrix(tmp_path, name, call):
    a = random_matrix(N, N, "float64")
    np.save(tmp_path / name, a)
    with pytest.raises(hdgemm.InputError, match=f"{name} is the matrix"):
        call(tmp_path / name, tmp_path / "F.npy")
    np.testing.assert_array_equal(np.load(tmp_path / name), a)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("routine", ["cholesky", "cho_factor", "lu_factor"])
def test_a_file_is_read_into_an_array_within_the_memory(tmp_path, routine):
    a, call = positive_definite(40, "float64"), getattr(linalg, routine)
    np.save(tmp_path / "A.npy", a)
    little, enough = (hdgemm.Options(host_memory=BOUNCE_BYTES - less) for less in (1, 0))
    out = np.full((40, 40), 7.0, order="F" if routine == "lu_factor" else "C")
    with pytest.raises(
        hdgemm.DoesNotFitError, match=r"needs 4.20 MB; host_memory is 4.19 MB: raise it by"
    ) as caught:
        call(tmp_path / "A.npy", out=out, options=little)
    assert (caught.value.requested, caught.value.available) == (BOUNCE_BYTES, BOUNCE_BYTES - 1)
    assert (out == 7).all()
    reports = []
    call(tmp_path / "A.npy", options=enough, report=reports.append)
    assert reports[0].plan["host_bytes"] == reports[0].plan["host_limit"] == BOUNCE_BYTES
    call(a, options=hdgemm.Options(host_memory=1000))  # an array is read without buffers


EMPTY = {
    "A.npy": {}, "A.bin": {}, "A.zarr": {}, "A.h5": {},
    "compressed.h5": {"chunks": (4, 4), "maxshape": (None, None), "compression": "gzip"},
}  # fmt: skip


def create_empty(folder, name, shape):
    """Create a matrix without elements; return its location."""
    place = folder / name
    if place.suffix == ".h5":
        with h5py.File(place, "w") as file:
            file.create_dataset("A", shape, "f8", **EMPTY[name])
        return f"{place}::A"
    if place.suffix == ".zarr":
        zarr.create_array(place, shape=shape, chunks=(1, 1), dtype="f8")
        return place
    if place.suffix == ".bin":
        place.touch()
        return f"{place}::{shape[0]}x{shape[1]}:float64"
    np.save(place, np.zeros(shape))
    return place


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_matrices_without_elements_are_factored_in_place(tmp_path, name, shape):
    place = create_empty(tmp_path, name, shape)
    lu, pivots = linalg.lu_factor(place, overwrite_a=True)
    assert (lu.shape, len(pivots)) == (shape, 0)
    assert linalg.lu_factor(place, overwrite_a=True, pivoting="tournament").lu.shape == shape
    (_, tau), _ = linalg.qr(place, mode="raw", overwrite_a=True)
    assert len(tau) == 0
    assert linalg.qr(place, mode="r", overwrite_a=True)[0].shape == shape
    if shape == (0, 0):
        assert linalg.cholesky(place, overwrite_a=True).shape == shape
        for structure in ("gen", "pos"):
            x = linalg.solve(place, np.zeros((0, 2)), assume_a=structure, overwrite_a=True)
            assert x.shape == (0, 2)
        assert linalg.inv(place, overwrite_a=True).shape == shape


def test_a_compressed_dataset_is_not_factored_in_place(tmp_path):
    a = positive_definite(N, "float64")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("A", data=a, chunks=(8, 8), compression="gzip")
    for call in (linalg.lu_factor, linalg.cholesky, linalg.qr):
        how = {"mode": "raw"} if call is linalg.qr else {}
        with pytest.raises(hdgemm.InputError, match=r"cannot write to .*A.h5, which HDF5 has open"):
            call(f"{tmp_path / 'A.h5'}::A", overwrite_a=True, **how)
    np.testing.assert_array_equal(hdgemm.open(f"{tmp_path / 'A.h5'}::A"), a)


@pytest.mark.parametrize("routine", ["cholesky", "lu_factor"])
def test_a_plan_over_an_array_has_no_checkpoint_either(routine):
    a = np.eye(5)
    given = {"overwrite_a": True, "checkpoint": True}
    with pytest.raises(hdgemm.InputError, match="checkpoint needs"):
        getattr(linalg, routine)(a, **given)
    with pytest.raises(hdgemm.InputError, match="checkpoint needs"):
        linalg.plan(routine, a, **given)
