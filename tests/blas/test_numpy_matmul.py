"""NumPy's own tests of matmul, run on hdgemm.matmul for the dtypes that it multiplies."""

import itertools
import re
import warnings

import numpy as np
import pytest

import hdgemm
from hdgemm import InputError, InputTypeError, Options
from hdgemm.product.stacks import matmul_plain, matmul_stacked

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    numpys = pytest.importorskip(
        "numpy._core.tests.test_multiarray", reason="this NumPy comes without its tests"
    )

PIPELINE = Options(tile=(2, 2, 2), devices="host")


def is_ours(x):
    return not isinstance(x, np.ndarray) or x.dtype.kind in "fc"


def direct(a, b, *args, **keywords):
    """hdgemm.matmul; the boolean matrices that these tests throw in go to NumPy."""
    call = hdgemm.matmul if is_ours(a) and is_ours(b) else np.matmul
    return call(a, b, *args, **keywords)


def pipeline(a, b, *args, **keywords):
    if is_ours(a) and is_ours(b):
        return hdgemm.matmul(a, b, *args, options=PIPELINE, **keywords)
    return np.matmul(a, b, *args, **keywords)


#: Some of NumPy's tests leave out the first type, a boolean there.
TYPES = "ffdFD"


class TestNumPysTestsDirect(numpys.TestMatmul):
    matmul = staticmethod(direct)
    types = TYPES
    test_matmul_object = test_matmul_object_type_scalar = None


class TestNumPysTestsThroughThePipeline(numpys.TestMatmul):
    matmul = staticmethod(pipeline)
    types = TYPES
    test_matmul_object = test_matmul_object_type_scalar = None

    def test_out_arg(self):
        # NumPy's own test, which expects a ufunc's message for an integer `out`.
        a, b = np.ones((5, 2)), np.array([[1.0, 3.0], [5.0, 7.0]])
        for out in (np.zeros((5, 2)), np.zeros((5, 2), complex)):
            assert self.matmul(a, b, out) is out
            np.testing.assert_array_equal(out, a @ b)
            assert self.matmul(a, b, out=out) is out
        with pytest.raises(TypeError, match="out has dtype int32"):
            self.matmul(a, b, out=np.zeros((5, 2), np.int32))


#: In NumPy's tests of these, np.matmul is called by name.
CALLS = pytest.mark.parametrize("matmul", [direct, pipeline])


@CALLS
@pytest.mark.parametrize("args", numpys.TestMatmul.test_dot_equivalent.pytestmark[0].args[1])
def test_dot_equivalent(matmul, args):
    np.testing.assert_array_equal(matmul(*args), np.dot(*args))
    np.testing.assert_array_equal(matmul(args[0].copy(), args[1].copy()), np.dot(*args))


@CALLS
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_dot_equivalent_matrix_matrix_blastypes(matmul, dtype):
    def laid_out(m, order, contiguous):
        if contiguous:
            return np.array(m, order=order)
        store = np.zeros((m.shape[0] * 2, m.shape[1] * 2), m.dtype, order=order)[::2, ::2]
        store[...] = m
        return store

    m1, m2 = (x.astype(dtype) for x in (numpys.TestMatmul.m1, numpys.TestMatmul.m2))
    if np.issubdtype(dtype, np.complexfloating):
        m1, m2 = m1 + 1j, m2 + 1j
    expected = np.dot(m1, m2)
    modes = list(itertools.product("CF", [True, False]))
    for x, y, z in itertools.product(modes, repeat=3):
        out = laid_out(np.zeros_like(expected), *z)
        result = matmul(laid_out(m1, *x), laid_out(m2, *y), out=out)
        assert result is out
        np.testing.assert_array_equal(result, expected)


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 0, 4), (2, 4, 5)),
    ((2, 3, 0), (2, 0, 5)),
    ((3, 0), (0, 5)),
    ((0,), (0,)),
    ((0,), (0, 5)),
    ((0, 3, 4), (1, 4, 5)),
]


@CALLS
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("mapped", [False, True])
def test_vectors_and_stacks_with_and_without_out(tmp_path, matmul, shapes, mapped):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, shape).astype(float) for shape in shapes)
    if mapped:
        a, b = on_disk(tmp_path / "a", a), on_disk(tmp_path / "b", b)
    expected = np.matmul(a, b)
    result = matmul(a, b)
    assert np.shape(result) == expected.shape
    assert np.isscalar(result) == np.isscalar(expected)
    np.testing.assert_array_equal(result, expected)
    if expected.ndim:
        out = np.full((2, *expected.shape), np.nan)[1, ..., ::-1]
        assert matmul(a, b, out) is out
        np.testing.assert_array_equal(out, expected)


def on_disk(path, values):
    if values.size == 0:
        return values
    np.save(path.with_suffix(".npy"), values)
    return np.load(path.with_suffix(".npy"), mmap_mode="r")


def test_two_vectors_fill_a_scalar_out():
    out = np.zeros(())
    for matmul in (direct, pipeline):
        assert matmul(np.ones(4), np.ones(4), out=out) is out
        assert out == 4.0
        out[...] = 0.0


