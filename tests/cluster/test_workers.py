"""Answers of workers: what is lost with a worker that died is neither waited for nor believed."""

import pytest

from hdgemm.cluster.workers import Workers, own_version

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
