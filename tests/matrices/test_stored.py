"""`hdgemm.open`, `hdgemm.create` and views, against the same indexing of NumPy arrays."""

import copy
import io
import os
import pickle

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings, strategies as st

import hdgemm
from hdgemm.errors import InputError, InputTypeError, MatrixIOError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.pipeline.slots import pieces
from hdgemm.pipeline.tiles import Rect
from hdgemm.planning._storage_chunks import moved_area
from hdgemm.product.aliasing import overlaps, same_elements
from tests.matrices.test_chunks import CountingDataset
from tests.matrices.test_formats import LAYOUTS

TILED = hdgemm.Options(host_memory="64MB", devices="host", tile=(32, 24, 16))
SHAPE = (90, 70)
#: Locations that `hdgemm.create` makes, and the order to ask for.
CREATED = {
    "npy": ("x.npy", "C"),
    "npy-columns": ("x.npy", "F"),
    "raw": ("x.bin::90x70:float64", "C"),
    "raw-columns": ("x.bin::90x70:float64:F:24", "F"),
    "h5": ("x.h5::/group/A", "C"),
    "zarr": ("x.zarr::A", "C"),
}
OPENED = [*CREATED, *LAYOUTS, "array", "array-columns", "memmap", "h5-object", "zarr-object"]


BOUND = st.one_of(st.none(), st.integers(-60, 60))


def numbers(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def stored(tmp_path, request):
    """Return a function that stores an array in one way and opens it."""

    def store(kind, x, mode="r+"):
        if kind in CREATED:
            name, order = CREATED[kind]
            matrix = hdgemm.create(tmp_path / name, x.shape, x.dtype, order)
            matrix[:] = x
            if mode == "r":
                matrix.close()
                matrix = hdgemm.open(tmp_path / name)
        elif kind in LAYOUTS:
            matrix = hdgemm.open(LAYOUTS[kind][0](tmp_path, x), mode)
        elif kind == "memmap":
            np.save(tmp_path / "m.npy", x)
            matrix = hdgemm.open(np.load(tmp_path / "m.npy", mmap_mode="r+"), mode)
        elif kind == "h5-object":
            file = h5py.File(tmp_path / "o.h5", "w")
            request.addfinalizer(file.close)
            matrix = hdgemm.open(file.create_dataset("A", data=x, chunks=(8, 8)), mode)
        elif kind == "zarr-object":
            array = zarr.create_array(store={}, shape=x.shape, dtype=x.dtype, chunks=(9, 7))
            array[:] = x
            matrix = hdgemm.open(array, mode)
        else:
            matrix = hdgemm.open(np.array(x, order="F" if "columns" in kind else "C"), mode)
        request.addfinalizer(matrix.close)
        return matrix

    return store


@pytest.mark.parametrize("kind", OPENED)
def test_views_are_numpys(stored, kind):
    x = numbers()
    m = stored(kind, x)
    assert (m.shape, m.ndim, m.size, m.nbytes, len(m)) == (x.shape, 2, x.size, x.nbytes, 90)
    assert m.dtype.newbyteorder("=") == x.dtype
    for view in (
        lambda y: y,
        lambda y: y[10:40],
        lambda y: y[-30:, 5:-5],
        lambda y: y.T[3:, :50],
        lambda y: y[20:80, 10:60][5:, 7:].T[2:],
        lambda y: y[5:5],
        lambda y: y[80:1000, np.int64(60) :],
    ):
        np.testing.assert_array_equal(np.asarray(view(m)), view(x))
        assert view(m).shape == view(x).shape
    m[10:20, 30:] = x[:10, :40]
    m[:, :2] = 7
    m.T[60:65, 80:] = numbers((5, 10), 1)
    m[50:60] = np.arange(70.0)
    x[10:20, 30:] = x[:10, :40].copy()
    x[:, :2] = 7
    x.T[60:65, 80:] = numbers((5, 10), 1)
    x[50:60] = np.arange(70.0)
    np.testing.assert_array_equal(np.asarray(m), x)
    m[:30] = m[60:]
    np.testing.assert_array_equal(np.asarray(m)[:30], x[60:])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(*[BOUND] * 4), max_size=3), st.data())
