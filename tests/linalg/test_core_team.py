"""Tasks of a team: order, failures, the end of the team, and the threads of BLAS."""

import signal
import threading
import time

import pytest

from hdgemm.linalg.slabs._core_team import CoreTeam
from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED


def test_a_task_begins_after_its_predecessors():
    done = []
    with CoreTeam() as team:
        begin = threading.Event()
        first = team.submit(begin.wait)
        second = team.submit(lambda: done.append("second"), [first])
        team.submit(lambda: done.append("third"), [second])
        assert not second.done
        begin.set()
        team.submit(lambda: done.append("last"), [second]).result()
    assert done.index("second") == 0


def test_a_task_fails_with_its_predecessor():
    def fail():
        raise ZeroDivisionError("the task")

    ran = []
    with CoreTeam() as team:
        failed = team.submit(fail)
        after = team.submit(lambda: ran.append(1), [failed])
        with pytest.raises(ZeroDivisionError, match="the task"):
            after.result()
        team.submit(lambda: None).result()  # the team goes on
    assert not ran


def test_tasks_that_have_not_begun_are_cancelled():
    entered, go = threading.Event(), threading.Event()

    def wait():
        entered.set()
        go.wait()

    team = CoreTeam().__enter__()
    running = team.submit(wait)
    waiting = team.submit(lambda: None, [running])
    entered.wait()
    closing = threading.Thread(target=team.close)
    closing.start()
    while not waiting.done:
        go.wait(0.001)
    go.set()
    closing.join()
    assert running.succeeded
    assert not waiting.succeeded


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="this process ignores SIGINT"
)
def test_an_interrupted_close_waits_for_the_tasks_that_have_begun():
    # The second Ctrl-C of a user: memory that the tasks use is freed after it.
    entered, go = threading.Event(), threading.Event()
    here = threading.get_ident()

    def wait():
        entered.set()
        assert go.wait(240.0)

    def interrupt():
        for _ in range(3):
            time.sleep(0.05)
            signal.pthread_kill(here, signal.SIGINT)
        time.sleep(0.05)
        go.set()

    team = CoreTeam()
    running = team.submit(wait)
    assert entered.wait(240.0)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        team.close()
    ended = running.done
    go.set()
    interrupting.join()
    assert ended


def test_an_interrupt_before_the_threads_are_woken_leaves_none(monkeypatch):
    # Ctrl-C as the team closes: its idle threads would keep the process from ending.
    team = CoreTeam()
    team.submit(lambda: None).result()
    workers = [x for x in threading.enumerate() if x.name.startswith("hdgemm-core")]
    notify, interrupts = team._changed.notify_all, [KeyboardInterrupt()]

    def interrupted():
        if interrupts and threading.current_thread() is threading.main_thread():
            raise interrupts.pop()
        notify()

    monkeypatch.setattr(team._changed, "notify_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        team.close()
    ended = [not getattr(worker, "working", True) for worker in workers]
    monkeypatch.undo()
    team.wake()
    for worker in workers:
        worker.join(240.0)
    assert all(ended)


def test_blas_has_one_thread_in_tasks_only():
    before = SCIPY_SINGLE_THREADED.threads
    found = []
    with CoreTeam() as team:
        team.submit(
            lambda: found.extend(x.get() for x in SCIPY_SINGLE_THREADED._settings())
        ).result()
    assert set(found) == {1}
    assert SCIPY_SINGLE_THREADED.threads == before
