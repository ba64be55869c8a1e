"""Threads of a run, which have ended when it returns, whatever interrupts the caller's thread."""

from __future__ import annotations

import os
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from hdgemm.errors import CancelledRunError, InputError
from hdgemm.machine.limits import thread_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Functions that stop the runs of this process, for its end; a forked child has no runs.
RUNNING: Final[set[Callable[[BaseException], object]]] = set()
os.register_at_fork(after_in_child=RUNNING.clear)

#: Seconds after which a waiting caller looks for an interrupt, and for the end of the thread: an
#: untimed wait can miss an interrupt that comes as it begins.
INTERRUPTIBLE: Final = 0.2
_Result = TypeVar("_Result")


class Gate:
    """An event that happens once.

    An interrupt of `threading.Event.wait`, or of `concurrent.futures.Future.result`, can leave the
    event's own lock locked, and the thread that sets it waits for ever.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let all pass; an interrupted call of it can be repeated."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, timeout: float = INTERRUPTIBLE) -> None:
        """Wait until it is open, at most `timeout` seconds; can be interrupted and called again."""
        if not self.is_open and self._lock.acquire(timeout=timeout):
            self._lock.release()


def notify_all(condition: threading.Condition) -> None:
    """Wake all that wait; an interrupted call can be repeated.

    In ``with condition`` an interrupt of `Condition.__enter__` can leave the lock locked.
    """
    try:
        condition.acquire()
        condition.notify_all()
    finally:
        try:  # noqa: SIM105 - an interrupt within `suppress` would leave the lock locked
            condition.release()
        except RuntimeError:  # it was interrupted before the lock was acquired
            pass


class StopFlag(threading.Event):
    """A `cancel` of the library's own, which runs look at, and nobody waits for.

    An interrupt of `threading.Event.set` can leave the event's own lock locked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    def set(self) -> None:
        """Stop the run; an interrupted call can be repeated."""
        self._stopped = True

    def is_set(self) -> bool:
        """Return whether the run is to stop."""
        return self._stopped


class Origin:
    """The process that made this object, for an iterator that waits for threads: a forked child has
    none of them.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this process is the one: a forked child may not take its locks either."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise `InputError` in a forked child."""
        if not self.here:
            raise InputError(
                f"process {self._process} began this {self._what}, and this is its fork "
                f"{os.getpid()}: begin another one here",
                begun_by=self._process,
                process=os.getpid(),
            )


