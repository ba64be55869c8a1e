"""Any operation of a call may fail, or be the one at which the caller cancels."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import positive_definite, random_matrix

N = 13
#: Operations that may all have begun when one ends: after a cancel at the last ones a call returns.
AT_ONCE = 6
SLABS = hdgemm.Options(tile=(1, 5, 3), host_memory="20MB", threads=1)
CALLS = {
    "cholesky": lambda a, b, out, how: linalg.cholesky(a, out=out[0], **how),
    "lu_factor": lambda a, b, out, how: linalg.lu_factor(a, out=out[0], **how),
    "lu": lambda a, b, out, how: linalg.lu(a, out=out, **how),
    "qr": lambda a, b, out, how: linalg.qr(a, out=out, **how),
    "solve": lambda a, b, out, how: linalg.solve(a, b, out=out[0], **how),
    "inv": lambda a, b, out, how: linalg.inv(a, out=out[0], **how),
    "lstsq": lambda a, b, out, how: linalg.lstsq(a, b, out=out[0], **how),
}


@pytest.fixture
def call(tmp_path, request):
    """A function that runs a call between files; its results go to the folder `out`."""
    cholesky = request.param == "cholesky"
    a = positive_definite(N, "float64") if cholesky else random_matrix(N, N, "float64")
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", random_matrix(N, 7, "float64"))
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "1.npy", tmp_path / "out" / "2.npy"

    def run(**how):
        CALLS[request.param](tmp_path / "A.npy", tmp_path / "B.npy", out, {"options": SLABS} | how)

    return run


def remove_published(folder):
    """Remove the results of a call."""
    for path in folder.iterdir():
        path.unlink()


def operations_of(call, folder):
    """Run a call; return how many operations it has, and remove what it published."""
    events = []
    call(observer=events.append)
    remove_published(folder)
    assert {"load1", "mult1"} <= {event.stage for event in events}
    return len(events)


@pytest.mark.parametrize("call", CALLS, indirect=True)
def test_an_operation_that_fails_publishes_nothing(tmp_path, call):
    count = operations_of(call, tmp_path / "out")
    for operations in range(0, count, 4):
        with pytest.raises(InterruptedRunError):
            call(observer=interrupt_after(operations))
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("call", CALLS, indirect=True)
def test_a_cancel_at_any_operation_publishes_nothing(tmp_path, call):
    count = operations_of(call, tmp_path / "out")
    for operations in range(1, count - 1, 4):
        cancel, left = threading.Event(), iter(range(operations))

        def observe(_event, cancel=cancel, left=left):
            if next(left, None) is None:
                cancel.set()

        try:
            call(observer=observe, cancel=cancel)
        except hdgemm.CancelledRunError:
            assert list((tmp_path / "out").iterdir()) == []
        else:
            assert operations >= count - AT_ONCE
            remove_published(tmp_path / "out")
