"""Threads that run tasks in the order of their dependencies, each with single-threaded BLAS.

A core that also serves input and output runs fewer tasks, where threaded BLAS waits for the
slowest core at the end of each call.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hdgemm.machine.limits import thread_limit
from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED
from hdgemm.pipeline.sync import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Task(NamedTuple):
    run: Callable[[], None]
    after: Sequence[Future[Any]]
    future: Future[None]


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
        interrupt: BaseException | None = None
        while True:
            try:
                self._end()
                break
            except BaseException as error:  # noqa: BLE001 - raised after the threads have ended
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            for task in self._tasks:
                task.future.cancel()
            self._tasks.clear()
            self._changed.notify_all()
        for worker in self._workers:
            while worker.working:
                worker.wait()

    def submit(self, run: Callable[[], None], after: Sequence[Future[Any]] = ()) -> Future[None]:
        """Queue a task that begins when others are done, and fails where one of them failed."""
        future: Future[None] = Future()
        if not self._workers:
            self._start()
        with self._lock:
            self._tasks.append(_Task(run, after, future))
            self._changed.notify_all()
        return future

    def wake(self) -> None:
        """Look for tasks that can begin: a future that no task of the team sets is done."""
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
                try:
                    for before in task.after:
                        before.result()
                    task.run()
                except BaseException as error:  # noqa: BLE001 - raised where the result is used
                    task.future.set_exception(error)
                else:
                    task.future.set_result(None)
                del task
                with self._lock:
                    self._changed.notify_all()

    def _next(self) -> _Task | None:
        """Take the next task; None when the team is closed."""
        with self._lock:
            while not self._closing:
                for number, task in enumerate(self._tasks):
                    if all(before.done() for before in task.after):
                        return self._tasks.pop(number)
                self._changed.wait()
        return None
