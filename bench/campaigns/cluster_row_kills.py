"""Workers of a cluster killed at random moments of passes over rows; the bits stay the same.

python -m bench.campaigns.cluster_row_kills [--kills 50] [--workers 2]

SIGKILL goes to a worker, which is started again. Each call returns the same bits as on a cluster
that nothing disturbs: R of integers, a covariance matrix, and the coefficients of a ridge
regression, by turns.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hdgemm
from bench.campaigns.tally import Tally, add_save
from hdgemm.cluster import row_passes
from hdgemm.cluster.connection import local_cluster
from hdgemm.errors import HdgemmError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

M, N = 60_000, 60
#: Longest wait for a worker that is started again.
_RESTART_SECONDS = 20
#: Small pieces: about 60 of them.
_OPTIONS = hdgemm.Options(host_memory="256MB", tile=(256, 256, 256))


def calls(folder: Path) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return the calls, by name."""
    a, b = folder / "A.npy", folder / "b.npy"
    linalg = hdgemm.linalg
    return {
        "R": lambda: np.asarray(linalg.qr(a, mode="r")[0]),
        "cov": lambda: np.asarray(linalg.cov(a, rowvar=False)),
        "ridge": lambda: linalg.ridge(a, b, [0.0, 1.0], intercept=True).x,
    }


def disturbed(client: Any, compute: Callable[[], NDArray[Any]], after: float) -> tuple[bytes, int]:
    """Return the bits of a result, and the kills while it was computed."""
    ended, kills = threading.Event(), 0

    def kill() -> None:
        nonlocal kills
        if ended.wait(after):
            return
        pids = list(client.run(os.getpid, on_error="ignore").values())
        if pids and not ended.is_set():
            os.kill(random.choice(pids), signal.SIGKILL)
            kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return compute().tobytes(), kills
    finally:
        ended.set()
        killer.join()


def campaign(folder: Path, kills: int, workers: int, tally: Tally) -> None:
    """Kill until enough kills have landed."""
    rng, expected = random.Random(0), {}
    with local_cluster(workers, threads=1) as client, row_passes(client, options=_OPTIONS):
        expected = {name: compute().tobytes() for name, compute in calls(folder).items()}
    while tally.counts["kills"] < kills:
        # Dask does not restart a worker that is killed while it starts: a new cluster then.
        with local_cluster(workers, threads=1) as client, suppress(TimeoutError):
            while tally.counts["kills"] < kills:
                name, compute = rng.choice(list(calls(folder).items()))
                client.wait_for_workers(workers, timeout=_RESTART_SECONDS)
                try:
                    with row_passes(client, options=_OPTIONS):
                        found, killed = disturbed(client, compute, rng.uniform(0.0, 0.5))
                except HdgemmError as error:
                    tally.check(False, f"{name}: {error}")
                    continue
                tally.counts["kills"] += killed
                tally.check(found == expected[name], f"{name} has other bits")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, check and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-") as name:
        folder, numbers = Path(name), np.random.default_rng(0)
        np.save(folder / "A.npy", numbers.integers(-9, 9, (M, N)).astype(np.float64))
        np.save(folder / "b.npy", numbers.standard_normal((M, 1)))
        campaign(folder, asked.kills, asked.workers, tally)
    return tally.end("cluster_row_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
