"""Passes over rows on a cluster: the same results as on one machine, whichever workers reduce."""

import importlib
import json
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import distributed
import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.cluster import _row_tasks as row_tasks, row_passes
from hdgemm.cluster._row_tasks import (
    _LEAVING as LEAVING,
    _Reads as Reads,
    _run_and_leave as run_and_leave,
)
from hdgemm.cluster.row_passes import piece_rows
from hdgemm.errors import CancelledRunError, InputError, MatrixIOError
from hdgemm.linalg.planning.rows import RowShape
from hdgemm.options import Options
from hdgemm.pipeline.timeline import Event
from tests.cli.commands import command_line
from tests.cluster.processes import scheduler, wait_for, worker

M, N = 1003, 12
TILES = Options(host_memory="64MB", tile=(16, 100, 100))


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((M, N)) * np.logspace(0, -3, N) + 5
    b = a @ rng.standard_normal((N, 2)) + 0.1 * rng.standard_normal((M, 2))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "b.npy", b)
    np.save(tmp_path / "I.npy", rng.integers(-9, 9, (M, N)))
    return tmp_path, a, b


def test_results_are_those_of_one_machine(client, case):
    folder, a, b = case
    name = f"{folder}/A.npy"
    reports = []
    with row_passes(client, options=TILES):
        s = linalg.svdvals(name, report=reports.append)
        x = linalg.lstsq(name, f"{folder}/b.npy")[0]
        fit = linalg.ridge(name, b[:, 0], [0.0, 2.0], intercept=True)
        covariance = linalg.cov(name, rowvar=False)
        r = linalg.qr(name, mode="r")[0]
        norm = linalg.norm(name)
        pca = hdgemm.decomposition.PCA(3).fit(name)
        leading = linalg.svds(name, k=2, return_singular_vectors=False)
    exact = np.linalg.svd(a, compute_uv=False)
    assert np.allclose(s, exact, rtol=1e-12, atol=0)
    assert np.allclose(x, np.linalg.lstsq(a, b)[0], atol=1e-9)
    alone = linalg.ridge(name, b[:, 0], [0.0, 2.0], intercept=True)
    assert np.allclose(fit.x, alone.x, atol=1e-9)
    assert np.allclose(fit.intercept, alone.intercept)
    assert np.allclose(covariance, np.cov(a, rowvar=False), atol=1e-12)
    assert np.allclose(np.abs(r[:N]), np.abs(np.linalg.qr(a, mode="r")), atol=1e-9)
    assert norm == pytest.approx(np.linalg.norm(a), rel=1e-14)
    assert np.allclose(
        pca.explained_variance_, hdgemm.decomposition.PCA(3).fit(name).explained_variance_
    )
    assert np.allclose(sorted(leading), sorted(exact[:2]))
    (report,) = reports
    assert report.stages["load1"].nbytes == a.nbytes
    assert {device for device in report.devices if device != "host"}
    assert "workers" in str(report.plan)


