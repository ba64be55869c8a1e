"""Interrupted reductions of tall matrices go on with the same call, to the same bits."""

import ast
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

import hdgemm
from hdgemm.decomposition import PCA, pca
from hdgemm.linalg import corrcoef, cov, eigsh, lstsq, pinv, svd, svds, svdvals
from hdgemm.linalg.rows import checkpoint
from tests.child import ends_with_parent
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import random_matrix

ROWS = hdgemm.Options(tile=(12, 1, 1), threads=2, host_memory="200MB")
M, N = 160, 24
RIGHT = random_matrix(N, 3, "float64", 5)

CALLS = {
    "cov": lambda a, out, **how: cov(a, rowvar=False, aweights=np.arange(M), out=out[0], **how),
    "corrcoef": lambda a, out, **how: corrcoef(a, rowvar=False, out=out[0], **how),
    "svdvals": lambda a, out, **how: svdvals(a, out=out[0], **how),
    "svdvals by Gram": lambda a, out, **how: svdvals(a, out=out[0], method="gram", **how),
    "svd": lambda a, out, **how: svd(a, out=out, **how),
    "svd by reflectors": lambda a, out, **how: svd(a, out=out, **how),
    "svd of a wide matrix": lambda a, out, **how: svd(a, out=out, **how),
    "pinv": lambda a, out, **how: pinv(a, out=out[0], **how),
    "lstsq of a wide matrix": lambda a, out, **how: lstsq(a, RIGHT, out=out[0], **how),
    "pca": lambda a, out, **how: pca(a, 4, out=out, **how).scores,
    "pca by Krylov": lambda a, out, **how: pca(a, 4, svd_solver="krylov", out=out, **how).scores,
    "svds": lambda a, out, **how: svds(a, 3, block=5, out=out, **how),
    "values of svds": lambda a, out, **how: svds(
        a, 3, block=5, return_singular_vectors=False, out=out[0], **how
    ),
    "eigsh": lambda a, out, **how: eigsh(a, 3, block=8, tol=1e-6, out=out[:2], **how),
}


