"""The parameters of a LINPACK run, and the file HPL.dat in which people have them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from hdgemm.errors import InputError
from hdgemm.mpi._broadcast import TOPOLOGIES
from hdgemm.mpi.linpack._sequence import SEED
from hdgemm.mpi.variant import MAPPINGS, OVERLAPS, Variant
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    T = TypeVar("T", int, float)

#: HPL.dat's number of the swap algorithm; 2 is a mix, in which large updates take the second.
_SWAPS: Final = ("binary-exchange", "long", "long")
#: HPL's residual must be below this.
THRESHOLD: Final = 16.0


@refuses_unknown
@dataclass(frozen=True, slots=True)
class Settings(Variant):
    """One run of LINPACK: how the matrix is dealt and factored, and its random system.

    Parameters
    ----------
    n
        Order of the system.
    nb, grid
        Rows and columns of a block, and of the grid of processes, P×Q.
    mapping
        ``"row"``: processes are numbered along the rows of the grid; ``"column"``.
    depth
        Lookahead: panels that are factored ahead of the update; 0 for none.
    broadcast
        How a panel is sent along a row of the grid: ``"1ring"``, ``"2ring"`` or ``"long"``, each
        also with ``"-modified"``, for which the next process of a ring factors first.
    swap
        How rows are interchanged: ``"long"`` or ``"binary-exchange"``.
    overlap
        What runs beside the update: some of ``"window"``, ``"panel-swap"``, ``"shared-panel"`` and
        ``"split-swap"`` (Jo et al., sections 4.1 to 4.4).
    strip
        Columns of a strip, which are dealt to devices together; None chooses them.
    seed
        X₀ of the random sequence.
    threshold
        A residual below it passes.

    See Also
    --------
    linpack : The run.

    Examples
    --------
    >>> settings = hdgemm.cluster.LinpackSettings(n=2000, nb=128)
    >>> hdgemm.cluster.linpack(settings).passed
    True
    """

    seed: int = SEED
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        Variant.__post_init__(self)
        if not self.threshold > 0:
            raise InputError(
                f"the threshold must be above 0, got {self.threshold}: residuals are always checked"
            )

    @property
    def flops(self) -> float:
        """HPL's operation count: N²(2N/3 + 3/2)."""
        return self.n**2 * (2 * self.n / 3 + 1.5)

    @property
    def code(self) -> str:
        """HPL's name of the variant: wall time, mapping, depth, broadcast, kind of panels."""
        return f"W{self.mapping[0].upper()}{self.depth}{TOPOLOGIES.index(self.broadcast)}R2R8"


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
            n,
            nb,
            grid,
            depth=depth,
            broadcast=dat.named(TOPOLOGIES, topology, "BCAST"),
            swap=swap,
            threshold=threshold,
            mapping=mapping,
        )
        for grid, n, nb, depth, topology in itertools.product(
            grids, sizes, blocks, depths, broadcasts
        )
    ]
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
