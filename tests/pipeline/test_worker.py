"""Ctrl-C while the lanes work: nobody frees memory before the last of them has ended."""

import signal
import threading

import pytest

from hdgemm.pipeline.sync import Worker


def interrupted_wait(worker: Worker) -> None:
    """Wait for a worker and be interrupted within the wait."""
    # To the waiting thread itself, which then leaves its wait.
    here = threading.get_ident()
    timer = threading.Timer(0.05, signal.pthread_kill, (here, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.wait()
    timer.join()


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
    worker.wait(10.0)
    assert not worker.working
