"""A system that refuses a thread: a clear error or a correct result, and everything is freed."""

import multiprocessing
import resource
import threading

import numpy as np
import psutil
import pytest

import hdgemm
from hdgemm.errors import HdgemmError
from hdgemm.matrices import transfer
from hdgemm.options import Options
from tests.reference import assert_close_in_eps

N = 300
OPTIONS = Options(devices="host", tile=(100, 100, 100), host_memory="16MB", threads=2)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(3)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    return tmp_path


@pytest.fixture
def refuse(monkeypatch):
    """Let all threads but the first so many be refused; return how many were asked for."""
    real, asked = threading.Thread.start, []

    def start_only(allowed):
        asked.clear()

        def start(thread):
            asked.append(thread.name)
            if len(asked) > allowed:
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        return asked

    yield start_only
    transfer.disk_pool.cache_clear()
    transfer.copy_pool.cache_clear()


def working():
    """Threads of one product; the pools' threads outlive it."""
    lasting = ("hdgemm-disk", "hdgemm-copy", "hdgemm-function")
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    return {name for name in names if name.startswith("hdgemm") and not name.startswith(lasting)}


def failure(call, *arguments):
    try:
        call(*arguments)
    except HdgemmError as error:
        return [error]
    return []


@pytest.mark.parametrize("checkpoint", [False, True])
def test_each_thread_of_a_product_can_be_refused(files, refuse, checkpoint):
    a, b, c = (files / f"{name}.npy" for name in "abc")

    def product(allowed):
        transfer.disk_pool.cache_clear()
        transfer.copy_pool.cache_clear()
        asked = refuse(allowed)
        hdgemm.multiply(a, b, out=c, options=OPTIONS, checkpoint=checkpoint, restart=checkpoint)
        assert_close_in_eps(np.load(c), np.load(a), np.load(b))
        return len(asked)

    errors = []
    for allowed in range(product(1000)):
        before = working()
        errors += failure(product, allowed)
        assert working() <= before
    assert len(errors) > 3
    for error in errors:
        assert "refused to start a thread" in str(error)
        assert isinstance(error.__cause__, RuntimeError)


def test_a_check_of_files_needs_a_thread(files, refuse):
    a = files / "a.npy"
    refuse(0)
    with pytest.raises(HdgemmError, match="refused to start a thread"):
        hdgemm.verify(a, a, a)


def limited(folder, message):
    """Multiply in a process whose memory addresses have no room for one more thread."""
    hdgemm.matmul(np.ones((300, 300)), np.ones((300, 300)), options=OPTIONS)
    # Larger than the stacks of ended threads, which the C library keeps for the next ones.
    threading.stack_size(256 << 20)
    held = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (held + (80 << 20),) * 2)
    try:
        hdgemm.multiply(folder / "a.npy", folder / "b.npy", out=folder / "d.npy", options=OPTIONS)
    except HdgemmError as error:
        message.send(str(error))
    else:
        message.send("no error")


def test_a_limit_of_addresses_is_told_as_such(files):
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=limited, args=(files, theirs))
    process.start()
    theirs.close()
    told = ours.recv()
    process.join()
    assert "ulimit -v" in told
    assert "ulimit -u" not in told
