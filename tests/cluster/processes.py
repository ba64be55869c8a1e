"""Schedulers and workers in processes of their own, and a worker that can be held at a moment."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hdgemm.durable.journal import read_journal
from hdgemm.durable.pieces import Entry
from tests.child import ends_with_parent

#: Without samples of stacks and event loops.
_QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}
MOMENTS = ("before", "during", "durable")


@contextmanager
def started(module, *arguments, prefix=(), **settings):
    """Run a command of Dask until the block ends, behind `prefix` and with settings of Dask."""
    command = [*prefix, sys.executable, "-m", f"distributed.cli.{module}", *arguments]
    process = subprocess.Popen(
        ends_with_parent(command), env=os.environ | _QUIET | settings, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def scheduler(folder, **settings):
    """Start a scheduler; its address is in the file that it writes."""
    file = f"{folder}/scheduler.json"
    return started(
        "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file,
        "--dashboard-address", "127.0.0.1:0", **settings,
    ), file  # fmt: skip


def worker(address, *options, name, nanny=False, prefix=()):
    """Start a worker with one thread; `prefix` are words before its command."""
    return started("dask_worker", address, "--nthreads", "1", "--name", name, "--no-dashboard",
                   "--host", "127.0.0.1", "--nanny" if nanny else "--no-nanny",
                   *options, prefix=prefix)  # fmt: skip


def wait_for(condition, seconds=300):
    """Poll until a condition holds; fail when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def hold(moment, file):
    """Make this process's next block stop for ever at a moment, and write its pid to `file`."""
    from hdgemm.cluster import (
        _block_writer as block_writer,
        _job as job,
        receipts,
    )

    def wait():
        Path(file).write_text(str(os.getpid()))
        time.sleep(600)

    def stop_after(function):
        def call(*arguments, **named):
            result = function(*arguments, **named)
            wait()
            return result

        return call

    if moment == "before":
        job.block_of = stop_after(job.block_of)
    elif moment == "during":
        block_writer.BlockWriter.write = stop_after(block_writer.BlockWriter.write)
    else:
        receipts.coalesce = stop_after(receipts.coalesce)


def wait_in_blocks(file):
    """Let each block of this process begin once a file exists; with None at once again."""
    from hdgemm.cluster import _job as job

    original = getattr(job.block_of, "original", job.block_of)

    def later(*arguments):
        wait_for(Path(file).exists)
        return original(*arguments)

    later.original = original
    job.block_of = original if file is None else later


@contextmanager
def all_begin(client, file):
    """Let no worker compute a block before each of them has one."""
    client.run(wait_in_blocks, f"{file}")

    def begun():
        tasks = client.processing().values()
        return all(any(key.startswith("hdgemm") for key in keys) for keys in tasks)

    def release():
        try:
            wait_for(begun)
        finally:
            file.touch()

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        client.run(wait_in_blocks, None)


def pieces(journal):
    """Return the rectangles that a journal records as done, however often."""
    records, damaged = read_journal(journal)
    assert not damaged
    return [rect for each in records if "done" in each for rect in Entry.of(each).pieces]


def assert_done_once(journal, shape):
    """Hold that each element of C was recorded once."""
    count = np.zeros(shape, int)
    for row, col, rows, cols in pieces(journal):
        count[row : row + rows, col : col + cols] += 1
    assert (count == 1).all()


def run_client(scheduler_file, folder, die_after):
    """Multiply, and kill this process after so many finished blocks: a client's whole life."""
    import signal

    from distributed import Client

    from hdgemm.cluster import blocks, multiply

    blocks.BlockPool._elements = lambda pool, _: max(1.0, pool.total / 8)

    def progress(snapshot):
        if snapshot.steps >= die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    client = Client(scheduler_file=scheduler_file)
    multiply(f"{folder}/A.npy", f"{folder}/B.npy", out=f"{folder}/C.npy", client=client,
             progress=progress)  # fmt: skip


if __name__ == "__main__":
    run_client(sys.argv[1], sys.argv[2], int(sys.argv[3]))
