"""lu, inv, det, slogdet and cond against SciPy and NumPy, with slabs of a few columns."""

import itertools
import threading
import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.linalg import cond, det, inv, lu, lu_factor, slogdet
from hdgemm.linalg.solving.norms import norm_inf
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, residual_ratio, widened

SLABS = hdgemm.Options(tile=(6, 5, 3))


def saved(tmp_path, a, order="C"):
    np.save(tmp_path / "A.npy", np.array(a, order=order))
    return tmp_path / "A.npy"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(23, 23), (31, 17), (17, 31), (1, 1), (7, 1)])
def test_lu_is_scipys(tmp_path, dtype, shape):
    a = random_matrix(*shape, dtype)
    for source, out in itertools.product((a, saved(tmp_path, a)), (None, "files")):
        places = None if out is None else (tmp_path / "L.npy", tmp_path / "U.npy")
        p, left, right = lu(source, p_indices=True, out=places, options=SLABS)
        assert left.shape == (shape[0], min(shape))
        assert right.shape == (min(shape), shape[1])
        assert left.dtype == right.dtype == np.dtype(dtype)
        expected = scipy.linalg.lu(a, p_indices=True)
        np.testing.assert_array_equal(p, expected[0])
        np.testing.assert_array_equal(np.tril(left), left)
        np.testing.assert_array_equal(np.triu(right), right)
        np.testing.assert_array_equal(np.diagonal(left), np.ones(min(shape)))
        assert residual_ratio(widened(left)[p] @ right - a, a) < SOUND
    permuted, right = lu(saved(tmp_path, a), permute_l=True, options=SLABS)
    assert residual_ratio(widened(permuted) @ right - a, a) < SOUND
    full, left, right = lu(a)
    np.testing.assert_array_equal(full, scipy.linalg.lu(a)[0])
    assert sorted(x.name for x in tmp_path.iterdir()) == ["A.npy", "L.npy", "U.npy"]


@pytest.mark.parametrize(("dtype", "order"), list(zip(DTYPES, "CFFC", strict=True)))
def test_inverse_and_determinant(tmp_path, dtype, order):
    n = 29
    a = random_matrix(n, n, dtype)
    path = saved(tmp_path, a, order)
    for source in (a, path, lu_factor(a), lu_factor(path, out=tmp_path / "LU.npy", options=SLABS)):
        x = inv(source, options=SLABS)
        assert x.dtype == np.dtype(dtype)
        # LAPACK's ratio of an inverse: ||I - A·X|| / (n·||A||·||X||·eps).
        unit = n * norm1(a) * norm1(x) * np.finfo(dtype).eps / 2
        assert norm1(widened(a) @ x - np.eye(n)) / unit < SOUND
        expected = scipy.linalg.det(widened(a))
        size = np.linalg.cond(widened(a)) * n * np.finfo(dtype).eps
        assert abs(det(source, options=SLABS) - expected) < size * abs(expected)
        sign, logarithm = slogdet(source, options=SLABS)
        reference = np.linalg.slogdet(widened(a))
        assert abs(sign - reference[0]) < size
        assert abs(logarithm - reference[1]) < size
    x = inv(path, out=tmp_path / "X.npy", options=SLABS)
    assert isinstance(x, np.memmap)
    np.testing.assert_array_equal(np.load(path), a)


def test_the_inverse_in_groups_of_columns(tmp_path):
    n = 300
    a = random_matrix(n, n, "float64") + n**0.5 * np.eye(n)
    x = inv(saved(tmp_path, a), out=tmp_path / "X.npy", options=hdgemm.Options(host_memory="6MB"))
    unit = n * norm1(a) * norm1(np.asarray(x)) * np.finfo(float).eps / 2
    assert norm1(a @ x - np.eye(n)) / unit < SOUND


def test_determinants_beyond_the_range_of_intermediate_products():
    a = np.diag(np.r_[np.full(90, 1e300), np.full(90, 1e-300)])
    assert abs(det(a) - 1) < 2000 * np.finfo(float).eps
    assert slogdet(a)[0] == 1
    assert abs(slogdet(a)[1]) < 1e-9
    for part, value in ((a[:90, :90], np.inf), (a[90:, 90:], 0.0)):
        with pytest.warns(
            RuntimeWarning, match=rf"floating point, {value} is .*: take slogdet"
        ) as w:
            assert det(part) == value
        assert w[0].filename == __file__
    assert abs(slogdet(a[:90, :90])[1] - 90 * np.log(1e300)) < 1e-6
    assert det(np.zeros((0, 0))) == 1
    assert tuple(slogdet(np.zeros((0, 0)))) == (1, 0)


