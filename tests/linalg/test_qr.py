import threading

import h5py
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.linalg import qr, qr_multiply
from hdgemm.linalg.planning import slab as slab_plan
from hdgemm.linalg.planning.search import plan_slabs
from hdgemm.machine.rates import HOST
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import STAGES
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, residual_ratio, widened

SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")
SHAPES = [(61, 61), (61, 23), (23, 61)]


def orthogonality_ratio(q):
    """Return ||I - Q^H·Q|| / (m·eps), with eps half of NumPy's."""
    q, eps = widened(q), np.finfo(q.dtype).eps / 2
    return norm1(np.eye(q.shape[1]) - q.conj().T @ q) / (max(1, len(q)) * eps)


def assert_factors(q, r, a):
    q, r = np.asarray(q), np.asarray(r)
    assert q.dtype == r.dtype == a.dtype
    np.testing.assert_array_equal(r, np.triu(r))
    assert residual_ratio(widened(q) @ widened(r) - widened(a), a) < SOUND
    assert orthogonality_ratio(q) < SOUND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["full", "economic"])
def test_the_factors_of_a_file_are_sound(tmp_path, dtype, shape, mode):
    a = random_matrix(*shape, dtype)
    np.save(tmp_path / "A.npy", a)
    out = tmp_path / "Q.npy", tmp_path / "R.npy"
    q, r = qr(tmp_path / "A.npy", mode=mode, out=out, options=SLABS)
    expected = scipy.linalg.qr(a, mode=mode)
    assert [q.shape, r.shape] == [x.shape for x in expected]
    assert_factors(q, r, a)
    assert q.flags.f_contiguous
    assert r.flags.f_contiguous
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "Q.npy", "R.npy"]


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 31), n=st.integers(0, 31), width=st.integers(1, 9), block=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
    mode=st.sampled_from(["full", "economic"]),
)  # fmt: skip
def test_any_slabs_give_sound_factors(m, n, width, block, dtype, order, mode):
    a = np.asarray(random_matrix(m, n, dtype, seed=n), order=order)
    options = hdgemm.Options(tile=(1, width, block), host_memory="20MB")
    out = tuple(
        np.full((2 * x.shape[0], 2 * x.shape[1]), 5, dtype, order)[::2, ::2]
        for x in scipy.linalg.qr(a, mode=mode)
    )
    q, r = qr(a, mode=mode, out=out, options=options)
    assert q is out[0]
    assert r is out[1]
    assert_factors(q, r, a)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_reflectors_are_lapacks(tmp_path, shape, dtype):
    a = random_matrix(*shape, dtype)
    (expected, expected_tau), expected_r = scipy.linalg.qr(a, mode="raw")
    (v, tau), r = qr(a, mode="raw", options=SLABS)
    close = {"rtol": 0, "atol": 100 * np.finfo(dtype).eps * np.abs(expected).max()}
    np.testing.assert_allclose(v, expected, **close)
    np.testing.assert_allclose(tau, expected_tau, **close)
    np.testing.assert_allclose(r, expected_r, **close)
    (v, tau), r = qr(a, mode="raw", out=tmp_path / "QR.npy", options=SLABS)
    assert r is None
    np.testing.assert_array_equal(np.load(tmp_path / "QR.tau.npy"), tau)
    np.testing.assert_allclose(v, expected, **close)
    (multiply,) = scipy.linalg.get_lapack_funcs(("ormqr",), (v,))
    k = min(shape)
    c = np.eye(shape[0], dtype=dtype, order="F")
    # LAPACK writes into the reflectors during the call: a read-only memmap would be a fault.
    v = np.array(v, order="F")
    q, _, info = multiply("L", "N", v[:, :k], tau, c, 64 * shape[0])
    assert info == 0
    assert_factors(q, np.triu(v), a)


@pytest.mark.parametrize("shape", SHAPES)
def test_r_alone(tmp_path, shape):
    a = random_matrix(*shape, "float64")
    expected = np.abs(scipy.linalg.qr(a, mode="r")[0])
    np.save(tmp_path / "A.npy", a)
    (r,) = qr(tmp_path / "A.npy", mode="r", options=SLABS)
    np.testing.assert_allclose(np.abs(r), expected, atol=1e-12)
    (r,) = qr(tmp_path / "A.npy", mode="r", out=tmp_path / "R.npy", options=SLABS)
    np.testing.assert_allclose(np.abs(r), expected[: min(shape)], atol=1e-12)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "R.npy"]
    out = np.full(shape, 5.0)
    assert qr(tmp_path / "A.npy", mode="r", out=out, options=SLABS) == (out,)
    np.testing.assert_allclose(np.abs(out), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [40, 41, 200])
