"""Workers of a Dask cluster that are stopped (SIGSTOP) and go on (SIGCONT) at random moments.

python -m bench.campaigns.cluster_frozen [--stops 60] [--workers 3] [--seconds 180]

The scheduler gives a worker up that is silent for some seconds, so that others compute its blocks
before it goes on: in the same product, in a later one with the same result, or between two. Each
product has another alpha and is stored into one of a few results: a new file, a file that is
overwritten, a Zarr array, a triangle, a factor. It is checked when it is finished, and again when
all workers have gone on.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from distributed import Client

import hdgemm
from bench.campaigns.tally import Tally, add_save
from hdgemm.cluster import blocks, cholesky, multiply, syrk
from hdgemm.durable.audit import audit
from hdgemm.errors import InputError
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options
from hdgemm.verify import verify
from tests.cluster.processes import scheduler, wait_for, worker

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

N, K = 1000, 700
OPTIONS: Final = Options(devices="host", host_memory="64MB", tile=(64, 64, 64))
#: The scheduler gives a worker up after so much silence.
_SILENCE: Final = "5s"
#: Longest stop, and longest time between two, in seconds.
_STOP_SECONDS, _GO_SECONDS = 12.0, 6.0
#: A product that takes so many seconds has not ended.
_LONGEST_PRODUCT: Final = 240


class Freezer:
    """A thread that stops workers and lets them go on, and starts those that have ended anew."""

    def __init__(self, client: Any, workers: int) -> None:
        self._client, self._address = client, client.scheduler.address
        self._stack = ExitStack()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._names: dict[int, str] = {}
        self._stopped: dict[int, float] = {}
        self._count = workers
        self._lock = threading.Lock()
        self._rng = random.Random(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._revive()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.go_on()
        self._stack.close()

    def go_on(self) -> None:
        """Let all stopped workers go on, and wait until they have ended or are heard of."""
        with self._lock:
            for number in list(self._stopped):
                self._continue(number)
        time.sleep(0.5)  # an old write would follow at once

    def _continue(self, number: int) -> None:
        del self._stopped[number]
        self._running[number].send_signal(signal.SIGCONT)

    def _revive(self) -> None:
        for number in range(self._count):
            if number not in self._running or self._running[number].poll() is not None:
                self.counts["starts"] += 1
                name = self._names[number] = f"worker{self.counts['starts']}"
                self._running[number] = self._stack.enter_context(worker(self._address, name=name))

    def _taking_part(self) -> list[int]:
        """Return the workers that the scheduler knows and that are not stopped."""
        known = self._client.scheduler_info(n_workers=-1)["workers"].values()
        names = {each["name"] for each in known}
        return [
            number for number, name in self._names.items()
            if name in names and number not in self._stopped
        ]  # fmt: skip

    def _run(self) -> None:
        stop_next = 0.0
        while not self._over.wait(0.02):
            with self._lock:
                now = time.monotonic()
                for number, until in list(self._stopped.items()):
                    if now >= until:
                        self._continue(number)
                self._revive()
                # One worker goes on at least, so that products end.
                if now >= stop_next and len(free := self._taking_part()) > 1:
                    number = self._rng.choice(free)
                    self._running[number].send_signal(signal.SIGSTOP)
                    self._stopped[number] = now + self._rng.uniform(0.1, _STOP_SECONDS)
                    self.counts["stops"] += 1
                    stop_next = now + self._rng.uniform(0.0, _GO_SECONDS)


class Products:
    """Products with another alpha each, in the same few results."""

    def __init__(self, folder: Path, client: Any) -> None:
        self._folder, self._client = folder, client
        random_matrix(folder / "A.npy", N, K, 0, "float64")
        random_matrix(folder / "B.npy", K, N, 1, "float64")
        random_matrix(folder / "G.npy", N, N, 2, "float64")
        self._a, self._b = np.load(folder / "A.npy"), np.load(folder / "B.npy")
        np.save(folder / "in place.npy", np.zeros((N, N)))

    def compute(self, kind: str, alpha: float) -> Any:
        """Compute a product of a kind; return a function that says whether it is right."""
        folder = self._folder
        a, b = folder / "A.npy", folder / "B.npy"
        how = {"client": self._client, "options": OPTIONS, "restart": True}
        if kind == "in place":
            with hdgemm.open(folder / "in place.npy", "r+") as c:
                multiply(a, b, alpha=alpha, out=c, **how)
            return lambda: verify(a, b, folder / "in place.npy", alpha=alpha).passed
        if kind == "zarr":
            where = f"{folder}/C.zarr::C"
            multiply(a, b, alpha=alpha, out=where, **how)
            return lambda: verify(a, b, where, alpha=alpha).passed
        if kind == "factor":
            g = np.load(folder / "G.npy")
            s = alpha * (g @ g.T + N * np.eye(N))
            np.save(folder / "S.npy", s)
            options = Options(devices="host", tile=(128, 128, 128))
            cholesky(folder / "S.npy", True, out=folder / "L.npy", **how | {"options": options})
            factor = folder / "L.npy"
            return lambda: verify(factor, np.load(factor).T, s).passed and audit(factor)
        out = folder / f"{kind}.npy"
        if kind == "triangle":
            syrk(alpha, a, lower=1, out=out, **how)
            return lambda: self._is_triangle(out, alpha) and audit(out)
        multiply(a, b, alpha=alpha, out=out, **how)
        return lambda: verify(a, b, out, alpha=alpha).passed and audit(out)

    def _is_triangle(self, out: Path, alpha: float) -> bool:
        found = np.load(out)
        whole = np.tril(found) + np.tril(found, -1).T
        return bool(verify(self._a, self._a.T, whole, alpha=alpha).passed)


KINDS: Final = ("new", "in place", "triangle", "zarr", "factor", "in place")


def _give_up(*_: object) -> None:
    raise TimeoutError(f"a product took more than {_LONGEST_PRODUCT} s")


def campaign(folder: Path, stops: int, workers: int, seconds: float, tally: Tally) -> None:
    """Compute until enough workers have been stopped, or the time is over."""
    signal.signal(signal.SIGALRM, _give_up)
    blocks.BlockPool._elements = lambda pool, _: pool.total / 40  # type: ignore[method-assign] # noqa: SLF001
    running, file = scheduler(folder, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=_SILENCE)
    end, number = time.monotonic() + seconds, 0
    with running:
        wait_for(Path(file).exists)
        with (
            Client(scheduler_file=file, timeout="60s") as client,
            Freezer(client, workers) as freezer,
        ):
            products = Products(folder, client)
            while freezer.counts["stops"] < stops and time.monotonic() < end:
                number += 1
                signal.alarm(_LONGEST_PRODUCT)
                kind = KINDS[number % len(KINDS)]
                try:
                    is_right = products.compute(kind, 1.0 + number)
                except InputError as error:
                    # A stopped worker of the product before has the result open.
                    tally.check("has not ended" in str(error), f"{kind}: {error}")
                    tally.counts["refused"] += 1
                    freezer.go_on()
                    continue
                tally.check(is_right(), f"product {number} ({kind}) is wrong at its end")
                if number % 2:
                    freezer.go_on()
                    tally.check(is_right(), f"product {number} ({kind}) was changed after its end")
                tally.counts[kind] += 1
                tally.counts["products"] += 1
            signal.alarm(0)
            tally.check(tally.counts["products"], "no product has ended")
        tally.counts.update(freezer.counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop, go on, check and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180.0, help="no product begins later")
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-frozen-") as name:
        campaign(Path(name), asked.stops, asked.workers, asked.seconds, tally)
    return tally.end("cluster_frozen", asked)


if __name__ == "__main__":
    sys.exit(main())