class Worker(threading.Thread):
    """A daemon thread that signals its end itself.

    After an interrupted `Thread.join`, Python up to 3.12 can report a running thread as ended
    (bpo-45274). Memory that the thread uses would be freed too early. After an interrupted `start`,
    either the target runs already and the worker is `working`, or it never runs.

    A run waits for a worker `within_run`, which therefore may not wait for another run's end.
    """

    def __init__(self, target: Callable[[], object], name: str, *, within_run: bool = True) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.within_run = within_run
        self._end = Gate()
        #: Taken once: by the thread, which then calls the target, or by an interrupted start.
        self._claim = threading.Lock()

    def start(self) -> None:
        """Start the thread."""
        try:
            super().start()
        except BaseException:
            # The system may have made the thread, which would begin after the caller has returned.
            if self._claim.acquire(blocking=False):
                self._end.open()
            raise

    def run(self) -> None:
        """Call the target."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            super().run()
        finally:
            self._end.open()

    @property
    def working(self) -> bool:
        """Whether it was started and has not ended."""
        return self.ident is not None and not self._end.is_open

    def wait(self, timeout: float = INTERRUPTIBLE) -> None:
        """Wait for its end, at most `timeout` seconds; can be interrupted and called again."""
        self._end.wait(timeout)


def call_through_interrupts(
    call: Callable[[], object],
    stop: Callable[[BaseException], object],
    error: BaseException | None = None,
) -> None:
    """Call a function again until it returns; before, give each error that ended it to `stop`.

    KeyboardInterrupt is one of them. `error` is one that came before the first call. What `call`
    waits for must end after `stop`, which may be interrupted and called again, too.
    """
    try:
        while True:
            try:
                if error is not None:
                    stop(error)
                call()
            except BaseException as raised:  # noqa: BLE001 - given to `stop`
                error = raised
            else:
                return
    finally:
        del error  # its traceback holds this frame


def finish(call: Callable[[], object]) -> None:
    """Call a function until it returns, and raise then the first error that interrupted it."""
    errors: list[BaseException] = []
    call_through_interrupts(call, errors.append)
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # its traceback holds this frame


def wait_for_workers(
    workers: Sequence[Worker],
    look: Callable[[], object] | None = None,
    interval: float = INTERRUPTIBLE,
) -> None:
    """Return when all workers have ended; call `look` about every `interval` seconds."""
    for worker in workers:
        while worker.working:
            worker.wait(interval)
            if look is not None:
                look()


def run_all(
    workers: Sequence[Worker],
    *,
    look: Callable[[], object],
    interval: float,
    stop: Callable[[BaseException], object],
) -> None:
    """Start workers and return when all have ended; call `look` about every `interval` seconds.

    `stop` is called with the error that interrupts the start or the waiting, KeyboardInterrupt
    included. It must make all workers end, and keep the error.
    """
    failed: BaseException | None = None
    RUNNING.add(stop)
    try:
        with thread_limit():
            for worker in workers:
                worker.start()
    except BaseException as error:  # noqa: BLE001 - given to `stop`
        failed = error
    try:
        call_through_interrupts(partial(wait_for_workers, workers, look, interval), stop, failed)
    finally:
        del failed
    RUNNING.discard(stop)


class Call(Generic[_Result]):
    """A function that a thread calls, and its result."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function: Callable[[], _Result] | None = function
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self._end = Gate()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._end.is_open

    @property
    def succeeded(self) -> bool:
        """Whether it has ended without an error."""
        return self.done and self._error is None

    def result(self) -> _Result:
        """Wait for its end; return what the function returned, or raise its error."""
        while not self._end.is_open:
            self._end.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def run(self) -> None:
        """Call the function."""
        function, self._function = self._function, None
        try:
            if function is not None:
                self._results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is used
            self._error = error
        finally:
            self._end.open()
            del self  # the error's traceback holds this frame

    def fail(self, error: BaseException) -> None:
        """End with an error, and do not call the function."""
        self._function, self._error = None, error
        self._end.open()


class WorkerPool:
    """Context with threads that call functions, in the order in which one thread submits them.

    Of a `ThreadPoolExecutor` that an interrupt reaches in `submit` or `shutdown`, threads go on
    after the caller has returned. Here no function runs when the context is left.

    Parameters
    ----------
    threads
        Threads at most; each is started with a function that is submitted.
    name
        The beginning of their names.
    after_each
        Called in a thread when a function has ended.
    """

    def __init__(
        self, threads: int, name: str, after_each: Callable[[], object] | None = None
    ) -> None:
        self._threads, self._name = threads, name
        self._after_each = after_each
        self._workers: list[Worker] = []
        self._calls: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, function: Callable[..., _Result], *args: object) -> Call[_Result]:
        """Let a thread call a function."""
        if self._error is not None:
            raise self._error
        if len(self._workers) < self._threads:
            self._start()
        call = Call(partial(function, *args))
        self._calls.put(call)
        return call

    def _start(self) -> None:
        RUNNING.add(self.stop)
        worker = Worker(self._work, f"{self._name}-{len(self._workers)}")
        self._workers.append(worker)
        with thread_limit():
            worker.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._error is None:
                call.run()
            else:
                call.fail(self._error)
            del call  # an idle thread must not keep the caller's memory alive
            if self._after_each is not None:
                self._after_each()

    def stop(self, error: BaseException) -> None:
        """Let functions that have not begun fail with an error, and threads end then."""
        self._error = error
        for _ in self._workers:
            self._calls.put(None)

    def close(self) -> None:
        """Stop, and return when the functions that have begun have ended."""
        finish(self._end)
        RUNNING.discard(self.stop)

    def _end(self) -> None:
        self.stop(CancelledRunError("the run ended before this began"))
        wait_for_workers(self._workers)


def call_uninterrupted(function: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a thread; an interrupt is raised when it has ended.

    For libraries with threads of their own, which go on after an interrupt of their caller.
    """
    with WorkerPool(1, name) as pool:
        return pool.submit(function).result()