@pytest.mark.parametrize("scale", [2.0**-1060, 2.0**1023])
def test_determinants_of_complex_numbers_at_the_ends_of_the_range(scale):
    sign, logarithm = slogdet(np.diag([scale * (1.5 + 1.5j), scale * 1j]))
    assert sign == pytest.approx((-1 + 1j) / np.sqrt(2))
    assert logarithm == pytest.approx(2 * np.log(scale) + np.log(4.5) / 2)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's own
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 0.0])
@pytest.mark.parametrize("singular", [False, True])
def test_determinants_that_are_not_finite_are_numpys(tmp_path, dtype, value, singular):
    n = 13
    a = np.triu(random_matrix(n, n, dtype)) + (4 * np.eye(n)).astype(dtype)
    a[2, 2] *= -1
    # In the last column, where no choice of a pivot depends on how BLAS compares NaN.
    a[n - 1, n - 1] = value
    if singular:
        a[7, 7] = 0
    matrices = (a, a[: n - 1, : n - 1], a[n - 1 :, n - 1 :], a[:0, :0])
    for matrix in matrices:
        reference = np.linalg.slogdet(matrix)
        sources = (matrix, saved(tmp_path, matrix)) if matrix.size else (matrix,)
        for source in sources:
            found = slogdet(source, options=SLABS)
            assert type(found.sign) is type(reference.sign.item())
            np.testing.assert_allclose(found, reference, rtol=1e-4)
            number = det(source, check_finite=False, options=SLABS)
            assert type(number) is type(reference.sign.item())
            np.testing.assert_allclose(number, np.linalg.det(matrix), rtol=1e-4)


@pytest.mark.parametrize("out", [None, "X.npy"])
def test_the_inverse_of_an_ill_conditioned_file_warns_as_that_of_an_array(tmp_path, out):
    a = scipy.linalg.hilbert(30)
    options = hdgemm.Options(devices="host", host_memory="60MB")
    place = None if out is None else tmp_path / out
    for source in (a, saved(tmp_path, a)):
        with pytest.warns(scipy.linalg.LinAlgWarning, match="estimated rcond"):
            inv(source, out=place, options=options)
    lu_factor(a, out=tmp_path / "LU.npy", options=options)
    inv(hdgemm.linalg.open(tmp_path / "LU.npy"), options=options)  # does not warn


def test_singular_matrices(tmp_path):
    a = random_matrix(13, 13, "float64")
    a[:, 4] = 0
    for source in (a, saved(tmp_path, a)):
        with pytest.raises(scipy.linalg.LinAlgError, match="pivot 5 ") as caught:
            inv(source, options=SLABS)
        assert caught.value.order == 5
        assert det(source, options=SLABS) == 0
        assert tuple(slogdet(source, options=SLABS)) == (0, -np.inf)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
            factors = lu_factor(source)
        with pytest.raises(scipy.linalg.LinAlgError, match="pivot 5 "):
            inv(factors)
        assert det(factors) == 0
        assert cond(source, options=SLABS) == np.inf
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


@pytest.mark.parametrize(("dtype", "p"), list(zip(DTYPES, (1, np.inf, np.inf, 1), strict=True)))
def test_condition_estimates(tmp_path, dtype, p):
    for seed, kind in enumerate(("random", "triangular", "identity", "graded")):
        a = random_matrix(24, 24, dtype, seed)
        if kind == "graded":
            a = (np.diag(np.logspace(0, -3, 24)) @ a).astype(dtype)
        if kind == "triangular":
            a = (np.triu(a) + 4 * np.eye(24)).astype(dtype)
        if kind == "identity":
            a = np.eye(24, dtype=dtype)
        exact = np.linalg.cond(widened(a), p)
        assert exact / 5 < cond(a, p) < exact * 1.01
    path = saved(tmp_path, a)
    for factors in (None, lu_factor(a)):
        assert exact / 5 < cond(path, p, factors=factors, options=SLABS) < exact * 1.01
    assert cond(np.zeros((0, 0))) == 0
    assert np.isnan(cond(np.full((3, 3), np.nan)))


