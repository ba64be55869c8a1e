"""One factorisation on a grid of processes: order, distribution, lookahead and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hdgemm.errors import InputError
from hdgemm.mpi._broadcast import TOPOLOGIES
from hdgemm.mpi._interchange import SWAPS

#: What runs beside the update of the trailing matrix (Jo et al., sections 4.1 to 4.4).
OVERLAPS: Final = ("window", "panel-swap", "shared-panel", "split-swap")
#: Columns of a strip, the unit in which columns are dealt to devices, where none is given. Each
#: strip packs L anew: N = 16000 runs 7 % faster with 1024 than with 512, and 3 % than with 2048.
STRIP: Final = 1024
#: How processes are numbered, in the order of HPL.dat's PMAP.
MAPPINGS: Final = ("row", "column")


@dataclass(frozen=True, slots=True)
class Variant:
    """How one matrix of order N, with right-hand sides, is dealt and factored.

    Parameters
    ----------
    n
        Order of the system.
    nb
        Rows and columns of a block.
    grid
        Rows and columns of the grid of processes, P×Q.
    mapping
        "row": the processes are numbered along the rows of the grid; "column": along its columns.
    depth
        Lookahead: how many panels are factored and sent before the trailing matrix is updated by
        the panel before them; 0: every update ends before the next panel.
    broadcast
        A name of `TOPOLOGIES`.
    swap
        "long" or "binary-exchange".
    overlap
        Names of `OVERLAPS`. "window": panel, broadcast and swap of the next step run beneath the
        update, by a working window of columns (needs depth 1 and two threads or devices);
        "panel-swap": a panel is factored while rows are swapped for the update before it;
        "shared-panel": the processes of a row share the factorisation of its part of a panel;
        "split-swap": two pieces of a strip are swapped at once, a message of each in turn.
    strip
        Columns of a strip: one device solves for its rows of U, and all may update it. None: all
        columns where each process has one core and no other process waits for the panel that it
        passes on, else 1024.
    """

    n: int
    nb: int = 192
    grid: tuple[int, int] = (1, 1)
    depth: int = 1
    broadcast: str = "1ring"
    swap: str = "long"
    overlap: tuple[str, ...] = ("window",)
    strip: int | None = None
    mapping: str = "row"

    def __post_init__(self) -> None:
        if self.n < 1 or self.nb < 1:
            raise InputError(f"N and NB must be at least 1, got {self.n} and {self.nb}")
        p, q = self.grid
        if min(p, q) < 1:
            raise InputError(f"a grid has at least 1×1 processes, got {p}×{q}")
        if self.depth < 0 or (self.strip is not None and self.strip < 1):
            raise InputError(
                f"the lookahead depth must be at least 0 and a strip at least 1 column wide, got "
                f"{self.depth} and {self.strip}"
            )
        for name, value, known in (
            ("broadcast", self.broadcast, TOPOLOGIES),
            ("swap", self.swap, tuple(SWAPS)),
            ("mapping", self.mapping, MAPPINGS),
            *(("overlap", each, OVERLAPS) for each in self.overlap),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    def widest_strip(self, updates: int, columns: int) -> int:
        """Return the columns of a strip where every process has at most so many cores or devices,
        and the matrix so many `columns`.

        A process with one core deals strips to nobody: it updates all columns by one product,
        unless it has to look between two strips for a panel to pass on.
        """
        return self.strip or (columns if updates == 1 and self.grid[1] <= 2 else STRIP)

    @property
    def panels(self) -> int:
        """Number of panels: N / NB, rounded up."""
        return -(-self.n // self.nb)

    def place(self, rank: int) -> tuple[int, int]:
        """Return the row and the column of the grid at which a process is."""
        p, q = self.grid
        return divmod(rank, q) if self.mapping == "row" else (rank % p, rank // p)


def parse_grid(text: str) -> tuple[int, int]:
    """Read ``"2x3"``; raise `InputError` for anything else."""
    try:
        p, q = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise InputError(f"a grid is given as PxQ, for example 2x3, got {text!r}") from None
    return p, q


def squarest(size: int) -> tuple[int, int]:
    """Return the squarest grid of all processes, with no more rows than columns."""
    p = max(p for p in range(1, int(size**0.5) + 1) if size % p == 0)
    return p, size // p
