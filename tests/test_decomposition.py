"""PCA against a dense decomposition: components, variances, signs, means, transforms."""

import numpy as np
import pytest

import hdgemm
from hdgemm.decomposition import PCA, pca
from hdgemm.errors import DoesNotFitError, InputError


def samples(m, n, *, mean=0.0, dtype="float64", seed=0):
    """Samples whose variances decay."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    x = (rng.standard_normal((m, n)) / np.arange(1, n + 1)) @ q
    return (x + mean * rng.standard_normal(n)).astype(dtype)


def check(pca, x, *, ratio=1.0):
    """Compare with NumPy's decomposition of the centred samples, in units of eps."""
    eps, k, (m, n) = np.finfo(x.dtype).eps, pca.n_components_, x.shape
    mean = x.mean(axis=0, dtype=np.longdouble)
    _, s, vh = np.linalg.svd((x - mean).astype(float), full_matrices=False)
    # The centred elements are known to eps times the mean.
    error = float(200 * ratio * eps * (s[0] + np.abs(mean).max() * m**0.5))
    assert np.abs(pca.mean_ - mean).max() <= 8 * eps * max(1, np.abs(mean).max())
    assert np.abs(pca.singular_values_ - s[:k]).max() < error
    assert np.allclose(pca.explained_variance_, s[:k] ** 2 / (m - 1), rtol=1e3 * eps, atol=error)
    total = np.sum(s**2)
    assert np.allclose(pca.explained_variance_ratio_, s[:k] ** 2 / total, atol=1e3 * eps * ratio)
    assert np.abs(pca.components_ @ pca.components_.T - np.eye(k)).max() < 300 * eps
    largest = np.abs(pca.components_).argmax(axis=1)
    assert np.all(pca.components_[np.arange(k), largest] > 0)
    least = min(m, n)
    rest = np.sum(s[k:least] ** 2) / (m - 1) / (least - k) if k < least else 0.0
    assert pca.noise_variance_ == pytest.approx(rest, rel=1e-2, abs=error)
    # A component is as far off as its error is from the next value.
    gaps = np.abs(np.diff(s))[: k - 1].min(initial=np.inf)
    cosines = np.abs(np.sum(pca.components_ * vh[:k], axis=1))
    # The last one of m - 1 < n centred samples has no variance, and any direction.
    found = s[:k] > error
    assert np.all(cosines[found] > 1 - (10 * error / gaps) ** 2 - 100 * eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("k", "solver"), [(None, "full"), (4, "full"), (4, "krylov"), (4, "auto")])
@pytest.mark.parametrize("shape", [(400, 20), (30, 50), (20, 20)])
def test_components(dtype, k, solver, shape):
    x = samples(*shape, mean=3.0, dtype=dtype)
    pca = PCA(k, svd_solver=solver).fit(x)
    check(pca, x, ratio=10 if solver == "krylov" else 1)
    assert (pca.n_samples_, pca.n_features_in_) == shape


@pytest.mark.parametrize("solver", ["full", "krylov"])
def test_a_mean_of_1e8_times_the_spread_does_no_harm(solver):
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal((500, 12)) * 2**20 / np.arange(1, 13)) * 2.0**-20
    shifted = x + 1e8  # exact: the elements have 20 bits behind the point
    assert np.array_equal(shifted - 1e8, x)
    near, far = (PCA(3, svd_solver=solver).fit(each) for each in (x, shifted))
    assert np.allclose(near.singular_values_, far.singular_values_, rtol=1e-9)
    assert np.allclose(near.components_, far.components_, atol=1e-8)


def test_an_estimator_shows_what_it_was_given():
    assert repr(PCA(3, whiten=True)) == "PCA(n_components=3, whiten=True)"
    assert repr(PCA()) == "PCA()"


