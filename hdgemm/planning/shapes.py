"""Shapes: how a product is cut into C tiles, k-chunks and loads of A and B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.planning._storage_chunks import align_all, chunk_along, op_chunk
from hdgemm.planning.byte_counts import (
    Need,
    ceil_div,
    larger,
    ring_bytes,
    round_up,
    scratch_bytes,
    slot_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import DeviceSpec, Operand, Problem
    from hdgemm.pipeline.tiles import Bars
    from hdgemm.planning.byte_counts import Count
    from hdgemm.planning.case import Case

#: Numbers of parts into which a dimension is cut: all small ones, then in ratios near 1.2.
_PARTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
#: Parts from which on their numbers are in ratios near 1.5.
_MANY_PARTS: Final = 256
#: Large extents are rounded up to this: whole vectors, whole disk blocks.
_ROUND: Final = 64
#: C tiles into which one work unit of the paper is cut (HDGEMM, section 4.3.2: four stores run
#: while one unit multiplies).
BLOCKS: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to cut a product, and the slots that hold its tiles.

    Parameters
    ----------
    tile
        ``(mb, nb, kb)``: the C tile, and the k-chunk of a step.
    a_depth, b_depth
        The extent along k of a load of A (mb×a_depth) and of B (b_depth×nb): multiples of kb, or
        all of k. Deep loads read whole rows of a file although steps are short.
    slots
        Tiles of A, B and C that are held at once.
    bars
        Whether a bar is a column or a row of C tiles.
    halvings
        How often the last C tile is halved, so that its store overlaps with multiplying.
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
    """Many shapes: arrays of equal length, one for each field of `Shape`.

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
        fields = (
            *shape.tile,
            shape.a_depth,
            shape.b_depth,
            shape.bars == "rows",
            *shape.slots,
            shape.halvings,
        )
        return cls(*(np.array([int(value)]) for value in fields))

    @classmethod
    def join(cls, parts: list[Shapes]) -> Shapes:
        """Return the shapes of all parts, one after the other."""
        return cls(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))

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

    def tiles(self, problem: Problem) -> tuple[Count, Count, Count]:
        """Return how many different tiles A, B and C have; 0 for operands used in place."""
        p, q = ceil_div(problem.m, self.mb), ceil_div(problem.n, self.nb)
        a, b = p * ceil_div(problem.k, self.a_depth), q * ceil_div(problem.k, self.b_depth)
        specs = (problem.a, problem.b, problem.c)
        counts = zip((a, b, p * q), specs, strict=True)
        a, b, c = (0 * count if spec.path == "resident" else count for count, spec in counts)
        return a, b, c

    def halved(self, times: int) -> Shapes:
        """Return the same shapes with the last C tile halved so often."""
        return self._replace(halvings=np.full_like(self.mb, times))

    def take(self, which: NDArray[Any] | slice) -> Shapes:
        """Return the shapes at these indices, or where a mask is true."""
        return Shapes(*(field[which] for field in self))

    def shape(self, index: int) -> Shape:
        """Return one of the shapes."""
        return next(self.ordered(np.array([index])))

    def ordered(self, order: NDArray[np.int64]) -> Iterator[Shape]:
        """Yield the shapes at these indices."""
        fields = (field[order].tolist() for field in self)
        for mb, nb, kb, a_depth, b_depth, rows, a, b, c, halvings in zip(*fields, strict=True):
            bars: Bars = "rows" if rows else "columns"
            yield Shape((mb, nb, kb), a_depth, b_depth, (a, b, c), bars, halvings)


def least_need(case: Case, shapes: Shape | Shapes) -> Need:
    """Return the least bytes that a shape, or each of many, holds."""
    problem, overlap, tiles = case.problem, case.overlap, shapes.extents(case.problem)
    a, b, c = (slot_bytes(problem, case.device, x, *tiles[x]) for x in ("A", "B", "C"))
    a_count, b_count, c_count = shapes.slots
    held = a_count * a + b_count * b
    up, down = ring_bytes(case, tiles)
    host = up + down + scratch_bytes(problem, c, tiles["C"][1])
    if overlap.c_on_device:
        held = held + c_count * c
    else:
        host = host + c_count * c
    return Need(host + held if case.device.unified else host, held, larger(larger(a, b), c))


