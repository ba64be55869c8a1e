"""Runs killed at random moments, and what a journal costs.

    python -m bench.durable kills [--kills 300] [--device host --device opencl:0]
    python -m bench.durable overhead [--n 8192] [--memory 400MB] [--repeats 3]

`kills` sends SIGKILL at moments spread evenly over a run of about 100 tiles, goes on with the same
command (every second time it is killed once more), and compares the SHA-256 of C with that of a
run that nobody cut off. `overhead` measures the same product, file to file, with a journal and
without, in turns.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import ROOT, data_folder, drop_cached, environment, save, spread
from hdgemm.blas import multiply
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options

if TYPE_CHECKING:
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


def kill_often(subject: Subject, kills: int, seed: int) -> dict[str, Any]:
    """Kill runs of one command, go on with each, and count what came out wrong."""
    subject.prepare()
    finish(subject, checkpoint=False)
    expected = subject.sha()
    lengths = []
    for _ in range(3):
        subject.prepare()
        lengths.append(finish(subject)[0])
    length = sorted(lengths)[1]
    rng = random.Random(seed)
    landed, late, wrong, lost, kept = 0, 0, 0, 0, []
    while landed < kills:
        subject.prepare()
        ended = kill(subject, rng.uniform(0.0, length))
        if ended is not None:  # the machine is less busy than it was: kill earlier from now on
            late, length = late + 1, (length + ended) / 2
            continue
        landed += 1
        if landed % 2:
            landed += kill(subject, rng.uniform(0.0, length)) is None
        try:
            kept.append(finish(subject)[1])
        except EOFError:
            lost += 1
            continue
        wrong += subject.sha() != expected
    counts = f"{landed} kills over {length:.2f} s, {wrong} wrong, {lost} lost"
    print(f"{subject.device:>9} {subject.mode:>8}: {counts}", flush=True)
    return {
        "kills": landed, "too_late": late, "runs": len(kept) + lost, "wrong": wrong, "lost": lost,
        "run_seconds": length, "tiles_found_done": kept,
    }  # fmt: skip


def kills(args: argparse.Namespace) -> dict[str, Any]:
    """Kill every mode on every device equally often."""
    results = {}
    with data_folder(args.data) as folder:
        for seed, (name, rows, cols) in enumerate([("A", M, K), ("B", K, N), ("C0", M, N)]):
            random_matrix(folder / f"{name}.npy", rows, cols, seed, "float64")
        subjects = [Subject(mode, device, folder) for device in args.device for mode in MODES]
        share = -(-args.kills // len(subjects))
        for seed, subject in enumerate(subjects):
            results[f"{subject.device} {subject.mode}"] = kill_often(subject, share, seed)
    return results


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Measure plain and durable runs in turns."""
    options = Options(host_memory=args.memory, devices="host")
    seconds: dict[str, list[float]] = {"plain": [], "durable": []}
    with data_folder(args.data) as folder:
        a, b, c = (folder / f"{name}.npy" for name in "ABC")
        for seed, path in enumerate((a, b)):
            random_matrix(path, args.n, args.n, seed, "float64")
        for turn in range(2 * args.repeats):
            durable = turn % 2 == 1
            for path in folder.glob("*C.npy*"):
                path.unlink()
            for path in folder.glob(".C.npy*"):
                path.unlink()
            drop_cached([a, b])
            began = time.perf_counter()
            report = multiply(a, b, out=c, options=options, checkpoint=durable)
            took = time.perf_counter() - began
            seconds["durable" if durable else "plain"].append(took)
            how = f"{took:.2f} s, {report.plan['units']} tiles, {report.gflops:.1f} GFLOP/s"
            print(f"{'durable' if durable else 'plain':>8}: {how}", flush=True)
    pairs = zip(seconds["plain"], seconds["durable"], strict=True)
    ratios = [durable / plain for plain, durable in pairs]
    print(f"a durable run takes {spread(ratios)['median']:.3f} times as long (median)")
    return {"n": args.n, "memory": args.memory, "seconds": seconds, "ratio": spread(ratios)}


def main() -> None:
    """Measure and write bench/results/durable_*.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kills", "overhead"])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--device", action="append")
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--memory", default="400MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    args = parser.parse_args()
    args.device = args.device or ["host"]
    where = environment()
    measured = kills(args) if args.what == "kills" else overhead(args)
    save(f"durable_{args.what}", measured, where)


if __name__ == "__main__":
    main()
