import threading

import h5py
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.linalg import cholesky, lu_factor
from hdgemm.linalg.planning import slab as slab_plan
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.machine.rates import HOST
from hdgemm.pipeline.plan import STAGES
from tests.linalg.matrices import DTYPES, SOUND, random_matrix, residual_ratio, widened

SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


def assert_factors(lu, pivots, a, *, largest=True):
    lu = np.asarray(lu)
    n = len(a)
    assert lu.dtype == a.dtype
    assert pivots.dtype == np.int64
    lower, upper = np.tril(lu, -1) + np.eye(n), np.triu(lu)
    permuted = widened(a).copy()
    for row, other in enumerate(pivots):
        permuted[[row, other]] = permuted[[other, row]]
    assert residual_ratio(widened(lower) @ widened(upper) - permuted, a) < SOUND
    if largest:  # complex pivots are the largest by |re| + |im|
        limit = 1 if a.dtype.kind == "f" else np.sqrt(2)
        assert np.abs(lower).max(initial=0) <= limit * (1 + 4 * np.finfo(a.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_factors_of_a_file_are_sound(tmp_path, dtype, order):
    a = random_matrix(61, 61, dtype)
    np.save(tmp_path / "A.npy", np.asarray(a, order=order))
    lu, pivots = lu_factor(tmp_path / "A.npy", out=tmp_path / "LU.npy", options=SLABS)
    assert_factors(lu, pivots, a)
    assert lu.flags.f_contiguous
    np.testing.assert_array_equal(np.load(tmp_path / "LU.piv.npy"), pivots)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "A.npy", "LU.factor.json", "LU.npy", "LU.piv.npy",
    ]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 40), width=st.integers(1, 9), block=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
)  # fmt: skip
def test_any_slabs_give_sound_factors(n, width, block, dtype, order):
    a = random_matrix(n, n, dtype, seed=n)
    out = np.full((2 * n, 2 * n), 5, dtype, order)[::2, ::2]
    options = hdgemm.Options(tile=(1, width, block), host_memory="20MB")
    lu, pivots = lu_factor(np.asarray(a, order=order), out=out, options=options)
    assert lu is out
    assert_factors(lu, pivots, a)


def test_pivots_are_lapacks(tmp_path):
    a = random_matrix(50, 50, "float64")
    expected, expected_pivots = scipy.linalg.lu_factor(a)
    for out in (None, tmp_path / "LU.npy"):
        lu, pivots = lu_factor(a, out=out, options=SLABS)
        np.testing.assert_array_equal(pivots, expected_pivots)
        np.testing.assert_allclose(lu, expected, rtol=1e-10, atol=1e-12)
        x = scipy.linalg.lu_solve((lu, pivots), np.ones(50))
        np.testing.assert_allclose(a @ x, np.ones(50), atol=1e-10)


def wilkinson(n):
    """Partial pivoting lets the last column of this matrix grow by 2^(n-1)."""
    a = np.eye(n) - np.tri(n, k=-1)
    a[:, -1] = 1
    return a


def near_wright(n):
    """Random rows in reverse order of size: every pivot lies in another slab."""
    return random_matrix(n, n, "float64") * np.logspace(-8, 8, n)[:, np.newaxis]


@pytest.mark.parametrize(
    "a",
    [
        np.eye(41)[::-1],
        np.eye(41)[np.random.default_rng(1).permutation(41)],
        np.roll(np.eye(41), 1, axis=0),
        wilkinson(41),
        near_wright(41),
        random_matrix(41, 41, "float64") * 1e-300,
        random_matrix(41, 41, "float64") * 1e300,
        np.logspace(-150, 150, 41) * random_matrix(41, 41, "float64"),
    ],
    ids=["reversal", "permutation", "shift", "wilkinson", "rows", "tiny", "huge", "columns"],
)
def test_matrices_that_break_pivoting_in_one_chunk(tmp_path, a):
    lu, pivots = lu_factor(a, out=tmp_path / "LU.npy", options=SLABS)
    growth = np.abs(lu).max() / np.abs(a).max()
    permuted = a[_permutation(pivots)]
    lower, upper = np.tril(lu, -1) + np.eye(41), np.triu(lu)
    error = np.abs(lower @ upper - permuted)
    assert (error <= 41 * np.finfo(float).eps * (np.abs(lower) @ np.abs(upper))).all()
    assert np.abs(lower).max() <= 1
    expected, expected_pivots = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(pivots, expected_pivots)
    assert growth == pytest.approx(np.abs(expected).max() / np.abs(a).max())


def _permutation(pivots):
    return _interchanged(pivots, len(pivots))


def _interchanged(pivots, rows):
    order = np.arange(rows)
    for row, other in enumerate(pivots):
        order[[row, other]] = order[[other, row]]
    return order


@pytest.mark.parametrize("column", [0, 6, 7, 20, 22])
def test_a_zero_pivot_warns_and_goes_on(tmp_path, column):
    a = random_matrix(23, 23, "float64")
    a[:, column] = 0
    for out in (None, tmp_path / "LU.npy"):
        with pytest.warns(scipy.linalg.LinAlgWarning, match=f"number {column + 1} is") as caught:
            lu, pivots = lu_factor(a, out=out, options=SLABS)
        assert [warning.filename for warning in caught] == [__file__]
        assert_factors(lu, pivots, a)