@pytest.fixture(autouse=True)
def _each_block_is_recorded(monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.rows.checkpoint._INTERVAL", 0.0)


def matrix_of(name):
    """Return a symmetric matrix for eigsh, tall or wide ones for the others."""
    if name == "eigsh":
        x = random_matrix(M, M, "float64")
        return x + x.T + 100 * np.diag(1.0 / np.arange(1, M + 1))
    base = 4.0 if name == "svd by reflectors" else 1.2
    x = random_matrix(M, N, "float64") * base ** -np.arange(N)
    return x.T if name in ("pinv", "svd of a wide matrix", "lstsq of a wide matrix") else x


def stored(folder, prefix):
    """Return the bytes of all results of a run, by name."""
    paths = sorted(folder.glob(f"{prefix}*.npy"))
    return {path.name.removeprefix(prefix): path.read_bytes() for path in paths}


def outs(folder, prefix):
    return tuple(folder / f"{prefix}{name}.npy" for name in "123")


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_goes_on_to_the_same_bits(name, tmp_path):
    call, a, events = CALLS[name], tmp_path / "A.npy", []
    np.save(a, matrix_of(name))
    call(a, outs(tmp_path, "whole"), options=ROWS, observer=events.append)
    kept = []
    for part in (0.3, 0.9):
        where, reports = outs(tmp_path, "part"), []
        with pytest.raises(InterruptedRunError):
            call(
                a, where, options=ROWS, checkpoint=True,
                observer=interrupt_after(int(part * len(events))),
            )  # fmt: skip
        assert not stored(tmp_path, "part")
        call(a, where, options=ROWS, checkpoint=True, report=reports.append)
        assert stored(tmp_path, "part") == stored(tmp_path, "whole")
        kept.append(reports[0].resumption.kept)
        assert kept[-1] <= reports[0].resumption.tiles
        assert [x.name for x in tmp_path.iterdir() if x.name.startswith(".")] == []
        for path in tmp_path.glob("part*"):
            path.unlink()
    assert 0 < kept[0] < kept[-1]


def test_threads_that_read_records_parse_no_two_headers_at_once(tmp_path, monkeypatch):
    """CPython 3.11 raised SystemError in a resumed run."""
    np.savez(tmp_path / "record.npz", a=np.eye(3), b=np.ones(2))
    np.save(tmp_path / "A.npy", np.eye(3))
    parse, parsing = ast.literal_eval, threading.Lock()

    def slowly(text):
        assert parsing.acquire(blocking=False)
        time.sleep(0.01)
        try:
            return parse(text)
        finally:
            parsing.release()

    monkeypatch.setattr(ast, "literal_eval", slowly)
    with ThreadPoolExecutor(4) as threads:
        reads = [threads.submit(checkpoint._read, tmp_path / "record.npz") for _ in range(4)]
        opened = [threads.submit(hdgemm.open, tmp_path / "A.npy") for _ in range(4)]
    assert all(set(each.result()) == {"a", "b"} for each in reads)
    assert all(each.result().shape == (3, 3) for each in opened)


def test_finished_passes_of_an_iteration_are_not_read_again(tmp_path):
    a, events = tmp_path / "A.npy", []
    np.save(a, matrix_of("svds"))
    call = CALLS["svds"]
    call(a, outs(tmp_path, "whole"), options=ROWS, observer=events.append)
    blocks = -(-M // 12)
    loads = [n for n, event in enumerate(events) if event.stage == "load1"]
    third = loads[2 * blocks + 3]
    with pytest.raises(InterruptedRunError):
        call(
            a, outs(tmp_path, "part"), options=ROWS, checkpoint=True,
            observer=interrupt_after(third),
        )  # fmt: skip
    read = []
    call(a, outs(tmp_path, "part"), options=ROWS, checkpoint=True, observer=read.append)
    assert sum(event.stage == "load1" for event in read) <= len(loads) - 2 * blocks
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")


def test_a_run_goes_on_with_the_threads_memory_and_block_of_the_earlier_one(tmp_path):
    a, reports = tmp_path / "A.npy", []
    np.save(a, matrix_of("svds"))

    def call(prefix, **how):
        svds(a, 3, out=outs(tmp_path, prefix), report=reports.append, **how)

    call("whole", options=ROWS)
    with pytest.raises(InterruptedRunError):
        call("part", options=ROWS, checkpoint=True, observer=interrupt_after(30))
    call("part", options=hdgemm.Options(tile=ROWS.tile, threads=1), checkpoint=True)
    assert reports[1].plan["block"] == reports[0].plan["block"]
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")


def test_another_call_and_a_result_in_memory_are_refused(tmp_path):
    a = tmp_path / "A.npy"
    np.save(a, matrix_of("cov"))
    with pytest.raises(InterruptedRunError):
        svdvals(a, out=tmp_path / "s.npy", options=ROWS, checkpoint=True,
                observer=interrupt_after(9))  # fmt: skip
    with pytest.raises(hdgemm.InputError, match="method"):
        svdvals(a, out=tmp_path / "s.npy", options=ROWS, checkpoint=True, method="gram")
    reports = []
    svdvals(a, out=tmp_path / "s.npy", options=ROWS, checkpoint=True, restart=True,
            report=reports.append)  # fmt: skip
    assert reports[0].resumption.kept == 0
    for call in (svdvals, svd, cov, pinv, svds):
        with pytest.raises(hdgemm.InputError, match="checkpoint needs a result in a file"):
            call(a, options=ROWS, checkpoint=True)


KILLED = """
import os, signal, sys, itertools
from pathlib import Path
from tests.linalg.test_durable_rows import CALLS, ROWS, outs
name, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
count = itertools.count()
def observe(event):
    if next(count) == last:
        os.kill(os.getpid(), signal.SIGKILL)
CALLS[name](folder / "A.npy", outs(folder, "part"), options=ROWS, checkpoint=True, observer=observe)
"""


STORING = [
    "svd",
    "svd by reflectors",
    "svd of a wide matrix",
    "lstsq of a wide matrix",
    "pinv",
    "pca",
    "svds",
]


@pytest.mark.parametrize("name", STORING)
def test_rows_that_were_stored_are_not_computed_again(name, tmp_path):
    a, events = tmp_path / "A.npy", []
    np.save(a, matrix_of(name))
    CALLS[name](a, outs(tmp_path, "whole"), options=ROWS, observer=events.append)
    blocks = -(-M // 12)
    stores = [number for number, event in enumerate(events) if event.stage == "store2"]
    with pytest.raises(InterruptedRunError):
        CALLS[name](
            a, outs(tmp_path, "part"), options=ROWS, checkpoint=True,
            observer=interrupt_after(stores[-blocks // 2]),
        )  # fmt: skip
    again = []
    CALLS[name](a, outs(tmp_path, "part"), options=ROWS, checkpoint=True, observer=again.append)
    assert 0 < sum(event.stage == "store2" for event in again) <= blocks // 2 + 2
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")


@pytest.mark.parametrize("name", ["svd", "pinv", "pca", "svds"])
def test_a_finished_call_with_a_result_in_hdf5_is_repeated(name, tmp_path):
    """Its file holds nothing but the result, and is replaced as a .npy file is."""
    np.save(tmp_path / "a.npy", matrix_of(name))
    places, events = tuple(f"{tmp_path / each}.h5::/group/X" for each in ("u", "s", "v")), []
    how = {"checkpoint": True, "options": ROWS}
    CALLS[name](tmp_path / "a.npy", places, observer=events.append, **how)
    with hdgemm.open(places[0]) as found:
        expected = found.read()
    with pytest.raises(InterruptedRunError):
        CALLS[name](tmp_path / "a.npy", places, observer=interrupt_after(len(events) // 2), **how)
    CALLS[name](tmp_path / "a.npy", places, **how)
    with hdgemm.open(places[0]) as found:
        np.testing.assert_array_equal(found.read(), expected)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["svd", "svd of a wide matrix", "pca", "svds"])
def test_a_call_with_all_results_in_one_hdf5_file_goes_on_and_is_repeated(name, tmp_path):
    a, path = matrix_of(name), tmp_path / "R.h5"
    np.save(tmp_path / "A.npy", a)
    places = tuple(f"{path}::/group/{item}" for item in "123")

    def run(**how):
        CALLS[name](tmp_path / "A.npy", places, options=ROWS, checkpoint=True, **how)
        return [hdgemm.open(place)[:, :].read().tobytes() for place in places]

    expected = run()
    with pytest.raises(InterruptedRunError):
        run(observer=interrupt_after(12))
    assert run() == expected
    path.unlink()
    with pytest.raises(InterruptedRunError):
        run(observer=interrupt_after(12))
    with h5py.File(path, "w") as file:  # the last result is published first
        file["group/3"] = np.zeros((2, 2))
    assert run() == expected
    with h5py.File(path, "a") as file:
        file["group/other"] = np.zeros((2, 2))
    with pytest.raises(hdgemm.InputError, match="holds more than /group"):
        run()


@pytest.mark.parametrize("name", STORING)
def test_rows_that_have_changed_are_computed_again(name, tmp_path):
    a, events = tmp_path / "A.npy", []
    np.save(a, matrix_of(name))
    CALLS[name](a, outs(tmp_path, "whole"), options=ROWS, observer=events.append)
    stores = [number for number, event in enumerate(events) if event.stage == "store2"]
    for cut in (False, True):
        with pytest.raises(InterruptedRunError):
            CALLS[name](
                a, outs(tmp_path, "part"), options=ROWS, checkpoint=True,
                observer=interrupt_after(stores[-1]),
            )  # fmt: skip
        drafts = list(tmp_path.glob(".*.part"))
        assert drafts
        for draft in drafts:
            data = draft.read_bytes()
            draft.write_bytes(data[:200] if cut else data[:-800] + bytes(800))
        CALLS[name](a, outs(tmp_path, "part"), options=ROWS, checkpoint=True)
        assert stored(tmp_path, "part") == stored(tmp_path, "whole")
        for path in tmp_path.glob("part*"):
            path.unlink()


CUT_OFF = """
import os, sys
from pathlib import Path
from hdgemm.linalg.rows.checkpoint import RowCheckpoint
from tests.linalg.test_durable_rows import CALLS, ROWS, outs
RowCheckpoint.discard = lambda _checkpoint: os._exit(9)
folder = Path(sys.argv[1])
CALLS["svd"](folder / "A.npy", outs(folder, "part"), options=ROWS, checkpoint=True)
"""


def test_a_run_that_was_cut_off_after_it_published_u_goes_on(tmp_path):
    a, reports = tmp_path / "A.npy", []
    np.save(a, matrix_of("svd"))
    CALLS["svd"](a, outs(tmp_path, "whole"), options=ROWS)
    command = ends_with_parent([sys.executable, "-c", CUT_OFF, str(tmp_path)])
    assert subprocess.run(command, check=False, cwd=Path.cwd()).returncode == 9
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")
    CALLS["svd"](a, outs(tmp_path, "part"), options=ROWS, checkpoint=True, report=reports.append)
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")
    assert reports[0].resumption.kept == reports[0].resumption.tiles
    assert subprocess.run(command, check=False, cwd=Path.cwd()).returncode == 9
    np.save(tmp_path / "part1.npy", np.zeros((M, N)))
    with pytest.raises(hdgemm.InputError, match="was published, and has changed since"):
        CALLS["svd"](a, outs(tmp_path, "part"), options=ROWS, checkpoint=True)


def test_a_run_that_cannot_be_discarded_closes_its_journal(tmp_path, monkeypatch):
    a, reports = tmp_path / "A.npy", []
    np.save(a, matrix_of("svd"))
    place = {"out": outs(tmp_path, "part"), "options": ROWS, "checkpoint": True}

    def fail(_checkpoint):
        raise OSError("no permission")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.RowCheckpoint, "discard", fail)
        with pytest.raises(OSError, match="no permission") as caught:
            CALLS["svd"](a, **place)
    CALLS["svd"](a, **place, report=reports.append)
    assert reports[0].resumption.kept > 0
    del caught  # with its traceback, the checkpoint was kept until here


def test_rows_of_an_array_are_computed_again(tmp_path):
    a, events = tmp_path / "A.npy", []
    np.save(a, matrix_of("svd by reflectors"))
    whole = svd(a, options=ROWS, observer=events.append)
    where = (None, tmp_path / "s.npy", None)
    with pytest.raises(InterruptedRunError):
        svd(a, out=where, options=ROWS, checkpoint=True, observer=interrupt_after(len(events) - 9))
    for found, expected in zip(
        svd(a, out=where, options=ROWS, checkpoint=True), whole, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "s.npy"]


def test_an_error_in_the_first_pass_leaves_no_draft(tmp_path):
    a = tmp_path / "A.npy"
    x = matrix_of("svd")
    x[:, 3] = np.nan
    np.save(a, x)
    with pytest.raises(hdgemm.InputError, match="NaN"):
        svd(a, out=outs(tmp_path, "part"), options=ROWS, checkpoint=True)
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


@pytest.mark.parametrize("name", ["cov", "svds", "svd by reflectors"])
def test_a_killed_process_leaves_a_run_that_goes_on(name, tmp_path):
    a, events, reports = tmp_path / "A.npy", [], []
    np.save(a, matrix_of(name))
    CALLS[name](a, outs(tmp_path, "whole"), options=ROWS, observer=events.append)
    command = [sys.executable, "-c", KILLED, name, str(tmp_path), str(len(events) * 2 // 3)]
    killed = subprocess.run(ends_with_parent(command), check=False, cwd=Path.cwd())
    assert killed.returncode == -signal.SIGKILL
    CALLS[name](a, outs(tmp_path, "part"), options=ROWS, checkpoint=True, report=reports.append)
    assert reports[0].resumption.kept > 0
    assert stored(tmp_path, "part") == stored(tmp_path, "whole")


@pytest.mark.parametrize("solver", ["full", "krylov"])
def test_a_fit_goes_on_to_the_same_bits_with_the_journal_of_a_path(solver, tmp_path):
    a, events, kept = tmp_path / "A.npy", [], []
    np.save(a, matrix_of("pca"))
    model = PCA(np.int64(4), svd_solver=solver, options=ROWS)
    whole = vars(PCA(4, svd_solver=solver, options=ROWS).fit(a, observer=events.append))
    journal = tmp_path / "fit.journal"
    for part in (0.3, 0.9):
        with pytest.raises(InterruptedRunError):
            model.fit(a, checkpoint=journal, observer=interrupt_after(int(part * len(events))))
        with pytest.raises(hdgemm.InputError, match="standardize"):
            PCA(4, svd_solver=solver, standardize=True).fit(a, checkpoint=journal)
        reports = []
        model.fit(a, checkpoint=journal, report=reports.append)
        for name in ("components_", "singular_values_", "mean_", "explained_variance_ratio_"):
            np.testing.assert_array_equal(vars(model)[name], whole[name])
        kept.append(reports[0].resumption.kept)
        assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]
    assert 0 < kept[0] < kept[1]


def test_a_fit_needs_the_path_of_a_journal(tmp_path):
    np.save(tmp_path / "A.npy", matrix_of("pca"))
    with pytest.raises(hdgemm.InputError, match="the path of a journal"):
        PCA(4).fit(tmp_path / "A.npy", checkpoint=True)