def sizes(extent: int, least: int, quantum: int) -> list[int]:
    """List tile extents for a dimension, largest first, down to `least` or the whole of it."""
    parts = list(_PARTS)
    while extent // parts[-1] > least:
        parts.append(parts[-1] * 5 // 4 if parts[-1] < _MANY_PARTS else parts[-1] * 3 // 2)
    found = {min(extent, _rounded(ceil_div(extent, part), quantum)) for part in parts}
    return sorted((size for size in found if size >= min(least, extent)), reverse=True)


def _rounded(size: int, quantum: int) -> int:
    return int(round_up(size, max(quantum, _ROUND) if size > 8 * _ROUND else quantum))


def depths(k: int, least: int, quantum: int) -> list[int]:
    """List extents of k-chunks, each about half of the one before."""
    found = {k}
    size = k
    while size > max(least, 1):
        size = ceil_div(size, 2)
        found.add(min(k, _rounded(max(size, least), quantum)))
    return sorted(found, reverse=True)


def grid(problem: Problem, device: DeviceSpec, least: int, most_kb: int) -> Iterator[Shapes]:
    """Yield every combination of extents down to `least` for each kb, with no slots yet (0).

    Extents of chunked operands are those at which chunks end. Loads deeper than a step are tried
    for files only, where they read whole rows.
    """
    high, wide, short = _extents(problem, device, least, most_kb)
    axes = np.meshgrid(
        high,
        wide,
        _deepenings(problem, "A"),
        _deepenings(problem, "B"),
        [0, 1],
        indexing="ij",
    )
    mb, nb, a_deep, b_deep, rows = (axis.ravel().astype(np.int64) for axis in axes)
    none = np.zeros_like(mb)
    for size in short:
        kb = np.full_like(mb, size)
        a_depth, b_depth = _depth(problem, "A", kb, a_deep), _depth(problem, "B", kb, b_deep)
        yield Shapes(mb, nb, kb, a_depth, b_depth, rows, none, none, none, none)


def smallest(problem: Problem, device: DeviceSpec, least: int, most_kb: int) -> Shapes:
    """Return the smallest shape of the grid, with one slot of each: no other one needs less."""
    mb, nb, kb = (min(axis) for axis in _extents(problem, device, least, most_kb))
    return Shapes.of(Shape((mb, nb, kb), kb, kb, (1, 1, 1)))


def _extents(
    problem: Problem, device: DeviceSpec, least: int, most_kb: int
) -> tuple[list[int], list[int], list[int]]:
    """List the rows and columns of C tiles and the chunks of k of the grid."""
    # A tile below the granularity saves staging, though no slot.
    gm, gn, gk = device.granularity if least > 1 else (1, 1, 1)
    m, n, k = (chunk_along(problem, dimension) for dimension in ("m", "n", "k"))
    chunks = align_all(depths(problem.k, least, gk), k, problem.k)
    return (
        align_all(sizes(problem.m, least, gm), m, problem.m),
        align_all(sizes(problem.n, least, gn), n, problem.n),
        [kb for kb in chunks if kb <= most_kb] or chunks[-1:],
    )


def _depth(
    problem: Problem, operand: Operand, kb: NDArray[np.int64], deep: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the extents along k of loads that are to be about `deep`; 0: as deep as a step."""
    chunk = _chunk_along_k(problem, operand)
    unit = np.where(chunk % kb == 0, chunk, kb)
    depth: NDArray[np.int64] = np.where(deep > 0, round_up(deep, unit), kb)
    return np.minimum(problem.k, depth)


def load_depths(problem: Problem, operand: Operand, kb: int) -> list[int]:
    """List the extents along k that an operand's loads can have beside steps of kb."""
    deep = np.array(_deepenings(problem, operand))
    return list(dict.fromkeys(_depth(problem, operand, np.full_like(deep, kb), deep).tolist()))


def _chunk_along_k(problem: Problem, operand: Operand) -> int:
    chunk = op_chunk(problem.spec(operand))
    return 1 if chunk is None else chunk[1 if operand == "A" else 0]


def _deepenings(problem: Problem, operand: Operand) -> list[int]:
    """List depths of an operand's loads: 0 for a step's, all of k, a part of it, a chunk's."""
    spec, k = problem.spec(operand), problem.k
    if spec.place != "file" or spec.path != "staged":
        return [0]
    chunk = _chunk_along_k(problem, operand)
    return list(dict.fromkeys([0, k, ceil_div(k, 4), *([chunk] if 1 < chunk < k else [])]))
