"""Durable factorisations and solves killed at random moments go on, to the same bits.

python -m bench.campaigns.factor_kills [--kills 50] [--routine lu_factor --routine cholesky ...]
    [--order 480]

Half of the kills of a factorisation hit a run into a new file, half one in place of A; kills of
`solve` (with as many right-hand sides) and of `qr` with Q and R hit runs into new files. SIGKILL
comes at moments spread evenly over the run. The same command goes on (every second time it is
killed once more). It must find all slabs that the journal has, and the SHA-256 of the result is
compared with the result of a run that was not killed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.campaigns.run_kills import kill_often
from bench.campaigns.tally import Tally, add_save
from hdgemm import linalg
from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.report import Report

ROUTINES = ("lu_factor", "cholesky", "qr", "solve", "economic")
IN_PLACE = ("lu_factor", "cholesky", "qr")
#: Order of the matrix unless another is asked for; columns of a slab and of a block.
N, SLAB, BLOCK = 480, 32, 16


@dataclass(frozen=True)
class FactorSubject:
    """One factorisation to kill: `mode` "new" into a file, "in place" over A."""

    mode: str
    device: str
    folder: Path

    @property
    def out(self) -> Path:
        """Where the factors are."""
        return self.folder / ("F.npy" if self.mode == "new" else "A.npy")

    def prepare(self) -> None:
        """Bring back the state before any run."""
        for name in ("F", "A"):
            for pattern in (f"..{name}.npy*", f".{name}.npy*", f"{name}.*"):
                for path in self.folder.glob(pattern):
                    path.unlink()
        shutil.copy(self.folder / "A0.npy", self.folder / "A.npy")

    def run(self, *, checkpoint: bool = True) -> int:
        """Factor A, or what is left of it; return the slabs that were there already."""
        reports: list[Report] = []
        given: dict[str, Any] = {"out": self.out} if self.mode == "new" else {"overwrite_a": True}
        name, operands = self.device, [self.folder / "A.npy"]
        if name == "solve":
            operands.append(self.folder / "A0.npy")
        elif name == "economic":
            name, given["mode"] = "qr", "economic"
            given["out"] = (self.out, self.folder / "F.r.npy")
        elif name == "qr":
            given["mode"] = "raw"
        getattr(linalg, name)(
            *operands, checkpoint=checkpoint, report=reports.append,
            options=Options(tile=(1, SLAB, BLOCK), host_memory="60MB"), **given,
        )  # fmt: skip
        found = reports[-1].resumption
        return 0 if found is None else found.kept

    def recorded(self) -> int:
        """Slabs that the journal has of the first pass."""
        earlier = EarlierRun.at(self.out.with_name(f".{self.out.name}.hdgemm-journal"))
        return 0 if earlier is None else len(earlier.pieces.entries())

    def sha(self) -> str:
        """SHA-256 of the factors, and of the pivots or tau beside them."""
        digest = hashlib.sha256(self.out.read_bytes())
        for suffix in (".piv.npy", ".tau.npy", ".r.npy"):
            if (path := self.out.with_suffix(suffix)).exists():
                digest.update(path.read_bytes())
        return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs of every routine equally often in both modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each routine")
    parser.add_argument("--routine", action="append", choices=ROUTINES)
    parser.add_argument("--order", type=int, default=N, help="of the matrix")
    parser.add_argument(
        "--data", type=Path, help="where matrices go; a temporary folder if omitted"
    )
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-", dir=asked.data) as name:
        folder = Path(name)
        n = asked.order
        x = np.random.default_rng(0).standard_normal((n, n))
        for seed, routine in enumerate(asked.routine or ROUTINES):
            # LU interchanges rows of a random matrix in every slab.
            a = x + x.T + 4 * n * np.eye(n) if routine == "cholesky" else x
            np.save(folder / "A0.npy", np.asfortranarray(a))
            modes = ("new", "in place") if routine in IN_PLACE else ("new",)
            for mode in modes:
                subject = FactorSubject(mode, routine, folder)
                kill_often(subject, -(-asked.kills // len(modes)), seed, tally)
    tally.figures["order"] = n
    return tally.end("factor_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
