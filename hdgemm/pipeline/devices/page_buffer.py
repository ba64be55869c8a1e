"""Anonymous memory in whole pages, for slots and staging."""

from __future__ import annotations

import contextlib
import mmap
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.matrices.transfer import copy_pool, map_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.transfer import Bounce

#: `MADV_WIPEONFORK` of Linux, which Python's `mmap` does not name.
_WIPE_ON_FORK: Final = 18
#: Bytes of a piece of memory that one thread touches. In pieces of this size NumPy releases the
#: interpreter's lock.
_TOUCHED: Final = 4 << 20


class PageBuffer:
    """Anonymous page-aligned memory, in huge pages where the system has them.

    Huge pages reduce the page faults of a slot's first touch by a factor of 512.
    """

    def __init__(self, nbytes: int) -> None:
        self._map = map_pages(nbytes)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes)
        #: Size in bytes, as requested; 0 once it is free.
        self.nbytes = nbytes

    def touch(self) -> None:
        """Take all pages of fresh memory from the system, in the threads of `copy_pool`."""
        starts = range(0, self.nbytes, _TOUCHED)
        copy_pool().run([partial(_touch, self.array[at : at + _TOUCHED]) for at in starts])

    def wipe_on_fork(self) -> None:
        """Let a forked child find zeros here.

        Pages that DMA reads or writes must not be shared with a child: the system would copy all
        of them in `fork`, or this process would write to copies that DMA does not see.
        """
        with contextlib.suppress(OSError):  # kernels without it
            self._map.madvise(_WIPE_ON_FORK)

    def free(self) -> None:
        """Unmap the memory, or leave that to the last view of it."""
        self.array, self.nbytes = np.empty(0, np.uint8), 0
        try:
            self._map.close()
        except BufferError:
            return


def _touch(memory: NDArray[np.uint8], _bounce: Bounce) -> None:
    memory[:: mmap.PAGESIZE] = 0
