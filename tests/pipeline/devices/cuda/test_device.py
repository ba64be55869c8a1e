"""The CUDA device on a stand-in for the driver: the calls it makes, and what they compute."""

import gc
import os
import threading
import time

import numpy as np
import pytest

from hdgemm.errors import DeviceError, DeviceUnavailableError, DoesNotFitError, InputError
from hdgemm.pipeline.devices.cuda import driven_by, open_device
from hdgemm.pipeline.devices.cuda._calls import GemmCall
from hdgemm.pipeline.devices.cuda._kernels import SOURCE
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.pipeline.devices.protocol import DONE, Block, Tile
from tests.pipeline.devices.cuda.cuda_bench import Bench, random, whole
from tests.pipeline.devices.cuda.standin import Fault, StandIn
from tests.pipeline.devices.cuda.standin.blas import WORKSPACE_BYTES
from tests.pipeline.devices.cuda.standin.standin import CONTEXT_BYTES
from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError
from tests.pipeline.devices.device_contract import DeviceContract
from tests.reference import DTYPES, assert_close_in_eps

pytestmark = pytest.mark.usefixtures("one_blas_thread")

MB = 1 << 20
#: Device memory that an open device holds on the stand-in.
OPENED = CONTEXT_BYTES + WORKSPACE_BYTES
ORDERS = ("lazy", "random", "ahead:1", "ahead:2", "ahead:3", "ahead:4")


class TestContract(DeviceContract):
    """What every device must do."""

    @pytest.fixture(params=["lazy", "ahead:2", "ahead:3"])
    def device(self, request):
        bench = Bench(order=request.param)
        yield bench.device
        bench.device.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_product_with_k_cut_in_three_reuses_one_slot(order, dtype, trans):
    """Uploads overwrite the same slots while earlier products are still pending."""
    bench = Bench(order=order, seed=5)
    m, n, kb = 5, 7, 3
    alpha = 1.5 if np.dtype(dtype).kind == "f" else 1.5 - 0.5j
    a, b = random((m, 3 * kb), dtype, 1), random((3 * kb, n), dtype, 2)
    a_tile = bench.tile("A", *((kb, m) if trans[0] else (m, kb)), dtype, trans=trans[0])
    b_tile = bench.tile("B", *((n, kb) if trans[1] else (kb, n)), dtype, trans=trans[1])
    c_tile = bench.tile("C", m, n, dtype)
    done, sources = [], []
    for step in range(3):
        cut = slice(step * kb, (step + 1) * kb)
        parts = [a[:, cut].T if trans[0] else a[:, cut], b[cut].T if trans[1] else b[cut]]
        staged = [bench.staged(np.ascontiguousarray(part)) for part in parts]
        sources.append(staged)
        up = [
            bench.device.upload(source, whole(tile), done[-1:])
            for source, tile in zip(staged, (a_tile, b_tile), strict=True)
        ]
        done.append(
            bench.device.gemm(
                alpha, whole(a_tile), whole(b_tile), float(step > 0), whole(c_tile), up
            )
        )
    out = bench.staged(np.zeros((m, n), dtype))
    down = bench.device.download(whole(c_tile), out, done[-1:])
    down.wait()
    assert_close_in_eps(out.copy(), a, b, alpha=alpha)


def overwritten_too_early(order):
    """Upload, multiply, then overwrite A without waiting for the product; return what came out."""
    bench = Bench(order=order)
    x = np.eye(3)
    tiles = [bench.tile(name, 3, 3) for name in "ABC"]
    up = [bench.device.upload(bench.staged(x), whole(tile), []) for tile in tiles[:2]]
    product = bench.device.gemm(1.0, whole(tiles[0]), whole(tiles[1]), 0.0, whole(tiles[2]), up)
    bench.device.upload(bench.staged(9 * x), whole(tiles[0]), [])
    out = bench.staged(np.zeros((3, 3)))
    bench.device.download(whole(tiles[2]), out, [product]).wait()
    return out[0, 0]


def read_too_early(order):
    """Multiply without waiting for the uploads; return what came out."""
    bench = Bench(order=order)
    tiles = [bench.tile(name, 3, 3) for name in "ABC"]
    for tile in tiles[:2]:
        bench.device.upload(bench.staged(np.eye(3)), whole(tile), [])
    product = bench.device.gemm(1.0, whole(tiles[0]), whole(tiles[1]), 0.0, whole(tiles[2]), [])
    out = bench.staged(np.zeros((3, 3)))
    bench.device.download(whole(tiles[2]), out, [product]).wait()
    return out[0, 0]


