"""Products of small integers: exact sums in float32 that are added in float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.matrices.conversion import exact_terms
from hdgemm.pipeline.devices import widened_gemm
from hdgemm.pipeline.devices.host_blas import Gemm, routine_for
from hdgemm.pipeline.devices.widened_gemm import WidenedGemm
from hdgemm.pipeline.plan import DeviceSpec, from_json
from hdgemm.pipeline.validate import PlanError, validate
from hdgemm.run.checkpoint import plan_differences

HOST = hdgemm.Options(devices="host", host_memory="40MB")
TILED = replace(HOST, tile=(24, 40, 300))
SMALL = ["int8", "uint8", "bool"]


def integers(dtype, shape, seed):
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def exact(a, b):
    return a.astype(np.int64) @ b.astype(np.int64)


def planned(a, b, options=HOST, **keywords):
    return hdgemm.plan(a, b, options=options, **keywords)[0].problem


@pytest.mark.parametrize(
    ("a", "b", "terms"),
    [
        ("int8", "int8", 1024),
        ("uint8", "uint8", 258),
        ("int8", "uint8", 514),
        ("bool", "bool", 1 << 24),
        ("bool", ">i2", 512),
        ("int8", "int16", 0),
        ("uint16", "bool", 256),
        ("int32", "bool", 0),
        ("int8", "float32", 0),
    ],
)
def test_terms_whose_sums_are_exact(a, b, terms):
    assert exact_terms(np.dtype(a), np.dtype(b)) == terms


@pytest.mark.parametrize("options", [HOST, TILED], ids=["free", "tiled"])
@pytest.mark.parametrize("k", [1023, 1024, 1025, 1026, 2049])
def test_the_border_of_int8(k, options):
    a, b = np.full((30, k), -128, np.int8), np.full((k, 50), -128, np.int8)
    a[:, 0], b[0] = 1, 1  # with k = 1025 the sum is 2^24 + 1, which float32 does not have
    assert planned(a, b, options).exact_terms == 1024
    found = hdgemm.matmul(a, b, options=options)
    assert found.dtype == np.int64
    assert (found == 1 + (k - 1) * 2**14).all()


@pytest.mark.parametrize("options", [HOST, TILED], ids=["free", "tiled"])
@pytest.mark.parametrize("k", [257, 258, 259, 517, 1000])
def test_the_border_of_uint8(k, options):
    a, b = np.full((30, k), 255, np.uint8), np.full((k, 50), 255, np.uint8)
    assert (hdgemm.matmul(a, b, options=options) == k * 255 * 255).all()


def test_a_sum_of_more_terms_would_be_wrong(monkeypatch):
    """The border's test can fail."""
    monkeypatch.setattr("hdgemm.matrices.conversion._EXACT_SINGLE", 1 << 26)
    a, b = np.full((30, 1025), -128, np.int8), np.full((1025, 50), -128, np.int8)
    a[:, 0], b[0] = 1, 1
    assert (hdgemm.matmul(a, b, options=HOST) != 1 + 2**24).all()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_shapes_tiles_and_orders(data):
    m, n = (data.draw(st.integers(1, 60)) for _ in "mn")
    k = data.draw(st.integers(1, 1200))
    tile = tuple(data.draw(st.integers(most // 8, most)) for most in (40, 40, 700))
    of_a, of_b = (data.draw(st.sampled_from(SMALL)) for _ in "ab")
    a, b = integers(of_a, (m, k), m + n), integers(of_b, (k, n), k)
    trans_a, trans_b = data.draw(st.booleans()), data.draw(st.booleans())
    options = replace(HOST, tile=tile)
    found = hdgemm.matmul(
        a.T.copy().T if trans_a else a, b.T.copy().T if trans_b else b, options=options
    )
    assert (found == exact(a, b)).all()


@pytest.mark.parametrize("drawn", [False, True])
def test_rectangles_of_both_kinds_of_product(drawn, monkeypatch):
    monkeypatch.setattr("hdgemm.pipeline.devices.host._WORTH_DRAWING", 0 if drawn else 1 << 40)
    monkeypatch.setattr(widened_gemm, "_ROWS", 16)
    monkeypatch.setattr(widened_gemm, "_COLS", 32)
    a, b = integers("uint8", (130, 600), 0), integers("uint8", (600, 170), 1)
    assert (hdgemm.matmul(a, b, options=HOST) == exact(a, b)).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.5])
def test_beta_of_the_kernel(beta):
    a, b = (integers("uint8", (40, 40), each).astype(np.float32) for each in b"ab")
    c = np.full((40, 40), np.nan if beta == 0 else 3.0)
    scalars = np.array([1, 0], np.float32)
    factors = Gemm(
        routine_for(a.dtype), scalars, False, False, 40, 40, 40,
        a.ctypes.data, 40, b.ctypes.data, 40, 0, 40,
    )  # fmt: skip
    WidenedGemm(factors, c, beta, 16).run()
    assert (c == exact(a, b) + (0 if beta == 0 else 3 * beta)).all()


def test_c_is_scaled_and_added():
    a, b = integers("int8", (90, 1500), 0), integers("uint8", (1500, 70), 1)
    c = np.arange(90.0 * 70).reshape(90, 70)
    assert planned(a, b, c=c, beta=-2.0).exact_terms == 514
    expected = exact(a, b) - 2 * c
    for options in (HOST, TILED):
        out = c.copy()
        hdgemm.multiply(a, b, c=out, beta=-2.0, out=out, options=options)
        assert (out == expected).all()


def test_other_products_are_multiplied_in_their_own_precision():
    a, b = integers("int8", (90, 50), 0), integers("int8", (50, 70), 1)
    assert planned(a, b, alpha=2.0).exact_terms == 0
    assert planned(a.astype(np.int16), b).exact_terms == 0
    assert planned(a.astype(np.float16), b).exact_terms == 0
    assert planned(a, b, replace(HOST, verify="tiles")).exact_terms == 0
    assert (hdgemm.matmul(a, b, options=replace(HOST, verify="tiles")) == exact(a, b)).all()


def test_a_plan_says_how_its_products_are_summed():
    a, b = integers("int8", (90, 1500), 0), integers("int8", (1500, 70), 1)
    plan = hdgemm.plan(a, b, options=TILED)[0]
    assert "sums of 1024 exact products in float32" in str(plan)
    assert from_json(plan.to_json()) == plan
    assert plan.a_slots.nbytes == 24 * 300 * 4
    assert plan.c_slots.nbytes == 24 * 40 * 8
    with pytest.raises(PlanError, match="cannot add sums of 1024 products"):
        validate(replace(plan, device=DeviceSpec("host")))
    given = hdgemm.plan_gemm(90, 70, 1500, "int8", options=TILED)
    assert given.problem.exact_terms == 1024


def test_a_durable_run_goes_on_with_the_plan_of_an_earlier_version():
    a, b = integers("int8", (90, 1500), 0), integers("int8", (1500, 70), 1)
    plan = hdgemm.plan(a, b, options=TILED)[0]
    before = replace(plan, problem=replace(plan.problem, exact_terms=0))
    assert plan_differences(before, plan.problem, TILED, plan.device) == []
    [refused] = plan_differences(plan, before.problem, TILED, plan.device)
    assert "1024" in refused


def test_files_and_the_largest_entries_of_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    e = integers("int8", (200, 1300), 0)
    np.save("E.npy", e)
    expected = exact(e, e.T)
    found = hdgemm.matmul("E.npy", hdgemm.open("E.npy").T, out="C.npy", options=TILED)
    assert (found == expected).all()
    values, indices = hdgemm.topk("E.npy", "E.npy", 5, trans_b=True, options=HOST)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :5]
    assert (indices == order).all()
    assert (values == np.take_along_axis(expected, order, axis=1)).all()
    for rows, cols, tile in hdgemm.stream("E.npy", e.T, options=TILED):
        assert (tile == expected[rows, cols]).all()
