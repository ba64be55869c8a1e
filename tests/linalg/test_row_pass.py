"""The pass over rows: blocks, transformations and reducers, whatever the blocks are."""

import threading
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.call.keywords import Call
from hdgemm.call.run import open_run
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.planning.rows import RowShape, plan_pass, triangle_work
from hdgemm.linalg.rows import centred_r_factor
from hdgemm.linalg.rows.centred_r_factor import CentredRFactor
from hdgemm.linalg.rows.column_moments import ColumnMoments
from hdgemm.linalg.rows.products import NormalProduct, StoredProduct
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.reducer import RowBlock
from hdgemm.linalg.rows.row_pass import RowPass, plan_for
from hdgemm.linalg.rows.source import TallRows, estimated_mean
from hdgemm.linalg.rows.sums import Gram, Moments, Norm
from hdgemm.linalg.rows.tsqr import ProjectedTriangle, Triangle
from hdgemm.matrices.transfer import BOUNCE_BYTES
from tests.linalg.matrices import DTYPES, SOUND, random_matrix, residual_ratio, widened
from tests.reference import assert_close_in_eps


def run_pass(rows, reducers, *, height=7, cores=2, report=None, observer=None):
    options = hdgemm.Options(tile=(height, 1, 1), host_memory="50MB", threads=cores)
    with open_run(Call.of(options=options, report=report, observer=observer)) as run:
        plan = plan_for(rows, reducers, None, run)
        RowPass(rows, reducers, plan, run.callbacks).run()
    return plan


def opened(tmp_path, a, kind):
    if kind == "array":
        return hdgemm.open(a)
    path = tmp_path / f"{kind}.npy"
    np.save(path, a if kind == "C" else np.asfortranarray(a))
    return hdgemm.open(path)


def full(triangle):
    return np.tril(triangle) + np.tril(triangle, -1).conj().T


@pytest.mark.parametrize("kind", ["C", "F", "array"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_reducers_share_one_read(tmp_path, kind, dtype):
    a, q = random_matrix(53, 6, dtype), random_matrix(6, 3, dtype, 1)
    reports = []
    with opened(tmp_path, a, kind) as source:
        rows = TallRows(source, source.dtype)
        gram, product, triangle = Gram(6, a.dtype), NormalProduct(q), Triangle.zeros(6, 0, a.dtype)
        plan = run_pass(rows, [gram, product, triangle], report=reports.append)
    wide = widened(a)
    exact = wide.conj().T @ wide
    assert residual_ratio((full(gram.gram) - exact).astype(a.dtype), exact.astype(dtype)) < SOUND
    r = widened(triangle.r)
    assert residual_ratio((r.conj().T @ r - exact).astype(dtype), exact.astype(dtype)) < SOUND
    error = widened(product.y) - exact @ widened(q)
    assert product.y.dtype == a.dtype
    assert np.abs(error).max() < SOUND * 53 * np.finfo(dtype).eps * np.abs(exact).max()
    assert reports[0].moved_bytes == reports[0].planned_bytes == {"load1": a.nbytes, "mult1": 0}
    assert plan.name == "A^H·A and A^H·(A·Q) and TSQR"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_are_centred_scaled_and_weighted_in_memory(dtype, order):
    a = np.asarray(random_matrix(29, 5, dtype), order=order)
    before = a.copy()
    rng = np.random.default_rng(3)
    shift, scale, weights = a.mean(axis=0), rng.uniform(1, 2, 5), rng.uniform(0, 2, 29)
    rows = TallRows(
        hdgemm.open(a), a.dtype, ones=True, shift=shift, scale=scale.astype(a.real.dtype),
        weights=weights,
    )  # fmt: skip
    gram = Gram(6, a.dtype)
    run_pass(rows, [gram])
    expected = np.hstack([np.ones((29, 1)), (widened(a) - widened(shift)) / scale])
    expected = np.sqrt(weights)[:, np.newaxis] * expected
    np.testing.assert_allclose(
        full(gram.gram), expected.conj().T @ expected, rtol=0, atol=300 * np.finfo(dtype).eps
    )
    np.testing.assert_array_equal(a, before)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 40), n=st.integers(0, 6), height=st.integers(1, 9), cores=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES), weighted=st.booleans(), mean=st.sampled_from([0.0, 3.0]),
)  # fmt: skip
def test_moments_are_numpys_for_any_blocks(m, n, height, cores, dtype, weighted, mean):
    a = random_matrix(m, n, dtype, seed=m) + np.dtype(dtype).type(mean)
    weights = np.random.default_rng(m).integers(0, 3, m).astype(float) if weighted else None
    moments = Moments(n, a.dtype)
    rows = TallRows(hdgemm.open(a), a.dtype, ones=True, weights=weights)
    run_pass(rows, [moments], height=height, cores=cores)
    w = np.ones(m) if weights is None else weights
    assert moments.weight == pytest.approx(w.sum())
    if not w.sum():
        assert not moments.gram.any()
        return
    expected = (w @ widened(a)) / w.sum()
    centred = widened(a) - expected
    tolerance = 100 * max(1, m) * np.finfo(dtype).eps
    np.testing.assert_allclose(moments.mean, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        full(moments.gram), (centred.conj().T * w) @ centred, rtol=0, atol=10 * tolerance
    )


