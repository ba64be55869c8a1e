"""Threads that run tasks in the order of their dependencies, each with single-threaded BLAS.

A core that also serves input and output runs fewer tasks, where threaded BLAS waits for the
slowest core at the end of each call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hdgemm.errors import CancelledRunError
from hdgemm.machine.limits import thread_limit
from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED
from hdgemm.threads import Call, Worker, finish, wait_for_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Task(NamedTuple):
    call: Call[None]
    after: Sequence[Call[Any]]


class CoreTeam:
    """As many threads as BLAS has; each takes the first submitted task that can begin.

    The threads start with the first task. Open it as a context manager: on leaving, tasks that
    have not begun are cancelled.
    """

    def __init__(self) -> None:
        # An interrupt inside `Condition.__enter__` would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tasks: list[_Task] = []
        self._closing = False
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the tasks that have not begun, and wait for those that have.

        An interrupt is raised when the threads have ended: tasks use memory that is freed then.
        """
        finish(self._end)

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            for task in self._tasks:
                task.call.fail(CancelledRunError("the factorisation ended before this began"))
            self._tasks.clear()
            self._changed.notify_all()
        wait_for_workers(self._workers)

    def submit(self, run: Callable[[], None], after: Sequence[Call[Any]] = ()) -> Call[None]:
        """Queue a task that begins when others are done, and fails where one of them failed."""

        def run_after() -> None:
            for before in after:
                before.result()
            run()

        call = Call(run_after)
        if not self._workers:
            self._start()
        with self._lock:
            self._tasks.append(_Task(call, after))
            self._changed.notify_all()
        return call

    def wake(self) -> None:
        """Look for tasks that can begin: a call that is no task of the team is done."""
        with self._lock:
            self._changed.notify_all()

    def _start(self) -> None:
        with thread_limit():
            for number in range(max(1, SCIPY_SINGLE_THREADED.threads)):
                worker = Worker(self._work, f"hdgemm-core-{number}")
                self._workers.append(worker)
                worker.start()

    def _work(self) -> None:
        with SCIPY_SINGLE_THREADED:
            while (task := self._next()) is not None:
                task.call.run()
                del task
                with self._lock:
                    self._changed.notify_all()

    def _next(self) -> _Task | None:
        """Take the next task; None when the team is closed."""
        with self._lock:
            while not self._closing:
                for number, task in enumerate(self._tasks):
                    if all(before.done for before in task.after):
                        return self._tasks.pop(number)
                self._changed.wait()
        return None
