"""Products of integers and of low precision: Python's integers and exact arithmetic as oracle."""

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import hdgemm
from hdgemm.errors import InputError, InputTypeError

TILED = hdgemm.Options(host_memory="20MB", devices="host", tile=(32, 24, 16))
INTEGERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", ">i2", ">i4",
            ">i8", ">u4"]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def integers(dtype, shape, seed=0):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -(10**6)), min(limits.max, 10**6)
    return rng.integers(low, high + 1, shape).astype(dtype)


def exact(a, b):
    return a.astype(object).astype(int).astype(object) @ b.astype(object).astype(int).astype(object)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_products_of_integers_are_pythons(dtype):
    a, b = integers(dtype, (70, 50)), integers(dtype, (50, 60), 1)
    np.save("A.npy", a)
    np.save("B.npy", np.asfortranarray(b))
    for found in (
        hdgemm.matmul("A.npy", "B.npy", options=TILED),
        hdgemm.matmul("A.npy", "B.npy", out="C.npy", options=TILED),
        hdgemm.matmul(a, b, options=TILED),
        hdgemm.matmul(a, b),
        hdgemm.open("A.npy") @ b,
        hdgemm.matmul("A.npy", "B.npy", out="D.npy", options=TILED, checkpoint=True),
    ):
        assert found.dtype == np.int64
        assert (found == exact(a, b)).all()
    assert hdgemm.verify("A.npy", "B.npy", "C.npy").passed
    rounded = hdgemm.matmul("A.npy", "B.npy", dtype="float64", options=TILED)
    assert rounded.dtype == hdgemm.dgemm(1.0, a, b).dtype == np.float64
    assert (rounded == exact(a, b)).all()


@pytest.mark.parametrize("dtype", ["int8", "float16", "int32"])
def test_bytes_moved_are_those_that_are_stored(dtype):
    loads = []
    for each in (dtype, "float64"):
        np.save("A.npy", integers("int8", (64, 48)).astype(each))
        done = hdgemm.multiply("A.npy", "A.npy", trans_b=1, out="C.npy", options=TILED)
        assert done.moved_bytes == done.planned_bytes
        loads.append(done.moved_bytes["load1"])
    assert loads[1] == loads[0] // np.dtype(dtype).itemsize * 8


@pytest.mark.parametrize("k", [1, 8])
def test_the_border_of_exactness(k):
    """2^53 is refused, the largest product below it is exact."""
    a = np.full((3, k), 2**26 if k == 1 else 2**25)
    b = np.full((k, 2), 2**27 if k == 1 else 2**25)
    np.save("A.npy", a)
    with pytest.raises(InputError, match=r"2\^53 = 9007199254740992.*dtype='float64'") as caught:
        hdgemm.matmul("A.npy", b, out="C.npy", options=TILED)
    assert (caught.value.bound, caught.value.limit) == (2**53, 2**53)
    assert not (hdgemm.matmul("A.npy", b, dtype="float64") - 2.0**53).any()
    for change in (np.s_[:], np.s_[-1, -1]):
        less = a.copy()
        less[:] = 2**20
        less[change] = a[0, 0] - 1
        assert (hdgemm.matmul(less, b, options=TILED) == exact(less, b)).all()
    zeros = np.zeros_like(b)
    assert not hdgemm.matmul(np.full((3, k), np.iinfo(np.int64).min), zeros).any()


def test_the_largest_integers():
    lowest = np.full((2, 1), np.iinfo(np.int64).min)
    with pytest.raises(InputError, match=f"{2**63}"):
        hdgemm.matmul(lowest, np.ones((1, 1), np.int8), options=TILED)
    with pytest.raises(InputTypeError, match="uint64"):
        hdgemm.matmul(lowest.astype(np.uint64), lowest.T)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_shapes_and_dtypes(data):
    m, n, k = (data.draw(st.integers(0, 40)) for _ in range(3))
    dtypes = [data.draw(st.sampled_from(INTEGERS)) for _ in range(2)]
    a, b = integers(dtypes[0], (m, k)), integers(dtypes[1], (k, n), 1)
    found = hdgemm.matmul(a, b, options=TILED)
    assert (found.dtype, found.shape) == (np.int64, (m, n))
    assert (found == exact(a, b)).all() or not found.size


def bfloat16():
    return pytest.importorskip("ml_dtypes").bfloat16


@pytest.mark.parametrize("dtype", ["float16", ">f2", "bfloat16"])
def test_low_precision_is_computed_in_float32(dtype):
    dtype = np.dtype(bfloat16() if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((70, 50), (50, 60)))
    np.save("A.npy", a)
    b.tofile("B.bin")
    name = "bfloat16" if dtype.kind == "V" else dtype.str
    stored = f"B.bin::50x60:{name}" if name.isalnum() or name[0] in "<>" else "B.bin"
    wanted = a.astype(float) @ b.astype(float)
    for call in ({}, {"out": "C.npy"}):
        found = hdgemm.matmul("A.npy", stored, options=TILED, **call)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=50 * 50 * np.finfo(np.float32).eps)
    double = hdgemm.matmul("A.npy", stored, dtype="float64", options=TILED)
    np.testing.assert_allclose(double, wanted, atol=50 * 50 * np.finfo(float).eps)
    mixed = hdgemm.matmul("A.npy", b.astype(float), options=TILED)
    assert mixed.dtype == np.float64
    assert hdgemm.matmul(a, integers("int8", (50, 3))).dtype == np.float32


