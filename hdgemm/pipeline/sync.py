"""Synchronisation of the lanes: progress counters, completions, the first error."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.schedule import Need, Op


class Stopped(Exception):  # noqa: N818  (control flow between lanes, never seen by a caller)
    """Another lane failed or the run was cancelled."""


class StageCounters:
    """One counter of issued operations per stage, as in a timeline semaphore.

    An operation that a device executes is issued before it is finished: a lane that depends on it
    receives its completion, to wait for it or to pass it to the device.

    Only a stage's own lane changes the stage's counter. A lane whose needs are met reads the
    counters without the lock. A lane that must wait adds an entry to `_waiting`, and only the
    change that satisfies its need wakes it. No lane holds the lock while it works.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._stopped = False
        self._issued = dict.fromkeys(STAGES, 0)
        # Completion and step of each operation that a device may still execute.
        self._unfinished: dict[Need, tuple[Completion, int]] = {}
        self._lock = threading.Lock()
        self._waiting: dict[Stage, list[tuple[int, threading.Lock]]] = {x: [] for x in STAGES}

    def wait(self, needs: Sequence[Need]) -> list[Completion]:
        """Block until every need is issued; return the completions of unfinished operations."""
        found = []
        for need in needs:
            if not self._met(need):
                self._block(need)
            if (unfinished := self._unfinished.get(need)) is not None:
                found.append(unfinished[0])
        self.check()
        return found

    def check(self) -> None:
        """Raise `Stopped` when the run has failed or was cancelled."""
        if self._stopped:
            raise Stopped

    def _met(self, need: Need) -> bool:
        return self._issued[need[0]] >= need[1] or self._stopped

    def _block(self, need: Need) -> None:
        stage, count = need
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            self._waiting[stage].append((count, gate))
        # An `issue` that preceded the entry has not seen it.
        self._wake(stage)
        gate.acquire()

    def _wake(self, stage: Stage) -> None:
        """Wake the lanes that need no more than this stage has issued.

        All other entries stay in the list throughout, where a concurrent `issue` looks for them.
        """
        waiting = self._waiting[stage]
        with self._lock:
            for entry in waiting[:]:
                if not self._met((stage, entry[0])):
                    continue
                waiting.remove(entry)
                entry[1].release()

    def issue(self, op: Op, completion: Completion | None) -> None:
        """Count an operation: finished (`completion` is None) or enqueued on the device."""
        stage, count = op.stage, op.number + 1
        if completion is not None:
            with self._lock:
                self._unfinished[stage, count] = completion, op.step
        self._issued[stage] = count
        if self._waiting[stage]:
            self._wake(stage)

    def retire(self, op: Op) -> None:
        """Drop the completion of an operation that is finished."""
        with self._lock:
            self._unfinished.pop((op.stage, op.number + 1), None)

    def confirm(self, step: int) -> None:
        """Wait for all device operations up to a step; raise if one of them has failed.

        A queue executes what follows a failed operation, so a result can exist although its
        input does not. This check precedes each store to the application.
        """
        with self._lock:
            earlier = [
                done
                for (stage, _), (done, of_step) in self._unfinished.items()
                if of_step <= step and stage != "store2"
            ]
        for completion in earlier:
            completion.wait()

    def stop(self, error: BaseException) -> None:
        """Stop all lanes; keep the first error."""
        with self._lock:
            if self.error is None and not isinstance(error, Stopped):
                self.error = error
            self._stopped = True
        for stage in STAGES:
            self._wake(stage)

    def raise_error(self) -> None:
        """Raise the first error, if there is one, and keep no reference to it.

        Its traceback refers to the frames of the run: in a cycle of references the files of the
        operands would stay open until the garbage collector finds it.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error
