"""Progress counters, and threads that are waited for through Ctrl-C."""

import signal
import threading
from types import SimpleNamespace

import pytest

from hdgemm.errors import DeviceError, HdgemmError
from hdgemm.pipeline.sync import StageCounters, Stopped, Worker, run_all


def op(stage, number, step=0):
    return SimpleNamespace(stage=stage, number=number, step=step)


class Completion:
    """A device operation that fails when it is waited for, or does not."""

    def __init__(self, error=None):
        self.error = error
        self.waited = 0

    def wait(self):
        self.waited += 1
        if self.error is not None:
            raise self.error


def test_only_unfinished_needs_come_with_completions():
    progress, completion = StageCounters(), Completion()
    progress.issue(op("load1", 0), None)
    progress.issue(op("load2", 0), completion)
    assert progress.wait([("load1", 1), ("load2", 1)]) == [completion]
    progress.retire(op("load2", 0))
    assert progress.wait([("load1", 1), ("load2", 1)]) == []


def test_confirm_waits_for_all_operations_up_to_a_step():
    progress = StageCounters()
    done, failed, later = Completion(), Completion(DeviceError("lost")), Completion()
    for number, completion in enumerate((done, failed, later)):
        progress.issue(op("mult1", number, step=number), completion)
    progress.confirm(0)
    assert (done.waited, failed.waited) == (1, 0)
    with pytest.raises(DeviceError, match="lost"):
        progress.confirm(1)
    assert later.waited == 0


def test_the_first_error_is_kept_and_wakes_every_lane():
    progress, first = StageCounters(), DeviceError("first")
    ended = []

    def wait():
        with pytest.raises(Stopped):
            progress.wait([("mult1", 1)])
        ended.append(True)

    waiting = [Worker(wait, f"test-{number}") for number in range(3)]
    for worker in waiting:
        worker.start()
    progress.stop(first)
    progress.stop(DeviceError("second"))
    for worker in waiting:
        worker.wait(240.0)
    assert len(ended) == 3
    assert progress.error is first
    with pytest.raises(Stopped):
        progress.check()


def test_no_wake_up_is_lost():
    # Two lanes alternate: each operation needs the other's last one. A lost wake-up would block.
    progress, rounds = StageCounters(), 3000

    def alternate(own, other, ahead):
        for number in range(rounds):
            progress.wait([(other, number + ahead)])
            progress.issue(op(own, number), None)

    lanes = [
        Worker(lambda: alternate("load1", "mult1", 0), "test-0"),
        Worker(lambda: alternate("mult1", "load1", 1), "test-1"),
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.wait(240.0)
        assert not lane.working
    assert progress.wait([("load1", rounds), ("mult1", rounds)]) == []


def interrupted_wait(worker: Worker) -> None:
    """Wait for a worker and be interrupted within the wait."""
    # To the waiting thread itself, which then leaves its wait.
    here = threading.get_ident()
    timer = threading.Timer(0.05, signal.pthread_kill, (here, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.wait()
    timer.join()


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="this process ignores SIGINT"
)
def test_an_interrupted_wait_does_not_end_a_worker():
    go = threading.Event()
    worker = Worker(go.wait, "test")
    assert not worker.working
    worker.start()
    for _ in range(3):
        interrupted_wait(worker)
        assert worker.working
    go.set()
    worker.wait()
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