def test_the_stand_in_shows_a_missing_dependency():
    """Without this, the tests above would prove nothing."""
    assert overwritten_too_early("ahead:2") != 1.0
    assert np.isnan(read_too_early("lazy"))


def test_a_step_is_ordered_by_events_and_by_nothing_else():
    bench = Bench()
    tiles = [bench.tile(name, 2, 2) for name in "ABC"]
    source, out = bench.staged(np.eye(2)), bench.staged(np.zeros((2, 2)))
    bench.standin.calls.clear()
    up = bench.device.upload(source, whole(tiles[0]), [])
    product = bench.device.gemm(1.0, whole(tiles[0]), whole(tiles[0]), 0.0, whole(tiles[2]), [up])
    down = bench.device.download(whole(tiles[2]), out, [product])
    names = [n for n in bench.names() if n not in ("cuCtxPushCurrent", "eventCreateWithFlags")]
    assert names == [
        *("eventRecord", "memcpyAsync", "eventRecord"),
        *("streamWaitEvent", "eventRecord", "dgemm", "eventRecord"),
        *("streamWaitEvent", "eventRecord", "memcpyAsync", "eventRecord"),
    ]
    streams = [args[1] for args in bench.args("eventRecord")]
    assert len(set(streams)) == 3
    assert streams == [s for s in dict.fromkeys(streams) for _ in range(2)]
    waits = bench.args("streamWaitEvent")
    records = bench.args("eventRecord")
    assert waits[0] == (streams[2], records[1][0])
    assert waits[1] == (streams[4], records[3][0])
    down.wait()
    assert bench.names()[-2:] == ["cuCtxPushCurrent", "eventSynchronize"]
    del up, product, down


def test_operations_of_one_stream_need_no_event_between_them():
    bench = Bench()
    tile = bench.tile("A", 2, 2)
    source = bench.staged(np.eye(2))
    first = bench.device.upload(source, whole(tile), [])
    bench.device.upload(source, whole(tile), [first, DONE])
    assert bench.standin.count("streamWaitEvent") == 0


def test_completions_of_another_kind_are_waited_for_on_the_host():
    waited = []

    class Foreign:
        def wait(self):
            waited.append(True)

        def interval(self):
            return None

    bench = Bench()
    tile = bench.tile("A", 2, 2)
    bench.device.upload(bench.staged(np.eye(2)), whole(tile), [Foreign()])
    assert waited == [True]


def test_only_waiting_and_freeing_block_the_host():
    """The host must not block while it enqueues."""
    bench = Bench()
    tiles = [bench.tile(name, 2, 2) for name in "ABC"]
    source = bench.staged(np.eye(2))
    bench.standin.calls.clear()
    done = []
    for _ in range(4):
        up = bench.device.upload(source, whole(tiles[0]), done[-1:])
        done.append(
            bench.device.gemm(1.0, whole(tiles[0]), whole(tiles[0]), 1.0, whole(tiles[2]), [up])
        )
    blocking = {
        "streamSynchronize", "eventSynchronize", "malloc", "free", "hostRegister", "hostUnregister",
    }  # fmt: skip
    assert not blocking & set(bench.names())


def test_rows_of_larger_arrays_are_copied_by_pitch():
    bench = Bench()
    x = random((6, 10), "float64")
    big = bench.staged(x)
    tile = bench.tile("A", 6, 4, ld=5)
    bench.device.upload(big[1:4, 2:5], Block(tile, 2, 1, 3, 3), [])
    (args,) = bench.args("memcpy2DAsync")
    dst, dpitch, src, spitch, width, height, kind, _ = args
    assert (dpitch, spitch, width, height, kind) == (40, 80, 24, 3, 1)
    assert src == big.ctypes.data + (10 + 2) * 8
    assert dst == tile.buffer.pointer + (2 * 5 + 1) * 8
    back = bench.staged(np.zeros((3, 3)))
    bench.device.download(Block(tile, 2, 1, 3, 3), back, []).wait()
    bench.device.synchronize()
    assert bench.args("memcpy2DAsync")[-1][6] == 2