@pytest.mark.parametrize("drift", [0.0, 20.0])
def test_a_mean_of_1e8_times_the_spread_does_no_harm(drift):
    spread = random_matrix(2000, 4, "float64") + drift * np.linspace(0, 1, 2000)[:, np.newaxis]
    a = spread + 1e8  # what is stored; its own spread is exact below
    exact = (a - 1e8) - (a - 1e8).mean(axis=0)
    source = hdgemm.open(a)
    rows = TallRows(source, a.dtype, ones=True, shift=estimated_mean(source, a.dtype))
    moments, triangle = Moments(4, a.dtype), Triangle.zeros(5, 0, a.dtype)
    run_pass(rows, [moments], height=100)
    run_pass(rows, [triangle], height=100)
    expected, exact_mean = exact.T @ exact, (a - 1e8).mean(axis=0) + 1e8
    for found in (full(moments.gram), triangle.r[1:, 1:].T @ triangle.r[1:, 1:]):
        assert np.abs(found - expected).max() < 1e-13 * np.abs(expected).max()
    mean = rows.shift + triangle.r[0, 1:] / triangle.r[0, 0]
    np.testing.assert_allclose(mean, exact_mean, rtol=4e-16)
    np.testing.assert_allclose(rows.shift + moments.mean, exact_mean, rtol=4e-16)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("drift", [0.0, 20.0, 1e8])
@pytest.mark.parametrize("mean", [0.0, 1.0, 1e8])
def test_r_of_centred_rows_in_either_order(monkeypatch, mean, drift, order):
    monkeypatch.setattr(centred_r_factor, "strip_rows", lambda _n, _dtype: 30)
    spread = random_matrix(2000, 4, "float64") + drift * np.linspace(0, 1, 2000)[:, np.newaxis]
    a = np.asarray(spread + mean, order=order)
    exact_mean = (a - mean).mean(axis=0) + mean
    exact = (a - mean) - (a - mean).mean(axis=0)
    source = hdgemm.open(a)
    centred = CentredRFactor(estimated_mean(source, a.dtype))
    run_pass(TallRows(source, a.dtype), [centred], height=100, cores=3)
    norms = np.linalg.norm(exact, axis=0)
    expected = scipy.linalg.svdvals(exact / norms)
    found = scipy.linalg.svdvals(centred.r / norms)
    assert np.abs(found - expected).max() < 1e-13
    np.testing.assert_allclose(centred.mean, exact_mean, rtol=4e-16, atol=1e-15 * drift + 1e-16)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 60), n=st.integers(1, 6), height=st.integers(1, 9), cores=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES), mean=st.sampled_from([0.0, 3.0]), constant=st.booleans(),
)  # fmt: skip
def test_centred_rows_for_any_blocks(m, n, height, cores, dtype, mean, constant):
    a = random_matrix(m, n, dtype, seed=m) + np.dtype(dtype).type(mean)
    a[:, : constant * n // 2] = mean
    centred = CentredRFactor(estimated_mean(hdgemm.open(a), a.dtype))
    run_pass(TallRows(hdgemm.open(a), a.dtype), [centred], height=height, cores=cores)
    exact = widened(a) - widened(a).mean(axis=0)
    r, eps = widened(centred.r), np.finfo(dtype).eps
    error = r.conj().T @ r - exact.conj().T @ exact
    assert np.abs(error).max() <= 100 * max(1, m) * eps * max(1, mean) ** 2
    np.testing.assert_allclose(centred.mean, widened(a).mean(axis=0), rtol=0, atol=30 * eps)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_a_product_are_stored(tmp_path, order):
    a, w = random_matrix(50, 5, "float64"), random_matrix(5, 3, "float64", 1)
    reports = []
    np.save(tmp_path / "A.npy", a)
    with (
        hdgemm.open(tmp_path / "A.npy") as source,
        hdgemm.create(tmp_path / "P.npy", (50, 3), "float64", order=order) as target,
    ):
        run_pass(TallRows(source, a.dtype), [StoredProduct((w,), target)], report=reports.append)
    assert_close_in_eps(np.load(tmp_path / "P.npy"), a, w)
    expected = {"load1": a.nbytes, "mult1": 0, "store2": 50 * 3 * 8}
    assert reports[0].moved_bytes == reports[0].planned_bytes == expected


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 30), n=st.integers(0, 30), height=st.integers(1, 9), cores=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
    special=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)  # fmt: skip
