"""How a product is cut: C tiles, chunks of k, and the rectangles in which A and B are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.planning.memory import ceil_div, round_up
from hdgemm.planning.storage_chunks import align_all, chunk_along, op_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import DeviceSpec, Operand, Problem
    from hdgemm.planning.order import Bars

#: Into how many parts a dimension is cut: every number at first, then in ratios near 1.2.
_PARTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
#: Extents are rounded up to this where they are large: whole vectors, whole disk blocks.
_ROUND: Final = 64
#: C tiles that one work unit of the paper is cut into (HDGEMM, section 4.3.2: four stores run
#: while one unit multiplies).
BLOCKS: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to cut a product and to hold the pieces.

    Parameters
    ----------
    tile
        ``(mb, nb, kb)``: the C tile, and the chunk of k of a step.
    a_depth, b_depth
        The extent along k of a load of A (mb×a_depth) and of B (b_depth×nb): multiples of kb, or
        all of k. Deep loads read whole rows of a file beside short steps.
    bars
        Which way C is walked.
    slots
        Tiles of A, B and C that are held at once.
    halvings
        How often the last C tile is halved, so that its store hides.
    blocks
        C tiles, one below the other, that share a load of A and of B: the blocks of the paper's
        work unit (HDGEMM, section 3.1).
    """

    tile: tuple[int, int, int]
    a_depth: int
    b_depth: int
    slots: tuple[int, int, int]
    bars: Bars = "columns"
    halvings: int = 0
    blocks: int = 1

    def extents(self, problem: Problem) -> dict[Operand, tuple[int, int]]:
        """Return the op-space extents of the largest tile of each operand."""
        mb, nb, _ = self.tile
        return {
            "A": (min(mb * self.blocks, problem.m), min(self.a_depth, problem.k)),
            "B": (min(self.b_depth, problem.k), min(nb, problem.n)),
            "C": (min(mb, problem.m), min(nb, problem.n)),
        }


class Shapes(NamedTuple):
    """Many shapes at once: equally long integer arrays, a field as in `Shape` each.

    `rows` is 1 where bars are rows of C tiles.
    """

    mb: NDArray[np.int64]
    nb: NDArray[np.int64]
    kb: NDArray[np.int64]
    a_depth: NDArray[np.int64]
    b_depth: NDArray[np.int64]
    rows: NDArray[np.int64]
    a_slots: NDArray[np.int64]
    b_slots: NDArray[np.int64]
    c_slots: NDArray[np.int64]
    halvings: NDArray[np.int64]

    @classmethod
    def of(cls, shape: Shape) -> Shapes:
        """Return one shape as arrays of one element."""
        fields = (*shape.tile, shape.a_depth, shape.b_depth, shape.bars == "rows", *shape.slots,
                  shape.halvings)  # fmt: skip
        return cls(*(np.array([int(value)]) for value in fields))

    @property
    def slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As `Shape.slots`."""
        return self.a_slots, self.b_slots, self.c_slots

    def extents(self, problem: Problem) -> dict[Operand, tuple[NDArray[Any], NDArray[Any]]]:
        """As `Shape.extents`."""
        mb, nb = np.minimum(self.mb, problem.m), np.minimum(self.nb, problem.n)
        return {
            "A": (mb, np.minimum(self.a_depth, problem.k)),
            "B": (np.minimum(self.b_depth, problem.k), nb),
            "C": (mb, nb),
        }

    def halved(self, times: int) -> Shapes:
        """Return the same shapes with the last C tile halved so often."""
        return self._replace(halvings=np.full_like(self.mb, times))

    def take(self, which: NDArray[Any]) -> Shapes:
        """Return the shapes at these places, or where a mask is true."""
        return Shapes(*(field[which] for field in self))

    def shape(self, place: int) -> Shape:
        """Return one of them."""
        mb, nb, kb, a_depth, b_depth, rows, a, b, c, halvings = (int(x[place]) for x in self)
        bars: Bars = "rows" if rows else "columns"
        return Shape((mb, nb, kb), a_depth, b_depth, (a, b, c), bars, halvings)


def sizes(extent: int, least: int, quantum: int) -> list[int]:
    """List tile extents for a dimension, largest first, down to `least` or the whole of it."""
    parts = list(_PARTS)
    while extent // parts[-1] > least:
        parts.append(parts[-1] * 5 // 4)
    found = {min(extent, _nice(ceil_div(extent, part), quantum)) for part in parts}
    return sorted((size for size in found if size >= min(least, extent)), reverse=True)


def _nice(size: int, quantum: int) -> int:
    return int(round_up(size, max(quantum, _ROUND) if size > 8 * _ROUND else quantum))


def depths(k: int, least: int, quantum: int) -> list[int]:
    """List extents of the chunks of k, each about half of the one before."""
    found = {k}
    size = k
    while size > max(least, 1):
        size = ceil_div(size, 2)
        found.add(min(k, _nice(max(size, least), quantum)))
    return sorted(found, reverse=True)


def grid(problem: Problem, device: DeviceSpec, least: int, most_kb: int) -> Shapes:
    """Lay out every combination of extents down to `least`, slots still without number (0).

    Extents of chunked operands are those at which chunks end. Loads deeper than a step are worth
    their memory only for files, where they read whole rows.
    """
    # A tile below the granularity saves staging, though no slot.
    gm, gn, gk = device.granularity if least > 1 else (1, 1, 1)
    m, n, k = (chunk_along(problem, dimension) for dimension in ("m", "n", "k"))
    chunks = align_all(depths(problem.k, least, gk), k, problem.k)
    short = [kb for kb in chunks if kb <= most_kb] or chunks[-1:]
    axes = np.meshgrid(
        align_all(sizes(problem.m, least, gm), m, problem.m),
        align_all(sizes(problem.n, least, gn), n, problem.n),
        short,
        _deepenings(problem, "A"),
        _deepenings(problem, "B"),
        [0, 1],
        indexing="ij",
    )
    mb, nb, kb, a_deep, b_deep, rows = (axis.ravel().astype(np.int64) for axis in axes)
    a_depth, b_depth = _depth(problem, "A", kb, a_deep), _depth(problem, "B", kb, b_deep)
    none = np.zeros_like(mb)
    return Shapes(mb, nb, kb, a_depth, b_depth, rows, none, none, none, none)


def _depth(
    problem: Problem, operand: Operand, kb: NDArray[np.int64], deep: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the extents along k of loads that are to be about `deep`; 0 for as deep as a step."""
    chunk = _chunk_along_k(problem, operand)
    unit = np.where(chunk % kb == 0, chunk, kb)
    depth: NDArray[np.int64] = np.where(deep > 0, round_up(deep, unit), kb)
    return np.minimum(problem.k, depth)


def _chunk_along_k(problem: Problem, operand: Operand) -> int:
    chunk = op_chunk(problem.spec(operand))
    return 1 if chunk is None else chunk[1 if operand == "A" else 0]


def _deepenings(problem: Problem, operand: Operand) -> list[int]:
    """How deep an operand's loads may go: 0 for one load a step, all of k, a part, a chunk."""
    spec, k = problem.spec(operand), problem.k
    if spec.place != "file" or spec.path != "staged":
        return [0]
    chunk = _chunk_along_k(problem, operand)
    return list(dict.fromkeys([0, k, ceil_div(k, 4), *([chunk] if 1 < chunk < k else [])]))
