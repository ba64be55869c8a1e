"""Durable runs killed at random moments go on with the same command, and give the same bits.

python -m bench.campaigns.run_kills [--kills 300] [--device host --device opencl:0]

SIGKILL comes at moments spread evenly over a run of about 100 tiles; the same command goes on
(every second time it is killed once more), and C's SHA-256 is compared with the C of a run that was
not killed. It must find all tiles that the journal has.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.blas.products import multiply
from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options
from hdgemm.pipeline.plan import from_json
from hdgemm.run.checkpoint import tiles_of, units_done

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

#: C appears when it is whole; it replaces the C that was read; it is updated in place.
MODES = ("new", "replace", "update")
M, N, K = 1200, 1100, 900
TILE = (112, 128, 300)


@dataclass(frozen=True)
class Subject:
    """One command to kill: how C is written, on which device, in which folder."""

    mode: str
    device: str
    folder: Path

    @property
    def c(self) -> Path:
        """C's path."""
        return self.folder / "C.npy"

    def prepare(self) -> None:
        """Bring back the state before any run."""
        for path in self.folder.glob(".C.npy*"):
            path.unlink()
        self.c.unlink(missing_ok=True)
        if self.mode != "new":
            shutil.copy(self.folder / "C0.npy", self.c)

    def run(self, *, checkpoint: bool = True) -> int:
        """Compute C, or what is left of it; return the tiles that were there already."""
        a, b = self.folder / "A.npy", self.folder / "B.npy"
        options = Options(tile=TILE, devices=self.device)
        c: Any = self.c if self.mode != "update" else np.load(self.c, mmap_mode="r+")
        old = {} if self.mode == "new" else {"c": c, "beta": 0.75}
        report = multiply(a, b, alpha=-1.25, out=c, options=options, checkpoint=checkpoint, **old)
        return 0 if report.resumption is None else report.resumption.kept

    def recorded(self) -> int:
        """Tiles that the journal has whole."""
        earlier = EarlierRun.at(self.folder / ".C.npy.hdgemm-journal")
        if earlier is None:
            return 0
        tiles = tiles_of(from_json(earlier.plan["first"]))
        return len(units_done(tiles, earlier.pieces.standing()))

    def sha(self) -> str:
        """SHA-256 of C's file."""
        return hashlib.sha256(self.c.read_bytes()).hexdigest()


def child(subject: Subject, link: Connection, *, checkpoint: bool) -> None:
    """Run in a process of its own; say when the run begins, and how long it took."""
    link.send("begun")
    began = time.perf_counter()
    kept = subject.run(checkpoint=checkpoint)
    link.send((time.perf_counter() - began, kept))


def start(subject: Subject, *, checkpoint: bool = True) -> tuple[Any, Connection]:
    """Start a run and return when it begins."""
    # A fork of this process, which never computes, has the library loaded and no threads.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=child, args=(subject, theirs), kwargs={"checkpoint": checkpoint}
    )
    process.start()
    theirs.close()
    if ours.recv() != "begun":
        raise SystemExit("the run did not begin")
    return process, ours


def finish(subject: Subject, *, checkpoint: bool = True) -> tuple[float, int]:
    """Let a run end; return its seconds and the tiles that it found done."""
    process, link = start(subject, checkpoint=checkpoint)
    seconds, kept = link.recv()
    process.join()
    return seconds, kept


def kill(subject: Subject, after: float) -> float | None:
    """Kill a run after some seconds; return its length in seconds if it ended before."""
    process, link = start(subject)
    ended = link.recv()[0] if link.poll(after) else None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return ended


def kill_often(subject: Subject, kills: int, seed: int, tally: Tally) -> None:
    """Kill runs of one command, go on with each, and count the outcomes."""
    subject.prepare()
    finish(subject, checkpoint=False)
    expected = subject.sha()
    lengths = []
    for _ in range(3):
        subject.prepare()
        lengths.append(finish(subject)[0])
    length = sorted(lengths)[1]
    rng = random.Random(seed)
    landed = 0
    while landed < kills:
        subject.prepare()
        ended = kill(subject, rng.uniform(0.0, length))
        if ended is not None:  # the machine is less busy than it was: kill earlier from now on
            tally.counts["too late"] += 1
            length = (length + ended) / 2
            continue
        landed += 1
        if landed % 2:
            landed += kill(subject, rng.uniform(0.0, length)) is None
        at = f"{subject.device}, {subject.mode}, kill {landed}"
        recorded = subject.recorded()
        try:
            kept = finish(subject)[1]
        except EOFError:
            tally.check(False, f"{at}: the run could not go on")
            continue
        tally.counts["resumed"] += kept > 0
        tally.counts["tiles found done"] += kept
        tally.check(kept >= recorded, f"{at}: {recorded} tiles were recorded, {kept} were found")
        tally.check(subject.sha() == expected, f"{at}: other bits")
    tally.counts["kills"] += landed


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs of every mode on every device equally often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--device", action="append")
    parser.add_argument(
        "--data", type=Path, help="where matrices go; a temporary folder if omitted"
    )
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-", dir=asked.data) as name:
        folder = Path(name)
        for seed, (letter, rows, cols) in enumerate([("A", M, K), ("B", K, N), ("C0", M, N)]):
            random_matrix(folder / f"{letter}.npy", rows, cols, seed, "float64")
        devices = asked.device or ["host"]
        subjects = [Subject(mode, device, folder) for device in devices for mode in MODES]
        for seed, subject in enumerate(subjects):
            kill_often(subject, -(-asked.kills // len(subjects)), seed, tally)
    return tally.end("run_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
