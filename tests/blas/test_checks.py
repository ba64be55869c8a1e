"""Every wrong call is a clear error before anything is written."""

import os
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from hdgemm import InputError, InputTypeError, Options, dgemm, matmul
from hdgemm.product.arguments import as_scalar, result_dtype, trans_flags

TILED = Options(tile=(3, 2, 4), devices="host")


@pytest.fixture
def a():
    return np.random.default_rng(1).standard_normal((6, 5))


@pytest.fixture
def b():
    return np.random.default_rng(2).standard_normal((5, 7))


def both(call):
    """Run a test for the direct call and for the pipeline."""
    return pytest.mark.parametrize("options", [None, TILED], ids=["direct", "pipeline"])(call)


def refused(kept, /, error, call, *args, match=None, **keywords):
    before = kept.copy()
    with pytest.raises(error, match=match):
        call(*args, **keywords)
    np.testing.assert_array_equal(kept, before)


class TestShapes:
    @both
    def test_inner_extents(self, options, a, b):
        with pytest.raises(InputError):
            matmul(a, a, options=options)
        with pytest.raises(InputError, match=r"op\(A\) is 6×5 and op\(B\) is 7×5") as caught:
            dgemm(1.0, a, b, trans_b=True, options=options)
        assert caught.value.a_shape == (6, 5)
        assert caught.value.b_shape == (7, 5)

    @both
    @pytest.mark.parametrize("shape", [(7, 6), (6, 8), (5, 7), (42,), (1, 6, 7), (1, 7)])
    def test_out(self, options, a, b, shape):
        out = np.zeros(shape)
        refused(out, InputError, matmul, a, b, out, options=options)
        refused(out, InputError, dgemm, 1.0, a, b, out=out, options=options)

    @both
    def test_c(self, options, a, b):
        with pytest.raises(InputError, match=r"c has shape \(7, 6\); it must be \(6, 7\)"):
            dgemm(1.0, a, b, 1.0, np.zeros((7, 6)), options=options)

    @pytest.mark.parametrize("shape", [(5,), (1, 6, 5), ()])
    def test_dgemm_takes_matrices_only(self, b, shape):
        with pytest.raises(InputError, match="2-D"):
            dgemm(1.0, np.zeros(shape), b)

    def test_the_error_survives_pickling(self, a):
        with pytest.raises(InputError) as caught:
            dgemm(1.0, a, a)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value)
        assert copy.a_shape == (6, 5)


class TestTypes:
    @both
    @pytest.mark.parametrize("dtype", ["uint64", "object", "longdouble"])
    def test_operands(self, options, a, b, dtype):
        wrong = np.ones(a.shape, dtype)
        for call in (
            lambda: matmul(wrong, b, options=options),
            lambda: matmul(b.T, wrong.T, options=options),
            lambda: dgemm(1.0, wrong, b, options=options),
            lambda: dgemm(1.0, a, b, 1.0, np.ones((6, 7), dtype), options=options),
        ):
            with pytest.raises(InputTypeError, match="dtype") as caught:
                call()
            assert isinstance(caught.value, TypeError)
            assert "astype" in str(caught.value)

    @both
    @pytest.mark.parametrize("dtype", ["int64", "object", "bool"])
    def test_out(self, options, a, b, dtype):
        out = np.zeros((6, 7), dtype)
        refused(out, InputTypeError, matmul, a, b, out, options=options)
        refused(out, InputTypeError, dgemm, 1.0, a, b, out=out, options=options)

    @both
    def test_a_complex_product_needs_a_complex_out(self, options, a, b):
        out = np.zeros((6, 7))
        refused(out, InputTypeError, matmul, a + 1j, b, out, options=options)
        refused(out, InputTypeError, dgemm, 1.0, a + 1j, b, out=out, options=options)

    @both
    def test_a_wider_or_narrower_out_takes_the_product(self, options, a, b):
        for dtype in ("float32", "complex64", "complex128", ">f8"):
            out = np.empty((6, 7), dtype)
            assert matmul(a, b, out, options=options) is out
            np.testing.assert_allclose(out, a @ b, rtol=1e-5)

    def test_things_that_are_no_matrix(self, b):
        for wrong in ([[1.0, 2.0], [3.0]], None, {}):
            with pytest.raises(InputTypeError):
                dgemm(1.0, wrong, b)
        with pytest.raises(InputError, match="2-D"):
            dgemm(1.0, 3.0, b)

    def test_results_promote_as_numpy_does(self):
        names = ("float32", "float64", "complex64", "complex128", ">f4", ">c16")
        for x in names:
            for y in names:
                expected = np.result_type(np.dtype(x), np.dtype(y))
                assert result_dtype(np.dtype(x), np.dtype(y)) == expected
                assert result_dtype(np.dtype(x), np.dtype(y)).isnative
                product = matmul(np.ones((2, 3), x), np.ones((3, 2), y))
                assert product.dtype == expected


