"""The parameters of a LINPACK run, and the file HPL.dat in which people have them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from hdgemm.errors import InputError
from hdgemm.hpl.broadcast import TOPOLOGIES
from hdgemm.hpl.interchange import SWAPS
from hdgemm.hpl.sequence import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    T = TypeVar("T", int, float)

#: HPL.dat's number of the swap algorithm; 2 is a mix, in which large updates take the second.
_SWAPS: Final = ("binary-exchange", "long", "long")
#: What runs beside the update of the trailing matrix (Jo et al., sections 4.1 to 4.4).
OVERLAPS: Final = ("window", "panel-swap", "shared-panel", "split-swap")
#: Columns of a strip, the unit in which columns are dealt to devices, where none is given. Each
#: strip packs L anew: N = 16000 runs 7 % faster with 1024 than with 512, and 3 % than with 2048.
STRIP: Final = 1024
#: How processes are numbered, in the order of HPL.dat's PMAP.
MAPPINGS: Final = ("row", "column")
#: HPL's residual must be below this.
THRESHOLD: Final = 16.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

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
    seed
        X₀ of the random sequence.
    threshold
        A residual below it passes.
    """

    n: int
    nb: int = 192
    grid: tuple[int, int] = (1, 1)
    depth: int = 1
    broadcast: str = "1ring"
    swap: str = "long"
    overlap: tuple[str, ...] = ("window",)
    strip: int | None = None
    seed: int = SEED
    threshold: float = THRESHOLD
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
        if not self.threshold > 0:
            raise InputError(
                f"the threshold must be above 0, got {self.threshold}: residuals are always checked"
            )
        for name, value, known in (
            ("broadcast", self.broadcast, TOPOLOGIES), ("swap", self.swap, tuple(SWAPS)),
            ("mapping", self.mapping, MAPPINGS),
            *(("overlap", each, OVERLAPS) for each in self.overlap),
        ):  # fmt: skip
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    @property
    def flops(self) -> float:
        """HPL's operation count: N²(2N/3 + 3/2)."""
        return self.n**2 * (2 * self.n / 3 + 1.5)

    def widest_strip(self, updates: int) -> int:
        """Return the columns of a strip where every process has at most so many cores or devices.

        A process with one core deals strips to nobody: it updates all columns by one product,
        unless it has to look between two strips for a panel to pass on.
        """
        return self.strip or (self.n + 1 if updates == 1 and self.grid[1] <= 2 else STRIP)

    @property
    def panels(self) -> int:
        """Number of panels: N / NB, rounded up."""
        return -(-self.n // self.nb)

    def place(self, rank: int) -> tuple[int, int]:
        """Return the row and the column of the grid at which a process is."""
        p, q = self.grid
        return divmod(rank, q) if self.mapping == "row" else (rank % p, rank // p)

    @property
    def code(self) -> str:
        """HPL's name of the variant: wall time, mapping, depth, broadcast, kind of panels."""
        return f"W{self.mapping[0].upper()}{self.depth}{TOPOLOGIES.index(self.broadcast)}R2R8"


def parse_grid(text: str) -> tuple[int, int]:
    """Read ``"2x3"``; raise `InputError` for anything else."""
    try:
        p, q = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise InputError(f"a grid is given as PxQ, for example 2x3, got {text!r}") from None
    return p, q


def parse_overlap(text: str) -> tuple[str, ...]:
    """Read ``"none"``, ``"all"``, or names of `OVERLAPS` joined by "+", which are not checked."""
    if text in ("none", "all"):
        return OVERLAPS if text == "all" else ()
    return tuple(text.split("+"))


def read_dat(path: Path) -> list[Settings]:
    """Return the runs of an HPL.dat: every combination of its values, in HPL's order.

    Values that this implementation does not distinguish (kinds of panel factorisation, NDIV,
    transposed L1 and U, equilibration, alignment) have no effect, see `ignored_lines`.

    Raises
    ------
    InputError
        When the file cannot be read, with the number of the line.
    """
    return _parse(path)[0]


def ignored_lines(path: Path) -> list[str]:
    """Return the lines of an HPL.dat that have no effect on the runs, with their numbers."""
    return _parse(path)[1]


def _parse(path: Path) -> tuple[list[Settings], list[str]]:
    """Return the runs of an HPL.dat and the lines that have no effect on them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    dat = _Dat(path, lines)
    dat.ignore(2)  # the name of the output and the device
    sizes, blocks = dat.several(), dat.several()
    mapping = dat.named(MAPPINGS, dat.integer(), "PMAP")
    count = dat.count()
    grids = list(zip(dat.integers(count), dat.integers(count), strict=True))
    [threshold] = dat.numbers(1)
    for _ in range(4):  # PFACTs, NBMINs, NDIVs, RFACTs
        dat.ignore_several()
    broadcasts, depths = dat.several(), dat.several()
    swap = dat.named(_SWAPS, dat.integer(), "SWAP")
    dat.ignore(len(lines))  # swapping threshold, L1, U, equilibration, alignment
    runs = [
        Settings(
            n, nb, grid, depth=depth, broadcast=dat.named(TOPOLOGIES, topology, "BCAST"),
            swap=swap, threshold=threshold, mapping=mapping,
        )
        for grid, n, nb, depth, topology in itertools.product(
            grids, sizes, blocks, depths, broadcasts
        )
    ]  # fmt: skip
    return runs, dat.ignored


class _Dat:
    """The lines of an HPL.dat after its two headings, read one by one; `ignored` has the others."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self._path, self._lines, self._next = path, lines, 2
        self.ignored: list[str] = []

    def ignore(self, count: int) -> None:
        """Pass over so many lines, or those that there are."""
        for _ in range(min(count, len(self._lines) - self._next)):
            self._next += 1
            text = " ".join(self._lines[self._next - 1].split())
            if text:
                self.ignored.append(f"line {self._next}: {text}")

    def ignore_several(self) -> None:
        """Pass over a line with a count, and the line with its values, which are checked."""
        first = self._next
        self.several()
        self._next = first
        self.ignore(2)

    def numbers(self, count: int) -> list[float]:
        """Return the numbers at the beginning of the next line."""
        return self._values(count, float, "numbers")

    def integers(self, count: int) -> list[int]:
        """Return the whole numbers at the beginning of the next line."""
        return self._values(count, int, "whole numbers")

    def integer(self) -> int:
        """Return the whole number at the beginning of the next line."""
        return self.integers(1)[0]

    def count(self) -> int:
        """Return how many values a parameter has."""
        count = self.integer()
        if count < 1:
            raise InputError(
                f"{self._path}, line {self._next}: expected at least 1 value, got {count}"
            )
        return count

    def several(self) -> list[int]:
        """Read a line with a count, then a line with so many whole numbers; return the numbers."""
        return self.integers(self.count())

    def _values(self, count: int, kind: Callable[[str], T], what: str) -> list[T]:
        number = self._next + 1
        if self._next >= len(self._lines):
            raise InputError(f"{self._path} ends before line {number}")
        words = self._lines[self._next].split()[:count]
        self._next += 1
        try:
            found = [kind(word) for word in words]
        except ValueError:
            found = []
        if len(found) < count:
            raise InputError(
                f"{self._path}, line {number}: expected {count} {what}, got {' '.join(words)!r}"
            )
        return found

    def named(self, names: Sequence[str], number: int, what: str) -> str:
        """Return the name that belongs to one of HPL's numbers."""
        if not 0 <= number < len(names):
            raise InputError(
                f"{self._path}: {what} {number} is not available, only 0 to {len(names) - 1}"
            )
        return names[number]
