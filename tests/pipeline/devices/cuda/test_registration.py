"""Page-locking the application's arrays: counted, refused where it cannot be, given back."""

import threading

import numpy as np
import pytest

from hdgemm.errors import DeviceError, InputError
from hdgemm.pipeline.devices.cuda.registration import in_mapped_file, measure_pinning
from hdgemm.pipeline.devices.cuda.standin import Fault
from tests.pipeline.devices.cuda.cuda_bench import Bench, whole


def pages(rows=8):
    """Rows of one page each, on page boundaries: arrays that share no page."""
    raw = np.zeros((rows + 1) * 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + rows * 4096].view(np.float64).reshape(rows, 512)


def test_two_runs_that_share_an_array_do_not_pull_it_from_each_other():
    bench, x = Bench(), pages()
    first = bench.device.register(x)
    second = bench.device.register(x[2:4])  # part of it: the same lock
    assert bench.standin.count("hostRegister") == 1
    assert bench.args("hostRegister") == [(x.ctypes.data, x.nbytes, 3)]
    assert (first.nbytes, second.nbytes, second.seconds) == (x.nbytes, 0, 0.0)
    first.release()
    first.release()  # once only
    assert bench.device.is_pinned(x)
    second.release()
    assert not bench.device.is_pinned(x)
    assert bench.args("hostUnregister") == [(x.ctypes.data,)]


def test_memory_that_is_locked_already_is_left_alone():
    bench = Bench()
    staged = bench.staged(np.eye(3))
    with bench.device.register(staged) as lease:
        assert (lease.nbytes, lease.seconds) == (0, 0.0)
    assert bench.standin.count("hostRegister") == 0
    assert bench.device.is_pinned(staged)


def test_pinned_means_all_of_it():
    bench, x = Bench(), pages()
    with bench.device.register(x[:2]), bench.device.register(x[6:]):
        assert bench.device.is_pinned(x[:2])
        assert not bench.device.is_pinned(x)  # both ends are, the middle is not
        assert not bench.device.is_pinned(x[1:4])
        assert not bench.device.is_pinned(np.zeros(3))
        assert not bench.device.is_pinned(x[:0])


def test_a_range_that_overlaps_a_locked_one_is_an_error_that_staging_answers():
    bench, x = Bench(), pages()
    with bench.device.register(x[:4]), pytest.raises(DeviceError, match="hostRegister") as caught:
        bench.device.register(x[2:])
    assert caught.value.status == 712


def test_a_failed_lock_is_not_counted():
    bench, x = Bench(faults=[Fault("hostRegister", 0, 1)]), pages()
    with pytest.raises(DeviceError):
        bench.device.register(x)
    bench.device.register(x).release()
    assert bench.standin.leaks().get("memory", 0) == 0


def test_an_empty_array_needs_no_lock():
    bench = Bench()
    bench.device.register(np.zeros((0, 5))).release()
    assert bench.standin.count("hostRegister") == 0


def test_files_are_not_locked(tmp_path):
    mapped = np.memmap(tmp_path / "x.bin", "float64", "w+", shape=(4, 4))
    views = [mapped, np.asarray(mapped), mapped[1:].T, np.frombuffer(mapped.base, "float64")]
    assert all(in_mapped_file(view) for view in views)
    assert not in_mapped_file(np.frombuffer(bytearray(8), np.uint8))
    with pytest.raises(InputError, match="staging"):
        Bench().device.register(mapped)


def test_a_locked_array_travels_directly():
    bench, x = Bench(), pages()
    x[...] = np.arange(x.size).reshape(x.shape)
    tile = bench.tile("A", 4, 5)
    with bench.device.register(x):
        up = bench.device.upload(x[2:6, 7:12], whole(tile), [])
        back = bench.staged(np.zeros((4, 5)))
        bench.device.download(whole(tile), back, [up]).wait()
    np.testing.assert_array_equal(back, x[2:6, 7:12])


def test_many_threads_lock_once():
    bench, x = Bench(), pages()
    barrier = threading.Barrier(4)

    def run():
        barrier.wait()
        with bench.device.register(x):
            barrier.wait()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.standin.count("hostRegister") == 1
    assert bench.standin.count("hostUnregister") == 1


def test_two_devices_share_the_count():
    from hdgemm.pipeline.devices.cuda import driven_by, open_device

    bench, x = Bench(devices=2), pages()
    with driven_by(bench.standin.api()):
        one, two = open_device("cuda:0"), open_device("cuda:1")
    with one.register(x), two.register(x):
        assert bench.standin.count("hostRegister") == 1


def test_the_cost_is_measured_per_byte():
    bench = Bench()
    cost = measure_pinning(bench.device.driver, 1 << 16)
    assert cost.register > 0
    assert cost.unregister > 0
    assert bench.standin.leaks().get("memory", 0) == 0
