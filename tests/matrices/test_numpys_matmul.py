"""NumPy's own tests of matmul and `@`, run on stored matrices.

Matrices go through .npy files; vectors and stacks stay arrays. `REFUSED` lists the tests that are
left out, each with the reason.
"""

import operator
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import hdgemm
from hdgemm.matrices.stored import StoredMatrix

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    numpys = pytest.importorskip(
        "numpy._core.tests.test_multiarray", reason="this NumPy comes without its tests"
    )

#: Types whose products have NumPy's dtype; some tests leave out the first one, a boolean there.
#: Products of bool and of the other integers are int64, of float16 float32; uint64, long double and
#: objects are refused.
TYPES = "llfdFD"
RESULTS = {"?": "int64", **dict.fromkeys("bhiBHI", "int64"), "e": "float32"}
REFUSED = {
    "test_matmul_object": "objects cannot be stored",
    "test_matmul_object_type_scalar": "objects cannot be stored",
    "test_matmul_empty": "objects cannot be stored",
    "test_matmul_exception_multiply": "objects cannot be stored",
    "test_matmul_exception_add": "objects cannot be stored",
    "test_matmul_bool": "asserts products of bool that are bool: hdgemm's are int64",
    "test_empty_out": "stacks alone, which are arrays",
    "test_array_priority_override": "a vector and an object of another class",
    "test_matmul_raises": "numbers alone",
}
folder = SimpleNamespace(path=None)


@pytest.fixture(autouse=True)
def _reads_no_matrix_whole(tmp_path, monkeypatch):
    folder.path = tmp_path
    monkeypatch.setattr(StoredMatrix, "__array__", lambda *_, **__: pytest.fail("read as a whole"))


def stored(x, order="C"):
    """Return a matrix as a file has it; other arrays as they are."""
    if not isinstance(x, np.ndarray) or x.ndim != 2:
        return x
    path = folder.path / f"{len(list(folder.path.iterdir()))}.npy"
    np.save(path, np.array(x, order=order))
    return hdgemm.open(path)


def from_files(function, a, b, *args, **keywords):
    """Return a product of matrices in files, which is the same where only one is in a file."""
    found = function(stored(a), stored(b, "F"), *args, **keywords)
    for x, y in ((stored(a, "F"), b), (a, stored(b))):
        if x is not a or y is not b:
            again = function(x, y, *args, **keywords)
            assert type(again) is type(found)
            np.testing.assert_array_equal(again, found)
    return found


def call(function):
    """Return a product for NumPy's tests; their boolean matrices stay arrays."""

    def product(a, b, *args, **keywords):
        if np.asarray(a).dtype == bool:
            return function(a, b, *args, **keywords)
        return from_files(function, a, b, *args, **keywords)

    return staticmethod(product)


class TestNumPysMatmul(numpys.TestMatmul):
    matmul = call(np.matmul)
    types = TYPES
    vars().update(dict.fromkeys(REFUSED))  # pytest collects no test that is None

    def test_out_arg(self):
        # NumPy's own test, which expects a ufunc's message for an integer `out`.
        a, b = np.ones((5, 2)), np.array([[1.0, 3.0], [5.0, 7.0]])
        for out in (np.zeros((5, 2)), np.zeros((5, 2), complex)):
            assert self.matmul(a, b, out) is out
            np.testing.assert_array_equal(out, a @ b)
            assert self.matmul(a, b, out=out) is out
        with pytest.raises(TypeError, match="out has dtype int32"):
            self.matmul(a, b, out=np.zeros((5, 2), np.int32))


class TestNumPysOperator(numpys.TestMatmulOperator):
    matmul = call(operator.matmul)
    types = TYPES
    vars().update(dict.fromkeys(REFUSED))


#: In NumPy's tests of these, np.matmul is called by name.
CALLS = pytest.mark.parametrize("matmul", [np.matmul, operator.matmul, np.dot])


@CALLS
@pytest.mark.parametrize("args", numpys.TestMatmul.test_dot_equivalent.pytestmark[0].args[1])
def test_dot_equivalent(matmul, args):
    np.testing.assert_array_equal(from_files(matmul, *args), np.dot(*args))


@CALLS
@pytest.mark.parametrize("char", RESULTS)
def test_types_with_other_results(matmul, char):
    a, b = (np.array([[1, 0, 1], [1, 1, 0]], char), np.array([[1, 1], [0, 1], [1, 0]], char))
    for x, y in ((a, b), (a, b[:, 0]), (a[0], b)):
        found = from_files(matmul, x, y)
        assert found.dtype == RESULTS[char]
        np.testing.assert_array_equal(found, x.astype(int) @ y.astype(int))


@pytest.mark.parametrize("char", ["Q", "g", "O"])
def test_types_that_are_refused(char):
    with pytest.raises(hdgemm.InputTypeError, match=np.dtype(char).name):
        stored(np.ones((2, 2), char))
