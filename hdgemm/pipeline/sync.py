"""Where the lanes meet: how far each stage is, and whether to go on.

Every stage's progress is one counter, as in a timeline semaphore. A lane that needs device work
which is issued but not finished is handed its completion: device lanes chain to it on the
device, host lanes wait for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.schedule import Need, Op


class Stopped(Exception):  # noqa: N818  (a signal between lanes, never seen by a caller)
    """Another lane failed or the run was cancelled: leave quietly."""


class Board:
    """Counters, completions and the first error, under one lock that nobody holds while working."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._issued: dict[Stage, int] = {}
        self._completions: dict[tuple[Stage, int], Completion] = {}
        self._steps: dict[tuple[Stage, int], int] = {}
        self._error: BaseException | None = None

    def wait(self, needs: Iterable[Need]) -> list[Completion]:
        """Block until every need is at least issued; return what the device has yet to finish."""
        with self._changed:
            for stage, count in needs:
                while self._issued.get(stage, 0) < count and self._error is None:
                    self._changed.wait()
            if self._error is not None:
                raise Stopped
            found = (self._completions.get((stage, count - 1)) for stage, count in needs)
            return [completion for completion in found if completion is not None]

    def issue(self, op: Op, completion: Completion | None) -> None:
        """Say that an operation is done (no completion), or given to the device."""
        with self._changed:
            if completion is not None:
                self._completions[op.stage, op.number] = completion
                self._steps[op.stage, op.number] = op.step
            self._issued[op.stage] = op.number + 1
            self._changed.notify_all()

    def confirm(self, step: int) -> None:
        """Raise if any device operation for a step up to this one has failed.

        A queue runs on after an operation that failed, so that a result can be there whose
        input is not. Before a result leaves the pipeline all that led to it is looked at.
        """
        with self._changed:
            doubtful = [
                self._completions[key] for key, of_step in self._steps.items() if of_step <= step
            ]
        for completion in doubtful:
            completion.wait()

    def retire(self, stage: Stage, number: int) -> None:
        """Forget the completion of an operation that is known to be finished."""
        with self._changed:
            self._completions.pop((stage, number), None)
            self._steps.pop((stage, number), None)

    def stop(self, error: BaseException) -> None:
        """Stop all lanes; the first error is the one that counts."""
        with self._changed:
            if self._error is None and not isinstance(error, Stopped):
                self._error = error
            self._changed.notify_all()

    @property
    def error(self) -> BaseException | None:
        """The first error, None while all is well."""
        with self._changed:
            return self._error
