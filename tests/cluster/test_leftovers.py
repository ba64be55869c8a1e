"""Nothing of a run stays on the scheduler and in the logs of workers when it is over."""

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hdgemm.cluster import cholesky, multiply, syrk
from hdgemm.errors import CancelledRunError, InputError
from hdgemm.options import Options
from tests.cluster.processes import scheduler, wait_for, worker

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.usefixtures("many_blocks")
OPTIONS = Options(devices="host", host_memory="64MB", tile=(32, 32, 32))
N = 96


@pytest.fixture(scope="module")
def plain(tmp_path_factory, own_cache):
    """A client of a scheduler with one worker."""
    running, file = scheduler(tmp_path_factory.mktemp("scheduler"))
    with ExitStack() as stack:
        stack.enter_context(running)
        opened = stack.enter_context(distributed.Client(scheduler_file=file))
        stack.enter_context(worker(opened.scheduler.address, name="stays"))
        opened.wait_for_workers(1, timeout=300)
        yield opened, file


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(4)
    for name in "AB":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    np.save(tmp_path / "S.npy", np.diag(np.arange(1.0, N + 1)))
    return tmp_path


def left(dask_scheduler):
    """Return the names of tasks, and of topics that are no worker's or client's own."""
    topics = [name for name in dask_scheduler._broker._topics if name.startswith("hdgemm")]
    return [*map(str, dask_scheduler.tasks), *topics]


def assert_nothing_left(client):
    wait_for(lambda: not client.run_on_scheduler(left))


def kept(dask_worker):
    """Return the session and the jobs that this process keeps."""
    from hdgemm.cluster import task

    return [*filter(None, [task._KEPT._session]), *task._JOBS]


def test_a_run_leaves_nothing_on_the_scheduler_and_the_workers(plain, folder):
    client, _ = plain
    how = {"client": client, "options": OPTIONS}
    multiply(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", **how)
    syrk(1.0, folder / "A.npy", out=folder / "D.npy", **how)
    cholesky(folder / "S.npy", out=folder / "L.npy", **how)
    assert_nothing_left(client)
    wait_for(lambda: not any(client.run(lambda dask_worker: bool(kept(dask_worker))).values()))


def test_a_run_that_is_cancelled_or_fails_leaves_nothing(plain, folder):
    client, _ = plain
    how = {"client": client, "options": OPTIONS, "out": folder / "C.npy"}
    cancel = threading.Event()
    with pytest.raises(CancelledRunError):
        multiply(folder / "A.npy", folder / "B.npy", cancel=cancel,
                 progress=lambda _: cancel.set(), **how)  # fmt: skip
    assert_nothing_left(client)
    with pytest.raises(InputError, match="alpha"):
        multiply(folder / "A.npy", folder / "B.npy", alpha=2, **how)
    assert_nothing_left(client)


def test_a_topic_of_a_client_that_was_killed_is_removed_by_the_next_run(plain, folder):
    client, file = plain
    with distributed.Client(scheduler_file=file) as other:
        other.subscribe_topic("hdgemm-killed", lambda _: None)
        other.log_event("hdgemm-killed", "receipt")
        wait_for(lambda: "hdgemm-killed" in client.run_on_scheduler(left))
        multiply(
            folder / "A.npy", folder / "B.npy", out=folder / "C.npy", client=client, options=OPTIONS
        )
        wait_for(lambda: client.run_on_scheduler(left) == ["hdgemm-killed"])
    multiply(
        folder / "A.npy", folder / "B.npy", out=folder / "D.npy", client=client, options=OPTIONS
    )
    assert_nothing_left(client)


def test_a_worker_that_joins_after_the_end_logs_no_error(plain, folder):
    client, _ = plain
    (folder / "late.py").write_text(f"""
from pathlib import Path
from hdgemm.cluster import task
from tests.cluster.processes import wait_for

original = task._KEPT.session

def session(*arguments):
    Path({str(folder)!r}, "asked").touch()
    wait_for(Path({str(folder)!r}, "over").exists)
    return original(*arguments)

task._KEPT.session = session
""")
    late = []
    with ExitStack() as stack:

        def join(_):
            if not late:
                preload = "--preload", f"{folder}/late.py"
                stack.enter_context(worker(client.scheduler.address, *preload, name="late"))
                client.wait_for_workers(2, timeout=300)
                late.extend(set(client.nthreads()) - {stays})

        [stays] = client.nthreads()
        client.run(wait_for_question, f"{folder}/asked")
        multiply(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", client=client,
                 options=OPTIONS, progress=join)  # fmt: skip
        (folder / "over").touch()
        wait_for(lambda: not any(client.processing().values()))
        logs = client.get_worker_logs(workers=late)[late[0]]
    client.run(wait_for_question, None, workers=[stays])
    assert not [line for level, line in logs if level not in ("INFO", "DEBUG")]
    assert_nothing_left(client)


def wait_for_question(asked):
    """Let the second block of this process wait until the other worker was asked, by a file."""
    from hdgemm.cluster import _job as job

    original = getattr(job.block_of, "original", job.block_of)
    begun = []

    def later(*arguments):
        begun.append(arguments)
        if len(begun) > 1:
            wait_for(Path(asked).exists)
        return original(*arguments)

    later.original = original
    job.block_of = original if asked is None else later
