"""The contract on every OpenCL device here, as one that shares memory and as one that does not."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm import Options
from hdgemm.blas.products import multiply
from hdgemm.errors import DeviceError, DeviceUnavailableError, DoesNotFitError
from hdgemm.pipeline.devices.opencl import list_devices, open_device, platforms
from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShapes
from hdgemm.pipeline.devices.opencl.names import locate
from hdgemm.pipeline.devices.opencl.tuning_cache import TuningCache
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.registry import parts_of
from tests.pipeline.devices.device_contract import DeviceContract, random
from tests.reference import DTYPES, assert_close_in_eps

cl = pytest.importorskip("pyopencl")
LISTED = list_devices()


def opened(platform, **options):
    for info in LISTED:
        if platform in info.description and info.name != "opencl":
            if not info.usable:
                pytest.skip(f"{info.name}: {info.note}")
            return open_device(info.name, **options)
    return pytest.skip(f"no OpenCL platform named {platform!r} is installed")


class OpenCLContract(DeviceContract):
    platform = ""
    options: ClassVar[dict[str, object]] = {}

    # One device for all tests of a class: each one would load its kernels anew.
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        device = opened(cls.platform, **cls.options)
        yield device
        device.close()


class TestIntel(OpenCLContract):
    platform = "Intel"


class TestIntelAsDiscrete(OpenCLContract):
    platform = "Intel"
    options: ClassVar = {"zero_copy": False}


class TestPocl(OpenCLContract):
    platform = "Portable"


class TestPoclAsDiscrete(OpenCLContract):
    platform = "Portable"
    options: ClassVar = {"zero_copy": False}


@pytest.mark.parametrize("platform", ["Intel", "Portable"])
def test_a_class_of_products_has_a_kernel_of_its_own_on_the_same_slots(platform, monkeypatch):
    with closing(opened(platform)) as usual:
        facts, _ = locate(usual.spec.name)
    square = TuningCache().shapes(facts, np.dtype("float64")).square
    flat = replace(square, walk_m=1, walk_n=2, cache_k=128)
    shapes_of_both = KernelShapes(square, "tuned", 1.0, {"rank-k": flat})
    monkeypatch.setattr(TuningCache, "shapes", lambda *_: shapes_of_both)
    rng, shapes = np.random.default_rng(5), []
    with closing(opened(platform)) as device:
        built = device._programs.gemm
        monkeypatch.setattr(
            device._programs,
            "gemm",
            lambda dtype, shape: shapes.append(shape) or built(dtype, shape),
        )
        for m, n, k in ((150, 150, 10), (150, 150, 150)):
            a, b = random(rng, (m, k), "float64"), random(rng, (k, n), "float64")
            blocks, done = zip(*(tile(device, x, y) for x, y in (("A", a), ("B", b))), strict=True)
            c, cleared = tile(device, "C", np.full((m, n), np.nan))
            out = np.empty((m, n))
            product = device.gemm(1.0, *blocks, 0.0, c, (*done, cleared))
            device.download(c, out, [product]).wait()
            assert_close_in_eps(out, a, b)
            for block in (*blocks, c):
                device.free(block.tile.buffer)
    assert shapes == [flat, square]


@pytest.fixture(scope="module", params=["Intel", "Portable"])
def any_device(request):
    device = opened(request.param)
    yield device
    device.close()


def tile(device, operand, values, *, trans=False, at=(0, 0)):
    """A tile with NaN around `values`, which start at `at`."""
    rows, cols = (a + b for a, b in zip(values.shape, at, strict=True))
    whole = np.full((rows, cols), np.nan, values.dtype)
    whole[at[0] :, at[1] :] = values
    nbytes = device.slot_bytes(operand, rows, cols, values.dtype)
    made = Tile(operand, device.allocate(nbytes), rows, cols, cols, values.dtype, trans)
    done = device.upload(whole, Block(made, 0, 0, rows, cols), [])
    return Block(made, *at, *values.shape), done


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_blocks_of_any_extent_and_scalars_of_any_kind(any_device, data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    m, n, k = (data.draw(st.sampled_from([1, 2, 7, 8, 9, 31, 53, 97])) for _ in range(3))
    trans_a, trans_b = data.draw(st.booleans()), data.draw(st.booleans())
    scalars = st.sampled_from([0.0, 1.0, -2.5, 0.5 - 1.5j] if dtype.kind == "c" else [0.0, 1, -2.5])
    alpha, beta = data.draw(scalars), data.draw(scalars)
    k0, c0 = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b, c = (random(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    a_block, a_done = (
        tile(any_device, "A", a.T.copy(), trans=True, at=(k0, 0))
        if trans_a
        else tile(any_device, "A", a, at=(0, k0))
    )
    b_block, b_done = (
        tile(any_device, "B", b.T.copy(), trans=True, at=(0, k0))
        if trans_b
        else tile(any_device, "B", b, at=(k0, 0))
    )
    c_block, c_done = tile(any_device, "C", c, at=(c0, c0))
    done = any_device.gemm(alpha, a_block, b_block, beta, c_block, [a_done, b_done, c_done])
    got = np.zeros((m + c0, n + c0), dtype)
    whole = Block(c_block.tile, 0, 0, m + c0, n + c0)
    any_device.download(whole, got, [done]).wait()
    assert_close_in_eps(got[c0:, c0:], a, b, alpha=alpha, beta=beta, c=c, units=2.0)
    assert np.isnan(got[:c0]).all()
    assert np.isnan(got[:, :c0]).all()
    for block in (a_block, b_block, c_block):
        any_device.free(block.tile.buffer)


THIN = [(3, 3, 4099), (1, 1, 4096), (4, 12, 4500), (2, 67, 4100), (67, 1, 4100)]


@pytest.mark.parametrize(
    ("dtype", "extents", "trans"),
    # Each dtype and each extents with both orders.
    [(x, y, (i + j) % 2 == 1) for i, x in enumerate(DTYPES) for j, y in enumerate(THIN)],
)
def test_long_thin_tiles_in_slots_full_of_nan(any_device, dtype, extents, trans):
    """Nothing writes the padding of panels, and nothing of it reaches C."""
    m, n, k = extents
    rng, blocks, loaded, taken = np.random.default_rng(m), [], [], []
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    for operand, values in (("A", a), ("B", b)):
        stored = values.T.copy() if trans else values
        rows, cols = stored.shape
        nbytes = any_device.slot_bytes(operand, rows, cols, stored.dtype)
        slot = any_device.allocate(nbytes)
        count = nbytes // stored.itemsize
        nan = Tile("C", slot, 1, count, count, stored.dtype)
        cleared = any_device.upload(
            np.full((1, count), np.nan, dtype), Block(nan, 0, 0, 1, count), []
        )
        made = Tile(operand, slot, rows, cols, cols, stored.dtype, trans)
        block = Block(made, 0, 0, rows, cols)
        loaded.append(any_device.upload(stored, block, [cleared]))
        blocks.append(block)
        taken.append(stored)
    c, done = tile(any_device, "C", np.full((m, n), np.nan, dtype))
    done = any_device.gemm(1.0, *blocks, 0.0, c, [*loaded, done])
    # The second half of k once more, by blocks that start within the panels.
    half = k // 2
    parts = [
        Block(x.tile, half, 0, k - half, x.cols)
        if (x.tile.operand == "B") != trans
        else Block(x.tile, 0, half, x.rows, k - half)
        for x in blocks
    ]
    done = any_device.gemm(-1.0, *parts, 1.0, c, [done])
    got = np.empty((m, n), dtype)
    any_device.download(c, got, [done]).wait()
    assert_close_in_eps(got, a[:, :half], b[:half], units=4.0)
    for block in (*blocks, c):
        any_device.free(block.tile.buffer)


def test_alpha_zero_reads_neither_operand(any_device):
    nan = np.full((9, 9), np.nan)
    a, a_done = tile(any_device, "A", nan)
    b, b_done = tile(any_device, "B", nan)
    c, c_done = tile(any_device, "C", np.full((9, 9), 3.0))
    done = any_device.gemm(0.0, a, b, 2.0, c, [a_done, b_done, c_done])
    got = np.empty((9, 9))
    any_device.download(c, got, [done]).wait()
    assert (got == 6.0).all()


def test_strided_and_unaligned_application_memory_is_uploaded(any_device):
    values = np.arange(40.0).reshape(8, 5)
    for source in (np.zeros((8, 9))[:, 2:7], np.frombuffer(bytearray(8 * 40 + 3), "u1")[3:]):
        view = source if source.dtype == np.float64 else source.view(np.float64).reshape(8, 5)
        view[...] = values
        made = Tile("C", any_device.allocate(320), 8, 5, 5, np.dtype("float64"))
        a = Tile("A", any_device.allocate(
            any_device.slot_bytes("A", 8, 5, made.dtype)), 8, 5, 5, made.dtype)  # fmt: skip
        eye, eye_done = tile(any_device, "B", np.eye(5))
        loaded = any_device.upload(view, Block(a, 0, 0, 8, 5), [])
        c = Block(made, 0, 0, 8, 5)
        done = any_device.gemm(1.0, Block(a, 0, 0, 8, 5), eye, 0.0, c, [loaded, eye_done])
        got = np.empty((8, 5))
        any_device.download(c, got, [done]).wait()
        np.testing.assert_array_equal(got, values)


def test_a_large_upload_passes_through_scratch_memory_in_pieces(monkeypatch):
    from hdgemm.pipeline.devices.opencl import _transfers as transfers

    monkeypatch.setattr(transfers, "SCRATCH_BYTES", 8 * 100)
    device = opened("Portable", zero_copy=False)
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((33, 130)), rng.standard_normal((130, 21))
    a_block, a_done = tile(device, "A", a)
    b_block, b_done = tile(device, "B", b)
    c_block, c_done = tile(device, "C", np.zeros((33, 21)))
    done = device.gemm(1.0, a_block, b_block, 0.0, c_block, [a_done, b_done, c_done])
    got = np.empty((33, 21))
    device.download(c_block, got, [done]).wait()
    device.close()
    assert_close_in_eps(got, a, b)


def test_intervals_lie_on_the_hosts_clock_in_order(any_device):
    import time

    before = time.perf_counter()
    a, a_done = tile(any_device, "A", np.ones((200, 200)))
    b, b_done = tile(any_device, "B", np.ones((200, 200)))
    c, c_done = tile(any_device, "C", np.ones((200, 200)))
    done = any_device.gemm(1.0, a, b, 0.0, c, [a_done, b_done, c_done])
    done.wait()
    after = time.perf_counter()
    loads = [each.interval() for each in (a_done, b_done, c_done)]
    start, end = done.interval()
    # The clocks were brought together to within the time of one empty command.
    slack = 2e-3
    assert all(before - slack <= begun <= ended <= start + slack for begun, ended in loads)
    assert start <= end <= after + slack


def test_too_large_a_slot_is_refused_with_the_numbers():
    device = opened("Portable", memory_bytes=1000)
    held = device.allocate(600)
    with pytest.raises(DoesNotFitError, match="600 of 1,000 held") as caught:
        device.allocate(500)
    assert (caught.value.requested, caught.value.available) == (500, 400)
    device.free(held)
    device.free(device.allocate(1000))
    device.close()


def test_blocks_that_do_not_fit_together_are_refused(any_device):
    a, _ = tile(any_device, "A", np.ones((4, 5)))
    b, _ = tile(any_device, "B", np.ones((6, 4)))
    c, _ = tile(any_device, "C", np.ones((4, 4)))
    with pytest.raises(DeviceError, match="A 4×5, B 6×4"):
        any_device.gemm(1.0, a, b, 0.0, c, [])
    with pytest.raises(DeviceError, match="download"):
        any_device.download(c, np.zeros((3, 3)), [])
    with pytest.raises(DeviceError, match="upload"):
        any_device.upload(np.zeros((3, 3)), c, [])


def test_a_block_between_panels_is_refused(any_device):
    a, _ = tile(any_device, "A", np.ones((20, 5)))
    b, _ = tile(any_device, "B", np.ones((5, 4)))
    c, _ = tile(any_device, "C", np.ones((19, 4)))
    inside = Block(a.tile, 1, 0, 19, 5)
    with pytest.raises(DeviceError, match="no multiple of the panels' width"):
        any_device.gemm(1.0, inside, b, 0.0, c, [])


@pytest.mark.parametrize("platform", ["Intel", "Portable"])
def test_what_follows_a_failure_fails_with_its_reason(platform):
    class Failed:
        def wait(self):
            raise DeviceError("the link is down", code=7)

    with closing(opened(platform)) as device:
        (a, a_done), (b, b_done), (c, c_done) = (tile(device, x, np.ones((9, 9))) for x in "ABC")
        with pytest.raises(DeviceError, match="the link is down") as caught:
            device.gemm(1.0, a, b, 0.0, c, [a_done, b_done, c_done, Failed()])
        assert caught.value.code == 7
        device.synchronize()
        # The device goes on.
        done = device.gemm(1.0, a, b, 0.0, c, [a_done, b_done, c_done])
        got = np.empty((9, 9))
        device.download(c, got, [done]).wait()
        assert (got == 9).all()


def test_parts_of_a_device_multiply_at_once():
    whole = opened("Intel")
    name = whole.spec.name
    whole.close()
    names = parts_of(f"{name}/2")
    assert names == (f"{name}/2:0", f"{name}/2:1")
    try:
        halves = [open_device(each) for each in names]
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((40, 30)), rng.standard_normal((30, 20))
    pending = []
    for half in halves:
        a_block, a_done = tile(half, "A", a)
        b_block, b_done = tile(half, "B", b)
        c_block, c_done = tile(half, "C", np.zeros((40, 20)))
        done = half.gemm(1.0, a_block, b_block, 0.0, c_block, [a_done, b_done, c_done])
        got = np.empty((40, 20))
        pending.append((got, half.download(c_block, got, [done])))
    for got, done in pending:
        done.wait()
        assert_close_in_eps(got, a, b)
    for half in halves:
        half.close()


@pytest.mark.parametrize(
    "name",
    ["opencl:99", "opencl:x", "opencl:0/2:2", "opencl:0/2", "cl:0", "opencl:0/0:0", "opencl:-1",
     "opencl:0/99999999:0", "opencl:", "", "opencl:0 "],
)  # fmt: skip
def test_a_name_that_is_not_there_says_so(name):
    with pytest.raises(DeviceUnavailableError, match=r"there is no"):
        open_device(name)


def test_parts_of_any_text_are_few_names():
    assert parts_of("opencl:1/3") == ("opencl:1/3:0", "opencl:1/3:1", "opencl:1/3:2")
    for text in ("host", "opencl:0", "opencl:0/0", "opencl:0/999999999", "opencl:0/2:1"):
        assert parts_of(text) == (text,)


def test_a_device_with_fewer_units_than_parts_says_so():
    with pytest.raises(DeviceUnavailableError, match="too few for opencl:0/9999:0"):
        open_device("opencl:0/9999:0")


class FakePlatform:
    name = "Broken Platform"

    def get_devices(self):
        raise cl.RuntimeError("clGetDeviceIDs failed: OUT_OF_HOST_MEMORY")


@pytest.mark.parametrize(
    ("module", "name", "value", "said"),
    [
        (platforms.importlib.util, "find_spec", lambda _: None, "PyOpenCL is not installed: pip"),
        (cl, "get_platforms", list, "this machine has 0 OpenCL device"),
        (cl, "get_platforms", lambda: [FakePlatform()], "this machine has 0 OpenCL device"),
        (platforms.tempfile, "TemporaryDirectory", lambda **_: refuse(OSError(28, "disk full")),
         "disk full"),
        (cl, "get_platforms", lambda: refuse(cl.LogicError("PLATFORM_NOT_FOUND_KHR")),
         "there is no OpenCL platform .*PLATFORM_NOT_FOUND_KHR.*: pip install"),
    ],
    ids=["no PyOpenCL", "no platform", "broken platform", "no folder", "loader's error"],
)  # fmt: skip
def test_what_is_missing_is_named(module, name, value, said, monkeypatch):
    for setting in platforms._LOADER_SETTINGS:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setattr(platforms, "intel_library", lambda: Path("libintelocl.so"))
    monkeypatch.setattr(platforms, "_query_loader", platforms._query_loader.__wrapped__)
    monkeypatch.setattr(module, name, value)
    with pytest.raises(DeviceUnavailableError, match=said):
        open_device("opencl:0")
    assert not any(info.usable for info in list_devices())


def refuse(error):
    raise error


@pytest.mark.parametrize("name", ["Context", "CommandQueue"])
def test_a_driver_that_refuses_to_open_is_named(name, monkeypatch):
    monkeypatch.setattr(cl, name, lambda *_, **__: refuse(cl.LogicError("DEVICE_NOT_AVAILABLE")))
    with pytest.raises(DeviceUnavailableError, match=r"opencl:0 cannot be opened.*AVAILABLE"):
        open_device("opencl:0")


def test_memory_is_freed_once_and_only_by_its_device():
    with closing(opened("Portable")) as device, closing(opened("Portable")) as other:
        for held in (device.allocate(8), device.allocate_staging(8)):
            with pytest.raises(DeviceError, match="not held"):
                other.free(held)
            device.free(held)
            with pytest.raises(DeviceError, match="freed before"):
                device.free(held)


def test_staging_that_the_system_refuses_is_reported_with_its_size():
    with (
        closing(opened("Portable")) as device,
        pytest.raises(DoesNotFitError, match="lower host_memory") as caught,
    ):
        device.allocate_staging(1 << 60)
    assert caught.value.requested == 1 << 60


def test_numbers_put_intel_before_pocl_and_say_what_each_is():
    platforms = [info.description for info in LISTED if info.name.startswith("opencl:")]
    order = ["Portable" in each for each in platforms]
    assert order == sorted(order)
    assert all(info.memory_bytes > 0 for info in LISTED if info.usable)


def test_a_closed_device_can_be_closed_again_and_takes_no_work(any_device):
    device = open_device(any_device.spec.name)
    a, done = tile(device, "A", np.ones((3, 3)))
    done.wait()
    device.close()
    device.close()
    device.synchronize()
    with pytest.raises(DeviceError, match="closed"):
        device.upload(np.ones((3, 3)), a, [])


@pytest.mark.parametrize("platform", ["Intel", "Portable"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_cpu_packs_from_the_callers_arrays_and_writes_into_its_c(platform, dtype, beta):
    with closing(opened(platform)) as device:
        name = device.spec.name
    rng = np.random.default_rng(6)
    # Views that begin and end anywhere in a page, one of them transposed, one read-only.
    a = random(rng, (311, 207), dtype)[7:150, 3:185]
    b = random(rng, (183, 300), dtype).T[11:193, 5:171]
    a.flags.writeable = False
    whole = random(rng, (200, 200), dtype)
    before, c = whole.copy(), whole[9:152, 1:167]
    options = Options(devices=name, device_memory=(a.nbytes + b.nbytes) // 2)
    report = multiply(a, b, c=c if beta else None, out=c, beta=beta, options=options)
    old = before[9:152, 1:167]
    assert_close_in_eps(c, a, b, beta=beta, c=old if beta else None)
    c[...] = old
    assert np.array_equal(whole, before)
    assert report.plan["steps"] > 1
    assert "load1" not in report.stages
    assert ("store2" in report.stages) == (beta != 0)
    paths = {"A": "direct", "B": "direct", "C": "staged" if beta else "direct"}
    assert report.plan["paths"] == paths
    assert report.moved_bytes == report.planned_bytes


def test_what_has_memory_of_its_own_is_not_taken_to_reach_the_callers():
    for zero_copy in (True, False):
        with closing(opened("Intel", zero_copy=zero_copy)) as device:
            assert device.reaches(np.empty(1)) == zero_copy


def test_a_drivers_text_is_told_once():
    from hdgemm.pipeline.devices.opencl._driver import driver_errors

    status = "clBuildProgram failed: BUILD_PROGRAM_FAILURE"
    with (
        pytest.raises(DeviceError, match=rf"^building: {status}; unknown target$"),
        driver_errors("building"),
    ):
        raise cl.RuntimeError(f"{status} - {status} - {status}\n\nunknown target")