def test_files_and_transforms_there_and_back(tmp_path):
    x = samples(900, 15, mean=2.0)
    np.save(tmp_path / "X.npy", x)
    pca = PCA(options=hdgemm.Options(host_memory="8MB", tile=(70, 1, 1))).fit(tmp_path / "X.npy")
    check(pca, x)
    scores = pca.transform(tmp_path / "X.npy", out=tmp_path / "Z.npy")
    assert np.allclose(scores, (x - pca.mean_) @ pca.components_.T, atol=1e-12)
    back = pca.inverse_transform(tmp_path / "Z.npy", out=tmp_path / "Y.npy")
    assert np.abs(back - x).max() < 1e-12
    assert np.array_equal(np.load(tmp_path / "Y.npy"), back)


def test_one_pass_reads_the_samples_once(tmp_path):
    x = samples(300, 10)
    reports = []
    np.save(tmp_path / "X.npy", x)
    PCA(3, svd_solver="full").fit(tmp_path / "X.npy", report=reports.append)
    assert reports[0].stages["load1"].nbytes == x.nbytes


def test_whitened_scores_have_unit_variance():
    x = samples(400, 8)
    pca = PCA(4, whiten=True)
    scores = pca.fit_transform(x)
    assert np.allclose(scores.std(axis=0, ddof=1), 1)
    assert np.allclose(
        pca.inverse_transform(scores), PCA(4).fit(x).inverse_transform(PCA(4).fit(x).transform(x))
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["full", "krylov"])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("part", [-0.7, 0.7])
def test_samples_whose_squares_overflow_or_underflow(dtype, solver, standardize, part):
    x = samples(400, 8, mean=1.0, dtype=dtype)
    unit = np.dtype(dtype).type(2.0 ** int(np.finfo(dtype).maxexp * part))
    near, far = (
        PCA(3, svd_solver=solver, standardize=standardize, whiten=part > 0).fit(each)
        for each in (x, x * unit)
    )
    tolerance = 1000 * np.finfo(dtype).eps
    for name in ("components_", "explained_variance_ratio_"):
        assert np.allclose(getattr(far, name), getattr(near, name), atol=tolerance), name
    s = near.singular_values_ * (1 if standardize else unit)
    assert np.allclose(far.singular_values_, s, rtol=tolerance, atol=0)
    scores = near.transform(x) * (1 if standardize or part > 0 else unit)
    largest = np.abs(scores).max()
    assert np.allclose(far.transform(x * unit), scores, rtol=0, atol=tolerance * largest)


def test_a_part_of_the_variance_chooses_the_components():
    x = samples(300, 12)
    pca = PCA(0.9).fit(x)
    ratios = PCA().fit(x).explained_variance_ratio_
    assert pca.n_components_ == np.searchsorted(np.cumsum(ratios), 0.9, side="right") + 1


def test_constant_samples_have_no_variance():
    pca = PCA(2).fit(np.full((10, 4), 7.0))
    assert np.array_equal(pca.mean_, np.full(4, 7.0))
    assert np.abs(pca.singular_values_).max() < 1e-13
    assert np.isfinite(pca.explained_variance_ratio_).all()


def test_parameters_by_name_as_scikit_learn_clones_them():
    pca = PCA(3, whiten=True)
    again = PCA(**pca.get_params())
    assert again.get_params() == pca.get_params()
    assert pca.set_params(n_components=2).n_components == 2
    with pytest.raises(InputError, match="no parameter 'width'"):
        pca.set_params(width=1)


@pytest.mark.parametrize(
    ("pca", "x", "words"),
    [
        (PCA(5), np.ones((9, 4)), "from 1 to min"),
        (PCA(1.5), np.ones((9, 4)), "from 1 to min"),
        (PCA("mle"), np.ones((9, 4)), "must be a number"),
        (PCA(svd_solver="arpack"), np.ones((9, 4)), "svd_solver must be one of"),
        (PCA(svd_solver="krylov"), np.ones((9, 4)), "needs n_components"),
        (PCA(float("nan")), np.ones((9, 4)), "from 1 to .* between 0 and 1, got nan"),
        (PCA(), np.ones((1, 4)), "X has 1 sample, PCA needs two"),
        (PCA(), np.ones((9, 0)), "0 feature"),
        (PCA(), np.ones(4), "Reshape your data"),
        (PCA(), np.ones((9, 4), complex), "Complex data not supported: X is complex128"),
    ],
)
def test_refused(pca, x, words):
    with pytest.raises(InputError, match=words):
        pca.fit(x)


