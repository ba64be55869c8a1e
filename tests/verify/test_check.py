"""The check of a product: correct ones pass, wrong ones do not, and the stated odds hold."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.product.product import check_product
from hdgemm.verify import verify
from hdgemm.verify.check import conclude
from hdgemm.verify.freivalds import Check, CheckSettings
from tests.reference import DTYPES, op, reference_gemm

EXTENTS = st.sampled_from([1, 2, 3, 7, 31, 257, 300])


def normal(rng, shape, dtype="float64"):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def stored(x, trans, order):
    """Lay x out so that op(stored) is x."""
    return np.asarray(op(x, trans), order=order)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    extents=st.tuples(EXTENTS, EXTENTS, EXTENTS),
    dtype=st.sampled_from(DTYPES),
    trans=st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2])),
    orders=st.tuples(*[st.sampled_from("CF")] * 4),
    factors=st.tuples(st.sampled_from([0.0, 1.0, -2.5]), st.sampled_from([0.0, 1.0, 0.3])),
    seed=st.integers(0, 2**32),
)
def test_a_correct_product_passes(extents, dtype, trans, orders, factors, seed):
    (m, n, k), (alpha, beta) = extents, factors
    rng = np.random.default_rng(seed)
    a, b, old = normal(rng, (m, k), dtype), normal(rng, (k, n), dtype), normal(rng, (m, n), dtype)
    c = (np.dtype(dtype).type(alpha) * (a @ b) + np.dtype(dtype).type(beta) * old).astype(dtype)
    outcome = verify(
        stored(a, trans[0], orders[0]),
        stored(b, trans[1], orders[1]),
        np.asarray(c, order=orders[2]),
        alpha=alpha,
        beta=beta,
        c_before=np.asarray(old, order=orders[3]),
        trans_a=trans[0],
        trans_b=trans[1],
        seed=seed,
    )
    assert outcome.passed, str(outcome)
    assert outcome.unchecked_rows == 0
    assert outcome.worst <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_found_in_its_row(dtype):
    rng = np.random.default_rng(5)
    a, b = normal(rng, (90, 80), dtype), normal(rng, (80, 70), dtype)
    c = a @ b
    sound = verify(a, b, c)
    for row, col in ((0, 0), (89, 69), (41, 13)):
        wrong = c.copy()
        wrong[row, col] += 1.01 * sound.detects
        outcome = verify(a, b, wrong)
        assert not outcome.passed
        assert outcome.failing_rows == (row,)
        assert outcome.failures == 1
        assert outcome.worst > 1
        assert "not the product" in str(outcome)


def test_an_outcome_is_true_where_it_has_passed():
    a, b = np.ones((8, 5)), np.ones((5, 3))
    assert verify(a, b, a @ b)
    assert not verify(a, b, a @ b + 1.0)


def test_an_error_far_below_the_bound_passes():
    rng = np.random.default_rng(6)
    a, b = normal(rng, (40, 50)), normal(rng, (50, 60))
    c = a @ b
    c[3, 4] += 1e-3 * verify(a, b, c).bound
    assert verify(a, b, c).passed


def test_each_vector_finds_a_cancelling_error_half_the_time():
    rng = np.random.default_rng(7)
    a, b = normal(rng, (20, 30)), normal(rng, (30, 40))
    c = a @ b
    c[9, 11] += 1.0
    c[9, 12] -= 1.0
    found = sum(not verify(a, b, c, rounds=1, seed=seed).passed for seed in range(400))
    # Four standard deviations of a fair coin.
    assert abs(found - 200) < 40
    outcome = verify(a, b, c, rounds=30, seed=1)
    assert not outcome.passed
    assert outcome.miss_probability == 2.0**-30


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a, b, c: a[:, :-1] @ b[:-1],  # a step left out
        lambda a, b, c: np.roll(c, 1, axis=0),
        lambda a, b, c: np.roll(c, 1, axis=1),
        lambda a, b, c: np.where(np.indices(c.shape)[0] < 10, 0.0, c),  # a bar never stored
        lambda a, b, c: (a.astype("f") @ b.astype("f")).astype("d"),  # single precision
        lambda a, b, c: -c,
        lambda a, b, c: c * (1 + 1e-9),
    ],
)
def test_wrong_products_fail(spoil):
    rng = np.random.default_rng(8)
    a, b = normal(rng, (120, 130)), normal(rng, (130, 110))
    assert not verify(a, b, spoil(a, b, a @ b)).passed


def test_conjugation_and_transposition_are_told_apart():
    rng = np.random.default_rng(9)
    a, b = normal(rng, (30, 30), "complex128"), normal(rng, (30, 30), "complex128")
    assert verify(a, b, a.conj().T @ b, trans_a=2).passed
    assert not verify(a, b, a.conj().T @ b, trans_a=1).passed
    assert not verify(a, b, a.conj().T @ b).passed
    assert verify(a, b, a @ b.T, trans_b=1).passed


def test_the_worst_order_of_summation_passes():
    # One product after another, all of one sign and all rounded the same way: the bound must hold
    # for the worst order and the worst data, not only for a BLAS's.
    k = 6000
    a, b = np.full((3, k), 0.1, np.float32), np.ones((k, 4), np.float32)
    c = reference_gemm(1.0, a, b)
    exact = a.astype("d") @ b.astype("d")
    assert np.abs(c - exact).max() > 10 * np.sqrt(k) * np.finfo("f").eps
    assert verify(a, b, c).passed


def test_a_product_stored_with_fewer_or_more_digits_passes():
    rng = np.random.default_rng(10)
    a, b = normal(rng, (50, 60)), normal(rng, (60, 70))
    assert verify(a, b, (a @ b).astype("float32")).passed
    single = a.astype("float32"), b.astype("float32")
    assert verify(*single, (single[0] @ single[1]).astype("float64")).passed
    assert verify(single[0], b, single[0].astype("float64") @ b).passed


@pytest.mark.parametrize("scales", [(1e200, 1e-200), (1e-170, 1e-170), (1e150, 1e150), (1e-310, 1)])
def test_any_scale_is_checked(scales):
    rng = np.random.default_rng(11)
    a, b = normal(rng, (40, 30)) * scales[0], normal(rng, (30, 20)) * scales[1]
    c = a @ b
    outcome = verify(a, b, c)
    assert outcome.passed
    assert outcome.unchecked_rows == 0
    if np.abs(c).max() > 1e-300:
        c[7, 7] *= 1.5
        assert not verify(a, b, c).passed


class TestNotFinite:
    """Inputs with NaN or Inf, and products that overflow."""

    @pytest.fixture
    def matrices(self):
        rng = np.random.default_rng(12)
        a, b = normal(rng, (30, 20)), normal(rng, (20, 25))
        a[4, 3], a[17, 0] = np.nan, np.inf
        b[5, 9], b[6, 20] = -np.inf, np.nan
        return a, b, reference_gemm(1.0, a, b)

    @pytest.mark.parametrize("order", "CF")
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_they_pass_in_their_places(self, matrices, order, dtype):
        a, b, c = (np.asarray(x, dtype, order=order) for x in matrices)
        outcome = verify(a, b, c)
        assert outcome.passed, str(outcome)
        assert outcome.unchecked_rows == 2
        assert "2 rows were not compared" in str(outcome)

    def test_elements_beside_them_are_compared(self, matrices):
        a, b, c = matrices
        c[8, 8] += 1e-6
        assert verify(a, b, c).failing_rows == (8,)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_one_out_of_place_fails(self, matrices, value):
        a, b, c = matrices
        c[11, 3] = value
        outcome = verify(a, b, c)
        assert outcome.failing_rows == (11,)
        assert outcome.worst == np.inf

    @pytest.mark.parametrize("place", [(4, 0), (17, 24), (0, 9), (29, 20)])
    def test_a_finite_element_in_their_place_fails(self, matrices, place):
        a, b, c = matrices
        c[place] = 1.0
        assert verify(a, b, c).failing_rows == (place[0],)

    def test_nan_in_a_clean_product_fails(self):
        rng = np.random.default_rng(13)
        a, b = normal(rng, (30, 20)), normal(rng, (20, 25))
        c = a @ b
        c[2, 3] = np.nan
        assert verify(a, b, c).failing_rows == (2,)

    def test_rows_that_may_overflow_are_counted_not_compared(self):
        rng = np.random.default_rng(14)
        a, b = normal(rng, (30, 20)), normal(rng, (20, 25)) * 1e150
        a[3] *= 1e160
        with np.errstate(over="ignore", invalid="ignore"):
            c = a @ b
        outcome = verify(a, b, c)
        assert outcome.passed
        assert outcome.unchecked_rows == 1
        c[5, 5] = np.inf
        assert verify(a, b, c).failing_rows == (5,)

    def test_rows_of_the_old_c_that_hold_them(self):
        rng = np.random.default_rng(15)
        a, b, old = normal(rng, (30, 20)), normal(rng, (20, 25)), normal(rng, (30, 25))
        old[6, 6] = np.nan
        c = a @ b + 0.5 * old
        outcome = verify(a, b, c, beta=0.5, c_before=old)
        assert outcome.passed
        assert outcome.unchecked_rows == 1
        c[7, 6] = np.nan
        assert verify(a, b, c, beta=0.5, c_before=old).failing_rows == (7,)

    @pytest.mark.parametrize("factor", [np.nan, np.inf])
    def test_factors(self, factor):
        rng = np.random.default_rng(16)
        a, b = normal(rng, (9, 8)), normal(rng, (8, 7))
        assert verify(a, b, factor * (a @ b), alpha=factor).passed
        assert not verify(a, b, a @ b, alpha=factor).passed


class TestFactors:
    """alpha = 0 and beta = 0 mean what BLAS means by them."""

    def test_beta_zero_never_reads_the_old_c(self):
        rng = np.random.default_rng(17)
        a, b = normal(rng, (9, 8)), normal(rng, (8, 7))
        assert verify(a, b, a @ b, beta=0.0, c_before=np.full((9, 7), np.nan)).passed

    def test_alpha_zero_never_reads_a_or_b(self):
        nans = np.full((9, 8), np.nan), np.full((8, 7), np.nan)
        old = normal(np.random.default_rng(18), (9, 7))
        assert verify(*nans, 2 * old, alpha=0.0, beta=2.0, c_before=old).passed
        assert not verify(*nans, 2.001 * old, alpha=0.0, beta=2.0, c_before=old).passed
        assert verify(*nans, np.zeros((9, 7)), alpha=0.0).passed
        assert not verify(*nans, np.full((9, 7), 1e-300), alpha=0.0).passed

    def test_k_zero(self):
        a, b = np.empty((3, 0)), np.empty((0, 4))
        assert verify(a, b, np.zeros((3, 4)), alpha=np.nan).passed
        assert not verify(a, b, np.ones((3, 4))).passed

    @pytest.mark.parametrize("extents", [(0, 3, 2), (3, 0, 2), (0, 0, 0)])
    def test_an_empty_product_passes(self, extents):
        m, n, k = extents
        assert verify(np.ones((m, k)), np.ones((k, n)), np.ones((m, n))).passed

    def test_beta_needs_the_old_c(self):
        with pytest.raises(InputError, match="c_before"):
            verify(np.eye(2), np.eye(2), np.eye(2), beta=1.0)


def test_operands_that_do_not_fit():
    with pytest.raises(InputError, match="op\\(A\\) is 2×3 and op\\(B\\) is 2×3"):
        verify(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(InputError, match=r"c has shape \(3, 2\); it must be \(2, 2\)"):
        verify(np.ones((2, 3)), np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(InputError, match="rounds"):
        verify(np.eye(2), np.eye(2), np.eye(2), rounds=0)


def test_the_same_seed_gives_the_same_outcome():
    rng = np.random.default_rng(19)
    a, b = normal(rng, (50, 60)), normal(rng, (60, 70))
    first, second = (verify(a, b, a @ b, seed=3) for _ in range(2))
    assert first == second
    assert verify(a, b, a @ b, seed=4).worst != first.worst


def test_too_little_memory_says_how_much():
    with pytest.raises(DoesNotFitError) as caught:
        verify(np.ones((400, 300)), np.ones((300, 200)), np.ones((400, 200)), memory=20_000)
    error = caught.value
    assert error.requested == 2 * 8 * (200 + 300 + 5 * 400)
    assert error.missing == error.requested - 20_000


class TestRemembering:
    """A C that overwrites C₀ is checked from what was remembered of C₀."""

    def prepared(self, a, b, c, **keywords):
        operands = [open_operand(x) for x in (a, b, c)]
        product = check_product(1.5, operands[0], operands[1], 0.5, operands[2])
        check = Check(product, operands[2], CheckSettings(**keywords))
        check.remember_old()
        c[...] = reference_gemm(1.5, a, b, 0.5, c)
        return check

    @pytest.fixture
    def matrices(self):
        rng = np.random.default_rng(20)
        return tuple(normal(rng, shape) for shape in ((40, 30), (30, 20), (40, 20)))

    # The smaller memory takes the vectors in several groups.
    @pytest.mark.parametrize("memory", [10**6, 20_000])
    def test_correct_and_wrong(self, matrices, memory):
        a, b, c = matrices
        assert conclude(self.prepared(a, b, c, memory=memory)).passed
        check = self.prepared(a, b, c, memory=memory)
        c[3, 4] += 1e-6
        assert conclude(check).failing_rows == (3,)

    def test_nan_in_b_leaves_only_places_to_be_checked(self, matrices):
        a, b, c = matrices
        b[5, 6] = np.nan
        outcome = conclude(self.prepared(a, b, c))
        assert outcome.passed
        assert outcome.unchecked_rows == 40
        check = self.prepared(a, b, c)
        c[3, 6] = 1.0
        assert not conclude(check).passed


def test_a_check_is_cancelled():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledRunError, match="the check was cancelled"):
        verify(np.eye(2), np.eye(2), np.eye(2), cancel=cancel)