def test_upwards_and_transposed_views_of_staging():
    bench = Bench(order="lazy")
    big = bench.staged(random((4, 3), "float32"))
    tile = bench.tile("A", 4, 3, "float32")
    up = bench.device.upload(big[::-1], whole(tile), [])
    back = bench.staged(np.zeros((4, 3), "float32"))
    bench.device.download(whole(tile), back, [up]).wait()
    np.testing.assert_array_equal(back, big[::-1])
    assert bench.standin.count("memcpyAsync") == 5  # a row each up, one piece down


def test_c_in_staging_is_written_by_the_kernel():
    """The strategies below data placement: no store1."""
    bench = Bench()
    a, b = random((3, 4), "float64", 1), random((4, 2), "float64", 2)
    tiles = [bench.tile("A", 3, 4), bench.tile("B", 4, 2)]
    up = [
        bench.device.upload(bench.staged(x), whole(t), [])
        for x, t in zip((a, b), tiles, strict=True)
    ]
    buffer = bench.device.allocate_staging(3 * 2 * 8)
    c = Tile("C", buffer, 3, 2, 2, np.dtype("float64"))
    bench.device.gemm(2.0, whole(tiles[0]), whole(tiles[1]), 0.0, whole(c), up).wait()
    assert_close_in_eps(np.ndarray((3, 2), "float64", buffer.array).copy(), a, b, alpha=2.0)


def test_beta_zero_never_reads_c_and_beta_one_adds():
    bench = Bench()
    x = np.eye(2)
    tile, c = bench.tile("A", 2, 2), bench.tile("C", 2, 2)
    up = bench.device.upload(bench.staged(x), whole(tile), [])
    out = bench.staged(np.zeros((2, 2)))
    done = bench.device.gemm(1.0, whole(tile), whole(tile), 0.0, whole(c), [up])
    done = bench.device.gemm(3.0, whole(tile), whole(tile), 1.0, whole(c), [done])
    bench.device.download(whole(c), out, [done]).wait()
    np.testing.assert_array_equal(out, 4 * x)  # fresh device memory is NaN


def test_scalars_are_read_before_the_call_returns():
    bench = Bench(order="lazy")
    tile, c = bench.tile("A", 1, 1), bench.tile("C", 1, 1)
    up = bench.device.upload(bench.staged(np.ones((1, 1))), whole(tile), [])
    out = bench.staged(np.zeros((1, 1)))
    done = bench.device.gemm(7.0, whole(tile), whole(tile), 0.0, whole(c), [up])
    gc.collect()
    np.full(1000, 5.0)  # memory that was free may hold anything by now
    bench.device.download(whole(c), out, [done]).wait()
    assert out[0, 0] == 7.0


def test_intervals_lie_on_the_hosts_clock_and_in_order():
    bench = Bench()
    tile, c = bench.tile("A", 2, 2), bench.tile("C", 2, 2)
    source = bench.staged(np.eye(2))
    before = time.perf_counter()
    first = bench.device.upload(source, whole(tile), [])
    second = bench.device.gemm(
        1.0, whole(tile), whole(tile), 0.0, whole(bench.tile("C", 2, 2)), [first]
    )
    second.wait()
    after = time.perf_counter()
    (a, b), (c, d) = first.interval(), second.interval()
    slack = 1e-3  # the reference event's own bracket
    assert before - slack <= a <= b <= c <= d <= after + slack


def test_events_are_used_again():
    bench = Bench()
    tile = bench.tile("A", 2, 2)
    source = bench.staged(np.eye(2))
    for _ in range(50):
        bench.device.upload(source, whole(tile), []).wait()
    gc.collect()
    assert bench.standin.count("eventCreateWithFlags") <= 4


def test_source_memory_lives_until_the_copy_is_done():
    bench = Bench(order="lazy")
    tile = bench.tile("A", 2, 2)
    completion = bench.device.upload(bench.staged(np.eye(2))[:, :], whole(tile), [])
    kept = completion._keep
    assert kept is not None
    completion.wait()
    assert completion._keep is None


def test_memory_that_dma_cannot_reach_is_refused():
    bench = Bench()
    tile = bench.tile("A", 2, 2)
    with pytest.raises(DeviceError, match="memcpyAsync"):
        bench.device.upload(np.eye(2), whole(tile), [])
    unlocked = Tile("C", np.zeros((2, 2)), 2, 2, 2, np.dtype("float64"))
    with pytest.raises(InputError, match="page-locked"):
        bench.device.gemm(1.0, whole(tile), whole(tile), 0.0, whole(unlocked), [])


