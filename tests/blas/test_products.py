"""dgemm and matmul against the reference, through the pipeline, whatever the tiles and layouts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy.linalg import blas

from hdgemm import HdgemmError, InputError, Options, dgemm, matmul, multiply
from tests.reference import DTYPES, assert_close_in_eps, op, reference_gemm

EXTENT = st.sampled_from([0, 1, 2, 3, 5, 7, 11, 13, 17])
TILE = st.tuples(*[st.integers(1, 5)] * 3)
STRATEGY = st.sampled_from(["initial", "double-buffering", "data-reuse", "data-placement"])
FACTOR = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1.7])
LAYOUT = st.sampled_from(["C", "F", "strided", "reversed", "swapped", "offset", "file", "file-F"])


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def laid_out(x, layout, folder, name):
    """Store x in one of the ways that a caller may."""
    if layout in ("C", "F"):
        return np.array(x, order=layout)
    if layout == "swapped":
        return x.astype(x.dtype.newbyteorder(">"))
    if layout.startswith("file"):
        path = folder / f"{name}.npy"
        np.save(path, np.array(x, order="F" if layout == "file-F" else "C"))
        return path
    rows, cols = x.shape
    if layout == "offset":
        raw = np.zeros(x.nbytes + 3, np.uint8)[3:].view(x.dtype)
        view = raw.reshape(x.shape)
    else:
        store = np.full((2 * rows, 3 * cols), np.nan, x.dtype)
        view = store[::2, 1::3] if layout == "strided" else store[rows:, :cols][::-1, ::-1]
    view[...] = x
    return view


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("operands")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    extents=st.tuples(EXTENT, EXTENT, EXTENT),
    tile=TILE,
    strategy=STRATEGY,
    trans=st.tuples(*[st.sampled_from([0, 1, 2])] * 2),
    layouts=st.tuples(*[LAYOUT] * 3),
    factors=st.tuples(FACTOR, FACTOR),
    dtype=st.sampled_from(DTYPES),
    out=st.sampled_from(["new", "c", "array", "F", "strided", "path"]),
    seed=st.integers(0, 2**32),
)
def test_dgemm_is_the_reference(
    folder, extents, tile, strategy, trans, layouts, factors, dtype, out, seed
):
    (m, n, k), (alpha, beta) = extents, factors
    rng = np.random.default_rng(seed)
    a, b, c = (random(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    operands = [
        laid_out(x, layout, folder, name)
        for x, layout, name in zip(
            (op(a, trans[0]), op(b, trans[1]), c), layouts, "abc", strict=True
        )
    ]
    kept = [x if isinstance(x, np.ndarray) else np.load(x) for x in operands]
    before = [x.copy() for x in kept]
    target = {
        "new": lambda: None,
        "c": lambda: operands[2],
        "array": lambda: np.full((m, n), np.nan, dtype),
        "F": lambda: np.full((m, n), np.nan, dtype, order="F"),
        "strided": lambda: np.full((m, 2 * n), np.nan, dtype)[::-1, ::2],
        "path": lambda: folder / "out.npy",
    }[out]()
    result = dgemm(
        alpha, operands[0], operands[1], beta, operands[2], *trans, out=target,
        options=Options(devices="host", tile=tile, strategy=strategy),
    )  # fmt: skip
    assert_close_in_eps(np.array(result, dtype), a, b, alpha=alpha, beta=beta, c=c)
    if isinstance(target, np.ndarray):
        assert result is target
    unchanged = zip(kept, before, range(3), strict=True)
    for now, then, number in unchanged:
        if not (number == 2 and out == "c"):
            np.testing.assert_array_equal(now, then)


@settings(max_examples=60, deadline=None)
@given(
    extents=st.tuples(EXTENT, EXTENT, EXTENT),
    tile=TILE,
    dtypes=st.tuples(*[st.sampled_from([*DTYPES, ">f8", ">c8"])] * 2),
    seed=st.integers(0, 2**32),
)
def test_mixed_dtypes_convert_on_the_way(extents, tile, dtypes, seed):
    m, n, k = extents
    rng = np.random.default_rng(seed)
    a, b = random(rng, (m, k), dtypes[0]), random(rng, (k, n), dtypes[1])
    result = matmul(a, b, options=Options(devices="host", tile=tile))
    wide = np.result_type(a, b)
    assert result.dtype == wide
    assert_close_in_eps(result, a.astype(wide), b.astype(wide))


class TestScipysArguments:
    """The same arguments give what scipy.linalg.blas gives."""

    @pytest.fixture
    def abc(self):
        rng = np.random.default_rng(1)
        return tuple(rng.standard_normal(shape) for shape in ((4, 3), (3, 5), (4, 5)))

    @pytest.mark.parametrize("options", [None, Options(tile=(2, 2, 2), devices="host")])
    def test_by_position_and_by_name(self, abc, options):
        a, b, c = abc
        calls = [
            ((1.5, a, b), {}),
            ((1.5, a, b, 0.5, c), {}),
            ((1.5, a.T, b, 0.5, c, True), {}),
            ((1.5, a.T, b.T, 0.5, c, 1, 2, 0), {}),
            ((1.5,), {"a": a, "b": b.T, "trans_b": True}),
            ((), {"alpha": 2, "a": a, "b": b, "beta": 1, "c": c, "overwrite_c": False}),
            ((1.5, a, b, 0.5), {}),
            ((1.5, a, b), {"beta": 3.0, "c": None}),
        ]
        for args, keywords in calls:
            expected = blas.dgemm(*args, **keywords)
            found = dgemm(*args, **keywords, options=options)
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)

    def test_conjugation(self, abc):
        a, b, c = (x + 1j * x[::-1] for x in abc)
        expected = blas.zgemm(1j, a.conj().T.copy(), b, 0.5, c, trans_a=2)
        np.testing.assert_allclose(dgemm(1j, a.conj().T.copy(), b, 0.5, c, trans_a=2), expected)

    def test_c_is_overwritten_where_that_is_allowed(self, abc):
        a, b, c = abc
        expected = a @ b + 2 * c
        for order in "CF":
            mine = np.array(c, order=order)
            assert dgemm(1.0, a, b, 2.0, mine, overwrite_c=True) is mine
            np.testing.assert_allclose(mine, expected)
        kept = c.copy()
        np.testing.assert_allclose(dgemm(1.0, a, b, 2.0, c), expected)
        np.testing.assert_array_equal(c, kept)

    def test_a_c_that_cannot_hold_the_result_is_left_alone(self, abc):
        a, b, c = abc
        single = c.astype("float32")
        result = dgemm(1.0, a, b, 2.0, single, overwrite_c=True)
        assert result.dtype == np.float64
        np.testing.assert_array_equal(single, c.astype("float32"))
        frozen = c.copy()
        frozen.flags.writeable = False
        np.testing.assert_allclose(dgemm(1.0, a, b, 2.0, frozen, overwrite_c=True), a @ b + 2 * c)


def test_a_long_sum_and_odd_extents():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((37, 1009)), rng.standard_normal((1009, 53))
    for tile in ((37, 53, 100), (10, 10, 1009), (13, 17, 31)):
        result = matmul(a, b, options=Options(devices="host", tile=tile))
        assert_close_in_eps(result, a, b)


def test_the_same_call_gives_the_same_bits():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((50, 70)), rng.standard_normal((70, 60))
    options = Options(devices="host", tile=(16, 16, 16))
    first, second = (matmul(a, b, options=options) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_verified_products(tmp_path):
    rng = np.random.default_rng(4)
    a, b, c = rng.standard_normal((40, 30)), rng.standard_normal((30, 20)), np.ones((40, 20))
    options = Options(devices="host", tile=(16, 16, 16), verify=True)
    assert_close_in_eps(matmul(a, b, options=options), a, b)
    result = dgemm(2.0, a, b, 0.5, c, out=tmp_path / "c.npy", options=options)
    assert_close_in_eps(np.array(result), a, b, alpha=2.0, beta=0.5, c=c)
    seen = []
    report = multiply(a, b, out=tmp_path / "d.npy", options=options, progress=seen.append)
    assert report.verification is not None
    assert report.verification["passed"]
    assert seen[-1].phase == "verifying"
    assert report.phases["verifying"] > 0
    found = report.to_dict()["verification"]
    assert found["summary"].startswith("C is the product: worst deviation ")
    plain = multiply(a, b, out=tmp_path / "e.npy", options=Options(devices="host"))
    assert plain.verification is None
    assert plain.to_dict()["verification"] is None


def test_multiply_reports_the_run(tmp_path):
    a, b = np.ones((30, 20)), np.ones((20, 10))
    np.save(tmp_path / "a.npy", a)
    report = multiply(
        tmp_path / "a.npy",
        b,
        out=tmp_path / "c.npy",
        options=Options(devices="host", tile=(8, 8, 8)),
    )
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)
    assert report.moved_bytes == report.planned_bytes
    assert report.moved_bytes["store2"] == 30 * 10 * 8


def test_an_old_c_without_a_number_is_not_read_for_beta_zero(tmp_path):
    np.save(tmp_path / "c.npy", np.full((4, 4), np.nan))
    result = dgemm(1.0, np.eye(4), np.eye(4), 0.0, tmp_path / "c.npy", out=tmp_path / "out.npy")
    np.testing.assert_array_equal(result, np.eye(4))


def test_reference_blas_itself_agrees_with_the_tests_reference():
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(shape) for shape in ((9, 8), (8, 7), (9, 7)))
    np.testing.assert_allclose(
        reference_gemm(1.5, a, b, -0.5, c), blas.dgemm(1.5, a, b, -0.5, c), rtol=1e-13
    )
    with pytest.raises(AssertionError, match="worst error"):
        assert_close_in_eps(blas.dgemm(1.5, a, b) + 1e-12, a, b, alpha=1.5)
    with pytest.raises(InputError):
        dgemm(1.0, a, a)


def test_corners_of_a_matrix_beyond_4_gib(tmp_path):
    # 2^31 elements and 12 GiB lie between the two corners; the file has holes and takes no space.
    path, n = tmp_path / "large.npy", 40_000
    whole = np.lib.format.open_memmap(path, "w+", "float64", (n, n))
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((5, 7)), rng.standard_normal((7, 6))
    whole[-5:, -7:] = a
    whole[:7, :6] = b
    matmul(whole[-5:, -7:], whole[:7, :6], whole[n // 2 : n // 2 + 5, -6:])
    np.testing.assert_allclose(whole[n // 2 : n // 2 + 5, -6:], a @ b, rtol=1e-13)
    with pytest.raises(InputError, match="overlap"):
        matmul(whole[-5:, -7:], whole[:7, :6], whole[-5:, -6:])
    assert path.stat().st_blocks * 512 < 10**7


@pytest.mark.parametrize("how", ["out", "overwrite", "view", "memmap", "path"])
def test_a_c_that_was_overwritten_is_verified_too(tmp_path, how):
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(shape) for shape in ((40, 30), (30, 20), (40, 20)))
    expected, path = 2.0 * (a @ b) + 0.5 * c, tmp_path / "c.npy"
    np.save(path, c)
    mapped = np.load(path, mmap_mode="r+")
    options = Options(devices="host", tile=(16, 16, 16), verify=True)
    keywords = {
        "out": {"c": c, "out": c},
        "overwrite": {"c": c, "overwrite_c": True},
        "view": {"c": c, "out": c[:, :]},
        "memmap": {"c": mapped, "out": mapped},
        "path": {"c": path, "out": str(path)},
    }[how]
    result = dgemm(2.0, a, b, 0.5, **keywords, options=options)
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_a_product_that_fails_its_check_is_not_published(tmp_path, monkeypatch):
    def compute_wrongly(product, *_args, **_keywords):
        product.c.matrix.write(0, 0, np.ones(product.c.matrix.shape))

    monkeypatch.setattr("hdgemm.call.compute.run_product", compute_wrongly)
    a = np.random.default_rng(8).standard_normal((30, 30))
    with pytest.raises(HdgemmError, match="failed its check: C is not the product: 30 rows fail"):
        matmul(a, a, tmp_path / "c.npy", options=Options(verify=True))
    assert list(tmp_path.iterdir()) == []
