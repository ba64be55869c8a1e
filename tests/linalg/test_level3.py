"""Level-3 BLAS out of core against SciPy's in RAM, with tiny tiles, for each storage and layout."""

import itertools
import threading
import weakref
from functools import partial

import h5py
import numpy as np
import pytest
import scipy.linalg.blas
import zarr
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.blas import _triangle_update as triangle_update
from hdgemm.blas._diagonal_block import DiagonalBlock
from hdgemm.blas.blockwise import block_of
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.pipeline.plan import DeviceSpec
from hdgemm.pipeline.slot_cache import SlotCache
from hdgemm.product.product import Product
from tests.linalg.matrices import DTYPES, random_matrix
from tests.reference import assert_close_in_eps, op

TILES = hdgemm.Options(tile=(5, 7, 4), devices="host")
LETTERS = dict(zip(DTYPES, "sdcz", strict=True))
BOOLS = (0, 1)


def stored(tmp_path, x, kind, name="X"):
    """Store `x` in one of the formats; return what hdgemm opens."""
    if kind == "array":
        return x
    if kind == "strided":
        wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
        wide[::2, ::3] = x
        return wide[::2, ::3]
    if kind == "F":
        return np.asfortranarray(x)
    if kind == "hdf5":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=(3, 2), compression="gzip")
        return f"{tmp_path / name}.h5::/x"
    if kind == "zarr":
        zarr.create_array(tmp_path / f"{name}.zarr", data=x, chunks=(4, 3), overwrite=True)
        return f"{tmp_path / name}.zarr"
    if kind == "view":
        whole = np.zeros((x.shape[0] + 3, x.shape[1] + 2), x.dtype)
        whole[2 : 2 + x.shape[0], 1 : 1 + x.shape[1]] = x
        np.save(tmp_path / f"{name}.npy", whole)
        matrix = hdgemm.open(tmp_path / f"{name}.npy")
        return matrix[2 : 2 + x.shape[0], 1 : 1 + x.shape[1]]
    np.save(tmp_path / f"{name}.npy", x if kind == "npy" else np.asfortranarray(x))
    return tmp_path / f"{name}.npy"


KINDS = ("array", "strided", "F", "npy", "npy:F", "hdf5", "zarr", "view")


def triangle(x, lower):
    return np.tril(x) if lower else np.triu(x)


def other(x, lower):
    return np.triu(x, 1) if lower else np.tril(x, -1)


def without_other(x, lower):
    """A copy of `x` with NaN in the triangle that must not be used."""
    return np.where(other(np.ones(x.shape), lower) != 0, x.dtype.type(np.nan), x)


def whole(x, lower, hermitian):
    """The symmetric matrix of which `x` has one triangle."""
    part = np.tril(x) if lower else np.triu(x)
    rest = part - np.diag(np.diag(x))
    if not hermitian:
        return part + rest.T
    return part - 1j * np.diag(np.diag(x).imag) + rest.conj().T


def rank_operands(routine, dtype, trans, n=17, k=23):
    shape = (k, n) if trans else (n, k)
    a, b = (random_matrix(*shape, dtype, seed) for seed in (1, 2))
    return (a, b) if routine.endswith("2k") else (a,)


def assert_updated(result, routine, factors, trans, lower, *, alpha=1.0, beta=0.0, c=None):
    """Hold one triangle against the two products, componentwise in units of eps."""
    hermitian = routine.startswith("he") and result.dtype.kind == "c"
    a, b = factors[0], factors[-1]
    x, y = (op(v, trans) for v in (a, b))
    flip = np.conj if hermitian else np.asarray
    left, right = alpha * x, flip(y).T
    if len(factors) == 2:
        left = np.hstack([alpha * x, flip(alpha) * y])
        right = np.vstack([flip(y).T, flip(x).T])
    old = np.zeros_like(result) if c is None else c
    left, right = left.astype(result.dtype), right.astype(result.dtype)
    exact = left.astype("complex128") @ right.astype("complex128") + beta * old
    size = np.abs(left).astype(float) @ np.abs(right) + np.abs(beta) * np.abs(old)
    unit = 4 * (left.shape[1] + 4) * np.finfo(result.dtype).eps * size + np.finfo(result.dtype).tiny
    error = triangle(np.abs(result - exact) / unit, lower)
    if hermitian:
        # BLAS takes the diagonal of C as real.
        assert not np.diagonal(result).imag.any()
        error -= np.diag(np.diag(error)) * (c is not None)
    assert error.max(initial=0) < 1