def test_any_slices(tmp_path_factory, cuts, data):
    x = numbers((41, 29))
    folder = tmp_path_factory.mktemp("views")
    np.save(folder / "x.npy", np.asarray(x, order=data.draw(st.sampled_from("CF"))))
    with hdgemm.open(folder / "x.npy") as whole:
        m = whole
        for r0, r1, c0, c1 in cuts:
            m, x = m[r0:r1, c0:c1], x[r0:r1, c0:c1]
            if data.draw(st.booleans()):
                m, x = m.T, x.T
            np.testing.assert_array_equal(np.asarray(m), x)
            if x.size and x.shape[1] > 1:
                operand = m.operand
                plain = open_operand(m).matrix
                assert operand.shape == x.shape
                assert plain.phase(0, 1) == (plain.offset + plain.dtype.itemsize) % 4096


@pytest.mark.parametrize("kind", OPENED)
def test_every_call_takes_views(stored, kind):
    x, b, before = numbers(), numbers((50, 70), 1), numbers(seed=2)
    m = stored(kind, x)
    left, right = m[13:73, 11:61], b
    exact = 40 * np.finfo(float).eps * 50
    wanted = x[13:73, 11:61] @ b
    np.testing.assert_allclose(hdgemm.matmul(left, right, options=TILED), wanted, atol=exact)
    np.testing.assert_allclose(hdgemm.matmul(b.T, left.T, options=TILED), wanted.T, atol=exact)
    assert hdgemm.verify(left, right, wanted).passed
    np.asarray(left)  # `verify` left it open
    m[:] = before
    report = hdgemm.multiply(x[13:73, 11:61], b, out=m[5:65], options=TILED)
    assert report.moved_bytes == report.planned_bytes
    before[5:65] = wanted
    np.testing.assert_allclose(np.asarray(m), before, atol=exact)
    c = m[5:65]
    hdgemm.dgemm(2.0, b.T, x[13:73, 11:61].T, beta=0.5, c=c.T, out=m[5:65].T, options=TILED)
    before[5:65] = 2.5 * wanted
    np.testing.assert_allclose(np.asarray(m), before, atol=3 * exact)
    hdgemm.execute(hdgemm.plan_gemm(60, 70, 50), x[13:73, 11:61], b, m[30:], 1.0, 0.0)
    np.testing.assert_allclose(np.asarray(m[30:]), wanted, atol=exact)


def test_other_stores_and_matmul_do_not_read_everything(stored, monkeypatch):
    for kind in ("h5-object", "zarr-object"):
        x = numbers()
        m = stored(kind, x)
        monkeypatch.setattr(type(m), "__array__", lambda *_, **__: pytest.fail("read as a whole"))
        np.testing.assert_allclose(hdgemm.matmul(m, x.T, options=TILED), x @ x.T, atol=1e-12)