@pytest.mark.parametrize("array", [np.zeros((2, 3)), np.zeros((2, 2), "float32")])
def test_a_copy_of_another_shape_or_dtype_is_refused(array):
    bench = Bench()
    with pytest.raises(InputError, match="cannot copy"):
        bench.device.upload(array, whole(bench.tile("A", 2, 2)), [])


def test_out_of_device_memory_has_the_numbers():
    bench = Bench(device_bytes=OPENED + 6 * MB)
    bench.device.allocate(3 * MB)
    with pytest.raises(DoesNotFitError, match="of device memory: 2,097,152 of") as caught:
        bench.device.allocate(3 * MB)
    assert caught.value.numbers == {
        "requested": 3 * MB, "available": 2 * MB, "missing": MB, "free": 2 * MB,
        "total": OPENED + 6 * MB,
    }  # fmt: skip
    assert caught.value.__cause__.status == 2


def test_slots_are_whole_pieces_of_what_the_driver_allocates():
    bench = Bench(device_bytes=OPENED + 160 * MB)
    spec = bench.device.spec
    assert bench.device.slot_bytes("A", 100, 100, np.dtype("float64")) == spec.allocation_bytes
    before = bench.standin.memory.info(0)[0]
    bench.device.allocate(bench.device.slot_bytes("A", 600, 600, np.dtype("float64")))
    taken = before - bench.standin.memory.info(0)[0]
    assert taken == 4 * MB == bench.device.slot_bytes("A", 600, 600, np.dtype("float64"))


def test_free_memory_is_asked_for_after_the_first_product():
    standin = StandIn()
    with driven_by(standin.api()):
        open_device("cuda:0")
    names = [call.name for call in standin.calls if call.name in ("dgemm", "memGetInfo", "free")]
    assert names == ["dgemm", "free", "memGetInfo"]


@pytest.mark.parametrize(
    ("device_bytes", "call"),
    [
        (CONTEXT_BYTES - 1, "cuCtxPushCurrent"),
        (CONTEXT_BYTES + MB, "dgemm"),
        (OPENED - MB, "dgemm"),
    ],
)
def test_too_little_memory_to_open_is_one_error_and_nothing_stays_held(device_bytes, call):
    standin = StandIn(device_bytes=device_bytes)
    with driven_by(standin.api()), pytest.raises(DoesNotFitError) as caught:
        open_device("cuda:0")
    if call == "cuCtxPushCurrent":  # without a context the driver does not tell what is free
        assert "no room for device memory for cuCtxPushCurrent; lower" in str(caught.value)
        assert "free" not in caught.value.numbers
    else:
        assert caught.value.total == device_bytes
    del caught
    gc.collect()
    assert standin.leaks() == {}


@pytest.mark.parametrize("call", ["create", "eventCreateWithFlags", "dgemm", "memGetInfo"])
def test_a_gpu_that_fails_while_it_is_opened_holds_nothing(call):
    status = 3 if call in ("create", "dgemm") else 2
    standin = StandIn(faults=[Fault(call, 0, status, persistent=True)])
    with (
        driven_by(standin.api()),
        pytest.raises(DoesNotFitError, match=f"memory for {call}") as raised,
    ):
        open_device("cuda:0")
    del raised
    gc.collect()
    assert standin.leaks() == {}


def test_a_gpu_without_a_usable_cublas_holds_nothing():
    standin = StandIn(faults=[Fault("setPointerMode", 0, 1)])
    with (
        driven_by(standin.api()),
        pytest.raises(DeviceUnavailableError, match="setPointerMode") as raised,
    ):
        open_device("cuda:0")
    del raised
    gc.collect()
    assert standin.leaks() == {}


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("free", "memory"), ("hostUnregister", "memory"), ("streamDestroy", "streams"),
        ("eventDestroy", "events"), ("destroy", "handles"),
    ],
)  # fmt: skip
def test_closing_gives_back_all_but_what_the_driver_refuses(call, kind):
    bench = Bench()
    for _ in range(2):
        bench.device.allocate(100)
        bench.device.allocate_staging(100)
    bench.standin.inject(Fault(call, 0, 1))
    with pytest.raises(DeviceError, match=f"{call} failed") as raised:
        bench.device.close()
    standin = bench.standin
    del bench, raised
    gc.collect()
    assert standin.leaks() == {kind: 1}


