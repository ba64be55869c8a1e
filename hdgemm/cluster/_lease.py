"""Lease of a block: its worker writes to C while the scheduler confirms that it wants the block.

A process that was stopped, or whose machine was cut off, does not know for how long: others may
have computed its block, and C may have been published. Time goes on for a lease while its process
is stopped and while its machine sleeps.

The lease cannot recall a write: a process may be stopped, or a request delayed, after the question
and before the disk. Such a write misses the file of a later product where C is made
aside, since each run has a new file. A C that is overwritten is not begun again while a worker of
an earlier run has it open (`hdgemm.matrices.filelocks`). Two cases remain. The chunks of a Zarr
array are opened by name, and the next run with this output and journal has the same names until it
publishes them. And where the storage keeps no locks, or has dropped the locks of a machine that is
silent, it must refuse that machine's late writes, as NFS 4 does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import CancelledRunError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds from a question on for which its answer holds. The scheduler gives a silent worker up
#: after tens of seconds.
_SECONDS: Final = 2.0
#: Questions to a busy scheduler; each waits so many seconds at most.
_MOST_QUESTIONS: Final = 30


class Lease:
    """Right of one task to write; `wanted` asks the scheduler, and may raise `TimeoutError`."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._until = -1.0

    def renew(self) -> None:
        """Return when the task may write.

        Raises
        ------
        CancelledRunError
            When the scheduler wants the task no more, or does not answer.
        """
        for _ in range(_MOST_QUESTIONS):
            # An answer may also be too old because the process was stopped since the question.
            if (asked := _now()) < self._until:
                return
            try:
                wanted = self._wanted()
            except TimeoutError:
                continue
            if not wanted:
                raise CancelledRunError("the scheduler has given this block to another worker")
            self._until = asked + _SECONDS
        raise CancelledRunError("the scheduler does not answer: nothing more is written")


def lease_of(worker: Any) -> Lease:
    """Return the lease of the task that this thread runs on a Dask worker."""
    from distributed.utils import sync

    key, address = worker.get_current_task(), worker.contact_address

    def wanted() -> bool:
        try:
            found = sync(
                worker.loop,
                worker.scheduler.processing,
                workers=[address],
                callback_timeout=_SECONDS,
            )
        except TimeoutError:
            raise
        except Exception:  # noqa: BLE001 - a lost connection, or the worker is not known there
            return False
        # The scheduler answers with the address as it resolves it.
        return any(key in keys for keys in found.values())

    return Lease(wanted)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