def test_stacks_in_hdf5_are_read_matrix_by_matrix(tmp_path):
    a, b = numbers((3, 1, 20, 30)), numbers((4, 30, 10), 1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        left, right = file.create_dataset("a", data=a), file.create_dataset("b", data=b)
        np.testing.assert_allclose(hdgemm.matmul(left, right), a @ b, atol=1e-12)
        np.testing.assert_allclose(hdgemm.matmul(left[0], right), a[0] @ b, atol=1e-12)
        out = np.empty((3, 4, 20, 10))
        assert hdgemm.matmul(left, right, out=out) is out
        np.testing.assert_allclose(out, a @ b, atol=1e-12)


def test_views_that_begin_inside_a_chunk_are_cut_on_the_grid(tmp_path):
    x, b = numbers((100, 100)), numbers((77, 40), 1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("A", data=x, chunks=(10, 20), compression="gzip")
        counted = CountingDataset(data)
        m = hdgemm.open(counted)[13:93, 23:]
        matrix = m.operand.matrix
        assert (matrix.chunk, matrix.chunk_origin, matrix.encoded) == ((10, 20), (3, 3), True)
        assert m[7:, 17:].operand.matrix.chunk_origin == (0, 0)
        got = hdgemm.matmul(
            m, b, options=hdgemm.Options(host_memory="64MB", devices="host", tile=(80, 40, 77))
        )
        np.testing.assert_allclose(got, x[13:93, 23:] @ b, atol=1e-12)
        # One load of the whole view: every chunk that it touches is decoded once.
        assert set(counted.counts.values()) == {1}
        assert len(counted.counts) == 9 * 4


def test_pieces_and_decoded_elements_count_from_the_grid():
    rect = Rect(0, 0, 40, 30)
    found = pieces(rect, trans=False, itemsize=8, most=10 * 30 * 8, chunk=(10, 30), origin=(3, 0))
    assert [(part.row, part.rows) for part in found] == [
        (0, 7),
        (7, 10),
        (17, 10),
        (27, 10),
        (37, 3),
    ]
    turned = pieces(
        Rect(0, 0, 30, 40), trans=True, itemsize=8, most=10 * 30 * 8, chunk=(10, 30), origin=(3, 0)
    )
    assert [(part.col, part.cols) for part in turned] == [(part.row, part.rows) for part in found]
    spec = OperandSpec(False, "file", "staged", 8, (10, 30), True, (3, 0))
    problem = Problem(40, 8, 30, a=spec)
    assert moved_area(problem, "A", Rect(0, 0, 7, 30)) == 10 * 30
    assert moved_area(problem, "A", Rect(0, 0, 10, 30)) == 20 * 30


@pytest.mark.parametrize("kind", OPENED)
def test_overlaps_of_views(stored, kind):
    m = stored(kind, numbers())
    left, right, low = m[:, :30], m[:, 30:], m[45:]
    parts = [view.operand.matrix for view in (left, right, low)]
    # Chunks that can only be encoded as a whole are shared by both sides of column 30.
    assert overlaps(parts[0], parts[1]) == (parts[0].encoded and 30 % m.chunks[1] != 0)
    assert overlaps(parts[0], parts[2])
    assert overlaps(parts[1], parts[2])
    assert not overlaps(m[:20].operand.matrix, m[66:].operand.matrix)
    assert same_elements(left.operand, m[:, :30].operand)
    assert not same_elements(left.operand, m[:, 1:31].operand)
    with pytest.raises(InputError, match="overlaps"):
        hdgemm.matmul(m[:40, :40], numbers((40, 70)), out=m[39:79], options=TILED)


def test_more_rows_than_a_32_bit_square(tmp_path):
    n = 70_000
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, n * n * 8)
    for order in ("", ":F"):
        with hdgemm.open(f"{path}::{n}x{n}:float64{order}", "r+") as m:
            corner = m[n - 300 :, n - 200 :]
            x = numbers((300, 200))
            corner[:] = x
            np.testing.assert_array_equal(np.asarray(m[-300:, -200:]), x)
            np.testing.assert_array_equal(np.asarray(m.T[-200:, -300:]), x.T)
            out = m[60_000:60_300, 50_000:50_300]
            hdgemm.matmul(corner, corner.T, out=out, options=TILED)
            np.testing.assert_allclose(np.asarray(out), x @ x.T, atol=1e-11)
            assert not np.asarray(m[60_300:60_310, 50_000:50_300]).any()
            corner[:] = 0


def test_create_replaces_and_keeps_neighbours(tmp_path):
    first = hdgemm.create(tmp_path / "x.npy", (3, 4))
    first[:] = 1
    with hdgemm.create(tmp_path / "x.npy", (5, 6), "complex64", "F") as second:
        assert not np.asarray(second).any()
        second[1:3] = 2j
    loaded = np.load(tmp_path / "x.npy")
    assert loaded.flags.f_contiguous
    assert loaded.dtype == np.complex64
    assert (loaded[1:3] == 2j).all()
    assert (np.asarray(first) == 1).all()
    for store in ("g.h5", "g.zarr"):
        for name in ("A", "deep/B"):
            hdgemm.create(f"{tmp_path / store}::{name}", (3, 3)).close()
        for name in ("A", "deep/B"):
            assert hdgemm.open(f"{tmp_path / store}::{name}").shape == (3, 3)
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]