def test_memory_is_freed_once():
    bench = Bench()
    buffer = bench.device.allocate(10)
    bench.device.free(buffer)
    with pytest.raises(DeviceError, match="freed before"):
        bench.device.free(buffer)
    with pytest.raises(DeviceError, match="not held"):
        bench.device.free(Bench().device.allocate(10))


def test_closing_gives_everything_back():
    bench = Bench()
    for _ in range(3):
        tile = bench.tile("A", 2, 2)
        bench.device.upload(bench.staged(np.eye(2)), whole(tile), [])
    bench.device.close()
    standin = bench.standin
    del bench, tile
    gc.collect()
    assert standin.leaks() == {}


def test_spec_leaves_room_and_keeps_to_the_limit():
    total = 1 << 30
    free = Bench(device_bytes=total).device.spec
    assert not free.unified
    assert free.name == "cuda:0"
    assert total // 2 < free.memory_bytes < total
    assert Bench(device_bytes=total, memory_bytes=12345).device.spec.memory_bytes == 12345


def test_only_the_gpu_that_is_used_gets_a_context():
    bench = Bench(device="cuda:1", devices=2)
    runtime = bench.standin.api().runtime
    tile = bench.tile("A", 2, 2)
    bench.device.upload(bench.staged(np.eye(2)), whole(tile), []).wait()
    bench.device.reaches(np.eye(2))
    bench.device.free(tile.buffer)
    bench.device.close()
    name, standin = bench.device.spec.name, bench.standin
    del bench, tile
    gc.collect()  # streams that are collected would make a context on GPU 0
    assert standin.contexts == {1}
    assert standin.leaks() == {}
    assert standin.count("setDevice") == 0
    assert runtime.getDevice() == 0
    assert name == "cuda:1"


def test_two_gpus_have_memory_and_errors_of_their_own():
    standin = StandIn(devices=2, device_bytes=OPENED + 30 * MB)
    with driven_by(standin.api()):
        first, second = open_device("cuda:0"), open_device("cuda:1")
    first.allocate(20 * MB)
    second.allocate(20 * MB)
    standin.streams.failed[0] = CUDARuntimeError(719, "launch failure")
    with pytest.raises(DeviceError, match="start it again"):
        first.allocate(1)
    second.allocate(1)
    first.close()
    second.close()


def test_a_late_failure_reaches_the_waiting_call_and_everything_can_be_freed():
    bench = Bench(faults=[Fault("dgemm", 0, 719, late=True)])
    tiles = [bench.tile(name, 2, 2) for name in "ABC"]
    up = bench.device.upload(bench.staged(np.eye(2)), whole(tiles[0]), [])
    done = bench.device.gemm(1.0, whole(tiles[0]), whole(tiles[0]), 0.0, whole(tiles[2]), [up])
    with pytest.raises(DeviceError, match=r"eventSynchronize failed.*start it again") as caught:
        done.wait()
    assert caught.value.status == 719
    bench.device.synchronize()
    for tile in tiles:
        bench.device.free(tile.buffer)
    bench.device.close()


@pytest.mark.parametrize("status", [220, 226, 700, 721])
def test_no_call_follows_an_error_that_ends_the_context(status):
    bench = Bench(faults=[Fault("eventSynchronize", 0, status)])
    tile = bench.tile("A", 2, 2)
    up = bench.device.upload(bench.staged(np.eye(2)), whole(tile), [])
    with pytest.raises(DeviceError, match="start it again"):
        up.wait()
    standin = bench.standin
    standin.streams.failed[0] = CUDARuntimeError(status, "the context is lost")
    standin.calls.clear()
    bench.device.free(tile.buffer)
    assert standin.calls == []
    bench.device.close()
    del bench, tile, up
    gc.collect()  # an error in a finaliser would be a warning
    assert standin.count("streamDestroy") == 0


def test_a_product_refused_on_a_lost_context_says_so():
    """cuBLAS returns a status of its own; the runtime tells that the context is lost."""
    bench = Bench()
    device, driver = bench.device, bench.device.driver
    bench.standin.streams.failed[0] = CUDARuntimeError(719, "launch failure")
    call = GemmCall("dgemm", 0, 0, *[1] * 11)
    with driver.current(), pytest.raises(DeviceError, match=r"dgemm failed.*13.*start it again"):
        driver.blas_call(call.routine, device._blas, call[1:], device._compute.stream)
    assert driver.lost is not None
    device.close()


