"""SIGKILL at random moments over all processes of the service: nothing may be lost or wrong.

python -m bench.campaigns.service_kills [--kills 200] [--seed 1] [--database-url postgresql://…]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench.campaigns.tally import Tally, add_save
from hdgemm.client import Client, RemoteError
from hdgemm.server.fork_server import JOB_NAME, SERVER_NAME
from hdgemm.server.worker import WORKER_NAME
from tests.server.harness import Live, make_settings, processes, start
from tests.server.numpy_library import DELAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.client import RemoteJob
    from hdgemm.server.settings import Settings

_SIZE = 60
_SLOW = {DELAY: "0.03"}
_NAMES = {"worker": WORKER_NAME, "fork server": SERVER_NAME, "job": JOB_NAME}


@dataclass
class Record:
    """The accepted jobs, each with a check of its result."""

    jobs: list[tuple[RemoteJob, Callable[[RemoteJob], None]]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class Killer:
    """Kills processes at random, and starts again those that an operator would."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.random = random.Random(seed)
        self.server = Live(settings, **_SLOW).wait()
        self.other = start("worker", settings, **_SLOW)
        self.killed: Counter[str] = Counter()

    def strike(self) -> None:
        """Kill one process of a random kind, if there is one."""
        kinds = ("server", "worker", "second worker", "fork server", "job")
        kind = self.random.choices(kinds, (2, 2, 2, 2, 5))[0]
        if kind == "server":
            self.server.kill()
            self.server.restart()
        elif kind == "second worker":
            self.other.kill()
            self.other.wait()
            self.other = start("worker", self.settings, **_SLOW)
        else:
            found = processes(self.settings, _NAMES[kind])
            if not found:
                return
            with contextlib.suppress(psutil.NoSuchProcess):
                self.random.choice(found).send_signal(signal.SIGKILL)
        self.killed[kind] += 1

    def close(self) -> None:
        """End everything."""
        self.other.terminate()
        self.other.wait(30)
        self.server.close()


def submit_for_ever(
    client: Client, root: Path, record: Record, stop: threading.Event, seed: int
) -> None:
    """Submit products of four kinds, and keep a check for each accepted job."""
    rng = np.random.default_rng(seed)
    number = 0
    while not stop.is_set():
        number += 1
        a, b, c = (rng.standard_normal((_SIZE, _SIZE)) for _ in range(3))
        try:
            if number % 3 == 0:
                in_place(client, root, record, (a, b, c), number)
            elif number % 3 == 1:
                chained(client, record, (a, b))
            else:
                record.jobs.append((client.submit(a, b, c=c, beta=2.0), same(a @ b + 2 * c)))
                record.tally.counts["uploads"] += 3
        except RemoteError as error:
            record.tally.wrong.append(f"a request failed for good: {error}")
        stop.wait(0.5)


def same(expected: NDArray[Any]) -> Callable[[RemoteJob], None]:
    """Return a check that downloads the result and compares it."""

    def check(job: RemoteJob) -> None:
        np.testing.assert_allclose(job.result(), expected, atol=1e-9)

    return check


def chained(client: Client, record: Record, operands: tuple[NDArray[Any], ...]) -> None:
    """Submit a product, and another one that waits for it."""
    a, b = operands
    first = client.submit(a, b)
    record.jobs.append((first, same(a @ b)))
    record.jobs.append((client.submit(first, a), same(a @ b @ a)))
    record.tally.counts["uploads"] += 2


def in_place(
    client: Client, root: Path, record: Record, operands: tuple[NDArray[Any], ...], number: int
) -> None:
    """Submit C := A·B + C on one file: computed twice from its own result it would be wrong."""
    names = [root / f"{letter}{number}.npy" for letter in "abc"]
    for name, operand in zip(names, operands, strict=True):
        np.save(name, operand)
    a, b, c = operands
    output = {"path": names[2].name, "overwrite": True}
    job = client.submit(names[0], names[1], c=names[2], beta=1.0, output=output)

    def check(_: RemoteJob) -> None:
        np.testing.assert_allclose(np.load(names[2]), a @ b + c, atol=1e-9)

    record.jobs.append((job, check))


def judge(record: Record, seconds: float) -> None:
    """Wait for every accepted job and check its result."""
    tally = record.tally
    until = time.monotonic() + seconds
    for job, check in record.jobs:
        try:
            job.wait(timeout=max(1.0, until - time.monotonic()))
            tally.counts[job.status] += 1
            tally.counts["attempts"] += job.info["attempt"]
            job.check()
            check(job)
        except (AssertionError, OSError, RuntimeError, ValueError, RemoteError) as error:
            tally.wrong.append(f"job {job.id}: {type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, wait, and check every job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between kills")
    parser.add_argument("--database-url", default="")
    add_save(parser)
    asked = parser.parse_args(arguments)
    record, stop = Record(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-") as name:
        settings = make_settings(
            Path(name), max_crashes=10**6, max_attempts=10**6, database_url=asked.database_url,
            lease_seconds=6.0,
        )  # fmt: skip
        killer = Killer(settings, asked.seed)
        began = time.monotonic()
        with Client(killer.server.url, patience=120) as client:
            thread = threading.Thread(
                target=submit_for_ever,
                args=(client, settings.roots[0], record, stop, asked.seed),
            )
            thread.start()
            while killer.killed.total() < asked.kills:
                time.sleep(killer.random.expovariate(1 / asked.pause))
                killer.strike()
            stop.set()
            thread.join()
            judge(record, 300.0)
        left = [path.name for path in settings.roots[0].iterdir() if path.name.startswith(".")]
        killer.close()
    record.tally.check(not left, f"temporary files are left: {left}")
    record.tally.figures |= {
        "kills": dict(killer.killed),
        "seconds": round(time.monotonic() - began),
        "jobs": len(record.jobs),
    }
    return record.tally.end("service_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
