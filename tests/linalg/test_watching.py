"""Every factorisation and solve shows its progress where that is asked for."""

import inspect

import numpy as np
import pytest

from hdgemm import linalg
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import InputError
from hdgemm.options import Options
from hdgemm.progress import Callbacks, Progress

CALLS = sorted(
    name
    for name in linalg.__all__
    if inspect.isfunction(getattr(linalg, name))
    and "progress" in inspect.signature(getattr(linalg, name)).parameters
)

#: Keywords of every call; and of those that store a matrix in a file.
WATCHED = {"options", "session", "progress", "observer", "cancel", "report"}
STORED = {"out", "checkpoint", "restart"}
#: Calls that return numbers, which no file stores.
NUMBERS = {"cond", "det", "norm", "slogdet"}
#: Calls that store matrices, and keep no journal.
VOLATILE = {"corrcoef", "cov", "eigsh", "pinv", "svd", "svds", "svdvals"}
#: Calls that compute nothing: they plan, or open what is stored.
IDLE = {"open", "plan"}


def test_the_calls_are_known():
    assert {"cholesky", "lu_factor", "lu_solve", "solve", "solve_triangular"} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_progress_is_true_a_function_or_nothing(name):
    call = getattr(linalg, name)
    assert "bool" in str(inspect.signature(call).parameters["progress"].annotation)
    assert call.__wrapped__.__name__ == name


def test_a_factorisation_shows_its_progress(capsys):
    a = np.eye(8)
    linalg.cholesky(a, progress=True)
    assert "cholesky 100.0 %" in capsys.readouterr().err
    linalg.cholesky(a, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match="progress must be"):
        linalg.cholesky(a, progress=5)


def test_the_speed_of_several_runs_counts_the_work_of_all():
    shown = []
    portions = RunSequence(Callbacks(shown.append), 300)
    for flops, percent, gflops, elapsed in ((200, 100.0, 2.0, 3.0), (100, 50.0, 1.0, 4.0)):
        callbacks = portions.next(flops)
        callbacks.progress(Progress(percent, gflops, elapsed, None, None, 0, 0))
    assert shown[-1].percent == pytest.approx(100 * 250 / 300)
    assert shown[-1].gflops * shown[-1].elapsed == pytest.approx(2.0 * 3.0 + 1.0 * 4.0)


def test_every_call_takes_the_keywords():
    found = set()
    for name in linalg.__all__:
        call = getattr(linalg, name)
        if isinstance(call, type) or name in IDLE:
            continue
        parameters = inspect.signature(call).parameters
        stored = {"out"} if name in VOLATILE else STORED
        wanted = WATCHED | (set() if name in NUMBERS else stored)
        assert wanted <= set(parameters), name
        assert all(parameters[word].kind is inspect.Parameter.KEYWORD_ONLY for word in wanted), name
        found.add(name)
    assert found >= NUMBERS | VOLATILE | {"cholesky", "lu", "qr_multiply", "lstsq", "solve"}


def test_numbers_have_a_report(tmp_path):
    a = np.random.default_rng(0).random((20, 20))
    np.save(tmp_path / "A.npy", a)
    for call in (linalg.det, linalg.slogdet, linalg.cond, linalg.lu):
        reports = []
        call(tmp_path / "A.npy", report=reports.append, options=Options(tile=(1, 7, 3)))
        [report] = reports
        assert report.moved_bytes == report.planned_bytes
        assert report.timeline.events