@pytest.mark.parametrize("status", [13, 14])
def test_an_operation_that_fails_at_once_leaves_the_stream_usable(status):
    bench = Bench(faults=[Fault("dgemm", 0, status)])
    tiles = [bench.tile(name, 2, 2) for name in "ABC"]
    up = bench.device.upload(bench.staged(np.eye(2)), whole(tiles[0]), [])
    arguments = (1.0, whole(tiles[0]), whole(tiles[0]), 0.0, whole(tiles[2]), [up])
    with pytest.raises(DeviceError, match="dgemm failed") as caught:
        bench.device.gemm(*arguments)
    assert (caught.value.call, caught.value.status) == ("dgemm", status)
    out = bench.staged(np.zeros((2, 2)))
    bench.device.download(whole(tiles[2]), out, [bench.device.gemm(*arguments)]).wait()
    np.testing.assert_array_equal(out, np.eye(2))


def test_three_threads_enqueue_at_once():
    bench = Bench(order="random", seed=3)
    tile = bench.tile("A", 2, 2)
    source = bench.staged(np.eye(2))
    errors = []

    def lane():
        try:
            for _ in range(50):
                bench.device.upload(source, whole(tile), []).wait()
                bench.device.download(whole(tile), source, []).wait()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=lane) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("order", ["lazy", "ahead:2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_permutation_is_one_copy_and_two_kernels(order, axis):
    """Lists of permutations that have not run yet are not overwritten."""
    bench, rng = Bench(order=order), np.random.default_rng(3)
    x = random((9, 7), "complex128", 1)
    tile = bench.tile("C", 9, 7, "complex128")
    device = bench.device
    device.upload(bench.staged(x), whole(tile), []).wait()
    before = [bench.standin.count(name) for name in ("launchKernel", "memcpyAsync")]
    for _ in range(40):
        pivots = rng.integers(0, 5, 5)
        moves = moves_of(np.array([row + pivot % (5 - row) for row, pivot in enumerate(pivots)]))
        moved = len(moves.places) > 0
        done = device.permute(Block(tile, 1, 1, 7, 6), moves, [], axis)
        part = x[1:8, 1:7] if axis == 0 else x[1:8, 1:7].T
        part[moves.places] = part[moves.sources]
        after = [bench.standin.count(name) for name in ("launchKernel", "memcpyAsync")]
        assert after == [before[0] + 2 * moved, before[1] + moved]
        before = after
    out = bench.staged(np.zeros_like(x))
    device.download(whole(tile), out, [done]).wait()
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("shape", [(3, 4, 2), (4, 4, 9), (4, 3, 9)])
def test_the_stand_in_refuses_kernels_that_leave_their_memory(shape):
    """Of workspace, rows, and the longest line; a 4×4 matrix in the middle of an allocation."""
    bench = Bench()
    driver = bench.device.driver
    held, rows, line = shape
    tiles = [bench.tile("C", 1, count, "float64") for count in (held * 4, 16, rows)]
    held_at, matrix_at, lines_at = (bench.device._address(whole(tile)) for tile in tiles)
    lines = np.full((1, rows), line).astype(np.int64).view(np.float64)
    bench.device.upload(bench.staged(lines), whole(tiles[2]), []).wait()
    kernel = driver.kernel(SOURCE, "move_8")
    arguments = (matrix_at, held_at, lines_at, 4, 4, 4, 0, 0)
    with driver.current():
        driver.launch(kernel, (1, 4), 256, arguments, bench.device._compute.stream)
    with pytest.raises(DeviceError, match="status 700"):
        driver.synchronize()
    bench.device.close()


def test_a_kernel_that_cannot_be_compiled_names_what_is_missing():
    bench = Bench(faults=[Fault("compile", 0, 6)])
    tile = bench.tile("C", 4, 4)
    with pytest.raises(DeviceUnavailableError, match=r"NVRTC.*come with hdgemm\[cuda13\]"):
        bench.device.permute(whole(tile), moves_of(np.array([3, 2])), [])


def test_a_forked_child_is_told_to_spawn(monkeypatch):
    bench = Bench()
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(DeviceError, match=rf"opened by process {own}.*fork.*'spawn'"):
        bench.device.allocate(100)
    with (
        driven_by(bench.standin.api()),
        pytest.raises(DeviceUnavailableError, match=r"status 3.*fork.*'spawn'"),
    ):
        open_device("cuda:0")
    bench.device.close()  # leaves the parent's objects alone
    monkeypatch.undo()
    assert bench.standin.leaks()
