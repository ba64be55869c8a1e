"""Matrices and products of every format, read by h5py, zarr or NumPy and by hdgemm: the same."""

import h5py
import numpy as np
import pytest

import hdgemm

zarr = pytest.importorskip("zarr")

#: Each format with the options that its library creates the matrix with.
FORMATS = {
    "npy": {"order": "C"},
    "npy by columns": {"order": "F"},
    "raw": {"order": "C"},
    "raw by columns": {"order": "F"},
    "hdf5": {},
    "hdf5 chunks": {"chunks": (32, 50)},
    "hdf5 gzip": {"chunks": (32, 50), "compression": "gzip"},
    "hdf5 link": {},
    "zarr": {"chunks": (40, 30), "compressors": None},
    "zarr compressed": {"chunks": (40, 30)},
}
SHAPE = (130, 90)
HEADER = 24


@pytest.fixture(params=FORMATS)
def kind(request):
    return request.param


def store(folder, kind, x):
    """Write x as A with the format's library; return its location."""
    options = FORMATS[kind]
    if kind.startswith("npy"):
        np.save(folder / "A.npy", np.asarray(x, **options))
        return str(folder / "A.npy")
    if kind.startswith("raw"):
        (folder / "A.bin").write_bytes(b"\0" * HEADER + x.tobytes(**options))
        order = ":F" if options["order"] == "F" else ""
        return f"{folder / 'A.bin'}::{x.shape[0]}x{x.shape[1]}:float64{order}:{HEADER}"
    if kind.startswith("zarr"):
        zarr.create_array(store=folder / "A.zarr", name="A", data=x, **options)
        return f"{folder / 'A.zarr'}::A"
    with h5py.File(folder / "A.h5", "w") as file:
        file.create_dataset("A", data=x, **options)
    if kind == "hdf5 link":
        with h5py.File(folder / "A.link.h5", "w") as file:
            file["A"] = h5py.ExternalLink("A.h5", "/A")
        return f"{folder / 'A.link.h5'}::/A"
    return f"{folder / 'A.h5'}::/A"


def read_by_library(where, kind, shape):
    """Return the whole matrix as the format's own library reads it."""
    path, _, item = where.partition("::")
    if kind.startswith("npy"):
        return np.load(path)
    if kind.startswith("raw"):
        order = FORMATS[kind]["order"]
        return np.array(np.memmap(path, np.float64, "r", HEADER, shape, order))
    if kind.startswith("zarr"):
        return zarr.open_array(store=path, path=item, mode="r")[:]
    with h5py.File(path) as file:
        return file[item][:]


def test_the_library_and_hdgemm_read_the_same(kind, tmp_path):
    where = store(tmp_path, kind, np.random.default_rng(1).standard_normal(SHAPE))
    expected = read_by_library(where, kind, SHAPE)
    with hdgemm.open(where) as stored:
        np.testing.assert_array_equal(np.asarray(stored), expected)
        np.testing.assert_array_equal(np.asarray(stored.T), expected.T)
        part = stored[20:100, 10:80]
        np.testing.assert_array_equal(np.asarray(part), expected[20:100, 10:80])
        np.testing.assert_array_equal(np.asarray(part.T), expected[20:100, 10:80].T)


def test_the_library_reads_the_product_that_hdgemm_stored(kind, tmp_path):
    a, b = np.random.default_rng(2).standard_normal((2, 100, 100))
    where = store(tmp_path, kind, np.zeros((100, 100)))
    hdgemm.matmul(a, b, out=where)
    found = read_by_library(where, kind, (100, 100))
    np.testing.assert_allclose(found, a @ b, rtol=0, atol=1e-12)