def test_outputs_come_back_opened(tmp_path):
    a, b = numbers(), numbers((70, 30), 1)
    for name in ("c.h5::C", "c.zarr::C", "c.bin::90x30:f8"):
        c = hdgemm.matmul(a, b, out=f"{tmp_path}/{name}", options=TILED)
        assert isinstance(c, StoredMatrix)
        np.testing.assert_allclose(np.asarray(c), a @ b, atol=1e-12)
        with pytest.raises(InputError, match="reading only"):
            c[:] = 0
    assert isinstance(hdgemm.matmul(a, b, out=f"{tmp_path}/c.npy", options=TILED), np.memmap)


def test_views_as_arrays(stored):
    x = numbers()
    m = stored("npy-columns", x)
    assert np.asarray(m).flags.f_contiguous
    assert np.asarray(m, dtype=np.float32).dtype == np.float32
    assert np.array(m[:3], copy=True).shape == (3, 70)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(m, copy=False)
    held = stored("array", x)
    assert np.shares_memory(np.asarray(held), np.asarray(held.T, copy=False))
    out = np.empty((70, 10))
    assert m[:10].T.read(out) is out
    np.testing.assert_array_equal(out, x[:10].T)
    with pytest.raises(InputError, match="shape"):
        m.read(out)
    with pytest.raises(InputTypeError, match="dtype int64"):
        m.read(np.empty(SHAPE, np.int64))
    assert repr(m[1:3].T) == (
        f"<StoredMatrix [0:70, 1:3] of {m.operand.matrix.name!r}: 70×2 float64, order C, mode r+>"
    )


@pytest.mark.parametrize("order", "CF")
def test_whole_rows_and_columns_are_read_without_a_bounce(tmp_path, monkeypatch, order):
    x = np.asarray(numbers((900, 700)), order=order)
    np.save(tmp_path / "x.npy", x)
    with hdgemm.open(tmp_path / "x.npy") as m:
        if not m.operand.matrix.file.direct:
            pytest.skip("no direct I/O here")
        monkeypatch.setattr(FileMatrix, "_read_band", None)
        part = np.s_[101:, :] if order == "C" else np.s_[:, 101:]
        for view, wanted in ((m, x), (m[part], x[part])):
            np.testing.assert_array_equal(np.asarray(view), wanted)
            np.testing.assert_array_equal(np.asarray(view.T), wanted.T)


def test_what_is_no_rectangle_is_refused(stored):
    m = stored("npy", numbers())
    for key in (90, (3, -71), slice(0, 9, 0), (..., ...), (..., 1, 2, 3), None, True,
                (slice(1), slice(1), slice(1)), [1, 2], np.ones(90, bool)):  # fmt: skip
        with pytest.raises(InputError):
            m[key]
    with pytest.raises(InputTypeError, match="integers"):
        m[1.5:3]
    with pytest.raises(InputError, match="cannot be stored"):
        m[:3] = np.ones((2, 70))
    with pytest.raises(InputTypeError, match="cannot hold"):
        m[:3] = 1j


def test_a_matrix_that_is_closed_during_a_run_is_an_error(tmp_path):
    a = np.random.default_rng(0).standard_normal(SHAPE)
    np.save(tmp_path / "A.npy", a)
    with hdgemm.open(tmp_path / "A.npy") as m:
        found = hdgemm.stream(m, np.eye(70), options=TILED)
        next(found)  # of 3×3; the run waits until the next one is asked for
    with pytest.raises(MatrixIOError, match=r"A\.npy was closed during the run"):
        list(found)