def test_norms_are_numpys(m, n, height, cores, dtype, order, special):
    a = np.asarray(random_matrix(m, n, dtype, seed=n), order=order)
    if special is not None and a.size:
        a[m // 2, n // 3] = special
    rows = TallRows(hdgemm.open(a), a.dtype, check_finite=False)
    cases = {"fro": "fro", "columns": 1, "rows": np.inf}
    found, largest = [Norm(name, n) for name in cases], Norm("max", n)
    run_pass(rows, [*found, largest], height=height, cores=cores)
    for norm, ord_ in zip(found, cases.values(), strict=True):
        expected = np.linalg.norm(a, ord_) if a.size else 0.0
        np.testing.assert_allclose(norm.value, expected, rtol=100 * np.finfo(dtype).eps)
    np.testing.assert_equal(largest.value, float(np.abs(a).max(initial=0)))
    if a.size:
        least = {-1: Norm("columns", n, smallest=True), -np.inf: Norm("rows", n, smallest=True)}
        run_pass(rows, list(least.values()), height=height, cores=cores)
        for ord_, norm in least.items():
            expected = np.linalg.norm(a, ord_)
            np.testing.assert_allclose(norm.value, expected, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_frobenius_norm_neither_overflows_nor_underflows(scale):
    a = random_matrix(40, 3, "float64")
    norm = Norm("fro", 3)
    run_pass(TallRows(hdgemm.open(a * scale), a.dtype), [norm])
    assert norm.value == pytest.approx(np.linalg.norm(a) * scale, rel=1e-14)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("make", "orders"),
    [
        (lambda: Gram(3, np.dtype("float64")), "F"),
        (lambda: NormalProduct(np.eye(3)), "CF"),
        (lambda: ProjectedTriangle(np.eye(3)), "CF"),
        (lambda: RFactor(3, np.dtype("float64")), "CF"),
        (lambda: CentredRFactor(np.zeros(3)), "CF"),
        (lambda: Triangle.zeros(3, 0, np.dtype("float64")), ""),
    ],
    ids=["Gram", "NormalProduct", "ProjectedTriangle", "RFactor", "CentredRFactor", "Triangle"],
)
def test_an_array_is_reduced_in_its_place_where_the_plan_says_so(make, orders, order):
    a = np.asarray(random_matrix(40, 3, "float64"), order=order)
    before, events, reports = a.copy(), [], []
    rows = TallRows(hdgemm.open(a), a.dtype)
    plan = run_pass(rows, [make()], observer=events.append, report=reports.append)
    in_place = order in orders
    assert plan.in_place == in_place
    assert {event.stage for event in events} == ({"mult1"} if in_place else {"load1", "mult1"})
    assert plan.planned_bytes["load1"] == reports[0].moved_bytes.get("load1", 0)
    np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("order", ["C", "F"])
def test_nan_is_named_with_its_position_in_either_order(order):
    a = np.asarray(random_matrix(40, 3, "float64"), order=order)
    a[31, 1] = np.nan
    with pytest.raises(hdgemm.InputError, match="a has nan at row 31, column 1"):
        run_pass(TallRows(hdgemm.open(a), a.dtype), [NormalProduct(np.eye(3))])


class _Watched(StoredProduct):
    """A product that waits, from its second block on, until the store before it has begun."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.storing, self.reduced, self.blocks = threading.Event(), threading.Event(), 0

    def update(self, block):
        self.blocks += 1
        assert self.blocks == 1 or self.storing.wait(60)
        found = super().update(block)
        if self.blocks == 2:
            self.reduced.set()
        return found


def test_a_block_is_stored_while_the_next_one_is_reduced(tmp_path, monkeypatch):
    a, q = random_matrix(40, 6, "float64"), random_matrix(6, 3, "float64", 1)
    out = np.empty((40, 3))
    with hdgemm.open(a) as source, hdgemm.open(out, mode="r+") as target:
        product = _Watched((q,), target)
        store = RowPass._store

        def store_late(self, *arguments):
            product.storing.set()
            assert product.reduced.wait(60)
            store(self, *arguments)

        monkeypatch.setattr(RowPass, "_store", store_late)
        run_pass(TallRows(source, source.dtype), [product], cores=1)
    assert product.blocks == 6
    assert_close_in_eps(out, a, q)


@pytest.mark.parametrize("failing", [0, 2, 5])
def test_a_failed_store_ends_the_pass(monkeypatch, failing):
    a, q, stored = random_matrix(40, 6, "float64"), random_matrix(6, 3, "float64", 1), []

    def store(_self, _core, number, *_arguments):
        if number == failing:
            raise OSError(28, "No space left on device")
        stored.append(number)

    monkeypatch.setattr(RowPass, "_store", store)
    with hdgemm.open(a) as source, hdgemm.open(np.empty((40, 3))) as target:
        rows, product = TallRows(source, source.dtype), StoredProduct((q,), target)
        with pytest.raises(OSError, match="No space"):
            run_pass(rows, [product], cores=1)
    assert stored == list(range(failing))


def test_only_the_last_reducer_overwrites_the_blocks():
    a = random_matrix(40, 3, "float64")
    with pytest.raises(ValueError, match="last reducer"):
        run_pass(TallRows(hdgemm.open(a), a.dtype), [Triangle.zeros(3, 0, a.dtype), Gram(3, "f8")])


def test_results_that_do_not_fit_are_refused_with_numbers():
    a = np.ones((40, 3))
    with (
        open_run(Call.of(options=hdgemm.Options(host_memory="100kB"))) as run,
        pytest.raises(DoesNotFitError, match=r"A\^H·A of a 40×3 float64 matrix") as caught,
    ):
        plan_for(TallRows(hdgemm.open(a), a.dtype), [Gram(3, a.dtype)], None, run)
    memory = 100_000 + caught.value.missing
    with open_run(Call.of(options=hdgemm.Options(host_memory=memory))) as run:
        plan = plan_for(TallRows(hdgemm.open(a), a.dtype), [Gram(3, a.dtype)], None, run)
    assert plan.host_bytes <= memory


@pytest.mark.parametrize("reducer", [ColumnMoments, Moments])
def test_moments_copy_no_block(reducer):
    """Copies of blocks were kept by the C library for each thread: a pass of 120 MB added 160."""
    a = np.random.default_rng(0).standard_normal((100_000, 31)) + 100
    a[:, 0], a[:, 5] = 1, 3
    block = RowBlock(0, np.asfortranarray(a) if reducer is Moments else a, a[:, :0])
    moments = reducer(30 if reducer is Moments else 31, a.dtype)
    tracemalloc.start()
    try:
        moments.update(block)
        assert tracemalloc.get_traced_memory()[1] < a.nbytes // 4
    finally:
        tracemalloc.stop()
    exact = np.random.default_rng(0).standard_normal((100_000, 31)).astype(np.longdouble) + 100
    exact[:, 0], exact[:, 5] = 1, 3
    norms = np.sqrt(((exact - exact.mean(0)) ** 2).sum(0)).astype(float)
    if reducer is Moments:
        found = np.sqrt(np.diagonal(moments.gram))
        assert not moments.spread[4]
        norms = norms[1:]
    else:
        found = moments.norms
    np.testing.assert_allclose(found, norms, rtol=1e-13, atol=1e-10)


@pytest.mark.parametrize("chunk", [1 << 12, 4 << 20, 40 << 20])
def test_a_pass_has_memory_for_decoded_chunks(chunk):
    shape = RowShape(400_000, 30, 0, "float64", chunk_bytes=chunk)
    works = [triangle_work(shape)]
    memory = 60_000_000
    plan = plan_pass(shape, works, memory, 2)
    held = plan_pass(shape._replace(chunk_bytes=0), works, memory, 2, rows=plan.rows).host_bytes
    # As stored and decoded, in the four threads of the disk; half of the memory at most.
    decoding = max(0, 8 * chunk - BOUNCE_BYTES)
    assert held + min(decoding, memory // 2) <= memory
    if not decoding:
        assert plan == plan_pass(shape._replace(chunk_bytes=0), works, memory, 2)
    with pytest.raises(DoesNotFitError) as refused:
        plan_pass(shape, works, 100_000, 2)
    assert plan_pass(shape, works, 100_000 + refused.value.missing, 2).rows
