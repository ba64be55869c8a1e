"""Threads that have ended when a caller returns, whatever interrupts it."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from hdgemm.errors import CancelledRunError, HdgemmError
from hdgemm.threads import (
    RUNNING,
    Call,
    Gate,
    StopFlag,
    Worker,
    WorkerPool,
    notify_all,
    run_all,
)

INTERRUPTIBLE = pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="this process ignores SIGINT"
)


def interrupted_wait(worker: Worker) -> None:
    """Wait for a worker and be interrupted within the wait."""
    # To the waiting thread itself, which then leaves its wait.
    here = threading.get_ident()
    timer = threading.Timer(0.05, signal.pthread_kill, (here, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.wait(240.0)
    timer.join()


@INTERRUPTIBLE
def test_an_interrupted_wait_does_not_end_a_worker():
    go = threading.Event()
    worker = Worker(go.wait, "test")
    assert not worker.working
    worker.start()
    for _ in range(3):
        interrupted_wait(worker)
        assert worker.working
    go.set()
    worker.wait(240.0)
    assert not worker.working


def test_a_worker_that_fails_has_ended(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    worker = Worker(lambda: 1 / 0, "test")
    worker.start()
    worker.wait(240.0)
    assert not worker.working


def test_a_refused_thread_ends_the_others(monkeypatch):
    go, real, errors = threading.Event(), threading.Thread.start, []
    workers = [Worker(go.wait, f"test-{number}") for number in range(3)]

    def start(thread):
        if thread is workers[-1]:
            raise RuntimeError("can't start new thread")
        real(thread)

    def stop(error):
        errors.append(error)
        go.set()

    monkeypatch.setattr(threading.Thread, "start", start)
    run_all(workers, look=lambda: None, interval=1.0, stop=stop)
    assert not any(worker.working for worker in workers)
    (error,) = errors
    assert isinstance(error, HdgemmError)
    assert "refused to start a thread" in str(error)


def test_a_thread_that_begins_after_an_interrupted_start_does_nothing(monkeypatch):
    # Ctrl-C reaches the caller when the system has made the thread, which has not begun yet.
    go, ran, errors = threading.Event(), [], []
    worker = Worker(lambda: ran.append(None), "test")
    begin = worker._bootstrap_inner

    def interrupted(_timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_bootstrap_inner", lambda: (go.wait(240.0), begin()))
    with monkeypatch.context() as patch:
        patch.setattr(worker._started, "wait", interrupted)
        run_all([worker], look=lambda: None, interval=1.0, stop=errors.append)
    assert not worker.working
    assert len(errors) == 1
    go.set()
    assert worker._started.wait(240.0)
    worker.join(240.0)
    assert ran == []


def interrupt_until(done, here):
    """Interrupt a thread three times, then set an event."""
    for _ in range(3):
        time.sleep(0.05)
        signal.pthread_kill(here, signal.SIGINT)
    time.sleep(0.05)
    done.set()


@INTERRUPTIBLE
def test_an_interrupted_pool_is_left_when_its_functions_have_ended():
    # Python's own pool returns at the first interrupt of its shutdown.
    entered, go = threading.Event(), threading.Event()
    interrupting = threading.Thread(target=interrupt_until, args=(go, threading.get_ident()))

    def work():
        entered.set()
        return go.wait(240.0)

    pool = WorkerPool(1, "test")
    running, waiting = pool.submit(work), pool.submit(work)
    assert entered.wait(240.0)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    ended = running.done
    go.set()
    interrupting.join()
    assert ended
    assert running.result()
    with pytest.raises(CancelledRunError):
        waiting.result()


def test_a_function_of_an_interrupted_submit_has_ended_when_the_pool_is_left(monkeypatch):
    # The thread runs already: Python's own pool did not know it yet, and did not wait for it.
    entered, go, ended = threading.Event(), threading.Event(), []

    def work():
        entered.set()
        go.wait(240.0)
        ended.append(True)

    real = Worker.start

    def interrupted(worker):
        real(worker)
        assert entered.wait(240.0)
        threading.Timer(0.1, go.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "start", interrupted)
    with WorkerPool(1, "test") as pool:
        pool._calls.put(Call(work))
        with pytest.raises(KeyboardInterrupt):
            pool.submit(work)
    assert ended


def test_a_pool_calls_functions_in_order_and_raises_their_errors():
    found, after = [], []
    with WorkerPool(1, "test", after_each=lambda: after.append(len(found))) as pool:
        calls = [pool.submit(found.append, number) for number in range(5)]
        failed = pool.submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            failed.result()
    assert found == [0, 1, 2, 3, 4]
    assert after[:5] == [1, 2, 3, 4, 5]
    assert all(call.succeeded for call in calls)
    assert failed.done
    assert not failed.succeeded


def test_the_end_of_the_interpreter_stops_a_pool():
    entered = threading.Event()
    with WorkerPool(1, "test") as pool:
        pool.submit(entered.set).result()
        error = CancelledRunError("the interpreter ends")
        for stop in list(RUNNING):
            stop(error)
        with pytest.raises(CancelledRunError, match="the interpreter ends"):
            pool.submit(entered.set)
    assert pool.stop not in RUNNING


def test_a_gate_whose_lock_an_interrupt_left_locked_opens():
    gate = Gate()
    gate.open()
    gate._lock.acquire()
    gate.wait()
    assert gate.is_open


@pytest.mark.parametrize("where", ["acquire", "notify_all"])
def test_a_notification_that_is_interrupted_can_be_repeated(monkeypatch, where):
    condition = threading.Condition()
    real = getattr(condition, where)

    def interrupted():
        real()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(condition, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            notify_all(condition)
    notify_all(condition)
    free = []
    thread = threading.Thread(target=lambda: free.append(condition.acquire(timeout=240.0)))
    thread.start()
    thread.join()
    assert free == [True]


def test_a_stop_flag_takes_no_lock():
    flag = StopFlag()
    flag._cond.acquire()  # as an interrupt of `threading.Event.set` leaves it
    flag.set()
    assert flag.is_set()


PROGRAM = """
import signal, sys, threading, time
import numpy as np
import hdgemm
from hdgemm import linalg

def call():
    linalg.svdvals(sys.argv[1], options=hdgemm.Options(host_memory="8MB", threads=2))

call()
start = time.perf_counter()
call()
seconds = time.perf_counter() - start
rng = np.random.default_rng(0)
waits = iter([])

def interrupt(*_):
    signal.setitimer(signal.ITIMER_REAL, next(waits, 0))
    raise KeyboardInterrupt

def working():
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("hdgemm-rows", "hdgemm-read"))
        and getattr(thread, "working", True)
    ]

signal.signal(signal.SIGALRM, interrupt)
left = []
for _ in range(40):
    waits = iter([0.002])
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, seconds))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        try:
            left += working()
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass
    while working():
        time.sleep(0.001)
print(len(left) <= 4, left)
"""


@pytest.mark.ci
def test_a_pass_over_rows_that_is_interrupted_twice_leaves_no_thread(tmp_path):
    # Of 94 passes 41 left threads. An interrupt as `__exit__` begins still may, rarely.
    np.save(tmp_path / "A.npy", np.random.default_rng(0).random((60000, 30)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "A.npy"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("True"), done.stdout + done.stderr