def test_r_of_a_tall_matrix_is_computed_in_one_pass(tmp_path, m, dtype):
    a = random_matrix(m, 10, dtype)
    np.save(tmp_path / "A.npy", a)
    events = []
    options = hdgemm.Options(tile=(9, 7, 3), host_memory="20MB", threads=2)
    out = np.full((m, 10), 5, dtype)
    qr(tmp_path / "A.npy", mode="r", out=out, options=options, observer=events.append)
    assert sum(event.nbytes for event in events) == a.nbytes
    np.testing.assert_array_equal(out, np.triu(out))
    gram = widened(a).conj().T @ widened(a)
    error = norm1(widened(out).conj().T @ widened(out) - gram)
    assert error < SOUND * m * np.finfo(dtype).eps * norm1(gram)
    (r,) = qr(tmp_path / "A.npy", mode="r", options=options)
    assert r.flags.c_contiguous  # its rows of zeros take no memory
    np.testing.assert_array_equal(r, out)


def test_tall_matrices_whose_r_does_not_fit_are_factored_by_slabs():
    a = random_matrix(1200, 300, "float64")
    events = []
    options = hdgemm.Options(host_memory=BOUNCE_BYTES + 600_000, threads=1)  # R takes 720,000
    (r,) = qr(a, mode="r", options=options, observer=events.append)
    assert any(event.stage == "store2" for event in events)
    np.testing.assert_allclose(np.abs(r), np.abs(scipy.linalg.qr(a, mode="r")[0]), atol=1e-10)


def matrix_types():
    x = random_matrix(41, 41, "float64")
    left, _, right = np.linalg.svd(x)
    zero = x.copy()
    zero[:, [0, 13, 40]] = 0
    return {
        "zero columns": zero,
        "zero": np.zeros((41, 41)),
        "identity": np.eye(41),
        "ill conditioned": (left * np.logspace(0, -15, 41)) @ right,
        "one small singular value": (left * np.where(np.arange(41) < 40, 1, 1e-15)) @ right,
        "near overflow": x * 1e300,
        "near underflow": x * 1e-300,
        "rows": x * np.logspace(-150, 150, 41)[:, np.newaxis],
        "columns": x * np.logspace(-150, 150, 41),
        "triangle": np.triu(x),
        "lower rank": np.outer(x[0], x[1]),
    }


@pytest.mark.parametrize("name", matrix_types())
def test_lapacks_matrix_types(tmp_path, name):
    a = matrix_types()[name]
    for shape in ((41, 41), (41, 30), (30, 41)):
        part = a[: shape[0], : shape[1]]
        q, r = qr(part, options=SLABS)
        assert orthogonality_ratio(q) < SOUND
        scale = np.abs(part).max() or 1
        assert residual_ratio(q @ (r / scale) - part / scale, part / scale) < SOUND


