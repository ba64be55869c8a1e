"""NaN, Inf, overflow and subnormals come out where reference BLAS puts them; 0 means "not read"."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm import CancelledRunError, Options, dgemm, matmul, multiply
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.operands import open_operand
from hdgemm.run.scaling import run_scaling
from tests.reference import DTYPES, assert_close_in_eps, op, reference_gemm

TILED = Options(devices="host", tile=(3, 2, 4))
WAYS = pytest.mark.parametrize(
    "options", [Options(devices="host"), TILED], ids=["direct", "pipeline"]
)


class TestNotFinite:
    @WAYS
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("where", ["a", "b", "c"])
    def test_one_value(self, options, dtype, value, where):
        rng = np.random.default_rng(1)
        a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((7, 9), (9, 5), (7, 5)))
        {"a": a, "b": b, "c": c}[where][3, 2] = value
        result = dgemm(1.5, a, b, 0.5, c, options=options)
        assert_close_in_eps(result, a, b, alpha=1.5, beta=0.5, c=c)
        assert not np.isfinite(result).all()

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.integers(0, 5),
                st.integers(0, 5),
                st.sampled_from([np.nan, np.inf, -np.inf, 0.0]),
            ),
            max_size=6,
        ),
        st.sampled_from([1.0, -2.0]),
        st.sampled_from([0.0, 1.0]),
    )
    def test_any_pattern(self, places, alpha, beta):
        rng = np.random.default_rng(2)
        operands = {name: rng.standard_normal((6, 6)) for name in "abc"}
        for name, row, col, value in places:
            operands[name][row, col] = value
        a, b, c = operands.values()
        result = dgemm(alpha, a, b, beta, c, options=TILED)
        assert_close_in_eps(result, a, b, alpha=alpha, beta=beta, c=c)

    @WAYS
    def test_inf_minus_inf_and_inf_times_zero(self, options):
        a = np.array([[np.inf, -np.inf], [np.inf, 1.0], [0.0, 1.0]])
        b = np.array([[1.0, 0.0], [1.0, 2.0]])
        result = dgemm(1.0, a, b, options=options)
        np.testing.assert_array_equal(result, [[np.nan, np.nan], [np.inf, np.nan], [1.0, 2.0]])

    @WAYS
    @pytest.mark.parametrize("factor", [np.nan, np.inf])
    def test_factors(self, options, factor):
        rng = np.random.default_rng(3)
        a, b, c = (rng.standard_normal(s) for s in ((4, 6), (6, 5), (4, 5)))
        assert_close_in_eps(dgemm(factor, a, b, options=options), a, b, alpha=factor)
        result = dgemm(1.0, a, b, factor, c, options=options)
        assert_close_in_eps(result, a, b, beta=factor, c=c)


class TestRange:
    @WAYS
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_overflow(self, options, dtype):
        most = np.finfo(dtype).max
        a = np.array([[most, 0.0], [most, -most], [1.0, 1.0], [-most, -most]], dtype)
        b = np.array([[2.0, 0.5], [0.0, 0.5]], dtype)
        result = dgemm(1.0, a, b, options=options)
        assert_close_in_eps(result, a, b)
        assert result[0, 0] == np.inf
        assert result[3, 0] == -np.inf
        assert result[1, 1] == 0.0

    @WAYS
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_subnormals_are_kept(self, options, dtype):
        least = np.finfo(dtype).smallest_subnormal
        a = np.full((5, 6), 3 * least, dtype)
        b = np.eye(6, dtype=dtype)
        np.testing.assert_array_equal(dgemm(1.0, a, b, options=options), a)
        c = np.full((5, 6), 7 * least, dtype)
        np.testing.assert_array_equal(
            dgemm(1.0, a, b, 1.0, c, options=options), np.full((5, 6), 10 * least, dtype)
        )

    @WAYS
    def test_gradual_underflow(self, options):
        a, b = np.full((3, 4), 2.0**-540), np.full((4, 5), 2.0**-530)
        result = dgemm(1.0, a, b, options=options)
        np.testing.assert_array_equal(result, np.full((3, 5), 2.0**-1068))

    @WAYS
    def test_signed_zeros_and_small_factors(self, options):
        a, b = np.full((3, 4), -1.0), np.zeros((4, 5))
        np.testing.assert_array_equal(dgemm(1.0, a, b, options=options), np.zeros((3, 5)))
        tiny = dgemm(5e-324, np.eye(3), np.full((3, 3), 2.0), options=options)
        np.testing.assert_array_equal(tiny, np.full((3, 3), 1e-323))


class Reads:
    """Which files were read, and a failure for each that must not be."""

    def __init__(self, monkeypatch):
        self.names = set()
        read = FileMatrix.read

        def recording(matrix, row, col, out):
            self.names.add(matrix.path.name)
            read(matrix, row, col, out)

        monkeypatch.setattr(FileMatrix, "read", recording)


class TestNotRead:
    """alpha = 0 or k = 0 never reads A or B; beta = 0 never reads C."""

    @pytest.fixture
    def reads(self, monkeypatch):
        return Reads(monkeypatch)

    @pytest.fixture
    def files(self, tmp_path):
        shapes = {"a": (5, 6), "b": (6, 7), "c": (5, 7)}
        paths = {name: tmp_path / f"{name}.npy" for name in shapes}
        for name, shape in shapes.items():
            np.save(paths[name], np.full(shape, np.nan if name != "c" else 2.0))
        return paths

    @pytest.mark.parametrize("options", [None, TILED])
    @pytest.mark.parametrize("beta", [0.0, 1.0, 0.25])
    def test_alpha_zero(self, files, reads, tmp_path, options, beta):
        result = dgemm(
            0.0, files["a"], files["b"], beta, files["c"], out=tmp_path / "out.npy", options=options
        )
        np.testing.assert_array_equal(result, np.full((5, 7), 2.0 * beta))
        assert reads.names == ({"c.npy"} if beta else set())

    @pytest.mark.parametrize("options", [None, TILED])
    def test_beta_zero(self, files, reads, options):
        np.save(files["c"], np.full((5, 7), np.nan))
        dgemm(
            1.0, np.ones((5, 6)), np.ones((6, 7)), 0.0, files["c"], out=files["c"], options=options
        )
        np.testing.assert_array_equal(np.load(files["c"]), np.full((5, 7), 6.0))
        assert reads.names == set()

    @pytest.mark.parametrize("options", [None, TILED])
    def test_both_zero_in_place(self, files, reads, options):
        np.save(files["c"], np.full((5, 7), np.nan))
        dgemm(0.0, files["a"], files["b"], 0.0, files["c"], out=files["c"], options=options)
        np.testing.assert_array_equal(np.load(files["c"]), np.zeros((5, 7)))
        assert reads.names == set()

    @WAYS
    @pytest.mark.parametrize("trans", [0, 1, 2])
    def test_arrays(self, options, trans):
        a, b = np.full((5, 6), np.nan), np.full((6, 7), np.nan)
        c = np.full((5, 7), 3.0)
        stored = op(a, trans), op(b, trans)
        np.testing.assert_array_equal(
            dgemm(0.0, *stored, 2.0, c, trans, trans, options=options), 2.0 * c
        )
        garbage = np.full((5, 7), np.nan)
        zeros = dgemm(0.0, *stored, 0.0, garbage, trans, trans, options=options)
        np.testing.assert_array_equal(zeros, 0 * c)
        ones = dgemm(1.0, np.ones((5, 6)), np.ones((6, 7)), 0.0, garbage, options=options)
        np.testing.assert_array_equal(ones, np.full((5, 7), 6.0))

    @WAYS
    def test_k_zero(self, options):
        a, b, c = np.empty((3, 0)), np.empty((0, 4)), np.full((3, 4), 5.0)
        np.testing.assert_array_equal(matmul(a, b, options=options), np.zeros((3, 4)))
        np.testing.assert_array_equal(dgemm(np.nan, a, b, 2.0, c, options=options), 2 * c)
        np.testing.assert_array_equal(dgemm(1.0, a, b, options=options), np.zeros((3, 4)))
        assert dgemm(1.0, a, b, 1.0, c, overwrite_c=True, options=options) is c
        np.testing.assert_array_equal(c, np.full((3, 4), 5.0))

    @WAYS
    @pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (0, 0, 0)])
    def test_an_empty_c(self, options, tmp_path, shape):
        m, n, k = shape
        a, b = np.empty((m, k)), np.empty((k, n))
        assert matmul(a, b, options=options).shape == (m, n)
        assert dgemm(1.0, a, b, 1.0, np.empty((m, n)), options=options).shape == (m, n)
        multiply(a, b, out=tmp_path / "c.npy", options=options)
        assert np.load(tmp_path / "c.npy").shape == (m, n)

    def test_a_factor_that_rounds_to_zero_is_zero(self):
        nans = np.full((2, 2), np.nan, np.float32)
        np.testing.assert_array_equal(dgemm(1e-60, nans, nans), np.zeros((2, 2)))


class TestScaling:
    """C := beta·C by rectangles, wherever C lies."""

    @pytest.mark.parametrize("old_order", "CF")
    @pytest.mark.parametrize("out_order", "CF")
    @pytest.mark.parametrize("memory", [16, 200, 10**6])
    def test_from_one_matrix_into_another(
        self, tmp_path, monkeypatch, old_order, out_order, memory
    ):
        monkeypatch.setattr("hdgemm.run.scaling._BUFFER", memory)
        values = np.random.default_rng(4).standard_normal((7, 11))
        np.save(tmp_path / "old.npy", np.array(values, order=old_order))
        np.save(tmp_path / "out.npy", np.full((7, 11), np.nan, order=out_order))
        old = open_operand(tmp_path / "old.npy")
        out = open_operand(tmp_path / "out.npy", writable=True)
        run_scaling(-3.0, old, out, np.dtype("float64"))
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), -3.0 * values)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_as_the_reference(self, dtype):
        c = np.random.default_rng(5).standard_normal((4, 3)).astype(dtype)
        c[1, 1], c[2, 2] = np.inf, np.nan
        empty = np.empty((4, 0), dtype), np.empty((0, 3), dtype)
        out = np.empty_like(c)
        run_scaling(0.3, open_operand(c), open_operand(out, writable=True), out.dtype)
        np.testing.assert_array_equal(out, reference_gemm(1.0, *empty, 0.3, c))

    def test_it_can_be_cancelled(self):
        import threading

        cancel = threading.Event()
        cancel.set()
        c = np.ones((3, 3))
        with pytest.raises(CancelledRunError):
            run_scaling(
                2.0, open_operand(c), open_operand(c, writable=True), c.dtype, cancel=cancel
            )
        np.testing.assert_array_equal(c, np.ones((3, 3)))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("options", [None, TILED])
@pytest.mark.parametrize("kind", ["array", "strided", "memmap"])
def test_a_product_beyond_its_outs_range_becomes_infinite(tmp_path, kind, options):
    if kind == "memmap":
        out = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", "float32", (5, 4))
    else:
        out = (
            np.zeros((5, 8), np.float32)[:, :4]
            if kind == "array"
            else np.zeros((5, 8), "f")[:, ::2]
        )
    a, b = np.full((5, 3), 1e300), np.ones((3, 4))
    matmul(a, b, out, options=options)
    np.testing.assert_array_equal(out, np.full((5, 4), np.inf))
