"""Progress counters."""

from types import SimpleNamespace

import pytest

from hdgemm.errors import DeviceError
from hdgemm.pipeline.sync import StageCounters, Stopped
from hdgemm.threads import Worker


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