@CALLS
@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((2, 3, 4), (3, 4, 5), None),
        ((2, 3, 4), (2, 3, 4), None),
        ((2, 3, 4), (3,), None),
        ((4,), (5,), None),
        ((4,), (3, 5), None),
        ((), (4, 5), None),
        ((4, 5), (), None),
        ((2, 3, 4), (4, 5), (2, 3, 6)),
        ((2, 3, 4), (4, 5), (3, 5)),
        ((2, 3, 4), (4,), (2, 3, 1)),
        ((2, 3), (3, 4), (2, 5)),
        # These NumPy takes, and writes the product into each part of `out`.
        ((4,), (4, 5), (1, 5)),
        ((4,), (4,), (1,)),
        ((2, 3), (3, 4), (5, 2, 4)),
        ((1, 2, 3), (3, 4), (5, 2, 4)),
    ],
)
def test_what_does_not_fit_is_refused(matmul, a, b, out):
    target = None if out is None else np.full(out, 7.0)
    with pytest.raises(InputError):
        matmul(np.ones(a), np.ones(b), out=target)
    if target is not None:
        assert (target == 7.0).all()


def test_stacks_broadcast_without_copies_of_their_matrices():
    seen = []

    def product2d(x, y, out):
        seen.append((x, y))
        np.matmul(x, y, out=out)

    a, b = np.ones((3, 4)), np.ones((2, 4, 5))
    matmul_stacked(a, b, None, product2d)
    assert len(seen) == 2
    assert all(np.shares_memory(x, a) and np.shares_memory(y, b) for x, y in seen)


class TestPaths:
    def test_a_path_is_a_matrix(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(12.0).reshape(3, 4))
        path, vector = tmp_path / "a.npy", np.arange(4.0)
        a = np.load(path)
        np.testing.assert_array_equal(hdgemm.matmul(path, vector), a @ vector)
        np.testing.assert_array_equal(hdgemm.matmul(np.arange(3.0), str(path)), np.arange(3.0) @ a)
        np.testing.assert_array_equal(hdgemm.matmul(path, a.T, tmp_path / "c.npy"), a @ a.T)

    def test_where_only_arrays_can_be(self, tmp_path):
        np.save(tmp_path / "a.npy", np.ones((3, 4)))
        with pytest.raises(InputError, match="mmap_mode"):
            hdgemm.matmul(tmp_path / "a.npy", np.ones((2, 4, 5)))
        with pytest.raises(InputError, match="takes a matrix"):
            hdgemm.matmul(np.ones((2, 3, 4)), np.ones((4, 5)), tmp_path / "c.npy")
        with pytest.raises(InputError, match="takes a matrix"):
            hdgemm.matmul(tmp_path / "a.npy", np.ones(4), tmp_path / "c.npy")
        assert not (tmp_path / "c.npy").exists()


class TestPlain:
    """What is left to NumPy as it is, and what is not."""

    def test_small_arrays_of_any_layout(self):
        a = np.ones((6, 8))
        for x in (a, a.T, a[::2, ::2], a[::-1], a[0], a.astype("f"), np.ones((2, 3, 4))):
            assert matmul_plain(x, np.ones(x.shape[-1])) is not None

    def test_what_needs_more(self, tmp_path):
        a = np.ones((600, 600))
        mapped = np.memmap(tmp_path / "m", "f8", "w+", shape=(4, 4))
        assert matmul_plain(a, a) is not None
        assert matmul_plain(a, a.T) is not None
        for x in (a[::2, ::2], a[::-1], a.astype("f"), a.astype(">f8")):
            assert matmul_plain(np.ones((600, x.shape[0])), x) is None
        for x in (mapped, [[1.0]], np.ones((4, 4), int), np.ones((4, 4), object), "path"):
            assert matmul_plain(x, np.ones((4, 4))) is None
        for out in (mapped, np.ones((4, 4), object), np.ones((4, 4), bool)):
            assert matmul_plain(np.ones((4, 4)), np.ones((4, 4)), out) is None

    def test_numpys_errors_are_ours(self):
        with pytest.raises(InputError, match=r"a is 2×3 and b is 2×3: the columns of a \(3\)"):
            hdgemm.matmul(np.ones((2, 3)), np.ones((2, 3)))
        with pytest.raises(InputError, match=r"inner extents, 3 and 2, must be equal"):
            hdgemm.matmul(np.ones(3), np.ones(2))
        with pytest.raises(InputError, match="b is a scalar"):
            hdgemm.matmul(np.eye(2), np.array(3.0))
        with pytest.raises(InputTypeError, match="Cannot cast"):
            hdgemm.matmul(np.eye(2), np.eye(2), np.zeros((2, 2), int))


@pytest.mark.parametrize(
    ("shapes", "inner"), [(((3,), (4,)), "3 and 4"), (((3,), (4, 5)), "3 and 4"),
                          (((2, 5, 3), (4,)), "3 and 4")],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float64", "int16"])
def test_vectors_of_the_wrong_length_are_refused_by_their_own_shapes(shapes, inner, dtype):
    a, b = (np.ones(shape, dtype) for shape in shapes)
    text = f"a has shape {shapes[0]} and b has shape {shapes[1]}: their inner extents, {inner}"
    with pytest.raises(hdgemm.InputError, match=re.escape(text)):
        hdgemm.matmul(a, b)