def test_float16_keeps_nan_inf_and_subnormals():
    least = np.finfo(np.float16).smallest_subnormal
    a = np.array([[least, 0], [np.inf, 1], [np.nan, 1], [65504, 65504]], np.float16)
    np.save("A.npy", a)
    b = np.array([[1, 2], [0, 1]], np.float16)
    found = hdgemm.matmul("A.npy", b, options=TILED)
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("place", ["A.h5::a", "A.zarr::a", "A.bin::30x20:int8:F:8"])
@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "uint32"])
def test_every_format_is_read_as_it_is_stored(place, dtype):
    a = integers("bool", (30, 20)).astype(dtype)
    if place.startswith("A.h5"):
        with pytest.importorskip("h5py").File("A.h5", "w") as file:
            file.create_dataset("a", data=a, chunks=(8, 8), compression="gzip")
    elif place.startswith("A.zarr"):
        group = pytest.importorskip("zarr").open_group("A.zarr", mode="w")
        group.create_array("a", data=a, chunks=(8, 8))
    else:
        place = place.replace("int8", dtype)
        with open("A.bin", "wb") as file:  # noqa: PTH123
            file.write(bytes(8) + np.asfortranarray(a).tobytes("F"))
    with hdgemm.open(place) as stored:
        assert stored.dtype == a.dtype
        assert (np.asarray(stored) == a).all()
    assert (hdgemm.matmul(place, a.T, options=TILED) == a.astype(float) @ a.T.astype(float)).all()
    wanted = np.linalg.lstsq(a.astype(float), np.ones(30))[0]
    np.testing.assert_allclose(hdgemm.linalg.lstsq(place, np.ones(30))[0], wanted, atol=1e-4)


def test_what_cannot_be_stored_is_refused():
    a = integers("int8", (20, 20))
    np.save("A.npy", a)
    with pytest.raises(InputTypeError, match="int8"):
        hdgemm.open("A.npy", "r+")
    for arguments in (
        {"out": np.empty((20, 20), np.int32)},
        {"dtype": "int8"},
        {"dtype": "float16"},
    ):
        with pytest.raises(InputTypeError):
            hdgemm.matmul(a, a, **arguments)
    with pytest.raises(InputTypeError, match="of integers"):
        hdgemm.matmul(a.astype(float), a, dtype="int64")
    with pytest.raises(InputTypeError, match="complex128"):
        hdgemm.matmul(1j * a, a, dtype="float64")
    with pytest.raises(InputTypeError, match="out has dtype int64"):
        hdgemm.matmul(a * 1.0, a, out=np.empty((20, 20), np.int64))
    out = np.empty((20, 20))
    assert (hdgemm.matmul(a, a, out=out) == exact(a, a)).all()


def test_bfloat16_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(InputTypeError, match=r"hdgemm\[ml\]"):
        hdgemm.open("A.bin::2x3:bfloat16")


def test_factorisations_convert(tmp_path):
    a = integers("int8", (40, 40))
    np.save("A.npy", a)
    np.save("H.npy", a.astype(np.float16))
    b = np.ones(40)
    np.testing.assert_allclose(hdgemm.linalg.solve("A.npy", b), np.linalg.solve(a, b), atol=1e-10)
    assert hdgemm.linalg.lu_factor("H.npy")[0].dtype == np.float32
    stored = hdgemm.open("A.npy")
    assert (stored * 3 == a * 3.0).all()
    np.testing.assert_allclose(np.linalg.solve(stored, b), np.linalg.solve(a, b), atol=1e-10)


@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16"])
def test_a_plan_of_extents_moves_the_stored_bytes(tmp_path, dtype):
    kind = np.dtype(bfloat16() if dtype == "bfloat16" else dtype)
    np.save(tmp_path / "A.npy", np.zeros((300, 200), kind))
    np.save(tmp_path / "B.npy", np.zeros((200, 400), kind))
    options = hdgemm.Options(host_memory="600kB", devices="host", threads=1)
    (stored,) = hdgemm.plan(
        tmp_path / "A.npy", tmp_path / "B.npy", out=tmp_path / "C.npy", options=options
    )
    planned = hdgemm.plan_gemm(300, 400, 200, dtype=dtype, options=options)
    assert planned.problem == stored.problem
    assert planned.planned_bytes == stored.planned_bytes
    # In an array of memory they are converted, too.
    in_memory = hdgemm.plan_gemm(30, 40, 20, dtype=dtype)
    assert in_memory.problem.a.path == "staged"
