"""Workers of a cluster killed at random moments of passes over rows; the bits stay the same.

python -m bench.campaigns.cluster_row_kills [--kills 50] [--workers 2]

SIGKILL goes to a worker, which is started again. Each call returns the same bits as on a cluster
that nothing disturbs: R of integers, a covariance matrix, and the coefficients of a ridge
regression, by turns.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client

import hdgemm
from bench.campaigns.cluster_kills import Processes
from bench.campaigns.tally import Tally, add_save
from hdgemm.cluster import row_passes
from hdgemm.errors import HdgemmError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

M, N = 60_000, 60
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


def disturbed(
    compute: Callable[[], NDArray[Any]], after: float, kill: Callable[[], None]
) -> tuple[bytes, int]:
    """Return the bits of a result, and the kills while it was computed."""
    ended, kills = threading.Event(), []

    def strike() -> None:
        if not ended.wait(after):
            kill()
            kills.append(after)

    killer = threading.Thread(target=strike)
    killer.start()
    try:
        return compute().tobytes(), len(kills)
    finally:
        ended.set()
        killer.join()


def campaign(folder: Path, kills: int, workers: int, tally: Tally) -> None:
    """Kill until enough kills have landed."""
    rng, expected = random.Random(0), dict[str, bytes]()
    processes = Processes(folder, workers, client=False)
    processes.revive()

    def kill() -> None:
        processes.kill(f"worker{rng.randrange(workers)}")
        processes.revive()

    try:
        with (
            Client(scheduler_file=str(folder / "scheduler.json")) as client,  # type: ignore[no-untyped-call]
            row_passes(client, options=_OPTIONS),
        ):
            client.wait_for_workers(workers)
            for name, compute in calls(folder).items():
                expected[name] = compute().tobytes()
            while tally.counts["kills"] < kills:
                name, compute = rng.choice(list(calls(folder).items()))
                try:
                    found, killed = disturbed(compute, rng.uniform(0.0, 0.5), kill)
                except HdgemmError as error:
                    tally.check(False, f"{name}: {error}")
                    continue
                tally.counts["kills"] += killed
                tally.check(found == expected[name], f"{name} has other bits")
    finally:
        processes.kill(*processes.running)


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
