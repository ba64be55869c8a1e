"""SciPy's and Dask's own tests of factorisations and solves, run on hdgemm.linalg with tiny slabs.

The tests are taken from the installed wheels. Matrices go through .npy files. `REFUSED` lists the
tests that are left out, each with the reason.
"""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

import hdgemm
import hdgemm.linalg
from hdgemm.dtypes import SUPPORTED
from tests.linalg.matrices import SOUND, random_matrix, residual_ratio

pytest.importorskip("scipy.linalg.tests", reason="this SciPy comes without its tests")

#: 20 s of processor time, and 2 s of imports that conftest.py spares the other runs.
pytestmark = pytest.mark.ci

SLABS = hdgemm.Options(tile=(5, 3, 2))
STACKS = "stacks of matrices: hdgemm.linalg takes one matrix"
PIVOTING = "column pivoting is not offered"
MESSAGES = "asserts SciPy's messages"
MEMORY = "asserts which results share the memory of A"
REFUSED = {
    "TestLU.test_simple_lu_shapes_real_complex[shape6]": STACKS,
    "TestLU.test_simple_lu_shapes_real_complex[shape7]": STACKS,
    "TestLU.test_simple_lu_shapes_real_complex[shape8]": STACKS,
    "TestLU.test_1by1_input_output": STACKS,
    "TestLU.test_empty_edge_cases": STACKS,
    "TestCholesky.test_int_overflow": "takes 18 GB",
    "TestQR.test_empty": PIVOTING,
    # of SciPy 1.18
    "TestCholesky.test_invalid_shape": MESSAGES,
    "TestCholesky.test_non_posdef": MESSAGES,
    "TestChoFactor.test_invalid_shape": MESSAGES,
    "TestChoFactor.test_non_posdef": MESSAGES,
    "TestQR.test_lwork": "asserts a warning that lwork is deprecated; it has no effect here",
    "TestQR.test_overwrite_args": MEMORY,
    "TestLstsq.test_errors": MESSAGES,
    "TestLstsq.test_overwrite": MEMORY,
    "TestLstsq.test_rank_deficient_residuals": "asserts residues of a stack, of one matrix too",
    "TestSVD_GESDD.test_overwrite": MEMORY,
    "TestSVD_GESVD.test_overwrite": MEMORY,
    "TestQR.test_raw_flags": STACKS,
    "TestPinv.test_atol_rtol": "asserts 1e-13; A·V/s has errors of eps·s[0]/s[i], here 3e-13",
    "TestMatrixNorms.test_axis_kwd": STACKS,
    "TestMatrixNorms.test_keepdims_kwd": STACKS,
    "TestMatrixNorms.test_empty": "norms along an axis",
    "TestSVD_GESDD.test_large_matrix": "takes 17 GB",
    "TestSVD_GESVD.test_large_matrix": "takes 17 GB",
    "TestQR.test_multiply_empty": "the product with an empty matrix has the shape of c there",
    "test_lu_errors": "hdgemm.linalg.lu takes rectangular matrices",
    "test_solve_triangular_errors": "chunks that differ are no error",
    "test_solve_assume_a": "the keyword sym_pos is Dask's",
    "test_tsqr": "it computes singular values, too; test_qr has the same shapes",
    "test_tsqr_uncertain": "it computes singular values, too",
}


folder = SimpleNamespace(path=None)


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    folder.path = tmp_path_factory.mktemp("suites")


@pytest.fixture(autouse=True)
def _refusals(request):
    names = request.node.nodeid.split("::")[1:]
    for name in (".".join(names), ".".join(names).split("[")[0]):
        if name in REFUSED:
            pytest.skip(REFUSED[name])
    if names[0] == "TestQR" and ("pivoting" in names[-1] or "-True-" in names[-1]):
        pytest.skip(PIVOTING)
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if names[0] == "TestQR" and parameters.get("pivoting"):
        pytest.skip(PIVOTING)
    if parameters.get("error_type") is not None:
        pytest.skip("chunks that a method of Dask cannot take")