@pytest.mark.parametrize("routine", ["syrk", "herk", "syr2k", "her2k"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_updates_agree_with_blas(routine, dtype):
    complex_ = np.dtype(dtype).kind == "c"
    conj = 2 if routine.startswith("he") and complex_ else 1
    c = random_matrix(17, 17, dtype, 9)
    for trans, lower, with_c in itertools.product((0, conj), BOOLS, BOOLS):
        factors = rank_operands(routine, dtype, trans)
        alpha = 2.0 if routine == "herk" else 2.0 - (1j if complex_ else 0)
        beta = 0.5 * with_c
        arguments = {"beta": beta, "c": c if with_c else None, "trans": trans, "lower": lower}
        name = LETTERS[dtype] + (routine if complex_ else routine.replace("he", "sy"))
        expected = getattr(scipy.linalg.blas, name)(alpha, *factors, **arguments)
        for options in (TILES, None):
            found = getattr(hdgemm, routine)(alpha, *factors, **arguments, options=options)
            assert found.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(other(found, lower), other(expected, lower))
            assert_updated(found, routine, factors, trans, lower, alpha=alpha, beta=beta,
                           c=c if with_c else None)  # fmt: skip
            if with_c and routine.startswith("he"):
                spread = np.abs(np.diag(found) - np.diag(expected)).max()
                assert spread < 1e3 * np.finfo(dtype).eps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("routine", ["syrk", "her2k"])
def test_rank_updates_of_every_storage(tmp_path, kind, routine):
    dtype = "complex64" if routine == "her2k" else "float64"
    conj = 2 if routine == "her2k" else 1
    for trans, lower in ((0, 1), (conj, 0)):
        factors = rank_operands(routine, dtype, trans)
        given = [stored(tmp_path, x, kind, f"X{i}") for i, x in enumerate(factors)]
        # Mixed orientations: the last factor is an array.
        given[-1:] = given[-1:] if len(given) == 1 else [factors[-1]]
        for options in (TILES, hdgemm.Options(tile=(50, 50, 5), devices="host")):
            out = getattr(hdgemm, routine)(
                1.5, *given, trans=trans, lower=lower, out=tmp_path / "C.npy", options=options
            )
            assert not other(np.asarray(out), lower).any()
            assert_updated(np.asarray(out), routine, factors, trans, lower, alpha=1.5)


@pytest.mark.parametrize("kind", ["array", "F", "strided", "npy", "npy:F", "hdf5", "zarr"])
@pytest.mark.parametrize("lower", BOOLS)
def test_an_existing_c_keeps_its_other_triangle(tmp_path, kind, lower):
    a, c = random_matrix(17, 9, "complex128"), random_matrix(17, 17, "complex128", 3)
    for options in (TILES, None):
        place = stored(tmp_path, c.copy(), kind, "C")
        target = place if kind in ("array", "F", "strided") else hdgemm.open(place, "r+")
        hdgemm.herk(0.5, a, 2.0, target, lower=lower, out=target, options=options)
        found = np.asarray(target)
        np.testing.assert_array_equal(other(found, lower), other(c, lower))
        assert_updated(found, "herk", (a,), 0, lower, alpha=0.5, beta=2.0, c=c)
        # Another C is read, and what `out` has in its other triangle stays.
        hdgemm.herk(0.5, a, 2.0, c, lower=lower, out=target, options=options)
        assert_updated(np.asarray(target), "herk", (a,), 0, lower, alpha=0.5, beta=2.0, c=c)
        if hasattr(target, "close"):
            target.close()


def test_a_new_file_has_the_other_triangle_of_c(tmp_path):
    a, c = random_matrix(17, 9, "float64"), random_matrix(17, 17, "float64", 3)
    for beta in (0.0, 2.0):
        found = hdgemm.syrk(1.0, a, beta, c, out=tmp_path / "C.npy", options=TILES)
        np.testing.assert_array_equal(other(found, 0), other(c, 0))
        assert_updated(np.asarray(found), "syrk", (a,), 0, 0, beta=beta, c=c)


def test_zeros_in_alpha_and_beta_are_not_multiplied():
    nan = np.full((9, 9), np.nan)
    for options in (TILES, None):
        assert not hdgemm.syrk(0.0, nan, options=options).any()
        c = hdgemm.syrk(1.0, np.eye(9), 0.0, nan, options=options)
        np.testing.assert_array_equal(np.triu(c), np.eye(9))
        c = hdgemm.syrk(0.0, nan, 3.0, np.ones((9, 9)), lower=1, options=options)
        np.testing.assert_array_equal(c, np.where(np.tri(9) > 0, 3.0, 1.0))
        assert not hdgemm.trmm(0.0, nan, nan, options=options).any()
        assert not hdgemm.trsm(0.0, nan, nan, options=options).any()
        assert not hdgemm.symm(0.0, nan, nan, options=options).any()


class Unreadable:
    shape = (9, 9)
    dtype = np.dtype(float)

    def __getitem__(self, _rectangle):
        raise AssertionError


@pytest.mark.parametrize("side", [0, 1])
def test_a_trsm_with_alpha_zero_reads_neither_matrix(side):
    reports = []
    x = hdgemm.trsm(0.0, Unreadable(), Unreadable(), side, options=TILES, report=reports.append)
    assert not x.any()
    assert all(each.nbytes == each.planned_bytes for each in reports[0].stages.values())


def test_an_update_by_no_columns_is_zero(tmp_path):
    np.save(tmp_path / "A.npy", np.zeros((0, 5)))
    c = hdgemm.syrk(1.0, tmp_path / "A.npy", trans=1, out=tmp_path / "C.npy")
    assert c.shape == (5, 5)
    assert not np.any(c)


def test_a_is_read_once_where_c_fits(tmp_path):
    a = random_matrix(400, 20, "float64")
    np.save(tmp_path / "A.npy", a)
    events = []
    c = hdgemm.syrk(1.0, tmp_path / "A.npy", trans=1, lower=1, observer=events.append,
                    options=hdgemm.Options(tile=(64, 64, 50), devices="host"))  # fmt: skip
    assert_updated(c, "syrk", (a,), 1, 1)
    assert sum(event.nbytes for event in events if event.stage == "load1") == a.nbytes
    flops = sum(event.flops for event in events if event.stage == "mult1")
    assert flops == 20 * 21 * 400


def test_memory_decides_how_c_is_cut(tmp_path):
    n = 1100
    a = random_matrix(n, 30, "float64")
    np.save(tmp_path / "A.npy", a)
    events, seen = [], []
    c = hdgemm.syrk(
        1.0, tmp_path / "A.npy", out=tmp_path / "C.npy", observer=events.append,
        progress=seen.append, options=hdgemm.Options(host_memory="10MB", devices="host"),
    )  # fmt: skip
    assert_updated(np.asarray(c), "syrk", (a,), 0, 0)
    stored_bytes = sum(event.nbytes for event in events if event.stage == "store2")
    assert stored_bytes < 0.85 * c.nbytes
    percents = [progress.percent for progress in seen]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        hdgemm.syrk(1.0, tmp_path / "A.npy", out=tmp_path / "C.npy",
                    options=hdgemm.Options(host_memory="1MB", devices="host"))  # fmt: skip
    assert caught.value.missing == caught.value.requested - 1_000_000


@pytest.mark.parametrize("routine", ["symm", "hemm"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_symmetric_products(tmp_path, routine, dtype):
    junk = random_matrix(19, 19, dtype, 5)
    for kind, side, lower in itertools.product(("F", "npy", "npy:F", "hdf5"), BOOLS, BOOLS):
        b = random_matrix(*((6, 19) if side else (19, 6)), dtype, 2)
        c = random_matrix(*b.shape, dtype, 3)
        a = whole(junk, lower, routine == "hemm" and junk.dtype.kind == "c")
        given = stored(tmp_path, without_other(junk, lower), kind)
        found = getattr(hdgemm, routine)(2, given, b, 0.5, c, side=side, lower=lower, options=TILES)
        operands = (b, a) if side else (a, b)
        assert_close_in_eps(found, *(x.astype(dtype) for x in operands), alpha=2, beta=0.5, c=c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", BOOLS)
def test_triangular_products_and_systems(tmp_path, dtype, side):
    a = random_matrix(19, 19, dtype) + 9 * np.eye(19, dtype=dtype)
    b = random_matrix(*((6, 19) if side else (19, 6)), dtype, 2)
    kinds = itertools.cycle(("F", "npy", "npy:F", "hdf5", "view"))
    for lower, trans, diag in itertools.product(BOOLS, (0, 1, 2), BOOLS):
        if diag:
            np.fill_diagonal(a, 9)
        t = triangle(a, lower)
        if diag:
            np.fill_diagonal(t, 1)
        given = stored(tmp_path, without_other(a, lower), next(kinds))
        arguments = {"side": side, "lower": lower, "trans_a": trans, "diag": diag}
        found = hdgemm.trmm(0.5, given, b, **arguments, options=TILES)
        operands = (b, op(t, trans)) if side else (op(t, trans), b)
        assert_close_in_eps(found, *operands, alpha=0.5)
        x = hdgemm.trsm(0.5, given, b, **arguments, options=TILES)
        assert (x.dtype, x.shape) == (np.dtype(dtype), b.shape)
        product = x @ op(t, trans) if side else op(t, trans) @ x
        size = np.abs(x).max() * np.abs(t).sum(axis=1).max()
        assert np.abs(product - 0.5 * b).max() < 100 * np.finfo(dtype).eps * size


def test_trsm_overwrites_b_where_it_may(tmp_path):
    a, b = (
        np.tril(random_matrix(11, 11, "float64")) + 9 * np.eye(11),
        random_matrix(11, 3, "float64"),
    )
    np.save(tmp_path / "B.npy", b)
    expected = hdgemm.trsm(1.0, a, b, lower=1)
    x = hdgemm.trsm(1.0, a, tmp_path / "B.npy", lower=1, overwrite_b=1)
    assert isinstance(x, np.memmap)
    np.testing.assert_array_equal(np.load(tmp_path / "B.npy"), expected)
    given = np.asfortranarray(b)
    assert hdgemm.trsm(1.0, a, given, lower=1, overwrite_b=1) is given
    np.testing.assert_array_equal(given, expected)
    # As in BLAS, a zero on the diagonal gives Inf.
    assert np.isinf(hdgemm.trsm(1.0, np.zeros((1, 1)), np.ones((1, 1)))).all()


TILE_SHAPES = st.tuples(*[st.integers(1, 9)] * 3)
LAYOUTS = st.sampled_from(["C", "F", "step", "reversed"])
EXTENTS = st.sampled_from([0, 1, 2, 3, 7, 13, 31])


@settings(max_examples=40, deadline=None)
@given(
    n=EXTENTS, k=EXTENTS, lower=st.booleans(), trans=st.booleans(), double=st.booleans(),
    tile=TILE_SHAPES, layout=LAYOUTS, dtype=st.sampled_from(DTYPES), c_order=st.sampled_from("CF"),
)  # fmt: skip
def test_rank_updates_of_any_shape(n, k, lower, trans, double, tile, layout, dtype, c_order):
    routine = "syr2k" if double else "syrk"
    factors = rank_operands(routine, dtype, trans, n, k)
    given_ = [_laid_out(x, layout) for x in factors]
    c = random_matrix(n, n, dtype, 7)
    out = np.array(c, order=c_order)
    getattr(hdgemm, routine)(
        0.5, *given_, -1.0, out, trans=trans, lower=lower, out=out,
        options=hdgemm.Options(tile=tile, devices="host"),
    )  # fmt: skip
    np.testing.assert_array_equal(other(out, lower), other(c, lower))
    assert_updated(out, routine, factors, int(trans), lower, alpha=0.5, beta=-1.0, c=c)


@settings(max_examples=40, deadline=None)
@given(
    m=EXTENTS, n=EXTENTS, lower=st.booleans(), side=st.booleans(), trans=st.sampled_from([0, 1, 2]),
    tile=TILE_SHAPES, layout=LAYOUTS, dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_products_with_triangles_of_any_shape(m, n, lower, side, trans, tile, layout, dtype):
    options = hdgemm.Options(tile=tile, devices="host")
    a = random_matrix(m, m, dtype)
    b = random_matrix(*((n, m) if side else (m, n)), dtype, 1)
    given_ = _laid_out(a, layout), _laid_out(b, layout)
    t, s = triangle(a, lower), whole(a, lower, hermitian=a.dtype.kind == "c")
    found = hdgemm.trmm(2.0, *given_, side=side, lower=lower, trans_a=trans, options=options)
    operands = (b, op(t, trans)) if side else (op(t, trans), b)
    assert_close_in_eps(found, *operands, alpha=2.0)
    found = hdgemm.hemm(2.0, *given_, side=side, lower=lower, options=options)
    assert_close_in_eps(found, *((b, s) if side else (s, b)), alpha=2.0)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 60), width=st.integers(1, 20), lower=st.booleans(),
    chunks=st.tuples(*[st.integers(1, 6)] * 4), trans=st.booleans(),
)  # fmt: skip
def test_blocks_cover_the_triangle_once_and_a_run_has_one_plan(n, width, lower, chunks, trans):
    """Blocks that begin at different places of chunks are other problems to the planner."""
    stored_in = zarr.storage.MemoryStore()
    a = hdgemm.open(zarr.create_array(stored_in, name="a", shape=(n, 7)[:: -1 if trans else 1],
                                      chunks=chunks[:2], dtype="f8"))  # fmt: skip
    c = zarr.create_array(stored_in, name="c", shape=(n, n), chunks=chunks[2:], dtype="f8")
    product = Product.of(a, a, trans_a=int(trans), trans_b=int(not trans), out=c)
    update = triangle_update.TriangleUpdate((product,), lower, hermitian=False)
    cut = update._cut(hdgemm.Options(tile=(3, width, 3), host_memory="40MB"))
    seen = np.zeros((n, n), int)
    for block in itertools.chain.from_iterable(cut.diagonal):
        assert max(seen[block].shape) <= width
        seen[block] += np.tri(len(seen[block]), dtype=int)
    for blocks in cut.rectangles:
        problems = set()
        for rows, cols in blocks:
            seen[(rows, cols) if lower else (cols, rows)] += 1
            problems.add(block_of(product, rows, cols).problem(DeviceSpec()))
        assert len(problems) == 1
    np.testing.assert_array_equal(seen, np.tri(n, dtype=int))


def test_the_plan_of_many_blocks_has_few_parts():
    n, k = 10**9, 1000
    options = hdgemm.Options(host_memory="1GB", devices="host")
    plan = hdgemm.linalg.plan("syrk", (k, n), trans=1, options=options)
    assert sum(part.count for part in plan.parts) > 10**5
    assert len(plan.parts) < 50
    assert plan.flops == n * (n + 1) * k
    assert len(plan.to_dict()["parts"]) == len(plan.parts)


def _laid_out(x, layout):
    if layout == "step":
        wide = np.zeros((2 * x.shape[0], 2 * x.shape[1]), x.dtype)
        wide[::2, ::2] = x
        return wide[::2, ::2]
    if layout == "reversed":
        return x[::-1, ::-1].copy()[::-1, ::-1]
    return np.array(x, order=layout)


def test_wrong_arguments_are_refused(tmp_path):
    a, z = np.ones((4, 3)), np.ones((4, 3), complex)
    cases = {
        "op(A) has 4 rows": lambda: hdgemm.syr2k(1, a, np.ones((5, 3))),
        "c has shape": lambda: hdgemm.syrk(1, a, 1, np.ones((3, 3))),
        "trans 0 or 1": lambda: hdgemm.syrk(1, z, trans=2),
        "trans 0 or 2": lambda: hdgemm.herk(1, z, trans=1),
        "trans must be": lambda: hdgemm.syrk(1, a, trans=3),
        "real alpha": lambda: hdgemm.herk(1j, z),
        "real beta": lambda: hdgemm.her2k(1j, z, z, 1j, np.ones((4, 4), complex)),
        "verify": lambda: hdgemm.syrk(1, a, options=hdgemm.Options(verify=True)),
        "a must be square": lambda: hdgemm.symm(1, a, a.T),
        "must be square": lambda: hdgemm.trmm(1, a, a.T),
        "square": lambda: hdgemm.trsm(1, a, a),
        "it needs 4 rows": lambda: hdgemm.trsm(1, np.eye(4), a.T),
        "out overlaps": lambda: hdgemm.trmm(1, np.eye(4), z, out=z),
        "out overlaps a": lambda: hdgemm.syrk(1, z[:3].real, out=z[:3].real),
        "out has dtype complex128": lambda: hdgemm.syrk(1, a, out=np.zeros((4, 4), complex)),
        "lower must be 0 or 1, got 'U'": lambda: hdgemm.syrk(1, a, lower="U"),
        "side must be 0 or 1, got 'L'": lambda: hdgemm.symm(1, np.eye(4), a, side="L"),
        "diag must be 0 or 1, got 'N'": lambda: hdgemm.trsm(1, np.eye(4), a, diag="N"),
        "lower must be 0 or 1, got 2": lambda: hdgemm.trmm(1, np.eye(4), a, lower=2),
    }
    for message, case in cases.items():
        with pytest.raises(hdgemm.InputError) as caught:
            case()
        assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def interrupt_at(number):
    """Return an observer that raises KeyboardInterrupt at one event, and at later ones."""
    count = itertools.count()

    def observe(_):
        if next(count) >= number:
            raise KeyboardInterrupt

    return observe


def test_a_cancelled_or_failed_call_publishes_nothing(tmp_path):
    a, i, out = tmp_path / "A.npy", tmp_path / "I.npy", tmp_path / "C.npy"
    np.save(a, random_matrix(30, 12, "float64"))
    np.save(i, np.eye(30))
    cancel = threading.Event()
    cancel.set()
    options = hdgemm.Options(tile=(9, 8, 3), devices="host")
    for routine, operands in (("syrk", (a,)), ("trmm", (i, a)), ("trsm", (i, a)), ("symm", (i, a))):
        call = partial(getattr(hdgemm, routine), 1, *operands, out=out, options=options)
        with pytest.raises(hdgemm.CancelledRunError):
            call(cancel=cancel)
        for at in (0, 1):  # an observer that fails ends the call, whichever thread calls it
            with pytest.raises(KeyboardInterrupt):
                call(observer=interrupt_at(at))
    with a.open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(hdgemm.InputError, match="truncated"):
        hdgemm.syrk(1, a, out=out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "I.npy"]


def test_rectangles_beside_the_diagonal_run_on_the_device(monkeypatch):
    a = random_matrix(40, 9, "float64")
    device = RecordingDevice(10**7, name="opencl:0")
    options = hdgemm.Options(devices="opencl:0", tile=(8, 16, 4))
    with hdgemm.Session(options) as session:
        monkeypatch.setattr(session, "device", lambda name, options: device)
        c = hdgemm.syrk(1.0, a, lower=1, session=session)
        session.free_slots()
    assert any(call.kind == "gemm" for call in device.calls)
    assert device.buffers == 0
    np.testing.assert_allclose(c, np.tril(a @ a.T), atol=1e-12)
    device.close()


def test_diagonal_blocks_find_the_memory_of_what_was_computed_before_free(tmp_path, monkeypatch):
    """A stream that was held beside other memory took a fifth more than allowed."""
    streams, slots, found = [], [], []
    make, update, keep = DiagonalBlock._buffer, DiagonalBlock.update, SlotCache.keep

    def buffer(block, key, *how):
        array = make(block, key, *how)
        streams.append(weakref.ref(block._buffers[key]))
        return array

    def kept(cache, kind, slot):
        slots.append(slot)
        keep(cache, kind, slot)

    def updated(block, reads):
        found.append(len(streams))
        assert not any(reference() is not None for reference in streams)
        assert not any(slot.nbytes for slot in slots)
        update(block, reads)

    monkeypatch.setattr(DiagonalBlock, "_buffer", buffer)
    monkeypatch.setattr(DiagonalBlock, "update", updated)
    monkeypatch.setattr(SlotCache, "keep", kept)
    np.save(tmp_path / "A.npy", np.random.default_rng(0).random((40, 30)))
    options = hdgemm.Options(host_memory="20MB", tile=(1, 16, 8), devices="host")
    hdgemm.syr2k(
        1.0, tmp_path / "A.npy", tmp_path / "A.npy", out=tmp_path / "C.npy", options=options
    )
    assert slots
    assert found[-1] > found[0] == 0