class TestOverlap:
    @both
    def test_out_is_an_input(self, options):
        a, b = np.ones((5, 5)), np.full((5, 5), 2.0)
        for out in (a, b, a.T, a[::-1], b[:, ::-1]):
            refused(out, InputError, matmul, a, b, out, match="overlap", options=options)
            refused(out, InputError, dgemm, 1.0, a, b, out=out, match="overlap", options=options)

    @both
    def test_parts_of_one_array(self, options):
        store = np.random.default_rng(3).standard_normal((6, 20))
        a, b = store[:, :6], np.eye(6)
        refused(store[:, 5:11], InputError, matmul, a, b, store[:, 5:11], options=options)
        expected = a.copy()
        for out in (store[:, 6:12], store[:, 8:20:2]):
            matmul(a, b, out, options=options)
            np.testing.assert_array_equal(out, expected)

    @both
    def test_interleaved_columns_share_nothing(self, options):
        store = np.random.default_rng(4).standard_normal((6, 12))
        a, out = store[:, ::2], store[:, 1::2]
        expected = a.copy()
        matmul(a, np.eye(6), out, options=options)
        np.testing.assert_array_equal(out, expected)

    @both
    def test_out_may_be_c_but_not_a_part_of_it(self, options, a):
        b, c = np.ones((5, 6)), np.ones((6, 6))
        for out in (c.T, c[::-1]):
            refused(c, InputError, dgemm, 1.0, a, b, 2.0, c, out=out, match="c", options=options)
        again = dgemm(1.0, a, b, 2.0, c, out=c, options=options)
        assert again is c
        np.testing.assert_allclose(c, a @ b + 2.0)
        same = c[:, :]
        np.testing.assert_allclose(dgemm(1.0, a, b, 0.0, c, out=same, options=options), a @ b)

    def test_files_however_they_are_named(self, tmp_path):
        path, link, hard = (tmp_path / name for name in ("a.npy", "link.npy", "hard.npy"))
        np.save(path, np.ones((5, 5)))
        link.symlink_to(path)
        os.link(path, hard)
        mapped = np.load(path, mmap_mode="r+")
        another = np.load(path, mmap_mode="r+")
        plain = np.asarray(np.load(path, mmap_mode="r+"))
        for a in (path, link, hard, mapped, str(path)):
            for out in (path, link, hard, mapped, another, plain, mapped[::-1], str(link)):
                with pytest.raises(InputError, match="overlap"):
                    matmul(a, np.eye(5), out)
                with pytest.raises(InputError, match="overlap"):
                    dgemm(1.0, np.eye(5), a, out=out)
        np.testing.assert_array_equal(np.load(path), np.ones((5, 5)))

    def test_other_parts_of_one_file(self, tmp_path):
        path = tmp_path / "both.npy"
        values = np.random.default_rng(5).standard_normal((4, 8))
        np.save(path, values)
        first, second = (np.load(path, mmap_mode="r+") for _ in range(2))
        matmul(first[:, :4], np.eye(4), second[:, 4:])
        np.testing.assert_array_equal(np.load(path)[:, 4:], values[:, :4])
        with pytest.raises(InputError, match="overlap"):
            matmul(first[:, :4], np.eye(4), second[:, 3:7])

    def test_an_out_file_may_replace_the_old_c(self, tmp_path, a, b):
        path = tmp_path / "c.npy"
        np.save(path, np.ones((6, 7)))
        dgemm(1.0, a, b, 3.0, path, out=path)
        np.testing.assert_allclose(np.load(path), a @ b + 3.0)


