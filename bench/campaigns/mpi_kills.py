"""SIGKILL to one rank of a factorisation over MPI: all ranks end, and nothing is published.

python -m bench.campaigns.mpi_kills [--kills 20] [--order 2500]
python -m bench.campaigns.mpi_kills --slabs [--kills 20]

`hdgemm lu`, `cholesky` and `solve` with `--mpi` run on grids of 1×2 and 2×1 ranks. SIGKILL hits a
rank drawn at random, at a moment drawn from the duration of a run that is not killed. Then mpiexec
must end within a minute, with a status other than 0 and one message of hdgemm that names the rank;
no process of the run is left, and no unfinished result has its name. The same command then runs to
its end, and gives the bits of the run that was not killed.

With `--slabs`, the commands have so little memory that A is factored by several slabs. The same
command goes on from the last slab that was recorded: the journal never loses one, and the report
of the run that goes on says how many it has kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from bench.campaigns.tally import Tally, add_save
from bench.harness import ROOT
from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.mpi.slabs.plan import slab_bytes
from hdgemm.mpi.variant import Variant, parse_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "lu": ("lu", "A.npy", "--out", "F.npy"),
    "cholesky": ("cholesky", "S.npy", "--out", "F.npy"),
    "solve": ("solve", "A.npy", "B.npy", "--out", "F.npy"),
}
GRIDS = ("1x2", "2x1")
#: Slabs of a matrix with `--slabs`.
SLABS = 6
#: Seconds within which everything must have ended after a kill.
_PATIENCE = 60
_MESSAGE = re.compile(
    r"^hdgemm: rank (\d+) on \S+: process (\d+) was ended by SIGKILL$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class MpiRun:
    """One command over MPI; `words` are those after `hdgemm`, the grid and more options included.

    Parameters
    ----------
    folder
        With the matrices; the result is F.npy.
    """

    folder: Path
    words: Sequence[str]
    ranks: int = 2

    def start(self) -> subprocess.Popen[str]:
        """Start mpiexec, in a group of its own."""
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        mpiexec = shutil.which("mpiexec", path=search) or "mpiexec"
        command = [mpiexec, "-n", str(self.ranks), sys.executable, "-m", "hdgemm", *self.words]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [*command, "--threads", "1", "--json"], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def ranks_of(self, process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
        """Return the processes of the ranks: children of those that mpiexec has started."""
        found = {}
        for each in _tree(process.pid):
            try:
                parent = each.parent()
                if parent is not None and "-m" in parent.cmdline() and "hdgemm" in parent.cmdline():
                    found[int(each.environ()["PMI_RANK"])] = each
            except (psutil.Error, KeyError):
                continue
        return found

    def wait_for_ranks(self, process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
        """Return the processes of all ranks once they are there."""
        while len(found := self.ranks_of(process)) < self.ranks and process.poll() is None:
            time.sleep(0.02)
        return found

    def sha(self) -> str:
        """SHA-256 of the result and of the pivots beside it; of nothing where there is none."""
        digest = hashlib.sha256()
        for name in ("F.npy", "F.piv.npy"):
            if (path := self.folder / name).exists():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def published(self) -> str | None:
        """SHA-256 of the matrix that is the result; None where there is none."""
        path = self.folder / "F.npy"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None

    def recorded(self) -> int:
        """Slabs that the journal has."""
        for name in (".F.npy.hdgemm-journal", "..F.npy.work.lu.npy.hdgemm-journal"):
            if (earlier := EarlierRun.at(self.folder / name)) is not None:
                return len({entry.notes["slab"] for entry in earlier.pieces.entries()})
        return 0

    def clear(self) -> None:
        """Remove the result, and what a killed run has left of it."""
        for path in (*self.folder.glob("F.*"), *self.folder.glob(".*F.npy*")):
            path.unlink()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _errors_at_end(process: subprocess.Popen[str]) -> str | None:
    """Return what a process that ends has said on standard error; None where it hangs.

    Each wait counts as one second, also where all processes were stopped meanwhile.
    """
    for _ in range(_PATIENCE):
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[1]
    return None


def kill_one(run: MpiRun, after: float, victim: int, tally: Tally) -> bool:
    """Start a run and kill a rank so many seconds after all ranks have begun; say whether it died.

    The run may end before. Every check is counted.
    """
    what = f"{' '.join(run.words)}: rank {victim} after {after:.2f} s"
    process = run.start()
    ranks = run.wait_for_ranks(process)
    everyone = _tree(process.pid)
    time.sleep(after)
    if process.poll() is not None:
        process.communicate()
        tally.counts["ended before the kill"] += 1
        return False
    target = ranks[victim]
    try:
        target.kill()
    except psutil.NoSuchProcess:
        process.communicate()
        tally.counts["ended before the kill"] += 1
        return False
    tally.counts["kills"] += 1
    said = _errors_at_end(process)
    if said is None:
        tally.check(holds=False, what=f"{what}: mpiexec hangs")
        for each in [*everyone, psutil.Process(process.pid)]:
            if each.is_running():
                each.kill()
        process.communicate()
        return True
    found = _MESSAGE.findall(said)
    tally.check(process.returncode != 0, f"{what}: status {process.returncode}")
    tally.check(
        found == [(str(victim), str(target.pid))], f"{what}: {found or said.splitlines()[-5:]}"
    )
    _, left = psutil.wait_procs(everyone, timeout=_PATIENCE)
    tally.check(not left, f"{what}: {left} are left")
    return True


def attack(run: MpiRun, kills: int, rng: random.Random, tally: Tally) -> None:
    """Kill a command several times, and compare the bits of the run after each kill."""
    process = run.start()
    run.wait_for_ranks(process)
    begin = time.monotonic()
    process.communicate()
    seconds, expected, whole = time.monotonic() - begin, run.sha(), run.published()
    tally.check(process.returncode == 0, f"{run.words} ends with {process.returncode}")
    done = 0
    while done < kills:
        run.clear()
        killed = kill_one(run, rng.uniform(0, seconds), rng.randrange(run.ranks), tally)
        if not killed:
            continue
        done += 1
        # A kill may come after the result has its name.
        tally.check(run.published() in (None, whole), f"{run.words}: an unfinished result")
        tally.counts["finished before the kill"] += run.published() is not None
        kept = run.recorded()
        tally.counts["slabs kept"] += kept
        if kept and done % 2:
            # The run that goes on is killed, too.
            kill_one(run, rng.uniform(0, seconds), rng.randrange(run.ranks), tally)
            ended = (run.folder / "F.npy").exists()
            tally.check(ended or run.recorded() >= kept, f"{run.words}: lost slabs")
        recorded = run.recorded()
        process = run.start()
        said, _ = process.communicate()
        tally.check(process.returncode == 0, f"{run.words}: ends with {process.returncode}")
        if process.returncode == 0:
            report = json.loads(said)
            what = f"{run.words}: {report['kept_slabs']} slabs kept of {recorded} recorded"
            tally.check(report["kept_slabs"] == recorded, what)
            tally.counts["slabs not computed again"] += report["kept_slabs"]
            tally.counts["slabs of resumed runs"] += report["slabs"] if recorded else 0
        tally.check(run.sha() == expected, f"{run.words}: other bits after a kill")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill every command on every grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--order", type=int, default=2500, help="of the matrices")
    parser.add_argument("--slabs", action="store_true", help="with little memory: by slabs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data", type=Path, help="where matrices go; a temporary folder if omitted"
    )
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally, rng = Tally(), random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-", dir=asked.data) as name:
        folder, n = Path(name), asked.order
        x = np.random.default_rng(0).standard_normal((n, n))
        np.save(folder / "A.npy", x)
        np.save(folder / "B.npy", x[:, :20])
        np.save(folder / "S.npy", x + x.T + 4 * n * np.eye(n))
        cases = [(words, grid) for words in COMMANDS.values() for grid in GRIDS]
        for number, (words, grid) in enumerate(cases):
            kills = len(range(number, asked.kills, len(cases)))
            more = limit_of(n, grid) if asked.slabs else []
            attack(MpiRun(folder, [*words, "--mpi", "--grid", grid, *more]), kills, rng, tally)
    tally.figures["order"] = n
    return tally.end("mpi_slab_kills" if asked.slabs else "mpi_kills", asked)


def limit_of(n: int, grid: str) -> list[str]:
    """Return options with which A is factored by `SLABS` slabs: memory, and narrow blocks."""
    variant = Variant(n, 64, parse_grid(grid))
    width = -(-n // (SLABS * 128)) * 128
    return ["--nb", "64", "--host-memory", str(slab_bytes(variant, width, 8))]


if __name__ == "__main__":
    sys.exit(main())
