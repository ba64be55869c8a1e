"""Durable reductions of tall matrices killed at random moments go on, to the same bits.

python -m bench.campaigns.row_kills [--kills 50] [--routine svds ...] [--rows 60000]

SIGKILL comes at moments spread evenly over the run. The same command goes on (every second time it
is killed once more). It must find all blocks of rows that are recorded, and the SHA-256 of the
results is compared with a run that was not killed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.campaigns.run_kills import kill_often
from bench.campaigns.tally import Tally, add_save
from hdgemm import linalg
from hdgemm.decomposition import pca
from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.report import Report

#: Rows of the matrix unless others are asked for, its columns, rows of a block.
ROWS: Final = 60_000
COLUMNS: Final = 64
BLOCK: Final = 1000
#: Order of the matrix of `eigsh`.
ORDER: Final = 2000

#: Right-hand sides of the routines that take B.
SIDES: Final = 3


class Routine(NamedTuple):
    """A function of A, and of B where it has right-hand sides, and the number of its results."""

    function: Any
    keywords: dict[str, Any]
    results: int = 1
    sides: bool = False


ROUTINES: Final[Mapping[str, Routine]] = {
    "cov": Routine(linalg.cov, {"rowvar": False}),
    "corrcoef": Routine(linalg.corrcoef, {"rowvar": False}),
    "svdvals": Routine(linalg.svdvals, {}),
    "svd": Routine(linalg.svd, {}, 3),
    "svd by reflectors": Routine(linalg.svd, {}, 3),
    "pinv": Routine(linalg.pinv, {}),
    "pca": Routine(pca, {"k": 5}, 3),
    "pca by Krylov": Routine(pca, {"k": 5, "svd_solver": "krylov"}, 3),
    "svds": Routine(linalg.svds, {"k": 5, "block": 10}, 3),
    "eigsh": Routine(linalg.eigsh, {"k": 5, "block": 20, "tol": 1e-6}, 2),
    "lstsq": Routine(linalg.lstsq, {}, sides=True),
    "lstsq of a wide matrix": Routine(linalg.lstsq, {}, sides=True),
    "ridge": Routine(linalg.ridge, {"alphas": [0.1, 10.0], "intercept": True}, sides=True),
}


@dataclass(frozen=True)
class RowSubject:
    """One routine to kill, which is named `device` where outcomes are counted."""

    mode: str
    device: str
    folder: Path

    @property
    def outs(self) -> tuple[Path, ...]:
        """Where the results are."""
        return tuple(self.folder / f"F{n}.npy" for n in range(ROUTINES[self.device].results))

    def prepare(self) -> None:
        """Bring back the state before any run."""
        for pattern in (".*", "F*"):
            for path in self.folder.glob(pattern):
                path.unlink()

    def run(self, *, checkpoint: bool = True) -> int:
        """Compute the results, or what is left; return the blocks that were reduced already."""
        reports: list[Report] = []
        routine = ROUTINES[self.device]
        names = ["A.npy", "B.npy"] if routine.sides else ["A.npy"]
        routine.function(
            *(self.folder / name for name in names),
            out=self.outs if routine.results > 1 else self.outs[0],
            checkpoint=checkpoint,
            report=reports.append,
            options=Options(tile=(BLOCK, 1, 1), threads=2, host_memory="200MB"),
            **routine.keywords,
        )
        found = reports[-1].resumption
        return 0 if found is None else found.kept

    def recorded(self) -> int:
        """Blocks of rows of finished passes, and of the cores of the pass that was killed."""
        m, found = max(np.load(self.folder / "A.npy", mmap_mode="r").shape), 0
        if EarlierRun.at(self.folder / f".{self.outs[0].name}.hdgemm-journal") is None:
            return 0  # killed before it began, or while it removed the records of a finished run
        base = f".{self.outs[0].name}.work"
        for path in self.folder.glob(f"{base}.*.npz"):
            kind = path.name.removeprefix(base)
            with np.load(path) as arrays:
                if kind.startswith(".pass"):
                    found += -(-m // int(arrays["blocks"][0]))
                elif kind.startswith(".rows") and not self._ended(base, kind):
                    found += int(arrays["done"])
        return found

    def _ended(self, base: str, kind: str) -> bool:
        """Say whether the pass of a core's record has its result."""
        number = kind.removeprefix(".rows").split("-")[0]
        return (self.folder / f"{base}.pass{number}.npz").exists()

    def sha(self) -> str:
        """SHA-256 of all results."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in self.outs)).hexdigest()


def _matrix(routine: str, rows: int) -> np.ndarray[Any, Any]:
    """Return a symmetric matrix for `eigsh`, for the others a tall one with leading directions.

    U of the one for reflectors takes them: its condition exceeds its rows. The wide one is the
    transpose of a tall one.
    """
    rng = np.random.default_rng(0)
    if routine == "eigsh":
        x = rng.standard_normal((ORDER, ORDER))
        return x + x.T + 2000 * np.diag(1.0 / np.arange(1, ORDER + 1))
    scale = np.arange(1, COLUMNS + 1)
    a = rng.standard_normal((rows, COLUMNS)) / (scale**4 if "reflectors" in routine else scale)
    return np.ascontiguousarray(a.T) if "wide" in routine else a


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs of every routine equally often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each routine")
    parser.add_argument("--routine", action="append", choices=ROUTINES)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the matrix")
    parser.add_argument(
        "--data", type=Path, help="where matrices go; a temporary folder if omitted"
    )
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-", dir=asked.data) as name:
        folder = Path(name)
        for seed, routine in enumerate(asked.routine or ROUTINES):
            a = _matrix(routine, asked.rows)
            np.save(folder / "A.npy", a)
            np.save(folder / "B.npy", np.random.default_rng(1).standard_normal((len(a), SIDES)))
            kill_often(RowSubject("new", routine, folder), asked.kills, seed, tally)
    tally.figures["rows"] = asked.rows
    return tally.end("row_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