@pytest.mark.parametrize("shape", [(30, 30), (30, 17), (17, 30)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("mode", ["left", "right"])
def test_products_with_q_are_scipys(tmp_path, shape, dtype, conjugate, mode):
    a = random_matrix(*shape, dtype)
    length = min(shape) if mode == "left" else shape[0]
    np.save(tmp_path / "A.npy", a)
    for columns in (None, 1, 9):
        c = random_matrix(length, columns or 1, dtype, seed=1)
        c = c[:, 0] if columns is None else c if mode == "left" else c.T
        expected, expected_r = scipy.linalg.qr_multiply(a, c, mode, conjugate=conjugate)
        cq, r = qr_multiply(tmp_path / "A.npy", c, mode, conjugate=conjugate, options=SLABS)
        assert cq.shape == expected.shape
        np.testing.assert_allclose(cq, expected, atol=1e-12)
        np.testing.assert_allclose(r, expected_r, atol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_products_with_q_from_file_to_file(tmp_path):
    a, c = random_matrix(40, 20, "float64"), random_matrix(40, 33, "complex128", seed=1)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "C.npy", c)
    reports = []
    out = tmp_path / "QC.npy", tmp_path / "R.npy"
    cq, r = qr_multiply(
        tmp_path / "A.npy", tmp_path / "C.npy", "left", out=out, options=SLABS,
        report=reports.append,
    )  # fmt: skip
    q, expected = scipy.linalg.qr(a.astype("complex128"))
    np.testing.assert_allclose(cq, q @ c, atol=1e-12)
    np.testing.assert_allclose(r, expected[:20], atol=1e-12)
    for stage in reports[0].stages.values():
        assert stage.nbytes == stage.planned_bytes


def test_every_format_is_read_and_written(tmp_path):
    a = random_matrix(29, 20, "float64")
    np.asfortranarray(a).T.tofile(tmp_path / "A.bin")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("A", data=a, chunks=(5, 4))
    hdgemm.create(tmp_path / "A.zarr", (29, 20))[:, :] = a
    for name in ("Q", "R"):
        with h5py.File(tmp_path / f"{name}.h5", "w"):
            pass
    sources = ("A.bin::29x20:float64:F", "A.h5::A", "A.zarr")
    targets = (
        ("Q.bin::29x20:float64", "R.bin::20x20:float64"),
        ("Q.h5::Q", "R.h5::R"),
        ("Q.zarr", "R.zarr"),
    )
    for source, target in zip(sources, targets, strict=True):
        out = tuple(f"{tmp_path}/{name}" for name in target)
        q, r = qr(f"{tmp_path}/{source}", mode="economic", out=out, options=SLABS)
        assert_factors(q, r, a)


def test_in_place(tmp_path):
    a = random_matrix(31, 31, "float64")
    expected = scipy.linalg.qr(a, mode="raw")[0][0]
    array = np.asfortranarray(a)
    assert qr(array, overwrite_a=True, mode="raw", options=SLABS)[0][0] is array
    np.testing.assert_allclose(array, expected, atol=1e-12)
    np.save(tmp_path / "A.npy", a)
    (_, tau), _ = qr(tmp_path / "A.npy", overwrite_a=True, mode="raw", options=SLABS)
    np.testing.assert_allclose(np.load(tmp_path / "A.npy"), expected, atol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "A.tau.npy"), tau)
    np.save(tmp_path / "A.npy", a)
    (r,) = qr(tmp_path / "A.npy", overwrite_a=True, mode="r", options=SLABS)
    np.testing.assert_allclose(r, np.triu(expected), atol=1e-12)


def test_a_result_over_its_operand_is_sound():
    a = random_matrix(23, 23, "float64")
    array = np.asfortranarray(a)
    q, r = qr(array, out=(array, np.empty((23, 23))), options=SLABS)
    assert q is array
    assert_factors(q, r, a)


def test_a_product_over_c_is_sound_and_other_overlaps_are_refused():
    a, c = random_matrix(12, 12, "float64"), random_matrix(12, 20, "float64", seed=1)
    expected = scipy.linalg.qr_multiply(a, c, "left")[0]
    whole = np.zeros((12, 27), order="F")
    whole[:, :20] = c
    r = np.empty((12, 12))
    with pytest.raises(hdgemm.InputError, match="overlaps c"):
        qr_multiply(a, whole[:, :20], "left", out=(whole[:, 7:], r), options=SLABS)
    with pytest.raises(hdgemm.InputError, match="r overlaps c"):
        qr_multiply(a, whole[:, :20], "left", out=(c.copy(), whole[:, :12]), options=SLABS)
    qr_multiply(a, whole[:, :20], "left", out=(whole[:, :20], r), options=SLABS)
    np.testing.assert_allclose(whole[:, :20], expected, atol=1e-12)


def test_views_and_lists():
    a = random_matrix(30, 20, "float64")
    assert_factors(*qr(hdgemm.open(a)[3:20, 2:9], options=SLABS), a[3:20, 2:9])
    q, r = qr([[3, 1], [4, 2]])
    np.testing.assert_allclose(q @ r, [[3, 1], [4, 2]], atol=1e-14)


def test_nan_is_named_with_its_position(tmp_path):
    a = random_matrix(23, 23, "complex64")
    a[3, 17] = np.nan + 1j
    a[19, 20] = np.inf
    for mode in ("full", "r", "raw"):
        with pytest.raises(hdgemm.InputError, match="row 3, column 17") as caught:
            qr(a, mode=mode, options=SLABS)
        assert (caught.value.row, caught.value.col) == (3, 17)
    with pytest.raises(hdgemm.InputError, match="row 3"):
        qr(a, out=(tmp_path / "Q.npy", tmp_path / "R.npy"), options=SLABS)
    with pytest.raises(hdgemm.InputError, match="row 3"):
        qr_multiply(a, np.ones(23), out=(tmp_path / "C.npy", tmp_path / "R.npy"), options=SLABS)
    with pytest.raises(hdgemm.InputError, match="nan"):
        qr_multiply(np.ones((3, 3)), [1, np.nan, 2])
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused(tmp_path):
    a = np.eye(4)
    with pytest.raises(hdgemm.InputError, match="mode must be"):
        qr(a, mode="complete")
    with pytest.raises(hdgemm.InputError, match="pivoting"):
        qr(a, pivoting=True)
    with pytest.raises(hdgemm.InputError, match="pair"):
        qr(a, out=tmp_path / "Q.npy")
    with pytest.raises(hdgemm.InputError, match="overlap"):
        qr(a, out=(tmp_path / "Q.npy", tmp_path / "Q.npy"))
    array = np.empty((4, 4))
    with pytest.raises(hdgemm.InputError, match="overlap"):
        qr(a, out=(array, array))
    with pytest.raises(hdgemm.InputError, match=r"c·Q, which needs a c with \d+ columns"):
        qr_multiply(a, np.ones(3))
    with pytest.raises(hdgemm.InputError, match="mode must be"):
        qr_multiply(a, np.ones(4), "both")
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        qr(a, out=(tmp_path / "Q.npy", tmp_path / "R.npy"),
           options=hdgemm.Options(host_memory="1kB"))  # fmt: skip
    assert caught.value.missing == caught.value.requested - 1000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", STAGES[:1] + STAGES[2:3] + STAGES[-1:])
@pytest.mark.parametrize("phase", ["factor", "form"])
def test_cancelling_in_any_stage_publishes_nothing(tmp_path, stage, phase):
    cancel = threading.Event()
    seen = set()

    def observe(event):
        again = (event.stage, event.unit, event.step) in seen
        seen.add((event.stage, event.unit, event.step))
        if event.stage == stage and event.unit == 2 and again == (phase == "form"):
            cancel.set()

    np.save(tmp_path / "A.npy", random_matrix(40, 40, "float64"))
    with pytest.raises(hdgemm.CancelledRunError):
        qr(
            tmp_path / "A.npy", out=(tmp_path / "Q.npy", tmp_path / "R.npy"), options=SLABS,
            observer=observe, cancel=cancel,
        )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


@pytest.mark.parametrize("failing", ["A", "Q", "R"])
def test_a_failing_matrix_reaches_the_caller(failing):
    class Broken:
        shape, dtype = (40, 40), np.dtype("float64")

        def __getitem__(self, key):
            if failing == "A" and key[1].start >= 14:
                raise OSError(5, "Input/output error")
            return np.ones((40, 40))[key]

        def __setitem__(self, key, value):
            if key[1].start >= 14:
                raise OSError(28, "No space left on device")

    a = random_matrix(40, 40, "float64")
    out = tuple(Broken() if name == failing else np.empty((40, 40)) for name in "QR")
    with pytest.raises(hdgemm.MatrixIOError, match=r"No space left|Input/output"):
        qr(Broken() if failing == "A" else a, out=out, options=SLABS)


def test_bytes_and_flops_are_as_planned(tmp_path):
    m, n, events, reports = 45, 38, [], []
    qr(
        random_matrix(m, n, "float64"), mode="economic",
        out=(tmp_path / "Q.npy", tmp_path / "R.npy"),
        options=SLABS, observer=events.append, report=reports.append,
    )  # fmt: skip
    moved = {stage: sum(e.nbytes for e in events if e.stage == stage) for stage in STAGES}
    for name, stage in reports[0].stages.items():
        assert stage.nbytes == moved[name] == stage.planned_bytes
    expected = 2 * 2 * n**2 * (m - n / 3)  # factor, and form Q
    assert abs(sum(event.flops for event in events) - expected) < 0.1 * expected
    plan = plan_slabs("qr", n, "float64", 20_000_000, HOST, rows=m, width=7, block=3)
    assert plan.flops == pytest.approx(expected / 2, abs=1)


def test_columns_on_blocks_of_the_file_and_padded_ones(tmp_path, monkeypatch):
    # Columns of 64 bytes or more are padded in memory to their phase in the file.
    monkeypatch.setattr(slab_plan, "SHORT", 64)
    for n, width, dtype in ((384, 256, "complex128"), (150, 40, "float64")):
        a = random_matrix(n, n, dtype)
        options = hdgemm.Options(tile=(1, width, 70), host_memory="45MB")
        q, r = qr(a, out=(tmp_path / "Q.npy", tmp_path / "R.npy"), options=options)
        assert_factors(q, r, a)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 500), n=st.integers(0, 500), memory=st.integers(10**6, 10**7),
    kind=st.sampled_from(["qr", "form q", "apply q"]),
)  # fmt: skip
def test_plans_fit_the_memory(m, n, memory, kind):
    depth = min(m, n)
    cut = depth // 3  # a block has columns of one slab only
    slabs = [slab_plan.Columns(0, cut, 0), slab_plan.Columns(cut, depth, 0)]
    blocks = slab_plan.Blocks(tuple(slab for slab in slabs if slab.width), 32)
    given = {"reflectors": blocks, "block": 32} if kind != "qr" else {}
    try:
        plan = plan_slabs(kind, n, "float64", memory, HOST, rows=m, **given)
    except hdgemm.DoesNotFitError as error:
        memory += error.missing
        plan = plan_slabs(kind, n, "float64", memory, HOST, rows=m, **given)
    assert plan.host_bytes <= memory
    assert sum(slab.width for slab in plan.slabs) == n
    for number, earlier in enumerate(plan.earlier_bytes()):
        assert sum(plan.nbytes(block) for _, block in plan.blocks(number)) == earlier
