"""NumPy's operators and functions on stored matrices: out of core, against the same on arrays."""

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import DoesNotFitError, InputError, InputIndexError, InputTypeError
from hdgemm.matrices.stored import StoredMatrix
from tests.matrices.test_stored import OPENED, numbers, stored

__all__ = ["stored"]  # the fixture

N = 60


@pytest.fixture
def square(tmp_path):
    """A matrix in a file, with its array."""
    x = numbers((N, N))
    np.save(tmp_path / "square.npy", x)
    with hdgemm.open(tmp_path / "square.npy") as m:
        yield m, x


@pytest.fixture
def tall(tmp_path):
    """A tall matrix in a file, with its array."""
    x = numbers((300, 20), 1)
    np.save(tmp_path / "tall.npy", x)
    with hdgemm.open(tmp_path / "tall.npy") as m:
        yield m, x


@pytest.fixture
def unread(monkeypatch):
    """No matrix becomes an array as a whole."""
    monkeypatch.setattr(StoredMatrix, "__array__", lambda *_, **__: pytest.fail("read as a whole"))


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-11 * max(1, np.abs(wanted).max(initial=0)))


PRODUCTS = {
    "m @ array": lambda m, x: m @ x,
    "array @ m": lambda m, x: x @ m,
    "m @ m.T": lambda m, x: m @ m.T,
    "m @ vector": lambda m, x: m @ x[0],
    "vector @ m": lambda m, x: x[0] @ m,
    "list @ m": lambda m, x: x[0].tolist() @ m,
    "stack @ m": lambda m, x: np.stack([x, 2 * x]) @ m,
    "np.matmul": np.matmul,
    "np.dot": lambda m, x: np.dot(x, m),
    "np.dot with a vector": lambda m, x: np.dot(m, x[:, 0]),
    "np.dot with a number": lambda m, x: np.dot(2.0, m),
    "np.inner": lambda m, x: np.inner(m, m),
    "np.linalg.matmul": np.linalg.matmul,
    "m * number": lambda m, x: m * 2,
    "number * m": lambda m, x: np.float64(3) * m,
    "complex": lambda m, x: 2j * m,
    "solve": lambda m, x: np.linalg.solve(m, x[:, :3]),
    "solve vector": lambda m, x: np.linalg.solve(m, x[0]),
    "inv": lambda m, x: np.linalg.inv(m),
    "det": lambda m, x: np.linalg.det(m),
    "slogdet": lambda m, x: np.linalg.slogdet(m),
    **{f"norm {kind}": lambda m, x, kind=kind: np.linalg.norm(m, kind)
       for kind in (None, "fro", 1, -1, 2, -2, "nuc", np.inf, -np.inf)},
    "svdvals": lambda m, x: np.linalg.svdvals(m),
    "svd without U": lambda m, x: np.linalg.svd(m, compute_uv=False),
    "pinv": lambda m, x: np.linalg.pinv(m),
    "matrix_norm": lambda m, x: np.linalg.matrix_norm(m),
    "shape": lambda m, x: [*np.shape(m), np.ndim(m), np.size(m), np.size(m, 1)],
    "zeros_like": lambda m, x: np.zeros_like(m),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_numpys_results_out_of_core(square, unread, name):
    m, x = square
    found, wanted = PRODUCTS[name](m, x), PRODUCTS[name](x, x)
    assert isinstance(found, type(wanted)) or np.isscalar(wanted)
    close(found, wanted)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype


def test_results_go_where_out_says(square, tmp_path, unread):
    m, x = square
    out = np.empty((N, N))
    assert np.matmul(m, x, out=out) is out
    close(out, x @ x)
    with hdgemm.create(tmp_path / "out.npy", (N, N)) as c:
        assert np.matmul(m, m, out=c) is c
        close(c.read(), x @ x)
        np.multiply(m, 3, out=c)
        close(c.read(), 3 * x)
    with pytest.raises(InputError, match="shape"):
        np.multiply(m, 3, out=np.empty((2, 2)))


def test_factorisations_are_numpys(square, tall, tmp_path, unread):
    (_, x), (t, y) = square, tall
    s = x @ x.T + N * np.eye(N)
    np.save(tmp_path / "s.npy", s)
    with hdgemm.open(tmp_path / "s.npy") as positive:
        close(np.linalg.cholesky(positive), np.linalg.cholesky(s))
        close(np.linalg.cholesky(positive, upper=True), np.linalg.cholesky(s).T)
    for mode in ("reduced", "complete"):
        found = np.linalg.qr(t, mode)
        assert [part.shape for part in found] == [part.shape for part in np.linalg.qr(y, mode)]
        close(found.Q @ found.R, y)
    u, s, vh = np.linalg.svd(t, full_matrices=False)
    close(u * s @ vh, y)
    close(np.linalg.pinv(t), np.linalg.pinv(y))
    close(abs(np.linalg.qr(t, mode="r")), abs(np.linalg.qr(y, mode="r")))
    for found, wanted in zip(np.linalg.lstsq(t, y[:, 0]), np.linalg.lstsq(y, y[:, 0]), strict=True):
        assert np.shape(found) == np.shape(wanted)
        close(found, wanted)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(hdgemm.open(np.zeros((3, 3))), np.ones(3))


REFUSED = {
    "numpy.add": lambda m: 1 + m,
    "numpy.subtract": lambda m: np.ones((N, N)) - m,
    "numpy.bitwise_or": lambda m: m[:, :] | np.ones(N),
    "numpy.divide": lambda m: m / 2,
    "numpy.remainder": lambda m: m % m,
    "numpy.power": lambda m: m**2,
    "numpy.negative": lambda m: -m,
    "numpy.absolute": abs,
    "numpy.greater": lambda m: m > 0,
    "numpy.less_equal": lambda m: m <= m.T,
    "numpy.exp": np.exp,
    "numpy.sum": np.sum,
    "numpy.linalg.eigvals": np.linalg.eigvals,
    "numpy.add.reduce": np.add.reduce,
    "numpy.multiply of two matrices": lambda m: np.multiply(m, m),
    "numpy.concatenate": lambda m: np.concatenate([m, m]),
    "numpy.matmul": lambda m: np.matmul(m, m, dtype=np.float32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_and_reads_nothing(square, unread, name, monkeypatch):
    monkeypatch.setattr(StoredMatrix, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(InputTypeError, match=rf"{name} is not computed out of core.*dask"):
        REFUSED[name](square[0])


def test_matrices_are_compared_as_objects(square):
    m, _ = square
    assert m == m[:, :]._parent
    assert m != m[:, :]
    assert m != 0
    assert {m: 1}[m] == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [("sum", r": use numpy\.asarray\(M\) .*M\.blocks\(\)"), ("astype", ": use numpy"),
     ("dot", ": write M @ x$"), ("transpose", r": write M\.T$"), ("nothing", "'nothing'$"),
     ("__array_interface__", "'__array_interface__'$")],
)  # fmt: skip
def test_a_method_of_arrays_says_what_to_use(square, name, advice):
    with pytest.raises(AttributeError, match=f"'StoredMatrix' object has no attribute '{name}'"):
        getattr(square[0], name)
    with pytest.raises(AttributeError, match=advice):
        getattr(square[0], name)


TOO_LARGE = {
    "read": np.asarray,
    "product": lambda m: m @ m,
    "multiple": lambda m: 2 * m,
    "inverse": np.linalg.inv,
    "solution": lambda m: np.linalg.solve(m, np.ones((N, N))),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_an_array_that_does_not_fit_is_refused(square, name):
    m, _ = square
    advice = "M.read()" if name == "read" else "out="
    with hdgemm.set_options(host_memory="20kB"), pytest.raises(DoesNotFitError) as caught:
        TOO_LARGE[name](m)
    assert advice in str(caught.value)
    assert (caught.value.requested, caught.value.available) == (8 * N * N, 20_000)


def test_other_libraries_are_asked(square):
    m, _ = square

    class Array:
        __array_ufunc__ = None

        def __rmatmul__(self, other):
            return "its own"

        def __array_function__(self, function, types, args, keywords):
            return function.__name__

        def __radd__(self, other):
            return "its own sum"

    assert m @ Array() == "its own"
    assert m + Array() == "its own sum"
    assert np.dot(m, Array()) == "dot"


@pytest.mark.parametrize("kind", OPENED)
def test_integers_and_steps_are_numpys(stored, kind):
    x = numbers()
    m = stored(kind, x)
    for key in (0, -1, np.int64(7), (3, 4), (-1, -70), (slice(None), 5), (3, slice(2, 60, 7)),
                (..., 1), (2, ...)):  # fmt: skip
        np.testing.assert_array_equal(m[key], x[key])
        assert np.shape(m[key]) == x[key].shape
        assert type(m[key]) is type(x[key])
    for view in (
        lambda y: y[::2],
        lambda y: y[::-1, ::-1],
        lambda y: y.T[5::3, 80:10:-7],
        lambda y: y[1::2, ::5][::-3, 2:].T[1:],
        lambda y: y[...],
        lambda y: y[60:20:7],
    ):
        assert isinstance(view(m), StoredMatrix)
        np.testing.assert_array_equal(np.asarray(view(m)), view(x))
    close(m[::2, ::3] @ m[1::2, ::3].T, x[::2, ::3] @ x[1::2, ::3].T)
    np.testing.assert_array_equal(np.stack(list(m)), x)
    for height in (1, 7, 90, 1000):
        found = list(m.blocks(height))
        np.testing.assert_array_equal(np.concatenate([block for _, block in found]), x)
        for rows, block in found:
            np.testing.assert_array_equal(block, x[rows])


def test_rows_columns_and_elements_are_stored(stored):
    x = numbers()
    m = stored("npy", x)
    m[3], m[:, 5], m[7, 8], m[::2] = np.arange(70), np.arange(90), 1.5, 2.5
    x[3], x[:, 5], x[7, 8], x[::2] = np.arange(70), np.arange(90), 1.5, 2.5
    np.testing.assert_array_equal(m.read(), x)
    with pytest.raises(InputError, match="by steps"):
        m[:, ::2] = 0
    with pytest.raises(InputIndexError):
        m[90]
    with pytest.raises(InputError, match="zero"):
        m[::0]


@pytest.mark.parametrize("kind", ["npy", "npy-columns", "h5", "zarr", "zarr-object", "array"])
def test_an_out_between_the_rows_of_an_operand_is_refused(stored, kind):
    m = stored(kind, numbers((90, 90)))
    for operand in (m[:, ::2], m[::-1, ::2]):
        with pytest.raises(InputError, match="overlaps"):
            hdgemm.matmul(operand, np.ones((45, 90)), out=m)


def test_blocks_are_bounded(stored):
    m = stored("zarr", numbers())
    with pytest.raises(InputError, match="at least 1"):
        next(m.blocks(0))
    heights = [len(block) for _, block in m.blocks(memory=3 * 70 * 8 * 40)]
    assert max(heights) <= 40
    assert all(height % m.chunks[0] == 0 for height in heights[:-1]) or m.chunks[0] > 40


def test_dask_reads_blocks_when_they_are_computed(stored, unread, monkeypatch):
    da = pytest.importorskip("dask.array")
    x = numbers()
    m = stored("npy", x)
    monkeypatch.undo()
    reads = []
    read = StoredMatrix.read

    def noted(self, *out):
        reads.append(self.shape)
        return read(self, *out)

    monkeypatch.setattr(StoredMatrix, "read", noted)
    d = da.from_array(m, chunks=(30, 35))
    total = (d.T @ d + 1).sum(axis=0)
    assert not any(rows and cols for rows, cols in reads)
    close(total.compute(), (x.T @ x + 1).sum(axis=0))
    assert {shape for shape in reads if all(shape)} == {(30, 35)}
    for function in (lambda y: y[5:].mean(axis=1), lambda y: 2 * y - y.min(), np.exp, np.transpose):
        found = function(d).compute()
        assert type(found) is np.ndarray
        close(found, function(x))
    close(d.map_blocks(lambda block: block * 2).compute(), 2 * x)
    assert type(d[:10, :10].compute()) is np.ndarray


def test_xarray_reads_blocks_by_dask(square):
    xarray, dask = pytest.importorskip("xarray"), pytest.importorskip("dask.array")
    matrix, array = square[:2]
    lazy = xarray.DataArray(dask.from_array(matrix), dims=("row", "column"))
    np.testing.assert_allclose((lazy + 1).mean("row"), (array + 1).mean(0))
    np.testing.assert_allclose(hdgemm.matmul(lazy, array), array @ array)