def test_bits_do_not_depend_on_the_workers(client, cluster, case, monkeypatch):
    folder, *_ = case
    found = []
    for workers in (None, [next(iter(cluster.scheduler_info["workers"]))]):
        for method in ("submit", "map") if workers else ():
            monkeypatch.setattr(client, method, partial(getattr(client, method), workers=workers))
        with row_passes(client, options=TILES):
            found.append(linalg.qr(folder / "A.npy", mode="r")[0].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("m", "n", "rows", "pieces"),
    [
        (300, 12, (128 << 20) // 96, 1),  # all of a short matrix
        (300_000, 400, (128 << 20) // 3200, 8),
        (1_600_000, 400, 200_000, 8),
        (16_000_000, 400, (1 << 30) // 3200, 48),
        (2 * 10**9, 400, 2 * 10**9 // 4096 + 1, 4096),  # no more for the scheduler
        (1_000_000, 20_000, 80_000, 13),  # a piece has many more rows than its triangle
    ],
)
def test_pieces_are_few_and_small(m, n, rows, pieces):
    shape = RowShape(m, n, 0, "float64")
    assert piece_rows(shape, Options()) == rows
    assert -(-m // rows) == pieces


def wait_for_all(folder, workers):
    """Let each piece on this worker wait until all workers have begun one."""
    kept = row_tasks._plan

    def plan(*arguments):
        (folder / f"{os.getpid()}").touch()
        wait_for(lambda: len(list(folder.iterdir())) == workers)
        return kept(*arguments)

    row_tasks._plan = plan
    row_tasks._plan.kept = kept


def wait_no_more():
    row_tasks._plan = row_tasks._plan.kept


def test_each_pass_gives_pieces_to_all_workers(client, case):
    """Also when the scheduler knows groups of tasks of earlier passes."""
    (folder, *_), workers = case, len(client.nthreads())
    assert workers > 1
    for number in range(6):
        events, begun = [], folder / f"{number}"
        begun.mkdir()
        client.run(wait_for_all, begun, workers)
        try:
            with row_passes(client, options=TILES):
                linalg.norm(folder / "A.npy", observer=events.append)
        finally:
            client.run(wait_no_more)
        assert len({event.device for event in events}) == workers == len(list(begun.iterdir()))


def test_the_client_sleeps_until_a_piece_is_reduced(client, case, monkeypatch):
    folder, *_ = case
    kept, woken = distributed.wait, []

    def wait(futures, **how):
        found = kept(futures, **how)  # or TimeoutError
        woken.append(any(future.done() for future in futures))
        return found

    monkeypatch.setattr(distributed, "wait", wait)
    with row_passes(client, options=TILES):
        linalg.norm(folder / "A.npy")
    assert woken
    assert all(woken)


@pytest.mark.parametrize("beside", [True, False])
def test_a_worker_begins_its_next_piece_when_the_last_block_is_read(monkeypatch, beside):
    left = threading.Event()
    monkeypatch.setattr(distributed, "secede", left.set)
    reads = Reads(2)
    found = []

    def run():
        for block in range(2):
            found.append(left.is_set())
            reads.note(Event("host", "load1", block, 0, block, 0.0, 1.0, 8, 0))
        found.append(left.wait(60) if beside else left.is_set())

    with ExitStack() as stack:
        run_and_leave(run, reads, stack, beside=beside)
        assert LEAVING.locked() == beside
    assert found == [False, False, beside]
    assert not LEAVING.locked()


def test_the_events_of_a_piece_of_many_blocks_are_joined():
    count, reads = 3000, Reads(3000)
    for block in range(count):
        for stage, at in (("load1", block), ("mult1", block + 0.5)):
            reads.note(Event("host", stage, block, 0, block, at, at + 0.25, 8, 3))
    events = tuple(reads.events)
    assert len(events) <= 256
    assert sum(event.operations for event in events) == 2 * count
    assert sum(event.nbytes for event in events) == 16 * count
    assert reads.ended.is_set()


def test_one_task_at_a_time_has_left_the_threads(monkeypatch):
    monkeypatch.setattr(distributed, "secede", pytest.fail)
    with LEAVING, ExitStack() as stack:
        run_and_leave(lambda: None, Reads(0), stack, beside=True)


def test_errors_of_a_piece_are_raised():
    def run():
        raise InputError("no")

    with ExitStack() as stack, pytest.raises(InputError, match="no"):
        run_and_leave(run, Reads(1), stack, beside=True)


def test_passes_that_store_rows_run_in_this_process(client, case):
    folder, a, _ = case
    with row_passes(client, options=TILES):
        u, s, vh = linalg.svd(folder / "A.npy", full_matrices=False)
    assert np.allclose(u * s @ vh, a)


@pytest.mark.parametrize("stored", [False, True])
def test_singular_vectors_on_a_cluster(client, case, stored):
    """The workers cannot read A·V, which is in memory or in an unnamed file of this process."""
    folder, a, _ = case
    out = (f"{folder}/U.npy", None, None) if stored else None
    with row_passes(client, options=TILES):
        u, s, vh = map(np.asarray, linalg.svds(folder / "A.npy", 2, tol=1e-9, out=out))
    assert np.allclose(np.sort(s), np.sort(np.linalg.svd(a, compute_uv=False)[:2]), rtol=1e-12)
    assert np.allclose(u * s, a @ vh.conj().T, atol=1e-9)


def test_sums_of_integers_are_exact(client, case):
    folder, *_ = case
    stored = np.load(folder / "I.npy")
    with row_passes(client, options=TILES):
        assert linalg.norm(folder / "I.npy", 1) == np.abs(stored).sum(axis=0).max()


def test_errors_name_what_is_wrong(client, case):
    folder, a, _ = case
    with row_passes(client, options=TILES):
        with pytest.raises(InputError, match="lies in this process"):
            linalg.svdvals(a)
        a[700, 3] = np.nan
        np.save(folder / "N.npy", a)
        with pytest.raises(InputError, match=r"\[700, 3\]|row 700"):
            linalg.svdvals(folder / "N.npy")
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(CancelledRunError):
            linalg.svdvals(folder / "A.npy", cancel=cancel)
        with pytest.raises(hdgemm.errors.DoesNotFitError, match="host_memory"):
            _small(client, folder)


def _small(client, folder):
    with row_passes(client, options=Options(host_memory="1kB")):
        linalg.svdvals(folder / "A.npy")


@pytest.mark.parametrize("name", ["A.npy", "b.npy"])
def test_a_file_that_is_replaced_during_a_pass_is_an_error(client, case, name):
    folder, *_ = case
    np.save(folder / "new.npy", np.load(folder / name) + 1)

    def replace(_):  # pieces after this one read the other file
        if (folder / "new.npy").exists():
            (folder / "new.npy").rename(folder / name)

    with (
        row_passes(client, options=TILES),
        pytest.raises(MatrixIOError, match="was replaced by another file during the run"),
    ):
        linalg.lstsq(f"{folder}/A.npy", f"{folder}/b.npy", observer=replace)


def test_a_lost_worker_costs_its_rows_only(case):
    folder, a, _ = case
    started, file = scheduler(folder)
    reduced = []
    with started, ExitStack() as stack:
        wait_for(Path(file).exists)
        client = stack.enter_context(distributed.Client(scheduler_file=file))
        address = client.scheduler.address
        lost = stack.enter_context(worker(address, name="lost"))
        stack.enter_context(worker(address, name="stays"))
        client.wait_for_workers(2)

        def observer(event):
            reduced.append(event)
            if len(reduced) == 5:
                lost.send_signal(signal.SIGKILL)

        with row_passes(client, options=TILES):
            s = linalg.svdvals(folder / "A.npy", observer=observer)
    assert lost.returncode == -signal.SIGKILL
    assert np.allclose(s, np.linalg.svd(a, compute_uv=False), rtol=1e-12)
    assert "stays" in {event.device for event in reduced}


@pytest.mark.parametrize("after", [1, 20])
@pytest.mark.ci
def test_pieces_of_a_frozen_worker_are_given_to_an_idle_one(case, after):
    """The scheduler never gives the worker up, and its results cannot be fetched."""
    folder, *_ = case
    started, file = scheduler(folder, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="None")
    exact = np.abs(np.load(folder / "I.npy")).sum(axis=0).max()
    seen = []
    with started, ExitStack() as stack:
        wait_for(Path(file).exists)
        client = stack.enter_context(distributed.Client(scheduler_file=file))
        address = client.scheduler.address
        frozen = stack.enter_context(worker(address, name="frozen"))
        stack.enter_context(worker(address, name="goes on"))
        client.wait_for_workers(2)
        client.run(importlib.import_module, "hdgemm.linalg")

        def observer(event):
            seen.append(event.device)
            if len(seen) >= after:
                frozen.send_signal(signal.SIGSTOP)

        with row_passes(client, options=TILES):
            r = linalg.qr(folder / "I.npy", mode="r", observer=observer)[0]
            assert linalg.norm(folder / "I.npy", 1) == exact
        assert frozen.poll() is None
    assert "goes on" in seen
    integers = np.load(folder / "I.npy").astype(float)
    assert np.allclose(r.T @ r, integers.T @ integers, rtol=1e-12)


def test_commands_reduce_rows_on_a_cluster(client, case, monkeypatch, capsys):
    folder, a, _ = case
    run = command_line(monkeypatch, capsys)
    where = ["--cluster", client.scheduler.address, "--tile", "16,100,100", "--json", "--quiet"]
    done = run("svdvals", folder / "A.npy", "--out", folder / "s.npy", *where)
    assert done.returncode == 0, done.stderr
    assert "workers" in done.stdout
    found = np.load(folder / "s.npy").ravel()
    assert np.allclose(found, np.linalg.svd(a, compute_uv=False), rtol=1e-12, atol=0)
    beside = ["--s", folder / "s.npy", "--vh", folder / "Vh.npy"]
    done = run("svd", folder / "A.npy", "--out", folder / "U.npy", *beside, *where)
    assert done.returncode == 0, done.stderr
    assert "workers" in done.stdout
    u, s, vh = (np.load(folder / f"{name}.npy") for name in ("U", "s", "Vh"))
    assert np.allclose(u * s.ravel() @ vh, a)
    done = run("qr", folder / "A.npy", "--out", folder / "R.npy", *where)
    assert done.returncode == 0, done.stderr
    assert "workers" in done.stdout
    r = np.load(folder / "R.npy")
    assert np.allclose(r.T @ r, a.T @ a)
    done = run("norm", folder / "A.npy", "--ord", "1", *where)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["values"]["norm"] == pytest.approx(np.abs(a).sum(axis=0).max())
    assert "workers" in done.stdout
    np.save(folder / "square.npy", np.eye(5))
    refused = run("qr", folder / "square.npy", "--out", folder / "C.npy", *where)
    assert refused.returncode == 2
    assert "qr of a 5×5 matrix does not run on a cluster" in refused.stderr
    for name, *more in (["syrk"], ["svdvals", "--dry-run"], ["qr", "--mode", "raw"]):
        refused = run(name, folder / "A.npy", "--out", folder / "C.npy", *where, *more)
        assert refused.returncode == 2
        assert "--cluster" in refused.stderr
