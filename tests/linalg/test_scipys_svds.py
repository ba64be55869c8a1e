"""SciPy's own tests of `sparse.linalg.svds` and `eigsh` on dense operands, run on hdgemm.linalg.

The tests are taken from the installed wheel. Matrices go through .npy files. `REFUSED` lists the
tests that are left out, `skip_unless_offered` the arguments, each with the reason.
"""

import numpy as np
import pytest

import hdgemm
import hdgemm.linalg
from tests.linalg.test_other_suites import load

pytest.importorskip("scipy.sparse.linalg._eigen.tests.test_svds", reason="SciPy without its tests")

ROWS = hdgemm.Options(tile=(5, 1, 1), threads=2, host_memory="100MB")
MESSAGES = "asserts SciPy's messages and types of errors"
OPERATORS = "sparse matrices and operators"
REFUSED = {
    "test_svds_input_validation": MESSAGES,
    "test_svd_maxiter": "asserts ARPACK's errors and counts",
    "test_svds_parameter_tol": "asserts that a larger tol gives larger errors",
    "test_svd_rng": "asserts how SciPy draws from a generator",
    "test_symmetric_no_convergence": "asserts ARPACK's errors and counts",
}


@pytest.fixture
def num_parallel_threads():
    """Tests of SciPy 1.15 ask its own fixture how many threads run them."""
    return 1


@pytest.fixture(autouse=True)
def _folder(request, tmp_path, monkeypatch):
    for start, reason in REFUSED.items():
        if request.node.originalname.startswith(start):
            pytest.skip(reason)
    monkeypatch.chdir(tmp_path)


def skip_unless_offered(a, which, **given):
    """Skip the rest of a test that passes what hdgemm does not take."""
    if not isinstance(a, np.ndarray):
        pytest.skip(OPERATORS)
    if a.dtype.kind not in "fc":
        pytest.skip("matrices of integers are refused")
    if which not in ("LM", "LA", "SA", "BE"):
        pytest.skip("the values of smallest magnitude are not offered")
    for name, reason in {
        "sigma": "shift and invert is not offered",
        "M": "generalised problems are not offered",
        "v0": "a seed takes the place of a starting vector",
    }.items():
        if given.get(name) is not None:
            pytest.skip(reason)


def in_file(a):
    np.save("A.npy", a)
    return "A.npy"


def svds(A, k=6, *, which="LM", v0=None, return_singular_vectors=True, tol=0, **_):  # noqa: N803
    """Return hdgemm's triplets in the ascending order of SciPy's."""
    skip_unless_offered(A, which, v0=v0)
    if return_singular_vectors not in (True, False):
        pytest.skip("return_singular_vectors is True or False")
    found = hdgemm.linalg.svds(
        in_file(A), k, tol, return_singular_vectors=return_singular_vectors, options=ROWS
    )
    if not return_singular_vectors:
        return found[::-1]
    u, s, vh = found
    return u[:, ::-1], s[::-1], vh[::-1]


def eigsh(A, k=6, M=None, *, which="LM", sigma=None, v0=None, tol=0, **_):  # noqa: N803
    skip_unless_offered(A, which, M=M, sigma=sigma)
    # The tests give a starting vector to all problems: the result must not depend on it.
    return hdgemm.linalg.eigsh(in_file(A), k, which, 200, float(tol), options=ROWS)


def suites():
    """Return SciPy's tests of svds by ARPACK, and of symmetric problems."""
    singular = load("scipy.sparse.linalg._eigen.tests.test_svds")
    singular.svds = svds
    symmetric = load("scipy.sparse.linalg._eigen.arpack.tests.test_arpack")
    symmetric.eigsh = eigsh
    modes = {
        name: getattr(symmetric, name) for name in ("test_symmetric_modes", "test_hermitian_modes")
    }
    return {"Test_SVDS_ARPACK": singular.Test_SVDS_ARPACK, **modes}


globals().update(suites())