class TestOutCannotBeWritten:
    @both
    def test_read_only(self, options, a, b):
        out = np.zeros((6, 7))
        out.flags.writeable = False
        refused(out, InputError, matmul, a, b, out, match="read-only", options=options)
        refused(out, InputError, dgemm, 1.0, a, b, out=out, match="read-only", options=options)

    def test_read_only_memmap(self, tmp_path, a, b):
        np.save(tmp_path / "c.npy", np.zeros((6, 7)))
        out = np.load(tmp_path / "c.npy", mmap_mode="r")
        refused(out, InputError, matmul, a, b, out, match="read-only")

    def test_elements_that_share_memory(self, a, b):
        out = np.lib.stride_tricks.as_strided(np.zeros(7), (6, 7), (0, 8))
        with pytest.raises(InputError, match="share memory"):
            dgemm(1.0, a, b, out=out)

    def test_no_such_folder(self, tmp_path, a, b):
        with pytest.raises(InputError, match="cannot create"):
            matmul(a, b, tmp_path / "nowhere" / "c.npy")

    def test_a_wrong_call_creates_no_file(self, tmp_path, a):
        with pytest.raises(InputError):
            matmul(a, a, tmp_path / "c.npy")
        assert list(tmp_path.iterdir()) == []


class TestInputFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"not a matrix at all, but long enough to look at",
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8',",
        ],
    )
    def test_no_matrix(self, tmp_path, b, content):
        path = tmp_path / "a.npy"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.npy"):
            matmul(path, b, tmp_path / "c.npy")
        assert not (tmp_path / "c.npy").exists()

    def test_truncated(self, tmp_path, a, b):
        path = tmp_path / "a.npy"
        np.save(path, a)
        os.truncate(path, path.stat().st_size - 8)
        with pytest.raises(InputError, match="truncated") as caught:
            matmul(path, b)
        assert caught.value.expected - caught.value.found == 8

    def test_pickled(self, tmp_path, b):
        np.save(tmp_path / "a.npy", np.array([[object()]]), allow_pickle=True)
        with pytest.raises(InputTypeError, match="pickled"):
            matmul(tmp_path / "a.npy", b)

    @pytest.mark.parametrize("shape", [(2, 5, 5), ()])
    def test_not_a_matrix(self, tmp_path, b, shape):
        np.save(tmp_path / "a.npy", np.ones(shape))
        with pytest.raises(InputError, match="2-D"):
            matmul(tmp_path / "a.npy", b)

    def test_missing(self, tmp_path, b):
        with pytest.raises(InputError, match="No such file"):
            matmul(tmp_path / "a.npy", b)


class TestScalars:
    @pytest.mark.parametrize("name", ["alpha", "beta"])
    @pytest.mark.parametrize("wrong", [None, [1.0], np.ones(1), "x", b"1", np.timedelta64(1, "s")])
    def test_no_number(self, a, b, name, wrong):
        factors = {"alpha": 1.0, "beta": 1.0, name: wrong}
        with pytest.raises(InputTypeError, match=name):
            dgemm(factors["alpha"], a, b, factors["beta"], np.zeros((6, 7)))

    def test_complex_for_a_real_product(self, a, b):
        with pytest.raises(InputTypeError, match="alpha = 1j is complex"):
            dgemm(1j, a, b)
        np.testing.assert_allclose(dgemm(2 + 0j, a, b), 2 * (a @ b))
        np.testing.assert_allclose(dgemm(1j, a + 0j, b), 1j * (a @ b))

    def test_anything_that_is_a_number(self, a, b):
        for alpha in (
            2,
            True + True,
            np.float32(2),
            np.int8(2),
            np.array(2.0),
            Fraction(2),
            Decimal(2),
        ):
            np.testing.assert_allclose(dgemm(alpha, a, b), 2 * (a @ b))
        with pytest.raises(InputError, match="beyond"):
            dgemm(10**400, a, b)

    def test_they_are_rounded_to_the_products_dtype(self):
        assert as_scalar(1e-60, np.dtype("f"), "alpha") == 0.0
        assert as_scalar(1e60, np.dtype("f"), "alpha") == np.inf
        assert as_scalar(0.1, np.dtype("f"), "alpha") == float(np.float32(0.1))
        assert as_scalar(0.1, np.dtype("D"), "alpha") == 0.1
        assert np.isnan(as_scalar(np.nan, np.dtype("d"), "alpha"))


def test_codes_of_op():
    assert [trans_flags(code, "t") for code in (0, 1, 2)] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert trans_flags(False, "t") == (False, False)
    assert trans_flags(np.True_, "t") == (True, False)
    for wrong in (3, -1, "T", None, 1.0):
        with pytest.raises(InputError, match="trans_b must be 0"):
            trans_flags(wrong, "trans_b")