def test_every_format_is_read_and_written(tmp_path):
    a = random_matrix(29, 29, "float64")
    np.asfortranarray(a).T.tofile(tmp_path / "A.bin")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("A", data=a, chunks=(5, 4))
    hdgemm.create(tmp_path / "A.zarr", (29, 29))[:, :] = a
    with h5py.File(tmp_path / "L.h5", "w"):
        pass
    sources = ("A.bin::29x29:float64:F", "A.h5::A", "A.zarr")
    targets = ("L.bin::29x29:float64", "L.h5::L", "L.zarr")
    for source, target in zip(sources, targets, strict=True):
        lu, pivots = lu_factor(f"{tmp_path}/{source}", out=f"{tmp_path}/{target}", options=SLABS)
        assert_factors(lu, pivots, a)


def test_in_place(tmp_path):
    a = random_matrix(31, 31, "float64")
    array = np.asfortranarray(a)
    assert lu_factor(array.copy("F"), overwrite_a=True)[0].flags.f_contiguous
    for order in "CF":
        np.save(tmp_path / "A.npy", np.asarray(a, order=order))
        lu, pivots = lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
        assert_factors(lu, pivots, a)
        np.testing.assert_array_equal(np.load(tmp_path / "A.piv.npy"), pivots)


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(0, 30), n=st.integers(0, 30), width=st.integers(1, 9), block=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
)  # fmt: skip
def test_rectangular_matrices_have_lapacks_factors(m, n, width, block, dtype, order):
    a = random_matrix(m, n, dtype, seed=m + 31 * n)
    options = hdgemm.Options(tile=(1, width, block), host_memory="20MB")
    strided = np.full((2 * m, 2 * n), 5, dtype, order)[::2, ::2]
    for out in (None, strided):
        lu, pivots = lu_factor(a, out=out, options=options)
        assert lu.shape == a.shape
        assert pivots.shape == (min(m, n),)
        lower, upper = np.tril(lu, -1)[:, : min(m, n)] + np.eye(m, min(m, n)), np.triu(lu)
        permuted = widened(a)[_interchanged(pivots, m)]
        error = widened(lower) @ widened(upper[: min(m, n)]) - permuted
        assert residual_ratio(error, a) < SOUND
    np.testing.assert_array_equal(pivots, scipy.linalg.lu_factor(a)[1] if a.size else pivots)


@pytest.mark.parametrize("shape", [(45, 45), (45, 20), (20, 45)])
def test_bytes_of_rectangular_matrices_are_as_planned(tmp_path, shape):
    reports = []
    lu_factor(
        random_matrix(*shape, "float64"), out=tmp_path / "LU.npy", options=SLABS,
        report=reports.append,
    )  # fmt: skip
    [report] = reports
    assert report.moved_bytes == report.planned_bytes
    assert report.planned_bytes["load1"] == report.plan["read_bytes"] > 8 * shape[0] * shape[1]
    assert sum(stage.flops for stage in report.stages.values()) == pytest.approx(
        report.plan["flops"], rel=0.01
    )


def test_nan_is_named_with_its_position(tmp_path):
    a = random_matrix(23, 23, "complex64")
    a[3, 17] = np.nan + 1j
    a[19, 20] = np.inf
    for out in (None, tmp_path / "LU.npy"):
        with pytest.raises(hdgemm.InputError, match="row 3, column 17") as caught:
            lu_factor(a, out=out, options=SLABS)
        assert (caught.value.row, caught.value.col) == (3, 17)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused():
    a = np.eye(4)
    with pytest.raises(hdgemm.InputError, match="pivoting"):
        lu_factor(a, pivoting="rook")


@pytest.mark.parametrize("stage", STAGES[:1] + STAGES[2:3] + STAGES[-1:])
def test_cancelling_in_any_stage_publishes_nothing(tmp_path, stage):
    cancel = threading.Event()

    def observe(event):
        if event.stage == stage and event.unit == 2:
            cancel.set()

    with pytest.raises(hdgemm.CancelledRunError):
        lu_factor(
            random_matrix(40, 40, "float64"), out=tmp_path / "LU.npy", options=SLABS,
            observer=observe, cancel=cancel,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("n", "width", "short"), [(1024, 512, 1 << 18), (600, 150, 64)])
def test_columns_on_blocks_of_the_file_and_padded_ones(tmp_path, monkeypatch, n, width, short):
    # Columns of `short` bytes or more are padded in memory to their phase in the file.
    monkeypatch.setattr(slab_plan, "SHORT", short)
    a = random_matrix(n, n, "float64")
    options = hdgemm.Options(tile=(1, width, 70), host_memory="45MB")
    lu, pivots = lu_factor(a, out=tmp_path / "LU.npy", options=options)
    assert_factors(lu, pivots, a)
    np.testing.assert_array_equal(pivots, scipy.linalg.lu_factor(a)[1])
    symmetric = a @ a.T + n * np.eye(n)
    factor = cholesky(symmetric, lower=True, out=tmp_path / "L.npy", options=options)
    assert residual_ratio(factor @ factor.T - symmetric, symmetric) < SOUND


def test_bytes_and_flops_are_as_planned(tmp_path):
    n, events = 45, []
    lu_factor(
        random_matrix(n, n, "float64"), out=tmp_path / "LU.npy", options=SLABS,
        observer=events.append,
    )  # fmt: skip
    plan = plan_slabs(
        "lu", n, "float64", 20_000_000, HOST, width=7, block=3, storage=Storage(whole=True)
    )
    moved = {stage: sum(e.nbytes for e in events if e.stage == stage) for stage in STAGES}
    assert moved["load1"] == plan.planned_bytes["load1"]
    assert moved["store2"] == plan.planned_bytes["store2"]
    assert abs(sum(event.flops for event in events) - 2 * n**3 / 3) < n**2 + len(events)
