"""Workers, clients and schedulers that are lost, refused or late: C is right, nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack

import numpy as np
import pytest

from hdgemm.cluster import _workers as workers, multiply
from hdgemm.cluster.connection import _LOCAL_SETTINGS
from hdgemm.durable.audit import audit
from hdgemm.durable.journal import Journal
from hdgemm.errors import CancelledRunError, InputError, MatrixIOError
from hdgemm.options import Options
from tests.cluster.processes import (
    MOMENTS,
    assert_done_once,
    hold,
    pieces,
    scheduler,
    wait_for,
    wait_in_blocks,
    worker,
)
from tests.reference import assert_close_in_eps

distributed = pytest.importorskip("distributed")
config = pytest.importorskip("dask").config

pytestmark = pytest.mark.usefixtures("many_blocks")
OPTIONS = Options(devices="host", host_memory="64MB", tile=(16, 200, 100))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, own_cache):
    """A scheduler with one worker that stays; both without a nanny."""
    running, file = scheduler(tmp_path_factory.mktemp("scheduler"))
    with ExitStack() as stack:
        stack.enter_context(running)
        client = stack.enter_context(distributed.Client(scheduler_file=file))
        stack.enter_context(worker(client.scheduler.address, name="stays"))
        client.wait_for_workers(1, timeout=300)
        yield client, file


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((120, 80)), rng.standard_normal((80, 120))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    return tmp_path, a, b


def run(client, folder, **arguments):
    arguments = {"options": OPTIONS, "out": folder / "C.npy"} | arguments
    return multiply(folder / "A.npy", folder / "B.npy", client=client, **arguments)


def check(case):
    folder, a, b = case
    assert_close_in_eps(np.load(folder / "C.npy"), a, b)
    assert audit(folder / "C.npy").passed
    assert_done_once(folder / ".C.npy.hdgemm-journal", (120, 120))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_killed_at_a_moment(plain, case, moment):
    client, _ = plain
    folder, *_ = case
    file = folder / "held"
    [stays] = client.nthreads()
    with worker(client.scheduler.address, name=moment) as doomed:
        client.wait_for_workers(2, timeout=300)
        [address] = set(client.nthreads()) - {stays}
        client.run(hold, moment, f"{file}", workers=[address])
        client.run(wait_in_blocks, f"{file}", workers=[stays])
        killer = threading.Thread(target=kill_when, args=(file.exists, doomed))
        killer.start()
        report = run(client, folder)
        killer.join()
    client.run(wait_in_blocks, None)
    check(case)
    assert report.devices == tuple(n for n in report.devices if n.endswith("stays"))
    wait_for(lambda: len(client.nthreads()) == 1)


def kill_when(condition, process):
    try:
        wait_for(condition)
    finally:
        process.kill()


def test_a_worker_killed_after_its_block_and_started_again_by_its_nanny(cluster, case):
    folder, *_ = case
    killed = []
    with distributed.Client(cluster) as client:
        pids = client.run(os.getpid)

        def kill(_):
            if not killed:
                killed.append(os.kill(next(iter(pids.values())), signal.SIGKILL))

        run(client, folder, progress=kill)
        check(case)
        wait_for(lambda: len(client.nthreads()) == 2)


def test_a_killed_client_is_continued(plain, case):
    client, file = plain
    folder, *_ = case
    command = [sys.executable, "-m", "tests.cluster.processes", file, str(folder), "3"]
    died = subprocess.run(command, check=False)
    assert died.returncode == -signal.SIGKILL
    before = pieces(folder / ".C.npy.hdgemm-journal")
    report = run(client, folder, options=Options(devices="host", host_memory="64MB"))
    check(case)
    assert report.resumption.kept == len(before) > 0
    assert pieces(folder / ".C.npy.hdgemm-journal")[: len(before)] == before


@pytest.mark.ci
def test_a_lost_scheduler_is_an_error_and_another_goes_on(plain, case, tmp_path):
    folder, *_ = case
    running, file = scheduler(tmp_path)
    with running as process:
        wait_for((tmp_path / "scheduler.json").exists)
        client = distributed.Client(scheduler_file=file)
        with (
            worker(client.scheduler.address, name="orphan"),
            pytest.raises(
                workers.ClusterError, match=r"the scheduler .*hdgemm-journal|does not answer"
            ),
        ):
            run(client, folder, progress=lambda _: process.kill())
        client.close(timeout=1)
    report = run(plain[0], folder)
    assert report.resumption.kept > 0
    check(case)


@pytest.mark.parametrize("how", ["cancel", "Ctrl-C"])
def test_a_run_that_is_stopped_goes_on(plain, case, how):
    folder, *_ = case
    client, _ = plain
    cancel = threading.Event()

    def stop(_):
        if how == "cancel":
            cancel.set()
        else:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(CancelledRunError if how == "cancel" else KeyboardInterrupt):
        run(client, folder, cancel=cancel, progress=stop)
    assert not (folder / "C.npy").exists()
    wait_for(lambda: not any(client.processing().values()))
    assert run(client, folder).resumption.kept > 0
    check(case)


def test_a_damaged_piece_is_computed_again(plain, case):
    folder, a, b = case
    cancel = threading.Event()
    with pytest.raises(CancelledRunError):
        run(plain[0], folder, cancel=cancel, progress=lambda _: cancel.set())
    [part] = folder.glob(".C.npy.*.part")
    row, col, *_ = pieces(folder / ".C.npy.hdgemm-journal")[0]
    with part.open("r+b") as file:
        file.seek(part.stat().st_size - 8 * 120 * 120 + 8 * (120 * row + col))
        file.write(b"\x55")
    assert run(plain[0], folder).resumption.damaged == 1
    assert_close_in_eps(np.load(folder / "C.npy"), a, b)


def test_two_clients_cannot_have_one_journal(plain, case):
    folder, *_ = case
    with Journal(folder / ".C.npy.hdgemm-journal"), pytest.raises(InputError, match="another run"):
        run(plain[0], folder)


def test_other_operands_are_refused(plain, case):
    folder, *_ = case
    cancel = threading.Event()
    with pytest.raises(CancelledRunError):
        run(plain[0], folder, cancel=cancel, progress=lambda _: cancel.set())
    with pytest.raises(InputError, match=r"alpha was 1\.0, is 2\.0"):
        run(plain[0], folder, alpha=2.0)
    run(plain[0], folder, alpha=2.0, restart=True)


def test_a_worker_of_another_version_says_so(plain, case, monkeypatch):
    monkeypatch.setattr(workers, "own_version", lambda: "9.9")
    with pytest.raises(
        workers.ClusterError, match=r"tcp://\S+: it has hdgemm \S+, the client.*9\.9"
    ):
        run(plain[0], case[0])


def test_a_worker_that_cannot_reach_the_storage_says_so(plain, case, monkeypatch):
    folder, *_ = case
    client, _ = plain
    client.run(blind, f"{folder}/A.npy")
    try:
        with pytest.raises(workers.ClusterError, match=r"tcp://\S+: cannot open .*A\.npy"):
            run(client, folder)
    finally:
        client.run(blind, "")


def blind(path):
    """Make a file missing for this process."""
    from hdgemm.cluster import references

    original = getattr(references, "original", references.BlockFile)
    references.original = original

    def open_file(wanted, **arguments):
        if str(wanted) == path:
            raise InputError(f"cannot open {wanted}: No such file or directory")
        return original(wanted, **arguments)

    references.BlockFile = open_file


def test_a_full_disk_reaches_the_caller_and_the_same_call_goes_on(plain, case):
    folder, *_ = case
    client, _ = plain
    client.run(fill_disk, True)
    try:
        with pytest.raises(MatrixIOError, match=r"cannot write .*part: No space left.*: make room"):
            run(client, folder)
    finally:
        client.run(fill_disk, False)
    assert not (folder / "C.npy").exists()
    run(client, folder)
    check(case)


def fill_disk(full):
    """Refuse each write of this process, or write again."""
    import errno

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    refuse.original = getattr(os.pwritev, "original", os.pwritev)
    os.pwritev = refuse if full else refuse.original


def test_an_error_of_every_worker_reaches_the_caller(plain, case):
    folder, *_ = case

    def cut_short(_):
        with (folder / "A.npy").open("r+b") as file:
            file.truncate(3000)

    with pytest.raises((MatrixIOError, InputError), match=r"A\.npy"):
        run(plain[0], folder, progress=cut_short)


def test_a_process_that_has_a_lost_workers_address_is_asked_again(plain, case):
    folder, *_ = case
    client, _ = plain
    forgot = []

    def forget(_):
        if not forgot:
            forgot.append(client.run(clear_jobs))

    run(client, folder, progress=forget)
    check(case)
    assert forgot


def clear_jobs():
    """Make this process one that was started a moment ago."""
    from hdgemm.cluster import task

    task._JOBS.clear()


def test_a_cluster_that_scales_itself(tmp_path, case, own_cache):
    with (
        config.set(_LOCAL_SETTINGS),
        distributed.LocalCluster(
            n_workers=0, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as scaling,
        distributed.Client(scaling) as client,
    ):
        scaling.adapt(minimum=0, maximum=1, interval="100ms")
        run(client, case[0])
    check(case)
