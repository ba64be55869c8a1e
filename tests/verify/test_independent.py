"""The independent check reads through h5py, zarr and NumPy: it finds errors of hdgemm's readers."""

import threading
import tracemalloc

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import CancelledRunError, HdgemmError, MatrixIOError
from hdgemm.matrices.chunkfiles import ChunkFiles
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.rectangles import RectangleMatrix
from hdgemm.options import Options
from hdgemm.verify import verify

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

FORMATS = (
    "npy", "npy by columns", "raw", "raw by columns", "hdf5", "hdf5 chunks", "hdf5 gzip",
    "hdf5 link", "zarr", "zarr compressed",
)  # fmt: skip


@pytest.fixture
def matrices():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((130, 90)), rng.standard_normal((90, 70))
    return a, b, a @ b


def store(folder, kind, x):
    """Write x as A of one format; return its location."""
    order = "F" if "columns" in kind else "C"
    if kind.startswith("npy"):
        np.save(folder / "A.npy", np.asarray(x, order=order))
        return str(folder / "A.npy")
    if kind.startswith("raw"):
        (folder / "A.bin").write_bytes(b"\0" * 24 + x.tobytes(order))
        tail = ":F:24" if order == "F" else ":24"
        return f"{folder / 'A.bin'}::{x.shape[0]}x{x.shape[1]}:float64{tail}"
    if kind.startswith("hdf5"):
        options = {"hdf5 chunks": {"chunks": (32, 50)}, "hdf5 gzip": {"compression": "gzip"}}
        with h5py.File(folder / "A.h5", "w") as file:
            file.create_dataset("A", data=x, **options.get(kind, {}))
        if kind == "hdf5 link":
            with h5py.File(folder / "A.link.h5", "w") as file:
                file["A"] = h5py.ExternalLink("A.h5", "/A")
            return f"{folder / 'A.link.h5'}::/A"
        return f"{folder / 'A.h5'}::/A"
    compressors = "auto" if kind == "zarr compressed" else None
    zarr.create_array(
        store=folder / "A.zarr", name="A", data=x, chunks=(40, 30), compressors=compressors
    )
    return f"{folder / 'A.zarr'}::A"


@pytest.fixture
def wrong_reader(monkeypatch):
    """Every reader of hdgemm returns twice what a matrix named A holds."""
    for kind in (FileMatrix, ChunkFiles, RectangleMatrix):

        def read(self, row, col, out, right=kind.read):
            right(self, row, col, out)
            if "A." in self.name:
                out *= 2

        monkeypatch.setattr(kind, "read", read)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_by_its_library(kind, trans, tmp_path, matrices):
    a, b, c = matrices
    where = store(tmp_path, kind, a.T if trans else a)
    assert verify(where, b, c, trans_a=trans, independent=True, memory=300_000).passed
    c[5, 6] += 1e-6
    assert verify(where, b, c, trans_a=trans, independent=True).failing_rows == (5,)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_wrong_reader_agrees_with_itself_alone(kind, tmp_path, matrices, wrong_reader):
    a, b, _ = matrices
    where = store(tmp_path, kind, a)
    c = hdgemm.matmul(where, b)
    np.testing.assert_allclose(c, 2 * a @ b)
    assert verify(where, b, c).passed
    assert not verify(where, b, c, independent=True).passed


@pytest.mark.parametrize("kind", ["hdf5", "hdf5 chunks", "hdf5 gzip", "hdf5 link", "zarr"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_runs_own_check_finds_a_wrong_reader(kind, beta, tmp_path, matrices, wrong_reader):
    a, b, c = matrices
    where = store(tmp_path, kind, c if beta else a)
    options = Options(verify=True, devices="host")
    arguments = (a, b) if beta else (where, b)
    with pytest.raises(HdgemmError, match="the product failed its check"):
        hdgemm.dgemm(1.0, *arguments, beta, where if beta else None, options=options)


def test_a_runs_own_check_passes(tmp_path, matrices):
    a, b, c = matrices
    where = store(tmp_path, "hdf5 gzip", a)
    found = hdgemm.matmul(where, b, options=Options(verify=True, devices="host"))
    np.testing.assert_allclose(found, c)


def test_arrays_datasets_and_views_of_stored_matrices(tmp_path, matrices):
    a, b, c = matrices
    memmap = np.load(store(tmp_path, "npy", a), mmap_mode="r")
    assert verify(memmap, b, c, independent=True).passed
    assert verify(memmap[10:50].T, b, c[10:50], trans_a=True, independent=True).passed
    assert verify(a, b, c, independent=True).passed
    store(tmp_path, "hdf5 chunks", a)
    with h5py.File(tmp_path / "A.h5") as file:
        assert verify(file["A"], b, c, independent=True).passed
    store(tmp_path, "zarr", a)
    array = zarr.open_array(store=tmp_path / "A.zarr", path="A", mode="r")
    assert verify(array, b, c, independent=True).passed
    for kind in FORMATS[:8]:
        with hdgemm.open(store(tmp_path, kind, a)) as stored:
            part = stored[20:100, 10:80]
            product = a[20:100, 10:80] @ b[10:80]
            assert verify(part, b[10:80], product, independent=True).passed, kind
            assert verify(part.T, b[10:80], product, trans_a=True, independent=True).passed, kind
            product[3, 3] += 1e-6
            assert not verify(part, b[10:80], product, independent=True).passed, kind


def test_a_library_that_fails_is_an_error_with_the_place(tmp_path, matrices, monkeypatch):
    a, b, c = matrices
    where = store(tmp_path, "hdf5", a)

    def fail(*_):
        raise OSError("a bad block")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)
    with pytest.raises(MatrixIOError, match="a bad block"):
        verify(where, b, c, independent=True)


def test_memory_holds(tmp_path):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 1000, 1000))
    for name, x in (("A", a), ("B", b), ("C", a @ b)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("X", data=x, chunks=(100, 100), compression="lzf")
    places = [f"{tmp_path / name}.h5::/X" for name in "ABC"]
    memory = 7_000_000
    tracemalloc.start()
    try:
        assert verify(*places, memory=memory, independent=True).passed
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= memory < a.nbytes


def test_a_check_is_cancelled(matrices):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledRunError, match="the check was cancelled"):
        verify(*matrices, cancel=cancel)
