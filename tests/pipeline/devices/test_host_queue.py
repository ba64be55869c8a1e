"""Blocks of C drawn by threads: right for every layout, the same bits for any number of threads."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.machine.benchmarks import measure_drawing
from hdgemm.pipeline.devices import host, host_blas, host_queue
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.host_blas import Gemm
from hdgemm.pipeline.devices.host_queue import cut, remember_drawing
from hdgemm.pipeline.devices.protocol import DONE, Block, Tile
from tests.reference import DTYPES, assert_close_in_eps


@pytest.fixture(autouse=True)
def all_products_are_drawn(monkeypatch):
    monkeypatch.setattr(host, "_WORTH_DRAWING", 0)


def normal(rng, shape, dtype):
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype[0] == "c" else values).astype(dtype)


def stored(rng, rows, cols, dtype, trans, padding):
    """Return op(X) and the block that holds X inside a wider array."""
    shape = (cols, rows) if trans else (rows, cols)
    whole = normal(rng, (shape[0] + 1, shape[1] + padding), dtype)
    tile = Tile("A", whole, *whole.shape, whole.shape[1], whole.dtype, trans)
    inside = whole[1:, : shape[1]]
    return inside.T if trans else inside, Block(tile, 1, 0, *shape)


class TestCut:
    """Blocks of C."""

    @settings(max_examples=200, deadline=None)
    @given(m=st.integers(1, 9000), n=st.integers(1, 9000), least=st.integers(1, 64))
    def test_blocks_cover_the_tile_once(self, m, n, least):
        blocks = cut(m, n, least)
        assert sum(rows * cols for *_, rows, cols in blocks) == m * n
        assert len({(row, col) for row, col, *_ in blocks}) == len(blocks)
        assert all(0 < rows <= 2048 + 64 and 0 < cols <= 4096 + 64 for *_, rows, cols in blocks)
        assert all(row + rows <= m and col + cols <= n for row, col, rows, cols in blocks)

    def test_blocks_of_a_step(self):
        assert cut(768, 16384, 8) == [(0, col, 768, 2048) for col in range(0, 16384, 2048)]
        assert cut(2048, 16384, 4) == [(0, col, 2048, 4096) for col in range(0, 16384, 4096)]
        assert {(rows, cols) for *_, rows, cols in cut(768, 4096, 4)} == {(384, 2048)}

    def test_there_are_enough_blocks_where_they_stay_large(self):
        assert len(cut(2048, 2048, 16)) >= 16
        assert len(cut(400, 400, 16)) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_a_product_in_blocks(dtype, trans, beta):
    rng = np.random.default_rng(1)
    # Blocks in both directions; in one where the reference is long double, which is slow.
    m, n, k = (780 if dtype in {"float32", "complex64"} else 150), 790, 70
    a, block_a = stored(rng, m, k, dtype, trans[0], 3)
    b, block_b = stored(rng, k, n, dtype, trans[1], 5)
    c, block_c = stored(rng, m, n, dtype, False, 7)
    if not beta:
        c[...] = np.nan  # beta = 0 never reads C
    old, around = c.copy(), block_c.tile.buffer[:1].copy()
    device = HostDevice(threads=3)
    completion = device.gemm(1.5, block_a, block_b, beta, block_c, ())
    assert completion is not DONE
    completion.wait()
    device.close()
    assert_close_in_eps(c, a, b, alpha=1.5, beta=beta, c=old if beta else None)
    assert np.array_equal(block_c.tile.buffer[:1], around)


def accumulate(threads, steps=6):
    """Add `steps` products to each of two tiles of C, by turns of two units."""
    rng = np.random.default_rng(2)
    a, b = normal(rng, (steps, 900, 40), "float32"), normal(rng, (steps, 40, 900), "float32")
    c = np.full((2, 900, 900), np.nan, np.float32)
    device = HostDevice(threads=threads)
    completions = []
    for unit in (0, 1):
        for step in range(steps):
            blocks = (
                Block(Tile("A", x, *x.shape, x.shape[1], x.dtype), 0, 0, *x.shape)
                for x in (a[step], b[step], c[unit])
            )
            left, right, tile = blocks
            completions.append(device.gemm(1.0, left, right, float(step > 0), tile, ()))
    for completion in completions:
        completion.wait()
    intervals = [completion.interval() for completion in completions]
    assert all(start <= end for start, end in intervals)
    device.close()
    return c, sum(a[i].astype("d") @ b[i].astype("d") for i in range(steps))


def test_queued_steps_give_the_same_bits_for_any_number_of_threads():
    one, expected = accumulate(1)
    assert np.abs(one[0] - expected).max() <= 300 * np.finfo("f").eps * np.abs(expected).max()
    for threads in (2, 3, 5):
        again, _ = accumulate(threads)
        assert np.array_equal(one, again)


def test_products_end_in_order_though_a_slow_core_still_multiplies(monkeypatch):
    # Both read one tile of A: whoever waits for the second product may overwrite that tile.
    slow, multiply = threading.Event(), host_queue.QueuedGemm.multiply
    device, x = HostDevice(threads=2), np.ones((500, 500))
    tiles = [np.zeros((500, 500)) for _ in range(2)]
    left = Block(Tile("A", x, 500, 500, 500, x.dtype), 0, 0, 500, 500)
    first: list[host_queue.QueuedGemm] = []

    def delayed(queued, number):
        if not first:
            first.append(queued)
            slow.wait()
        return multiply(queued, number)

    monkeypatch.setattr(host_queue.QueuedGemm, "multiply", delayed)
    one, two = (
        device.gemm(1.0, left, left, 0.0, left._replace(tile=left.tile._replace(buffer=c)), ())
        for c in tiles
    )
    waiting = threading.Thread(target=two.wait)
    waiting.start()
    while not two.done:
        time.sleep(0.001)
    assert first == [one]
    waiting.join(0.1)
    assert waiting.is_alive()
    slow.set()
    waiting.join()
    assert one.done
    device.close()
    for c in tiles:
        assert np.array_equal(c, x @ x)


def test_a_product_that_overlaps_another_c_waits_for_all_of_it():
    rng = np.random.default_rng(3)
    x = normal(rng, (1000, 1000), "float64")
    c = np.zeros((1500, 1000))

    def block(array, row, rows):
        tile = Tile("A", array, *array.shape, array.shape[1], array.dtype)
        return Block(tile, row, 0, rows, array.shape[1])

    device = HostDevice(threads=2)
    for row in (0, 500, 250):
        device.gemm(1.0, block(x, 0, 1000), block(x, 0, 1000), 1.0, block(c, row, 1000), ())
    device.synchronize()
    expected = np.zeros_like(c)
    for row in (0, 500, 250):
        expected[row : row + 1000] += x @ x
    np.testing.assert_allclose(c, expected, atol=1e-9)
    device.close()


def whole(array):
    return Block(Tile("A", array, *array.shape, array.shape[1], array.dtype), 0, 0, *array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("alpha", [0.0, 1e-320])
def test_alpha_zero_reads_neither_a_nor_b(dtype, beta, alpha):
    if alpha and np.dtype(dtype).type(alpha) != 0:
        pytest.skip("a subnormal number of this dtype")
    a, b = np.full((9, 9), np.nan, dtype), np.full((9, 9), np.inf, dtype)
    c = np.full((9, 9), 3.0 if beta else np.nan, dtype)
    HostDevice().gemm(alpha, whole(a), whole(b), beta, whole(c), ()).wait()
    assert np.array_equal(c, np.full((9, 9), 3.0 * beta, dtype))


def test_small_products_are_done_at_once_and_after_what_is_queued(monkeypatch):
    rng = np.random.default_rng(4)
    a, c = normal(rng, (600, 600), "float64"), np.zeros((600, 600))
    device = HostDevice(threads=2)
    device.gemm(1.0, whole(a), whole(a), 0.0, whole(c), ())
    monkeypatch.setattr(host, "_WORTH_DRAWING", 1 << 60)
    assert device.gemm(1.0, whole(a), whole(a), 1.0, whole(c), ()) is DONE
    np.testing.assert_allclose(c, 2 * a @ a, atol=1e-9)
    assert HostDevice(draws=False)._queue is None
    device.close()


@pytest.mark.parametrize(("ratio", "draws"), [(0.5, False), (0.93, True), ("x", True)])
def test_the_machines_calibration_decides(ratio, draws, tmp_path, monkeypatch):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path))
    x = np.ones((400, 400))
    if ratio == 0.5:
        assert measure_drawing(2, 0.0) > 0
    remember_drawing(2, ratio)
    device = HostDevice(threads=2)
    completion = device.gemm(1.0, whole(x), whole(x), 0.0, whole(np.empty_like(x)), ())
    completion.wait()
    assert (completion is not DONE) == draws
    device.close()


class Slow:
    """Gemm.run that counts blocks and takes its time; it fails, or signals the process, if told."""

    def __init__(self, monkeypatch, fail=False, signals_at=-1):
        self.blocks, self.running, self.fail = 0, 0, fail
        right, lock = Gemm.run, threading.Lock()

        def run(gemm):
            with lock:
                self.blocks += 1
                self.running += 1
                number = self.blocks
            if number == signals_at:
                os.kill(os.getpid(), signal.SIGUSR1)
            # After the signal, the main thread has time to see it.
            time.sleep(0.5 if number >= signals_at > 0 else 0.01)
            if self.fail:
                raise MemoryError("no memory for a block")
            right(gemm)
            with lock:
                self.running -= 1

        monkeypatch.setattr(Gemm, "run", run)


def test_an_error_in_a_block_reaches_the_one_who_waits(monkeypatch):
    Slow(monkeypatch, fail=True)
    before = [setting.get() for setting in host_blas._settings(host_blas._NUMPY)]
    x = np.ones((900, 900))
    device = HostDevice(threads=2)
    completion = device.gemm(1.0, whole(x), whole(x), 0.0, whole(np.empty_like(x)), ())
    with pytest.raises(MemoryError, match="no memory for a block"):
        completion.wait()
    device.close()
    assert [setting.get() for setting in host_blas._settings(host_blas._NUMPY)] == before


def test_an_interrupted_wait_drops_the_blocks_that_nobody_has_drawn(monkeypatch):
    slow = Slow(monkeypatch, signals_at=3)
    monkeypatch.setattr(host_queue, "_ROWS", 512)
    # SIGINT may be ignored in this process.
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        x, c = np.ones((4000, 500)), np.zeros((4000, 4000))
        device = HostDevice(threads=2)
        completion = device.gemm(1.0, whole(x), whole(x.T.copy()), 0.0, whole(c), ())
        with pytest.raises(KeyboardInterrupt):
            completion.wait()
        assert slow.running == 0
        found = slow.blocks
        device.close()
        assert slow.blocks == found < len(cut(4000, 4000, 1))
    finally:
        signal.signal(signal.SIGUSR1, before)


ON_HOST = hdgemm.Options(devices="host")


def settings():
    return [setting.get() for setting in host_blas._settings(host_blas._NUMPY)]


def test_concurrent_products_leave_the_callers_setting():
    before, found = settings(), {}
    rng = np.random.default_rng(5)
    operands = [normal(rng, (800, 20), "float64") for _ in range(3)]

    def multiply(number):
        x = operands[number]
        found[number] = [hdgemm.matmul(x, x.T, options=ON_HOST) for _ in range(5)]

    threads = [threading.Thread(target=multiply, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings() == before
    for x, products in ((operands[number], found[number]) for number in range(3)):
        assert_close_in_eps(products[0], x, x.T)
        assert all(np.array_equal(product, products[0]) for product in products)


def test_an_interrupted_product_in_ram_writes_nothing_afterwards(monkeypatch):
    slow, before = Slow(monkeypatch, signals_at=3), settings()
    monkeypatch.setattr(host_queue, "_ROWS", 512)
    handler = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        x, c = np.ones((3000, 100)), np.zeros((3000, 3000))
        with pytest.raises(KeyboardInterrupt):
            hdgemm.matmul(x, x.T, out=c, options=replace(ON_HOST, threads=2))
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert slow.running == 0
    assert settings() == before
    assert slow.blocks < len(cut(3000, 3000, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_device_works_in_a_forked_child():
    x, c = np.ones((900, 900)), np.empty((900, 900))
    device = HostDevice(threads=2)
    device.gemm(1.0, whole(x), whole(x), 0.0, whole(c), ()).wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            device.gemm(2.0, whole(x), whole(x), 0.0, whole(c), ()).wait()
            device.close()
            code = 0 if c[0, 0] == 1800 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    device.close()


def test_threads_end_with_the_device():
    # Those of devices that earlier tests have dropped may end at any time.
    others = {t for t in threading.enumerate() if t.name.startswith("hdgemm-gemm")}

    def drawing():
        found = {t for t in threading.enumerate() if t.name.startswith("hdgemm-gemm")}
        return len(found - others)

    x = np.ones((900, 900))
    device = HostDevice(threads=2)
    device.gemm(1.0, whole(x), whole(x), 0.0, whole(np.empty_like(x)), ()).wait()
    assert drawing() == 2
    device.close()
    assert drawing() == 0
    forgotten = HostDevice(threads=2)
    forgotten.gemm(1.0, whole(x), whole(x), 0.0, whole(np.empty_like(x)), ()).wait()
    del forgotten
    until = time.monotonic() + 240
    while drawing() and time.monotonic() < until:
        time.sleep(0.05)
    assert drawing() == 0


def test_tiles_are_not_replaced_while_a_slow_core_reads_them(tmp_path, monkeypatch):
    # A unit begins with the tile of A with which the unit before ends, and there are two slots.
    rng, multiply = np.random.default_rng(5), host_queue.QueuedGemm.multiply
    a, b = rng.random((600, 600)), rng.random((600, 600))
    names = [tmp_path / name for name in ("A.npy", "B.npy", "C.npy")]
    np.save(names[0], a)
    np.save(names[1], b)

    def delayed(queued, number):
        time.sleep(0.03 * (rng.random() < 0.05))
        return multiply(queued, number)

    monkeypatch.setattr(host_queue.QueuedGemm, "multiply", delayed)
    options = hdgemm.Options(devices="host", tile=(150, 150, 150), host_memory="6MB", threads=2)
    for _ in range(5):
        hdgemm.multiply(*names[:2], out=names[2], options=options)
        assert_close_in_eps(np.load(names[2]), a, b)
