"""scikit-learn's own tests of PCA, run on `hdgemm.decomposition.PCA`, where it is installed.

Solvers have other names: "arpack" and "randomized" become "krylov", the others "full". `REFUSED`
lists the tests that are left out, each with the reason. Tests of `IncrementalPCA` are about
`partial_fit`, which hdgemm does not have: its PCA reads a file of any size by itself.
"""

import numpy as np
import pytest

import hdgemm
from tests.linalg.test_other_suites import load

pytest.importorskip("sklearn.decomposition.tests.test_pca", reason="scikit-learn is not installed")
base = pytest.importorskip("sklearn.decomposition._base")

SCORE = "likelihoods (score) are not offered"
MLE = "n_components='mle' is not offered"
SOLVERS = "asserts scikit-learn's solvers, their names or messages"
REFUSED = {
    "test_pca_sparse": "sparse matrices",
    "test_sparse_pca": "sparse matrices",
    "test_pca_score": SCORE,
    "test_variance_correctness": SCORE,
    "test_n_components_mle": MLE,
    "test_infer_dim_1": MLE,
    "test_infer_dim_2": MLE,
    "test_infer_dim_3": MLE,
    "test_pca_dim": MLE,
    "test_small_eigenvalues_mle": MLE,
    "test_mle": MLE,
    "test_fit_mle": MLE,
    "test_assess_dimension": MLE,
    "test_pca_mle": MLE,
    "test_pca_validation": SOLVERS,
    "test_pca_svd_solver_auto": SOLVERS,
    "test_pca_solver_equivalence": SOLVERS,
    "test_pca_randomized_svd_n_oversamples": SOLVERS,
    "test_feature_names_out": "names of features are not offered",
    "test_array_api": "arrays of other libraries are not taken",
}


@pytest.fixture(autouse=True)
def _refusals(request):
    name = request.node.originalname
    for start, reason in REFUSED.items():
        if name.startswith(start) and name != "test_pca":
            pytest.skip(reason)


@pytest.fixture
def global_random_seed():
    return 0


class PCA(hdgemm.decomposition.PCA):
    """hdgemm's PCA with scikit-learn's parameters."""

    def __init__(self, n_components=None, *, whiten=False, svd_solver="auto", tol=0.0,
                 random_state=None, **_):  # fmt: skip
        many = svd_solver in ("arpack", "randomized")
        if many and not (n_components is not None and n_components >= 1):
            pytest.skip("svd_solver='krylov' needs a number of components")
        seed = random_state if isinstance(random_state, int) else None
        super().__init__(
            n_components, whiten=whiten, svd_solver="krylov" if many else "full", tol=tol,
            random_state=seed, options=hdgemm.Options(threads=2, host_memory="200MB"),
        )  # fmt: skip

    def fit(self, X, y=None):  # noqa: N803
        x = np.asarray(X)
        return super().fit(x if x.dtype.kind == "f" else x.astype(float), y)

    def transform(self, X):  # noqa: N803
        x = np.asarray(X)
        return super().transform(x if x.dtype.kind == "f" else x.astype(float))

    # scikit-learn's formulas from the attributes of this PCA.
    get_covariance = base._BasePCA.get_covariance
    get_precision = base._BasePCA.get_precision

    def score(self, _):
        pytest.skip(SCORE)

    def fit_transform(self, X, y=None):  # noqa: N803
        return self.fit(X, y).transform(X)


@pytest.mark.filterwarnings("ignore")
def test_estimator_checks():
    """The check of objects is left out: arrays of objects are refused."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    found = checks.check_estimator(hdgemm.decomposition.PCA(), on_fail=None, on_skip=None)
    failed = {each["check_name"] for each in found if each["status"] == "failed"}
    assert failed == {"check_dtype_object"}
    assert sum(each["status"] == "passed" for each in found) >= 40


suite = load("sklearn.decomposition.tests.test_pca")
suite.PCA = PCA
# Tests of arrays of other libraries have marks that this project does not know.
globals().update(
    {
        name: x
        for name, x in vars(suite).items()
        if name.startswith("test_") and "array_api_compliance" not in name
    }
)
