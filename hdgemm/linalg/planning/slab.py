"""The plan of a factorisation by slabs: which columns are in memory when, and what that costs.

With devices, the columns of a slab are cut into strips: the panels that the host factors, and
strips of the columns right of the last pivot. Each strip crosses the link once in each direction:
up before the updates, and down when all columns left of it have updated it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hdgemm.fortran import cholesky_pairs, elimination_pairs
from hdgemm.matrices.filematrix import GAP
from hdgemm.matrices.transfer import ALIGNMENT, SHORT
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.plan_terms import expected_line, memory_line, moved_line, phase_lines, terms
from hdgemm.units import format_count, format_flops, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.pipeline.plan import Stage

    Counts = NDArray[Any]

#: "form q" applies reflectors to columns of the identity, "apply q" to columns of any matrix;
#: "copy" stores columns that are computed already.
Kind = Literal["cholesky", "lu", "qr", "form q", "apply q", "copy"]

#: Columns that the host factors at once where devices compute the updates.
PANEL: Final = 256
#: Fields for the bytes that cross the link to devices and back.
_LINK: Final[dict[Stage, str]] = {"load2": "upload_bytes", "store1": "download_bytes"}
#: Bytes above the part of a short column that are read with it: one contiguous request for all
#: columns takes less time than a request for each.
_ABOVE: Final = 64 << 10
#: Bytes from which on sums need more than 64 bits.
_MOST_BYTES: Final = 1 << 62


class Columns(NamedTuple):
    """Columns `first` to `last` (excluded) and their rows from `top` on."""

    first: int
    last: int
    top: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of the columns that a factorisation eliminates, none of them in two slabs.

    There may be millions of them: they are generated when they are iterated over.

    Parameters
    ----------
    slabs
        The columns of each slab that are eliminated, from left to right.
    block
        Columns of a block; the last one of a slab may have fewer.
    backwards
        They are iterated over from right to left.
    """

    slabs: tuple[Columns, ...] = ()
    block: int = 1
    backwards: bool = False

    def __iter__(self) -> Iterator[Columns]:
        step = -1 if self.backwards else 1
        for slab in self.slabs[::step]:
            for first in range(slab.first, slab.last, self.block)[::step]:
                yield Columns(first, min(first + self.block, slab.last), first)

    def __bool__(self) -> bool:
        return bool(self.slabs)

    @property
    def last(self) -> int:
        """The number of columns in all."""
        return self.slabs[-1].last if self.slabs else 0

    def elements_before(self, columns: list[int], m: int, dtype: Any) -> Counts:
        """Count the elements of the blocks of m rows that begin left of some columns.

        They have rows from their first column on. `dtype` holds the counts.
        """
        ends = np.fromiter(chain.from_iterable(self.slabs), dtype).reshape(-1, 3)
        firsts, lasts, _ = ends.T
        whole = np.concatenate([[0], np.cumsum(_elements(m, self.block, firsts, lasts))])
        found = np.array(columns, dtype)
        number = np.maximum(np.searchsorted(firsts, found) - 1, 0)
        blocks = -(-(found - firsts[number]) // self.block)
        ends = np.minimum(firsts[number] + self.block * np.maximum(blocks, 0), lasts[number])
        part: Counts = whole[number] + _elements(m, self.block, firsts[number], ends)
        return part

    @classmethod
    def from_values(cls, values: Any) -> Blocks:
        """Return the blocks of which `asdict` returned these values, or of a list of blocks."""
        if isinstance(values, dict):
            slabs = tuple(Columns(*columns) for columns in values["slabs"])
            return cls(slabs, values["block"], values["backwards"])
        blocks = tuple(Columns(*columns) for columns in values)
        widest = max((each.width for each in blocks), default=1)
        return cls(tuple(sorted(blocks)), widest, blocks != tuple(sorted(blocks)))


def _elements(m: int, block: int, firsts: Counts, lasts: Counts) -> Counts:
    """Count the elements of blocks of columns, each with the rows from its first column on."""
    blocks = (lasts - firsts) // block
    rest = lasts - firsts - block * blocks
    found: Counts = block * (blocks * (m - firsts)) + rest * (m - lasts + rest)
    found -= block**2 * (blocks * (blocks - 1) // 2)
    return found


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """The slabs of one factorisation of an m×n matrix, and what they cost.

    To apply stored reflectors to an m×n matrix is planned in the same way.

    Parameters
    ----------
    slabs
        The slabs in the order in which they are stored: from left to right, but from right to left
        where Q is formed. Cholesky's have the rows from their diagonal on.
    block
        Columns of a stream block, at most; a block has columns of one slab only.
    slab_buffers
        2 where loading and storing slabs overlaps the computation, else 1. A last slab that is
        wider than the first takes the memory of all buffers.
    host_bytes
        Memory for slabs, stream blocks and transfers.
    host_limit
        The memory that the plan was made for, in bytes.
    expected_seconds
        Expected duration.
    expected_phase_seconds
        Expected duration of each phase, alone.
    expected_limit
        The resource that determines it: ``"kernel"`` or ``"disk"``.
    reflectors
        Blocks of reflectors that are applied to each slab, in this order; none in factorisations.
    row_bytes
        Bytes from one row of A to the next where A is row-major in a file, so that a slab is read
        as one piece of each row; else 0.
    copied
        A is read once, by whole rows, to fill the slab buffers and to copy the other slabs to the
        space of the output where their factors will be stored; they are loaded from there.
    whole
        Columns of the output are short and contiguous: those that stream are read whole.
    devices
        The devices that hold and update slabs; () for the host's BLAS.
    weights
        The part of a slab's columns that each of them holds.
    stores
        The factor is stored; else it stays in the array in which it is computed.
    beside
        Bytes that are stored beside the slabs: R, less the reflectors that have no place.
    moved_rows
        Rows of each slab that are loaded, and that are stored; None for all.
    held
        A slab stays in memory until it has updated the next one, which does not read it.
    """

    kind: Kind
    m: int
    n: int
    dtype: str
    slabs: tuple[Columns, ...]
    block: int
    slab_buffers: int
    host_bytes: int
    host_limit: int = 0
    expected_seconds: float = 0.0
    expected_phase_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)
    expected_limit: str = "kernel"
    reflectors: Blocks = Blocks()
    row_bytes: int = 0
    copied: bool = False
    whole: bool = False
    devices: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    stores: bool = True
    beside: int = 0
    moved_rows: tuple[int, int] | None = None
    held: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def pivots(self) -> int:
        """The number of columns that are eliminated."""
        return min(self.m, self.n)

    def eliminated(self, slab: Columns) -> Columns:
        """Return the columns of a slab that are eliminated: those left of column `pivots`."""
        return Columns(slab.first, max(slab.first, min(slab.last, self.pivots)), slab.top)

    def parts(self, slab: Columns) -> Iterator[Columns]:
        """Yield the blocks of the columns of a slab that are eliminated, from left to right."""
        yield from Blocks((self.eliminated(slab),), self.block)

    @property
    def eliminating(self) -> Blocks:
        """The blocks of all columns that are eliminated."""
        own = (self.eliminated(slab) for slab in self.slabs)
        return Blocks(tuple(slab for slab in own if slab.width), self.block)

    def blocks(self, number: int) -> Iterator[tuple[int, Columns]]:
        """Yield the blocks that update a slab, each with the number of the slab it is a part of.

        Reflectors that were stored before have no such number: it is -1.
        """
        if self.kind in ("form q", "apply q"):
            yield from ((-1, block) for block in self._applied(self.slabs[number]))
            return
        top = self.slabs[number].first
        for earlier, slab in enumerate(self.slabs[:number]):
            for block in self.parts(slab):
                yield earlier, block._replace(top=top) if self.kind == "cholesky" else block

    def _applied(self, slab: Columns) -> list[Columns]:
        """Return the reflectors that change a slab: columns of the identity have zeros on top."""
        return [b for b in self.reflectors if self.kind == "apply q" or b.first < slab.last]

    def _applied_bytes(self) -> list[int]:
        """Return the bytes of the reflectors that change each slab."""
        if not self.reflectors:
            return [0] * len(self.slabs)
        ends = [slab.last for slab in self.slabs]
        if self.kind == "apply q":
            ends = [self.reflectors.last] * len(self.slabs)
        elements = self.reflectors.elements_before(ends, self.m, self._exact)
        return [*(elements * self.itemsize).tolist()]

    @property
    def _exact(self) -> Any:
        """A type of the bytes of all columns: a large matrix needs more than 64 bits."""
        return np.int64 if self.m * self.n * self.itemsize < _MOST_BYTES else object

    def nbytes(self, columns: Columns) -> int:
        """Return the bytes of the elements of some columns."""
        return (self.m - columns.top) * columns.width * self.itemsize

    def read_top(self, top: int) -> int:
        """Return the first row that is read of stored columns that are needed from row `top` on."""
        return 0 if self.whole and top * self.itemsize <= _ABOVE else top

    def gap_bytes(self, slab: Columns) -> int:
        """Return the bytes between the pieces of rows that are read to load some columns of A."""
        piece = slab.width * self.itemsize
        return max(0, self.row_bytes - piece) if piece < SHORT else 0

    def loaded_bytes(self, slab: Columns) -> int:
        """Return the bytes that are read to load some columns of A: short gaps are read too."""
        gap = self.gap_bytes(slab)
        return self.nbytes(slab) + (gap * (self.m - slab.top - 1) if gap <= GAP else 0)

    def copies(self, done: int) -> tuple[Columns, ...]:
        """Return the slabs that are copied where some are finished: all but the next ones."""
        return self.slabs[done + self.slab_buffers :] if self.copied else ()

    @property
    def copied_columns(self) -> int:
        """Columns of a strip of a slab that is copied, each row-major: half of a slab or more."""
        half, aligned = -(-self.slabs[0].width // 2), max(1, ALIGNMENT // self.itemsize)
        return -(-half // aligned) * aligned if half > aligned else half

    @property
    def loaded_columns(self) -> int:
        """Columns of one buffer, in which a strip of a row-major slab is loaded from A.

        0 where slabs are loaded whole: strips would read gaps between pieces of rows several times.
        """
        if not self.takes_all(len(self.slabs) - 1):
            return 0
        (first, last, top), step = self.slabs[-1], self.slabs[0].width
        strips = [Columns(at, min(at + step, last), top) for at in range(first, last, step)]
        whole = self.loaded_bytes(self.slabs[-1])
        return step if sum(map(self.loaded_bytes, strips)) == whole else 0

    def banded(self, done: int) -> Columns:
        """Return the columns of A that are read by bands of rows where some slabs are finished:
        all, where the gaps between pieces of rows would be read anyway.
        """
        needed = Columns(self.slabs[done].first, self.n, 0)
        return Columns(0, self.n, 0) if self.gap_bytes(needed) <= GAP else needed

    def takes_all(self, number: int) -> bool:
        """Say whether a slab takes the memory of all buffers."""
        last = 0 < number == len(self.slabs) - 1 and self.kind in ("lu", "qr")
        return last and self.slabs[-1].width > self.slabs[0].width

    def holds_before(self, number: int, start: int = 0) -> bool:
        """Say whether the slab before one is in memory when it updates that one.

        Slab `start` is the first one of a run: an earlier run has finished those before it.
        """
        return self.held and number > start and not self.takes_all(number)

    def streamed_bytes(self, start: int = 0) -> list[int]:
        """Return the bytes of earlier columns that are read for each slab, from `start` on."""
        return self.read_of(self.earlier_bytes(), start)

    def read_of(self, earlier: list[int], start: int = 0) -> list[int]:
        """Return the part of the `earlier_bytes` that is read for each slab, from `start` on.

        The slab before one is not read where it is in memory.
        """
        if not self.held or start + 1 >= len(earlier):
            return earlier[start:]
        last = len(earlier) - 1
        if self.kind == "cholesky":
            slabs = self.slabs
            rest = [
                earlier[number] // slabs[number].first * slabs[number - 1].first
                for number in range(start + 1, last + 1)
            ]
        else:
            rest = earlier[start:last]
        if self.takes_all(last):
            rest[-1] = earlier[last]
        return [earlier[start], *rest]

    def earlier_bytes(self) -> list[int]:
        """Return the bytes of the earlier columns that update each slab."""
        if self.kind == "cholesky":
            tops = [(slab.first, self.read_top(slab.first)) for slab in self.slabs]
            return [(self.n - top) * first * self.itemsize for first, top in tops]
        if self.kind in ("form q", "apply q"):
            return self._applied_bytes()
        # All slabs at once: a search sums thousands of slabs dozens of times.
        ends = np.fromiter(chain.from_iterable(self.slabs[:-1]), self._exact).reshape(-1, 3)
        firsts, lasts, _ = np.minimum(ends, self.pivots).T
        elements = _elements(self.m, self.block, firsts, lasts)
        if self.whole:
            elements += self._above(firsts, lasts)
        return [0, *np.cumsum(elements * self.itemsize).tolist()][: len(self.slabs)]

    def _above(self, firsts: Counts, lasts: Counts) -> Counts:
        """Count the elements above the blocks of slabs that are read whole with them."""
        blocks, rest = (lasts - firsts) // self.block, (lasts - firsts) % self.block
        # The last block that is read whole begins at most so many columns after the slab.
        most = _ABOVE // self.itemsize - firsts
        count = np.minimum(blocks, np.maximum(0, most // self.block + 1))
        ragged = rest * (lasts - rest) * (lasts - rest - firsts <= most)
        found: Counts = ragged + self.block * count * firsts
        found += self.block**2 * (count * (count - 1) // 2)
        return found

    @property
    def interchanged(self) -> tuple[Columns, ...]:
        """What the last pass of LU reads and writes: the rows of L below each slab's own ones.

        Short columns are moved whole, since a slab of them is contiguous in the file: with parts
        of columns of 64 KiB the pass took 2.7 times as long.
        """
        return tuple(part for slab in self.slabs for part in self.interchanged_of(slab))

    def interchanged_of(self, slab: Columns) -> tuple[Columns, ...]:
        """Return the part of a slab that the last pass of LU moves; () where there is none."""
        if self.kind != "lu" or slab.last >= self.pivots:
            return ()
        first, last, _ = slab
        m, itemsize = self.m, self.itemsize
        aligned = m * itemsize % ALIGNMENT == 0 and last * itemsize % ALIGNMENT == 0
        parts = (aligned and m * itemsize >= SHORT) or (m - last) * itemsize >= SHORT
        return (Columns(first, last, last if parts else 0),)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves."""
        return self.bytes_from(0, 0)

    def bytes_from(self, slab: int, interchanged: int) -> dict[Stage, int]:
        """Return the bytes that each stage still moves when some slabs are factored, and some have
        their rows in the last order.
        """
        if self.moved_rows is not None:
            columns = sum(each.width for each in self.slabs[slab:]) * self.itemsize
            streamed = sum(self.streamed_bytes(slab))
            loaded, stored = (rows * columns for rows in self.moved_rows)
            return {"load1": streamed + loaded, "store2": stored, **link_bytes(self, slab)}
        rest, copies = self.slabs[slab:], self.copies(slab)
        copied = sum(map(self.nbytes, copies))
        read = (self.banded(slab),) if copies else rest
        loaded = copied + sum(map(self.loaded_bytes, read)) + sum(self.streamed_bytes(slab))
        final = sum(map(self.nbytes, self.interchanged[interchanged:]))
        stored = copied + sum(map(self.nbytes, rest)) + self.beside if self.stores else 0
        return {"load1": loaded + final, "store2": stored + final, **link_bytes(self, slab)}

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count."""
        return self.flops_of(self.n)

    def flops_of(self, columns: int) -> int:
        """Return the operations after which the first columns are factored."""
        pairs = elimination_pairs(self.m, columns)
        if self.kind == "cholesky":
            pairs = cholesky_pairs(self.n, columns)
        elif self.kind != "lu":
            depth = self.reflectors.last
            pairs = {
                "copy": 0,
                "qr": 2 * pairs,
                "form q": 2 * elimination_pairs(self.m, columns, depth),
                "apply q": columns * depth * (2 * self.m - depth),
            }[self.kind]
        return int(flops_per_multiply_add(self.dtype) * pairs)

    def summary(self) -> dict[str, Any]:
        """Return shape, slabs, memory and expectations as plain values, for reports."""
        return _summary(self)

    @classmethod
    def of_array(cls, kind: Kind, m: int, n: int, dtype: str, limit: int = 0) -> SlabPlan:
        """Return the plan of a factorisation in the array that the result is: one slab."""
        slabs = (Columns(0, n, 0),) if n else ()
        return cls(kind, m, n, dtype, slabs, max(n, 1), 1, 0, limit, stores=False)

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk space that the output takes."""
        if self.kind == "cholesky":
            return sum(map(self.nbytes, self.slabs))
        return self.m * self.n * self.itemsize if self.stores else 0

    def __str__(self) -> str:
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | terms(self) | {"disk_bytes": self.disk_bytes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SlabPlan:
        """Return the plan of which `to_dict` returned these values."""
        found = {name: values[name] for name in cls.__slots__ if name in values}
        found["slabs"] = tuple(Columns(*columns) for columns in values["slabs"])
        found["reflectors"] = Blocks.from_values(values["reflectors"])
        devices = tuple(values.get("devices", ()))
        weights = tuple(values.get("weights", (1.0,) * len(devices)))
        rows = values.get("moved_rows")
        found |= {"devices": devices, "weights": weights}
        found["moved_rows"] = None if rows is None else tuple(rows)
        return cls(**found)


def panels(plan: SlabPlan, slab: Columns) -> list[Columns]:
    """Return the panels of a slab, from the first row on that crosses the link.

    A block of reflectors has one T, and is factored whole.
    """
    if plan.kind in ("form q", "apply q"):
        return []
    if plan.kind == "qr":
        return [part._replace(top=slab.top) for part in plan.parts(slab)]
    return _cut(plan, plan.eliminated(slab))


def strips(plan: SlabPlan, slab: Columns) -> list[Columns]:
    """Return the panels of a slab, and strips of the other columns."""
    own = panels(plan, slab)
    first = own[-1].last if own else slab.first
    return own + _cut(plan, slab._replace(first=first))


def _cut(plan: SlabPlan, columns: Columns) -> list[Columns]:
    """Cut columns into strips; trapezoids have rows from their diagonal on."""
    step = min(plan.block, PANEL)
    return [
        Columns(first, min(first + step, columns.last), first if plan.kind == "cholesky" else 0)
        for first in range(columns.first, columns.last, step)
    ]


def factored(plan: SlabPlan, panel: Columns) -> Columns:
    """Return the rows of a factored panel that update the columns right of it."""
    return panel._replace(top=panel.last if plan.kind == "cholesky" else panel.first)


def dealt(plan: SlabPlan, slab: Columns) -> list[list[Columns]]:
    """Deal the strips of a slab to the devices of a plan, in proportion to their weights.

    Each strip goes to the device that will have the least for its weight. So that all devices have
    columns to update until the end, neighbouring strips are on different ones.
    """
    held: list[list[Columns]] = [[] for _ in plan.devices]
    taken = [0] * len(held)
    for strip in strips(plan, slab):
        at = min(range(len(held)), key=lambda i: (taken[i] + strip.width) / plan.weights[i])
        held[at].append(strip)
        taken[at] += strip.width
    return held


def link_bytes(plan: SlabPlan, start: int = 0) -> dict[Stage, int]:
    """Return the bytes that cross the link where `start` slabs are finished.

    {} where the host updates slabs, or nothing does.
    """
    if not plan.devices or plan.kind == "copy":
        return {}
    streamed = replace(plan, whole=False).earlier_bytes()
    count, up, down, earlier = len(plan.devices), 0, 0, 0
    for number, slab in enumerate(plan.slabs):
        if number >= start:
            own = sum(map(plan.nbytes, strips(plan, slab)))
            sent = [factored(plan, x) for x in panels(plan, slab) if x.last < slab.last]
            squares = earlier + sum(_square(plan, panel) for panel in sent)
            if plan.kind in ("form q", "apply q"):
                squares = sum(_square(plan, block) for _, block in plan.blocks(number))
            up += own + count * (streamed[number] + sum(map(plan.nbytes, sent)) + squares)
            down += own
        earlier += sum(_square(plan, block) for block in plan.parts(slab))
    return {"load2": up, "store1": down}


def _square(plan: SlabPlan, block: Columns) -> int:
    """Return the bytes of T of a block of reflectors."""
    return 0 if plan.kind in ("lu", "cholesky") else block.width**2 * plan.itemsize


def _text(plan: SlabPlan) -> str:
    """Return what a plan does in a few lines: slabs, bytes, memory, disk, time, what limits."""
    widest = max((slab.width for slab in plan.slabs), default=0)
    slabs = (
        f"{len(plan.slabs)} slabs of {format_count(widest, 'column')} at most, {plan.slab_buffers} "
        f"in memory; earlier columns stream in blocks of {plan.block}"
        if len(plan.slabs) > 1
        else f"1 slab of {format_count(widest, 'column')}"
    )
    if plan.copied:
        slabs += "; slabs of the row-major A are copied to the output first"
    return "\n".join(
        [
            f"{plan.kind} of a {plan.m} × {plan.n} {plan.dtype} matrix: {format_flops(plan.flops)}",
            slabs,
            *_updates(plan),
            moved_line(plan),
            memory_line(plan),
            f"disk space for the output {format_size(plan.disk_bytes)}",
            *phase_lines(plan),
            expected_line(plan),
        ]
    )


def _updates(plan: SlabPlan) -> list[str]:
    """Return the devices of the updates, where they do not run on the host."""
    moved = link_bytes(plan)
    if not moved:
        return []
    names = ", ".join(plan.devices)
    up, down = (format_size(moved[stage]) for stage in ("load2", "store1"))
    return [f"slabs are updated in the memory of {names}: {up} to it, {down} back"]


def _summary(plan: SlabPlan) -> dict[str, Any]:
    """Return shape, slabs, memory and expectations as plain values, for reports."""
    found = terms(plan)
    moved = found["planned_bytes"]
    return {
        "kind": plan.kind,
        "m": plan.m,
        "n": plan.n,
        "dtype": plan.dtype,
        "slabs": len(plan.slabs),
        "slab_buffers": plan.slab_buffers,
        "slab_columns": max((slab.width for slab in plan.slabs), default=0),
        "block_columns": plan.block,
        "disk_bytes": plan.disk_bytes,
        **found,
        **({"devices": list(plan.devices)} if plan.devices else {}),
        **{_LINK[stage]: moved[stage] for stage in _LINK if stage in moved},
    }
