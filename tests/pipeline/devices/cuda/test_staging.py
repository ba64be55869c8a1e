"""Page-locked staging of the CUDA device: its pages, and when they are given back."""

import gc
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from hdgemm.errors import DeviceError, DoesNotFitError, HdgemmError
from hdgemm.pipeline.devices.cuda import _context as context
from hdgemm.pipeline.devices.page_buffer import PageBuffer
from tests.pipeline.devices.cuda.cuda_bench import Bench
from tests.pipeline.devices.cuda.standin import Fault
from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError

MB = 1 << 20


def mapped(address):
    """Say whether an address of this process is memory."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = (line.split()[0].split("-") for line in lines)
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def pages_held():
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, PageBuffer) and each.nbytes]


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 10_001, 9 * MB + 1])
def test_staging_is_aligned_and_all_there(nbytes):
    bench = Bench()
    held = bench.standin.memory.held()
    buffer = bench.device.allocate_staging(nbytes)
    assert buffer.nbytes == buffer.array.nbytes == nbytes
    assert buffer.pointer == buffer.array.ctypes.data
    assert buffer.pointer % 4096 == 0
    buffer.array[...] = 1
    flags = 3  # portable and mapped
    assert bench.args("hostRegister") == [(buffer.pointer, max(1, nbytes), flags)]
    bench.device.free(buffer)
    assert bench.args("hostUnregister") == [(bench.args("hostRegister")[0][0],)]
    assert bench.standin.memory.held() == held
    bench.device.close()


def test_all_pages_are_touched():
    pages = PageBuffer(9 * MB + 1)
    pages.array[...] = 1
    pages.touch()
    assert np.flatnonzero(pages.array == 0).tolist() == [*range(0, pages.nbytes, mmap.PAGESIZE)]
    pages.free()


@pytest.mark.parametrize("status", [2, 801])
def test_a_refusal_to_page_lock_has_the_numbers_and_frees_the_pages(status):
    before = pages_held()
    bench = Bench(faults=[Fault("hostRegister", 0, status)])
    with pytest.raises(HdgemmError) as caught:
        bench.device.allocate_staging(2000)
    if status == 2:
        assert isinstance(caught.value, DoesNotFitError)
        assert "2,000 bytes of host memory to page-lock" in str(caught.value)
        assert caught.value.requested == 2000
    else:
        assert isinstance(caught.value, DeviceError)
        assert "hostRegister failed" in str(caught.value)
    assert pages_held() == before
    assert bench.standin.count("hostUnregister") == 0
    bench.device.close()


def test_the_driver_may_page_lock_less_than_the_host_has():
    bench = Bench(host_bytes=10_000)
    first = bench.device.allocate_staging(6000)
    with pytest.raises(DoesNotFitError, match="host memory to page-lock"):
        bench.device.allocate_staging(6000)
    bench.device.free(first)
    bench.device.free(bench.device.allocate_staging(6000))
    bench.device.close()


def test_more_than_the_host_has_left_is_refused_before_it_is_touched(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(context, "_host_memory_left", lambda: (1000, 5000))
    with pytest.raises(DoesNotFitError, match="1,000 of 5,000 bytes are free") as caught:
        bench.device.allocate_staging(2000)
    assert (caught.value.requested, caught.value.missing) == (2000, 1000)
    assert bench.standin.count("hostRegister") == 0
    bench.device.close()


def test_memory_that_kernels_cannot_reach_is_unlocked():
    before = pages_held()
    bench = Bench(faults=[Fault("pointerGetAttributes", 0, 1)])
    with pytest.raises(DeviceError, match="pointerGetAttributes failed"):
        bench.device.allocate_staging(2000)
    (address, _, _), *_ = bench.args("hostRegister")
    assert bench.args("hostUnregister") == [(address,)]
    assert pages_held() == before
    bench.device.close()


def test_views_outlive_staging_and_are_not_page_locked():
    bench = Bench()
    buffer = bench.device.allocate_staging(8192)
    view, mapping = buffer.array[4096:].view(np.float64), weakref.ref(buffer._pages._map)
    view[...] = 7.0
    assert bench.device.reaches(view)
    bench.device.free(buffer)
    assert (view == 7.0).all()
    assert not bench.device.reaches(view)
    del view, buffer
    assert mapping() is None
    bench.device.close()


def test_pages_stay_mapped_while_the_driver_holds_them():
    """Other memory at their address would be page-locked for the driver."""
    dropped, lost = Bench(), Bench()
    buffers = [bench.device.allocate_staging(8192) for bench in (dropped, lost)]
    addresses = [buffer.pointer for buffer in buffers]
    lost.standin.streams.failed[0] = CUDARuntimeError(719, "launch failure")
    with pytest.raises(DeviceError, match="start it again"):
        lost.device.allocate(1)
    lost.device.free(buffers[1])
    lost.device.close()
    del dropped, lost, buffers
    gc.collect()
    assert all(mapped(address) for address in addresses)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_share_the_pages():
    """Shared pages would be copied at the next write, beside the DMA."""
    bench = Bench()
    buffer = bench.device.allocate_staging(3 * MB)
    buffer.array[...] = 7
    child = os.fork()
    if child == 0:
        code = 1
        try:
            wiped = not buffer.array.any()
            bench.device.close()
            code = 0 if wiped else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (buffer.array == 7).all()
    bench.device.close()