def test_nan_is_named_and_nothing_is_fitted():
    x = np.ones((30, 4))
    x[11, 2] = np.nan
    for solver in ("full", "krylov"):
        pca = PCA(2, svd_solver=solver)
        with pytest.raises(InputError) as caught:
            pca.fit(x)
        assert (caught.value.row, caught.value.col) == (11, 2)
        with pytest.raises(InputError, match="call fit first"):
            pca.transform(x)


def test_other_features_than_fitted_are_refused():
    pca = PCA(2).fit(samples(20, 5))
    with pytest.raises(
        InputError, match="X has 4 features, but PCA is expecting 5 features as input"
    ):
        pca.transform(np.ones((3, 4)))


def test_a_triangle_that_does_not_fit_is_refused(tmp_path):
    hdgemm.create(tmp_path / "X.npy", (3000, 3000), "float64").close()
    with pytest.raises(DoesNotFitError) as caught:
        PCA(svd_solver="full", options=hdgemm.Options(host_memory="20MB")).fit(tmp_path / "X.npy")
    assert caught.value.missing > 0


@pytest.mark.parametrize("solver", ["full", "krylov"])
@pytest.mark.parametrize("standardize", [False, True])
def test_scores_components_and_mean_in_one_call(tmp_path, solver, standardize):
    x = samples(300, 12, mean=5.0) * np.arange(1, 13)
    x[:, 7] = 4.0  # a constant feature is only centred
    np.save(tmp_path / "X.npy", x)
    out = tmp_path / "scores.npy", tmp_path / "V.npy", None
    found = pca(tmp_path / "X.npy", 3, standardize=standardize, svd_solver=solver, out=out)
    scaled = x - x.mean(axis=0)
    if standardize:
        deviations = x.std(axis=0, ddof=1)
        scaled /= np.where(deviations < 1e-12, 1, deviations)
    _, s, vh = np.linalg.svd(scaled, full_matrices=False)
    np.testing.assert_allclose(found.singular_values, s[:3], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(np.load(out[1]) * vh[:3], axis=1)), 1, rtol=1e-10)
    np.testing.assert_allclose(np.load(out[0]), scaled @ found.components.T, atol=1e-9)
    np.testing.assert_allclose(found.explained_variance_ratio, s[:3] ** 2 / (s**2).sum())
    again = PCA(3, standardize=standardize, svd_solver=solver)
    np.testing.assert_allclose(again.fit_transform(x), found.scores, atol=1e-9)
    everything = PCA(standardize=standardize)
    np.testing.assert_allclose(everything.inverse_transform(everything.fit_transform(x)), x)


def test_a_plan_of_components_is_the_run():
    x, reports = samples(300, 10), []
    plan = PCA(3).plan(x)
    PCA(3).fit(x, report=reports.append)
    assert plan.planned_bytes == {"load1": 0}  # an array is reduced in its place
    assert reports[0].moved_bytes == reports[0].planned_bytes
    assert plan.to_dict()["kind"] == "pca"


@pytest.mark.parametrize("method", ["fit_transform", "transform", "inverse_transform", "plan"])
def test_keywords_that_a_method_does_not_have_are_refused(method):
    x = np.random.default_rng(0).standard_normal((30, 5))
    pca = PCA(2).fit(x)
    with pytest.raises(TypeError, match="checkpoint"):
        getattr(pca, method)(x if method != "inverse_transform" else x[:, :2], checkpoint=True)


@pytest.mark.parametrize("part", [0.9, np.float32(0.5)])
def test_pca_refuses_a_part_of_the_variance_before_it_reads(tmp_path, part):
    np.save(tmp_path / "X.npy", np.full((9, 4), np.nan))
    with pytest.raises(InputError, match=rf"got {part}; PCA\({part}\)"):
        hdgemm.decomposition.pca(tmp_path / "X.npy", part, out=(tmp_path / "S.npy", None, None))
    assert [path.name for path in tmp_path.iterdir()] == ["X.npy"]
