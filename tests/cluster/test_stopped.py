"""Workers that are stopped, lost and go on: they store nothing over what others have computed."""

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import (
    _lease as lease,
    cholesky,
    multiply,
)
from hdgemm.cluster._lease import Lease
from hdgemm.durable.audit import audit
from hdgemm.durable.earlier_run import DamagedError
from hdgemm.durable.journal import read_journal
from hdgemm.errors import CancelledRunError
from hdgemm.options import Options
from tests.cluster.processes import scheduler, wait_for, wait_in_blocks, worker
from tests.reference import assert_close_in_eps

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.usefixtures("many_blocks")
OPTIONS = Options(devices="host", host_memory="64MB", tile=(16, 200, 100))
N = 120


@pytest.fixture(scope="module")
def client(tmp_path_factory, own_cache):
    """A scheduler with one worker that stays."""
    running, file = scheduler(tmp_path_factory.mktemp("scheduler"))
    with ExitStack() as stack:
        stack.enter_context(running)
        opened = stack.enter_context(distributed.Client(scheduler_file=file))
        stack.enter_context(worker(opened.scheduler.address, name="stays"))
        opened.wait_for_workers(1, timeout=300)
        yield opened


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(8)
    for name in "AB":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    g = rng.standard_normal((N, N))
    np.save(tmp_path / "S.npy", g @ g.T + N * np.eye(N))
    return tmp_path


def check(folder):
    a, b, c = (np.load(folder / f"{name}.npy") for name in "ABC")
    assert_close_in_eps(c, a, b)


def test_a_lease_is_renewed_when_its_time_is_over(monkeypatch):
    now, asked = [100.0], []
    monkeypatch.setattr(lease, "_now", lambda: now[0])
    held = Lease(lambda: asked.append(now[0]) or now[0] < 200)
    held.renew()
    held.renew()
    assert asked == [100.0]
    now[0] = 110.0
    held.renew()
    assert asked == [100.0, 110.0]
    now[0] = 1000.0  # a process that was stopped
    with pytest.raises(CancelledRunError, match="another worker"):
        held.renew()


