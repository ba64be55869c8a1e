"""Report of a distributed computation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.units import format_duration, format_speed

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Report:
    """What one distributed call did.

    Parameters
    ----------
    kind
        Name of the function.
    n, columns
        Order of the matrix, right-hand sides.
    dtype
        Type of the elements that were computed with.
    nb, grid
        Rows and columns of a block, and of the grid of processes.
    flops
        Floating-point operations.
    seconds
        Of the slowest process, reading and writing included.
    phases
        Seconds by phase in which at least one thread was in it, the mean of all processes.
    slabs, kept_slabs
        Slabs of the factorisation, and those that an earlier run had stored; 0 for a matrix in
        memory.

    See Also
    --------
    plan : The figures that are expected before a run.

    Examples
    --------
    >>> reports = []
    >>> x = hdgemm.mpi.solve("A.npy", "B.npy", out="X.npy", report=reports.append)
    >>> print(reports[0].gflops, reports[0].phases)
    """

    kind: str
    n: int
    columns: int
    dtype: str
    nb: int
    grid: tuple[int, int]
    flops: float
    seconds: float
    phases: Mapping[str, float]
    slabs: int = 0
    kept_slabs: int = 0

    @property
    def gflops(self) -> float:
        """The rate without reading and writing."""
        seconds = self.seconds - self.phases["read"] - self.phases["write"]
        return self.flops / seconds / 1e9 if seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "gflops": self.gflops}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def __str__(self) -> str:
        p, q = self.grid
        phases = ", ".join(
            f"{name} {format_duration(seconds)}" for name, seconds in self.phases.items() if seconds
        )
        slabs = f"\n{self.slabs} slabs" if self.slabs else ""
        if self.kept_slabs:
            slabs += f", {self.kept_slabs} kept of an earlier run"
        return (
            f"{self.kind}: n = {self.n}, {self.columns} right-hand sides, {self.dtype}, "
            f"{p}×{q} ranks, NB = {self.nb}\n"
            f"{format_duration(self.seconds)}, {format_speed(self.gflops)} without reading and "
            f"writing\n{phases}{slabs}"
        )