def load(name):
    """Return a copy of a module of tests, of which names may be replaced."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_file(x):
    """Store a matrix in a file of its own; other arguments are returned as they are."""
    x = np.asarray(x)
    if x.ndim != 2 or x.dtype.name not in SUPPORTED:
        return x
    path = folder.path / f"{len(list(folder.path.iterdir()))}.npy"
    np.save(path, x)
    return path


def rerouted(name, **defaults):
    """Return a call of hdgemm.linalg that takes the first matrix from a file."""
    call = getattr(hdgemm.linalg, name)

    def ours(a, *args, **keywords):
        if np.ndim(a[0] if isinstance(a, tuple) else a) > 2:
            pytest.skip(STACKS)
        if not keywords.get("overwrite_a"):
            a = (in_file(a[0]), *a[1:]) if isinstance(a, tuple) else in_file(a)
        return call(a, *args, **{"options": SLABS} | defaults | keywords)

    return ours


def suite(module, **calls):
    """Return the tests of a module, with some calls replaced."""
    vars(module).update(calls)
    return {name: x for name, x in vars(module).items() if name.startswith(("Test", "test_"))}


def only_in_campaigns(test, name, value):
    """Leave one value of a parameter of a test to the campaigns."""
    long = pytest.param(value, marks=pytest.mark.campaign)
    test.pytestmark = [
        pytest.mark.parametrize(name, [long if x == value else x for x in mark.args[1]]).mark
        if mark.args[:1] == (name,)
        else mark
        for mark in test.pytestmark
    ]


def lu_factor(a, *args, **keywords):
    lu, pivots = rerouted("lu_factor")(a, *args, **keywords)
    # One test asserts SciPy's dtype; hdgemm's pivots are int64, since n may exceed 32 bits.
    return lu, pivots.astype(np.int32)


scipys_lu = suite(
    load("scipy.linalg.tests.test_decomp_lu"),
    lu=rerouted("lu", p_indices=False),
    lu_factor=lu_factor,
    **{name: rerouted(name) for name in ("lu_solve", "solve")},
)
scipys_cholesky = suite(
    load("scipy.linalg.tests.test_decomp_cholesky"),
    **{name: rerouted(name) for name in ("cholesky", "cho_factor", "cho_solve")},
)
del scipys_cholesky["TestCholeskyBanded"]
scipys_qr = suite(
    load("scipy.linalg.tests.test_decomp"),
    **{
        name: rerouted(name, options=hdgemm.Options(tile=(5, 30, 10)))
        for name in ("qr", "qr_multiply")
    },
)
globals().update(scipys_lu, **scipys_cholesky)
globals().update(TestQR=scipys_qr["TestQR"])


def svd(a, full_matrices=True, **keywords):
    """Return SciPy's own result for the square U or Vh of a matrix that is not square."""
    if full_matrices and len(set(np.shape(a))) == 2 and keywords.get("compute_uv", True):
        return scipy.linalg.svd(a, full_matrices=True, **keywords)
    return rerouted("svd", full_matrices=False)(a, **keywords)


scipys_svd = suite(load("scipy.linalg.tests.test_decomp"), svd=svd, svdvals=rerouted("svdvals"))
globals().update({name: x for name, x in scipys_svd.items() if name.startswith("TestSVD")})
# 1500 by 2800 elements: 20 s of processor time. test_svd compares the values of smaller matrices.
vals = scipys_svd["TestSVDVals"]
vals.test_crash_2609 = pytest.mark.campaign(vals.test_crash_2609)


def in_double(*arrays):
    """Convert what SciPy converts: hdgemm refuses long double."""
    wide = {"g": "float64", "G": "complex128"}
    return [np.asarray(x, wide.get(np.asarray(x).dtype.char)) for x in arrays]


def lstsq(a, b, **keywords):
    return rerouted("lstsq")(*in_double(a, b), **keywords)


scipys_basic = suite(
    load("scipy.linalg.tests.test_basic"),
    lstsq=lstsq,
    **{name: rerouted(name) for name in ("pinv", "norm")},
)
for name in ("test_random_exact", "test_random_complex_exact"):
    # 20 rows are four blocks; 200 rows take ten times the time.
    only_in_campaigns(getattr(scipys_basic["TestLstsq"], name), "n", 200)
globals().update(
    {name: scipys_basic[name] for name in ("TestLstsq", "TestPinv", "TestMatrixNorms")}
)


class DaskArray(np.ndarray):
    """Stands for a Dask array: the elements, and the names that the tests use."""

    def compute(self):
        return np.asarray(self)

    def rechunk(self, *_):
        return self


def dask_suite():
    """Return the parts of Dask's tests of linear algebra about LU, Cholesky, QR and solves."""
    import dask.array as da

    module = load("dask.array.tests.test_linalg")

    def array(x, *_, **__):
        return np.asarray(x).view(DaskArray)

    def plain(name, **defaults):
        call = rerouted(name, **defaults)

        def ours(*args, **keywords):
            args = [np.asarray(x) if isinstance(x, DaskArray) else x for x in args]
            found = call(*args, **keywords)
            return tuple(map(array, found)) if isinstance(found, tuple) else array(found)

        return ours

    calls = {name: plain(name) for name in ("solve", "solve_triangular", "inv", "cholesky")}
    calls |= {"lu": plain("lu", p_indices=False), "qr": plain("qr", mode="economic")}
    module.qr = module.sfqr = calls["qr"]
    module.da = SimpleNamespace(
        from_array=array, tril=np.tril, triu=np.triu, dot=np.dot, linalg=SimpleNamespace(**calls)
    )

    def lstsq(a, b):
        x, residues, *rest = plain("lstsq")(a, b)
        # NumPy's residue of one vector is an array of one element, SciPy's is a number.
        return x, np.atleast_1d(residues), *rest

    module.da.linalg.lstsq = lstsq
    module.assert_eq = lambda x, y, rtol=1e-5, **_: da.utils.assert_eq(
        np.asarray(x), np.asarray(y), rtol=rtol
    )
    wanted = ("test_lu", "test_solve", "test_inv", "test_cholesky", "test_lstsq", "test_qr",
              "test_sfqr", "test_tsqr")  # fmt: skip
    return {name: x for name, x in vars(module).items() if name.startswith(wanted)}


if importlib.util.find_spec("dask") is not None:
    globals().update(dask_suite())


def test_scipys_lu_solve_takes_the_factors_of_a_file(tmp_path):
    a, b = random_matrix(31, 31, "float64"), random_matrix(31, 3, "float64", 1)
    np.save(tmp_path / "A.npy", a)
    factors = hdgemm.linalg.lu_factor(tmp_path / "A.npy", options=SLABS)
    x = scipy.linalg.lu_solve(factors, b)
    assert residual_ratio(a @ x - b, a) < SOUND * np.abs(x).max()
    assert all(isinstance(x, np.ndarray) for x in factors)