def test_an_answer_that_was_late_is_asked_for_again(monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(lease, "_now", lambda: now[0])

    def wanted():
        asked.append(now[0])
        now[0] += 1000.0 if len(asked) == 1 else 0.0  # stopped between question and write
        return len(asked) == 1

    with pytest.raises(CancelledRunError, match="another worker"):
        Lease(wanted).renew()
    assert asked == [0.0, 1000.0]


def test_a_busy_scheduler_is_waited_for_and_a_silent_one_is_not(monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(lease, "_now", lambda: now[0])

    def wanted(answers):
        asked.append(now[0])
        if len(asked) <= answers:
            now[0] += 2.0
            raise TimeoutError
        return True

    Lease(lambda: wanted(3)).renew()
    assert len(asked) == 4
    with pytest.raises(CancelledRunError, match="does not answer"):
        Lease(lambda: wanted(1000)).renew()


def hold_before_write(reached, go_on):
    """Let this process wait before it writes a block, until a file exists."""
    from hdgemm.cluster import _block_writer as block_writer

    original = block_writer.as_stored

    def wait(*arguments):
        stored = original(*arguments)
        Path(reached).touch()
        while not Path(go_on).exists():
            time.sleep(1e-4)
        return stored

    block_writer.as_stored = wait


def wait_for_other(reached):
    """Let this process wait in a block that is no diagonal one until a file exists, or never."""
    from hdgemm.cluster import _block_writer as block_writer

    original = getattr(block_writer.as_stored, "original", block_writer.as_stored)

    def wait(tile, dtype):
        if tile.shape[0] != tile.shape[1]:
            wait_for(Path(reached).exists)
        return original(tile, dtype)

    wait.original = original
    block_writer.as_stored = original if reached is None else wait


def lose(client, address):
    """Let the scheduler give a worker up, as it does with one that is silent."""

    async def remove(dask_scheduler):
        await dask_scheduler.remove_worker(address, stimulus_id="silent")

    client.run_on_scheduler(remove)


@pytest.mark.parametrize("routine", ["multiply", "cholesky"])
def test_a_worker_that_was_stopped_writes_nothing(client, folder, routine):
    """It is stopped before a write, lost, and goes on when C is complete."""
    reached, go_on = folder / "reached", folder / "go on"
    where = folder / "C.npy"
    [stays] = client.nthreads()
    with worker(client.scheduler.address, name="stopped") as process:
        client.wait_for_workers(2, timeout=300)
        [address] = set(client.nthreads()) - {stays}
        client.run(hold_before_write, f"{reached}", f"{go_on}", workers=[address])
        client.run(wait_for_other, f"{reached}", workers=[stays])

        def stop():
            wait_for(reached.exists)
            process.send_signal(signal.SIGSTOP)
            lose(client, address)

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            if routine == "multiply":
                multiply(
                    folder / "A.npy", folder / "B.npy", out=where, client=client, options=OPTIONS
                )
            else:
                cholesky(folder / "S.npy", True, out=where, client=client,
                         options=Options(devices="host", tile=(32, 32, 32)))  # fmt: skip
        finally:
            thread.join()
            client.run(wait_for_other, None, workers=[stays])
        with hdgemm.open(where, "r+") as c:
            c.write(np.full((N, N), 5.0))  # as a later product would
        go_on.touch()
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: process.poll() is not None)  # it finds that the scheduler has left it
    with hdgemm.open(where) as c:
        assert (np.asarray(c) == 5.0).all()


def blocks_of(journal, name):
    """Return the blocks that a journal records for a worker."""
    records, _ = read_journal(journal)
    notes = [each["notes"] for each in records if "done" in each]
    return [each["block"] for each in notes if each["worker"] == name]


def overwrite(folder, rect):
    """Change an element of a draft, as a worker that goes on does."""
    [part] = folder.glob(".C.npy.*.part")
    row, col, *_ = rect
    with part.open("r+b") as file:
        file.seek(part.stat().st_size - 8 * N * N + 8 * (N * row + col))
        file.write(np.float64(1e6).tobytes())


def test_blocks_of_a_lost_worker_are_read_again(client, folder):
    journal = folder / ".C.npy.hdgemm-journal"
    [stays] = client.nthreads()
    changed = []
    with worker(client.scheduler.address, name="lost") as process:
        client.wait_for_workers(2, timeout=300)
        [address] = set(client.nthreads()) - {stays}
        # The other one begins when the one that will be lost has finished a block.
        client.run(wait_in_blocks, f"{folder}/lost", workers=[stays])

        def progress(_):
            if not changed and (found := blocks_of(journal, address)):
                process.kill()
                changed.append(found[0])
                (folder / "lost").touch()
            elif changed and len(changed) == 1 and blocks_of(journal, stays):
                overwrite(folder, changed[0])
                changed.append(None)

        multiply(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", client=client,
                 options=OPTIONS, progress=progress)  # fmt: skip
    client.run(wait_in_blocks, None)
    assert len(changed) == 2
    check(folder)
    assert audit(folder / "C.npy").passed
    assert any("undone" in record for record in read_journal(journal)[0])


def test_a_factor_does_not_go_on_from_a_changed_block(client, folder):
    """Later blocks may depend on it: the same command computes them again."""
    cancel = threading.Event()
    call = {"lower": True, "client": client, "out": folder / "C.npy",
            "options": Options(devices="host", tile=(32, 32, 32))}  # fmt: skip

    def stop(progress):
        if progress.steps >= 6:
            cancel.set()

    with pytest.raises(CancelledRunError):
        cholesky(folder / "S.npy", progress=stop, cancel=cancel, **call)
    wait_for(lambda: not any(client.processing().values()))
    overwrite(folder, [40, 0])
    report = cholesky(folder / "S.npy", **call)
    assert report.resumption.damaged == 1
    assert report.resumption.kept == 0
    s, factor = np.load(folder / "S.npy"), np.load(folder / "C.npy")
    np.testing.assert_allclose(factor @ factor.T, s, rtol=1e-10)
    assert audit(folder / "C.npy").passed


def test_a_piece_that_changes_again_and_again_is_an_error(client, folder, monkeypatch):
    from hdgemm.cluster import _checkpoint as checkpoint

    monkeypatch.setattr(checkpoint, "damaged", lambda _, done: sorted(done))
    [stays] = client.nthreads()
    with worker(client.scheduler.address, name="lost") as process:
        client.wait_for_workers(2, timeout=300)
        client.run(wait_in_blocks, f"{folder}/lost", workers=[stays])

        def progress(_):
            if process.poll() is None:
                process.kill()
                (folder / "lost").touch()

        with pytest.raises(DamagedError, match="by something else than the run's workers"):
            multiply(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", client=client,
                     options=OPTIONS, progress=progress)  # fmt: skip
    client.run(wait_in_blocks, None)
