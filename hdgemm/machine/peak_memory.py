"""The peak of the memory that a run adds to its process.

It counts the process's anonymous and shared-memory pages (RssAnon + RssShmem on Linux: heap,
staging, tiles, BLAS's buffers), sampled in a thread, less their number when the run began. It does
not count file-backed pages: a caller's memmap, which the kernel can drop at any time, and
page cache, which belongs to no process (a memory cgroup counts it, and `bench` measures there). A
peak shorter than the sampling interval may be missed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

import psutil

_STATUS: Final = Path("/proc/self/status")
#: Seconds between two samples; one takes about 50 µs.
_INTERVAL: Final = 0.02
_COUNTED: Final = ("RssAnon:", "RssShmem:")


def resident_bytes() -> int:
    """Return the process's resident bytes, without file-backed pages on Linux; 0 if unknown."""
    try:
        if not _STATUS.exists():
            return int(psutil.Process().memory_info().rss)
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_COUNTED))
    except (OSError, ValueError, psutil.Error):
        return 0


class PeakMemory:
    """Context that measures by how many bytes the process's own memory grows at most.

    Examples
    --------
    >>> with PeakMemory() as peak:
    ...     block = bytearray(10_000_000)
    >>> peak.nbytes >= 10_000_000
    True
    """

    def __init__(self) -> None:
        self._before = 0
        self._highest = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def nbytes(self) -> int:
        """Bytes added at the highest sample so far; never negative."""
        return max(0, self._highest - self._before)

    def __enter__(self) -> Self:
        self._before = self._highest = resident_bytes()
        self._thread = threading.Thread(target=self._sample, name="hdgemm-memory", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C reaches the start when the thread runs already
            self._stop.set()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._highest = max(self._highest, resident_bytes())

    def _sample(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._highest = max(self._highest, resident_bytes())
