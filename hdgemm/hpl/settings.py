"""The parameters of a LINPACK run, and the file HPL.dat in which people have them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.hpl.broadcast import TOPOLOGIES
from hdgemm.hpl.interchange import SWAPS
from hdgemm.hpl.sequence import SEED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: HPL.dat's number of the swap algorithm; 2 is a mix, in which large updates take the second.
_SWAPS: Final = ("binary-exchange", "long", "long")
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
    depth
        1: the next panel is factored and sent before the rest is updated; 0: after it.
    broadcast
        A name of `TOPOLOGIES`.
    swap
        "long" or "binary-exchange".
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
    seed: int = SEED
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if self.n < 1 or self.nb < 1:
            raise InputError(f"N and NB must be at least 1, got {self.n} and {self.nb}")
        if min(self.grid) < 1:
            raise InputError(f"a grid has at least 1×1 processes, got {_times(self.grid)}")
        if self.depth not in (0, 1):
            raise InputError(f"the lookahead depth is 0 or 1, got {self.depth}")
        for name, value, known in (
            ("broadcast", self.broadcast, TOPOLOGIES), ("swap", self.swap, tuple(SWAPS)),
        ):  # fmt: skip
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    @property
    def flops(self) -> float:
        """HPL's operation count: N²(2N/3 + 3/2)."""
        return self.n**2 * (2 * self.n / 3 + 1.5)

    @property
    def code(self) -> str:
        """HPL's name of the variant: wall time, row-major grid, depth, broadcast, panels."""
        return f"WR{self.depth}{TOPOLOGIES.index(self.broadcast)}R2R8"


def parse_grid(text: str) -> tuple[int, int]:
    """Read ``"2x3"``.

    Raises
    ------
    InputError
        For anything else.
    """
    try:
        p, q = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise InputError(f"a grid is given as PxQ, for example 2x3, got {text!r}") from None
    return p, q


def read_dat(path: Path) -> list[Settings]:
    """Return the runs of an HPL.dat: every combination of its values, in HPL's order.

    Values that this implementation does not distinguish (kinds of panel factorisation, NDIV,
    transposed L1 and U, equilibration, alignment) are read over.

    Raises
    ------
    InputError
        When the file cannot be read, with the number of the line.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[2:]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    dat = _Dat(path, lines)
    dat.skip(2)  # the name of the output and the device
    sizes, blocks = dat.several(), dat.several()
    order = dat.numbers(1)[0]
    if order != 0:
        raise InputError(f"{path}: only the row-major grid (PMAP 0) is available, got {order:g}")
    count = int(dat.numbers(1)[0])
    grids = list(zip(dat.numbers(count), dat.numbers(count), strict=True))
    threshold = dat.numbers(1)[0]
    for _ in range(4):  # PFACTs, NBMINs, NDIVs, RFACTs
        dat.several()
    broadcasts, depths = dat.several(), dat.several()
    swap = int(dat.numbers(1)[0])
    return [
        Settings(
            int(n), int(nb), (int(p), int(q)), depth=min(int(depth), 1),
            broadcast=dat.named(TOPOLOGIES, int(topology), "BCAST"),
            swap=dat.named(_SWAPS, swap, "SWAP"), threshold=threshold,
        )
        for (p, q), n, nb, depth, topology in itertools.product(
            grids, sizes, blocks, depths, broadcasts
        )
    ]  # fmt: skip


class _Dat:
    """The lines of an HPL.dat after its two headings, read one by one."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self._path, self._lines, self._next = path, lines, 0

    def skip(self, count: int) -> None:
        self._next += count

    def numbers(self, count: int) -> list[float]:
        """Return the numbers at the beginning of the next line."""
        number = self._next + 3
        if self._next >= len(self._lines):
            raise InputError(f"{self._path} ends before line {number}")
        words = self._lines[self._next].split()[:count]
        self._next += 1
        try:
            found = [float(word) for word in words]
        except ValueError:
            found = []
        if len(found) < count:
            raise InputError(
                f"{self._path}, line {number}: expected {count} numbers, got {' '.join(words)!r}"
            )
        return found

    def several(self) -> list[float]:
        """Return the values of a parameter whose number is in the line before them."""
        return self.numbers(int(self.numbers(1)[0]))

    def named(self, names: Sequence[str], number: int, what: str) -> str:
        """Return the name that belongs to one of HPL's numbers."""
        if not 0 <= number < len(names):
            raise InputError(
                f"{self._path}: {what} {number} is not available, only 0 to {len(names) - 1}"
            )
        return names[number]


def _times(grid: tuple[int, int]) -> str:
    return f"{grid[0]}×{grid[1]}"