@pytest.mark.parametrize(("dtype", "scale"), [
    ("float32", 1e-38), ("complex64", 1e-38), ("float64", 1e-308), ("complex128", 1e-308),
    ("float32", 1e-30), ("float64", 1e-300), ("float64", 1e300),
])  # fmt: skip
@pytest.mark.parametrize("p", [1, np.inf])
def test_a_condition_number_near_underflow_is_lapacks_or_infinite(dtype, scale, p):
    a = (random_matrix(12, 12, dtype) + 4 * np.eye(12)) * np.dtype(dtype).type(scale)
    a = a.astype(dtype)
    exact = np.linalg.cond(widened(a / np.dtype(dtype).type(scale)), p)
    found = cond(a, p)
    getrf, gecon = scipy.linalg.get_lapack_funcs(("getrf", "gecon"), (a,))
    rcond, _ = gecon(getrf(a)[0], np.linalg.norm(widened(a), p), norm="1" if p == 1 else "I")
    assert found >= 1
    assert exact / 5 < found < exact * 1.1 or (found == np.inf and rcond == 0)
    diagonal = cond(np.diag(np.full(3, scale)).astype(dtype), p)
    assert diagonal == np.inf or 1 <= diagonal < 1 + 1e-6


def test_a_condition_estimate_reads_a_once_and_the_factors_a_few_times(tmp_path):
    n = 40
    path = saved(tmp_path, random_matrix(n, n, "float64"))
    factors = lu_factor(path, out=tmp_path / "LU.npy")
    events = []
    cond(path, factors=(tmp_path / "LU.npy", factors[1]), observer=events.append)
    loaded = sum(event.nbytes for event in events if event.stage == "load1")
    assert loaded <= 11 * 2 * n * n * 8


@settings(max_examples=12, deadline=None)
@given(
    shape=st.tuples(*[st.sampled_from([0, 1, 2, 3, 7, 13, 29])] * 2), dtype=st.sampled_from(DTYPES),
    tile=st.tuples(*[st.integers(1, 9)] * 3), order=st.sampled_from("CF"),
)  # fmt: skip
def test_norms_and_lu_of_any_shape(tmp_path_factory, shape, dtype, tile, order):
    a = np.array(random_matrix(*shape, dtype), order=order)
    expected = np.abs(a).sum(axis=1).max(initial=0)
    unit = shape[1] * np.finfo(dtype).eps * max(1, expected)
    path = saved(tmp_path_factory.mktemp("norms"), a, order)
    for stored in (hdgemm.open(path), hdgemm.open(a), hdgemm.open(a[::2])):
        rows = expected if stored.shape == shape else np.abs(a[::2]).sum(axis=1).max(initial=0)
        for memory in (1, 1 << 20):
            assert abs(norm_inf(stored, memory) - rows) <= unit
    p, left, right = lu(path, p_indices=True, options=hdgemm.Options(tile=tile))
    assert residual_ratio(widened(left)[p] @ right - a, a) < SOUND if a.size else right.size == 0


def test_norms_are_added_by_strips_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.solving.norms._STRIP_BYTES", 40 * 8 * 3)
    a = random_matrix(40, 40, "float64")
    a[-1] *= 9
    for order in "CF":
        with hdgemm.open(saved(tmp_path, np.array(a, order=order), order)) as stored:
            np.testing.assert_allclose(norm_inf(stored, 1 << 20), np.abs(a).sum(axis=1).max())


def test_wrong_arguments_are_refused(tmp_path):
    a = random_matrix(5, 5, "float64")
    nan = a.copy()
    nan[2, 3] = np.nan
    cancel = threading.Event()
    cancel.set()
    for case in (
        lambda: inv(a[:4]),
        lambda: det(a[:4]),
        lambda: slogdet(a[:4]),
        lambda: cond(a[:4]),
        lambda: cond(a, 2),
        lambda: det((a, np.arange(4))),
        lambda: lu(a, out=tmp_path / "L.npy"),
        lambda: lu(a, out=(tmp_path / "L.npy", np.zeros((4, 5)))),
        lambda: inv(nan),
        lambda: det(nan),
    ):
        with pytest.raises(hdgemm.InputError):
            case()
    path = saved(tmp_path, a)
    for call in (inv, det, slogdet, cond, lu):
        with pytest.raises(hdgemm.CancelledRunError):
            call(path, cancel=cancel)
    assert [x.name for x in tmp_path.iterdir()] == ["A.npy"]
