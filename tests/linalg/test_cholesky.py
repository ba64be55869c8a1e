import threading

import h5py
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.linalg import cho_factor, cholesky
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.pipeline.plan import STAGES
from tests.linalg.matrices import DTYPES, SOUND, positive_definite, residual_ratio, widened

SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


def assert_factor(factor, a, lower):
    factor = np.asarray(factor)
    assert factor.dtype == a.dtype
    np.testing.assert_array_equal(factor, np.tril(factor) if lower else np.triu(factor))
    left = widened(factor if lower else factor.conj().T)
    assert residual_ratio(left @ left.conj().T - widened(a), a) < SOUND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_the_factor_of_a_file_is_sound(tmp_path, dtype, lower):
    a = positive_definite(61, dtype)
    np.save(tmp_path / "A.npy", a)
    out = tmp_path / "L.npy"
    factor = cholesky(tmp_path / "A.npy", lower, out=out, options=SLABS)
    assert_factor(factor, a, lower)
    np.testing.assert_array_equal(np.load(out), factor)
    assert factor.flags.f_contiguous == lower


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 40), width=st.integers(1, 9), block=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES), lower=st.booleans(), order=st.sampled_from("CF"),
)  # fmt: skip
def test_any_slabs_give_a_sound_factor(n, width, block, dtype, lower, order):
    a = positive_definite(n, dtype, seed=n)
    # A strided result cannot be factored in place: it is stored slab by slab.
    out = np.full((2 * n, 2 * n), 5, dtype, order)[::2, ::2]
    options = hdgemm.Options(tile=(1, width, block), host_memory="20MB")
    assert cholesky(np.asarray(a, order=order), lower, out=out, options=options) is out
    assert_factor(out, a, lower)


@pytest.mark.parametrize("lower", [True, False])
def test_only_one_triangle_is_read(tmp_path, lower):
    a = positive_definite(23, "float64")
    poisoned = np.where(np.tri(23, k=0 if lower else -1, dtype=bool) == lower, a, np.nan)
    assert_factor(cholesky(poisoned, lower), a, lower)
    assert_factor(cholesky(poisoned, lower, out=tmp_path / "L.npy", options=SLABS), a, lower)


def test_in_memory_it_is_scipys(tmp_path):
    a = positive_definite(40, "float64")
    for lower in (False, True):
        expected = scipy.linalg.cholesky(a, lower=lower)
        np.testing.assert_allclose(cholesky(a, lower=lower), expected, rtol=1e-12, atol=1e-12)
    assert cholesky([[4, 2], [2, 5]], lower=True).tolist() == [[2.0, 0.0], [1.0, 2.0]]
    factor, lower = cho_factor(a, lower=True)
    x = scipy.linalg.cho_solve((factor, lower), np.ones(40))
    np.testing.assert_allclose(a @ x, np.ones(40))


def test_every_format_is_read_and_written(tmp_path):
    a = positive_definite(29, "float64")
    np.asfortranarray(a).T.tofile(tmp_path / "A.bin")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("A", data=a, chunks=(5, 4))
    hdgemm.create(tmp_path / "A.zarr", (29, 29))[:, :] = a
    with h5py.File(tmp_path / "L.h5", "w"):
        pass
    sources = ("A.bin::29x29:float64:F", "A.h5::A", "A.zarr")
    targets = ("L.bin::29x29:float64", "L.h5::L", "L.zarr")
    for source, target in zip(sources, targets, strict=True):
        factor = cholesky(
            f"{tmp_path}/{source}", lower=True, out=f"{tmp_path}/{target}", options=SLABS
        )
        assert_factor(factor, a, lower=True)


def test_views_of_stored_matrices(tmp_path):
    a = positive_definite(30, "float64")
    np.save(tmp_path / "big.npy", np.pad(a, 5))
    with (
        hdgemm.open(tmp_path / "big.npy") as big,
        hdgemm.create(tmp_path / "out.npy", (40, 50)) as out,
    ):
        view = out[2:32, 3:33]
        assert cholesky(big[5:35, 5:35], out=view, options=SLABS) is view
        assert_factor(view, a, lower=False)
        assert np.count_nonzero(out.read()) == np.count_nonzero(view.read())


@pytest.mark.parametrize("lower", [True, False])
def test_in_place(tmp_path, lower):
    a = positive_definite(31, "float64")
    array = np.array(a, order="F" if lower else "C")
    assert cholesky(array, lower, overwrite_a=True) is array
    assert_factor(array, a, lower)
    np.save(tmp_path / "A.npy", a)
    factor = cholesky(tmp_path / "A.npy", lower, overwrite_a=True, options=SLABS)
    assert_factor(factor, a, lower)
    assert_factor(np.load(tmp_path / "A.npy"), a, lower)


