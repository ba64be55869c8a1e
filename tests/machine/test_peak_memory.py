"""Peak memory: what a run adds, and nothing that was there before."""

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from hdgemm.machine.peak_memory import PeakMemory, resident_bytes

SIZE = 64 * 2**20
NEAR = 8 * 2**20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="file-backed pages are told apart on Linux only"
)


def test_memory_that_was_there_is_not_counted():
    before = np.ones(SIZE, np.uint8)
    with PeakMemory() as peak:
        before += 1
    assert peak.nbytes < NEAR


def test_a_block_given_back_still_counts(monkeypatch):
    monkeypatch.setattr("hdgemm.machine.peak_memory._INTERVAL", 0.001)
    with PeakMemory() as peak:
        block = np.ones(SIZE, np.uint8)
        del block
        # Given back before the end: only a sample, or the pages still there, can tell of it.
        again = np.ones(SIZE, np.uint8)
    assert SIZE - NEAR <= peak.nbytes <= 2 * SIZE + NEAR
    assert again.nbytes == SIZE


def test_a_peak_in_the_middle_is_sampled():
    held = threading.Event()

    class Meter(PeakMemory):
        def _sample(self):
            held.wait(240)
            self._highest = max(self._highest, resident_bytes())

    with Meter() as peak:
        block = mmap.mmap(-1, SIZE)
        block.write(b"\1" * SIZE)
        held.set()
        peak._thread.join()
        block.close()
    assert peak.nbytes >= SIZE - NEAR


def test_file_pages_of_a_memmap_are_not_counted(tmp_path):
    path = tmp_path / "pages"
    with path.open("wb") as file:
        file.write(b"\1" * SIZE)
    with PeakMemory() as peak:
        total = int(np.memmap(path, np.uint8, "r").sum())
    assert total == SIZE
    assert peak.nbytes < NEAR


def test_the_sampling_thread_ends():
    with PeakMemory():
        pass
    assert all(thread.name != "hdgemm-memory" for thread in threading.enumerate())


def test_the_sampling_thread_ends_after_an_interrupted_start(monkeypatch):
    peak, start = PeakMemory(), threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), peak:
        pass
    peak._thread.join(240)
    assert not peak._thread.is_alive()