def test_a_closed_matrix_says_so(stored, tmp_path):
    m = stored("npy", numbers())
    view = m[3:].T
    with hdgemm.open(tmp_path / "x.npy") as reader:
        pass
    view.close()
    assert view.shape == (70, 87)
    np.asarray(view)
    m.close()
    m.close()
    for closed in (m, view, reader):
        with pytest.raises(InputError, match="closed"):
            np.asarray(closed)
        with pytest.raises(InputError, match="closed"):
            hdgemm.matmul(closed, closed.T)
        with pytest.raises(InputError, match="closed"):
            hdgemm.linalg.lu_factor(closed)
        assert "mode closed" in repr(closed)


def test_modes_shapes_and_orders(tmp_path):
    np.save(tmp_path / "x.npy", numbers())
    with hdgemm.open(tmp_path / "x.npy") as m:
        with pytest.raises(InputError, match="reading only"):
            m[:] = 0
        with pytest.raises(InputError, match="reading only"):
            hdgemm.matmul(m.T, m, out=m[:70])
    with pytest.raises(InputError, match="mode"):
        hdgemm.open(tmp_path / "x.npy", "w")
    with pytest.raises(InputError, match="cannot open"):
        hdgemm.open(tmp_path / "y.npy")
    with pytest.raises(InputTypeError):
        hdgemm.open(io.BytesIO())
    with pytest.raises(InputError, match="negative"):
        hdgemm.create(tmp_path / "y.npy", (-1, 3))
    with pytest.raises(InputTypeError, match="two integers"):
        hdgemm.create(tmp_path / "y.npy", 5)
    with pytest.raises(InputTypeError, match="int32"):
        hdgemm.create(tmp_path / "y.npy", (5, 5), "int32")
    for location in ("y.h5::A", "y.zarr", "y.bin::5x5:f8"):
        with pytest.raises(InputError, match="order 'F'"):
            hdgemm.create(tmp_path / location, (5, 5), order="F")
    with pytest.raises(InputError, match="order must be"):
        hdgemm.create(tmp_path / "y.npy", (5, 5), order="K")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("kind", ["npy", "h5", "zarr", "array"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_opened_matrix_is_not_copied(stored, kind, copied):
    """A copy would close the original's descriptors, or read another process's."""
    x = numbers()
    matrix = stored(kind, x, "r")
    remedy = "pass the function or the array" if kind == "array" else "pass its location"
    for each in (matrix, matrix[:3].T, matrix[::2]):
        with pytest.raises(InputTypeError, match=remedy):
            copied(each)
    np.testing.assert_array_equal(np.asarray(matrix), x)


def test_a_generated_matrix_that_is_pickled_names_no_location():
    def ones(rows, cols):
        return np.ones((rows.stop - rows.start, cols.stop - cols.start))

    with pytest.raises(InputTypeError, match="pass the function or the array that it was made"):
        pickle.dumps(hdgemm.generated((3, 3), "float64", ones))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_wide_rows_are_read_into_a_column_major_array(tmp_path, dtype):
    a = np.arange(70 * 300, dtype="float64").reshape(70, 300)
    np.save(tmp_path / "A.npy", a)
    found = np.full((70, 300), -1, dtype, "F")
    with hdgemm.open(tmp_path / "A.npy") as matrix:
        matrix[:, :299].read(found[:, 1:])  # 70 rows in strips of 16
    np.testing.assert_array_equal(found[:, 1:], a[:, :299])
    assert (found[:, 0] == -1).all()


def test_ragged_lists_are_refused(tmp_path):
    stored = hdgemm.create(tmp_path / "x.npy", (2, 3), "float64")
    for key in (0, (slice(None), 1), slice(0, 2)):
        with pytest.raises(InputError, match="different lengths"):
            stored[key] = [[1, 2], [3]]
    stored[:, 1] = [4, 5]
    stored[0] = hdgemm.open(tmp_path / "x.npy")[1]
    np.testing.assert_array_equal(stored.read(), [[0, 5, 0], [0, 5, 0]])
    stored.close()
