"""Answers of the scheduler and of workers: none is waited for without a limit."""

import json

import pytest

from hdgemm.cluster import connection, workers
from hdgemm.cluster.connection import ClusterError, Scheduler, open_cluster
from hdgemm.cluster.workers import Workers, ask, own_version
from hdgemm.errors import InputError

WORKER = "tcp://127.0.0.1:1"


class Answer:
    """A finished future whose value can be lost, as Dask's is when its only worker dies."""

    status = "finished"

    def __init__(self, value=None, error=None):
        self.value, self.error = value, error
        if error is not None and not isinstance(error, LostValueError):
            self.status = "error"

    def done(self):
        return True

    def result(self, timeout=None):
        assert timeout is not None, "a lost value is waited for without end"
        if self.error is not None:
            raise self.error
        return self.value


class LostValueError(TimeoutError):
    """The value cannot be fetched."""


class Client:
    """Answers the version, then one prepared answer."""

    def __init__(self, answer):
        self.answers = [Answer(own_version()), answer]

    def submit(self, *_, **__):
        return self.answers.pop(0) if self.answers else Answer()


def test_a_lost_answer_is_not_waited_for_and_its_worker_is_forgotten():
    workers = Workers(Client(Answer(error=LostValueError())), job=None)
    workers.update({WORKER})
    assert workers.answers() == []
    assert workers.waiting
    assert not workers.refused
    workers.update(set())
    assert not workers.waiting


@pytest.mark.parametrize("error", [TimeoutError("storage"), OSError("storage")])
def test_an_error_of_a_worker_excludes_it(error):
    workers = Workers(Client(Answer(error=error)), job=None)
    workers.update({WORKER})
    assert workers.answers() == []
    assert not workers.waiting
    assert WORKER in workers.refused


class Silent(Client):
    """A scheduler that has one worker, which never answers."""

    status = "running"

    def __init__(self):
        super().__init__(Answer())

    def nthreads(self, callback_timeout):
        assert callback_timeout > 0
        return {WORKER: 1}

    def submit(self, *_, **__):
        unanswered = Answer()
        unanswered.done = lambda: False
        return unanswered


def test_a_plan_does_not_wait_for_a_worker_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(workers, "_PLAN_SECONDS", 0.05)
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:1: it has not answered"):
        ask(Silent(), job=None)


def test_a_silent_scheduler_is_lost_after_a_while(monkeypatch):
    client = Silent()
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
    client = Silent()
    scheduler = Scheduler(client, "go on with another")
    with pytest.raises(ZeroDivisionError), scheduler.connected():
        1 / 0  # noqa: B018
    client.status = "closed"
    with pytest.raises(ClusterError, match=r"lost \(closed\): go on"), scheduler.connected():
        1 / 0  # noqa: B018


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