@pytest.mark.parametrize("order", [1, 2, 9, 23])
@pytest.mark.parametrize("lower", [True, False])
def test_not_positive_definite_names_the_minor_and_publishes_nothing(tmp_path, order, lower):
    a = positive_definite(23, "float64")
    a[order - 1, order - 1] = -1.0
    for out in (None, tmp_path / "L.npy"):
        with pytest.raises(scipy.linalg.LinAlgError, match=f"order {order} ") as caught:
            cholesky(a, lower, out=out, options=SLABS)
        assert isinstance(caught.value, hdgemm.HdgemmError)
        assert caught.value.order == order
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [100, 270])
def test_the_minor_of_a_panel_that_is_halved_is_named(order):
    a = positive_definite(300, "float64")
    a[order - 1, order - 1] = -1.0
    with pytest.raises(scipy.linalg.LinAlgError, match=f"order {order} "):
        cholesky(a, lower=True)


@pytest.mark.parametrize(("lower", "place"), [(True, (17, 11)), (False, (11, 17))])
def test_nan_is_named_with_its_position(tmp_path, lower, place):
    a = positive_definite(23, "float64")
    a[place] = np.nan
    for out in (None, tmp_path / "L.npy"):
        with pytest.raises(hdgemm.InputError, match=f"row {place[0]}, column {place[1]}"):
            cholesky(a, lower, out=out, options=SLABS)
    assert list(tmp_path.iterdir()) == []
    assert np.isnan(cho_factor(a, lower, check_finite=False)[0]).any()


def test_ill_scaled_matrices():
    a = positive_definite(37, "float64")
    scale = np.logspace(-120, 120, 37)
    out = np.zeros((74, 37), order="F")[::2]
    factor = cholesky(a * np.outer(scale, scale), lower=True, out=out, options=SLABS)
    assert_factor(factor / scale[:, np.newaxis], a, lower=True)


def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "L.npy"
    a = positive_definite(8, "float64")
    for wrong, message in ((a[:5], "square"), (a[0], "2-D")):
        with pytest.raises(hdgemm.InputError, match=message):
            cholesky(wrong, out=out)
    with pytest.raises(hdgemm.InputError, match="shape"):
        cholesky(a, out=np.zeros((8, 9)))
    big = np.zeros((9, 9))
    with pytest.raises(hdgemm.InputError, match="overlaps"):
        cholesky(big[:8, :8], out=big[1:, 1:])
    with pytest.raises(hdgemm.DeviceUnavailableError):
        cholesky(a, out=out, options=hdgemm.Options(devices="opencl:99"))
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        cholesky(a, out=out, options=hdgemm.Options(host_memory="1kB"))
    assert caught.value.missing == caught.value.requested - 1000
    assert list(tmp_path.iterdir()) == []


def test_cancelling_stops_and_publishes_nothing(tmp_path):
    a = positive_definite(40, "float64")
    cancel = threading.Event()
    seen = []

    def observe(event):
        seen.append(event)
        if event.unit == 2:
            cancel.set()

    with pytest.raises(hdgemm.CancelledRunError):
        cholesky(a, out=tmp_path / "L.npy", options=SLABS, observer=observe, cancel=cancel)
    assert seen
    assert list(tmp_path.iterdir()) == []


def test_a_failing_output_reaches_the_caller(tmp_path):
    class Full:
        shape, dtype = (40, 40), np.dtype("float64")

        def __getitem__(self, key):
            return np.zeros((40, 40))[key]

        def __setitem__(self, key, value):
            if key[1].start >= 14:
                raise OSError(28, "No space left on device")

    with pytest.raises(hdgemm.MatrixIOError, match="No space left"):
        cholesky(positive_definite(40, "float64"), lower=True, out=Full(), options=SLABS)


def test_bytes_and_flops_are_as_planned(tmp_path):
    n = 45
    events, snapshots = [], []
    cholesky(
        positive_definite(n, "float64"), out=tmp_path / "L.npy", options=SLABS,
        observer=events.append, progress=snapshots.append,
    )  # fmt: skip
    plan = plan_slabs(
        "cholesky",
        n,
        "float64",
        20_000_000,
        _machine(),
        width=7,
        block=3,
        storage=Storage(whole=True),
    )
    assert {event.stage for event in events} <= set(STAGES)
    moved = {stage: sum(e.nbytes for e in events if e.stage == stage) for stage in STAGES}
    assert moved["load1"] == plan.planned_bytes["load1"]
    assert moved["store2"] == plan.planned_bytes["store2"]
    # Each operation's count is rounded down.
    assert abs(sum(event.flops for event in events) - n**3 / 3) < n**2 + len(events)
    assert snapshots[-1].percent == 100
    assert snapshots[-1].phase == "computing"


def _machine():
    from hdgemm.machine.rates import HOST

    return HOST


def test_a_session_is_used_again(tmp_path):
    a = positive_definite(20, "float64")
    with hdgemm.Session(SLABS) as session:
        for name in ("1.npy", "2.npy"):
            cholesky(a, out=tmp_path / name, session=session)
    assert (tmp_path / "1.npy").read_bytes() == (tmp_path / "2.npy").read_bytes()
