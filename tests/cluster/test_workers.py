"""Answers of the scheduler and of workers: none is waited for without a limit."""

import json
import logging
from asyncio import CancelledError

import pytest

from hdgemm.cluster import _workers as workers, connection
from hdgemm.cluster._workers import Workers, ask, own_version
from hdgemm.cluster.connection import ClusterError, Scheduler, open_cluster
from hdgemm.errors import InputError

WORKER = "tcp://127.0.0.1:1"


class Answer:
    """A finished future whose value can be lost, as Dask's is when its only worker dies."""

    def __init__(self, value=None, error=None, status="finished"):
        self.value, self.error, self.status = value, error, status

    def done(self):
        return True

    def result(self, timeout=None):
        assert timeout is not None, "a lost value is waited for without end"
        if self.error is not None:
            raise self.error
        return self.value


class Client:
    """A client that gives prepared answers; later questions are not answered."""

    status, scheduler_comm = "running", object()

    def __init__(self, *answers):
        self.answers = list(answers)

    def submit(self, *_, **__):
        if self.answers:
            return self.answers.pop(0)
        unanswered = Answer()
        unanswered.done = lambda: False
        return unanswered

    def nthreads(self, callback_timeout):
        assert callback_timeout > 0
        return {WORKER: 1}


@pytest.mark.parametrize(
    "lost",
    [
        Answer(error=TimeoutError()),
        Answer(error=CancelledError(), status="cancelled"),
        # What `distributed.utils.sync` makes of a cancelled future.
        Answer(error=UnboundLocalError(), status="cancelled"),
    ],
)
def test_a_lost_answer_is_asked_for_again_and_a_worker_that_is_gone_is_forgotten(lost):
    client = Client(Answer(own_version()), lost, Answer(own_version()))
    workers = Workers(client, job=None)
    workers.update({WORKER})
    assert workers.answers() == []
    assert workers.answers() == []
    assert not client.answers
    assert workers.waiting
    assert not workers.refused
    workers.update(set())
    assert not workers.waiting


@pytest.mark.parametrize("error", [TimeoutError("storage"), OSError("storage")])
def test_an_error_of_a_worker_excludes_it(error):
    workers = Workers(Client(Answer(error=error, status="error")), job=None)
    workers.update({WORKER})
    assert workers.answers() == []
    assert not workers.waiting
    assert WORKER in workers.refused


def test_a_plan_does_not_wait_for_a_worker_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(workers, "_PLAN_SECONDS", 0.05)
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:1: it has not answered"):
        ask(Client(), job=None)


def test_a_silent_scheduler_is_lost_after_a_while(monkeypatch):
    client = Client()
    scheduler = Scheduler(client, "go on with another")
    assert scheduler.addresses() == {WORKER}

    def silent(**_):
        raise TimeoutError

    client.nthreads = silent
    assert scheduler.addresses() == {WORKER}
    monkeypatch.setattr(connection, "_SILENCE_SECONDS", 0.0)
    with pytest.raises(ClusterError, match="has not answered for 0 s: go on with another"):
        scheduler.addresses()


def test_whatever_a_closed_client_raises_names_the_lost_scheduler():
    client = Client()
    scheduler = Scheduler(client, "go on with another")
    with pytest.raises(ZeroDivisionError), scheduler.connected():
        1 / 0  # noqa: B018
    client.status = "closed"
    with pytest.raises(ClusterError, match=r"lost \(closed\): go on"), scheduler.connected():
        1 / 0  # noqa: B018


def test_a_client_that_has_connected_again_hears_no_receipts():
    client = Client()
    scheduler = Scheduler(client, "go on with another")
    scheduler.check()
    client.scheduler_comm = object()
    with pytest.raises(ClusterError, match=r"lost \(connected again\): go on"):
        scheduler.check()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '"tcp"', None])
def test_a_file_that_no_scheduler_has_written_is_refused_at_once(tmp_path, text):
    file = tmp_path / "scheduler.json"
    if text is not None:
        file.write_text(text)
    expected = "give a scheduler's address" if text is None else "is not the file of a scheduler"
    with pytest.raises(InputError, match=expected), open_cluster(str(file)):
        pass


def test_a_file_whose_scheduler_has_ended_says_that_none_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", "100ms")
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": WORKER}))
    with pytest.raises(InputError, match="no scheduler answers"), open_cluster(str(file)):
        pass


def test_workers_of_this_machine_print_no_tracebacks_when_they_end(client):
    def level():
        import logging

        return logging.getLogger("distributed.worker").getEffectiveLevel()

    assert set(client.run(level).values()) == {logging.CRITICAL}
