"""Plan of a product: a frozen value of tiles, their order and memory, with its text and JSON.

All rectangles are in op-space: A is m×k, B is k×n, C is m×n, whatever way they are stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.errors import InputError
from hdgemm.pipeline._load_counts import Held
from hdgemm.pipeline.slot_reuse import Course
from hdgemm.pipeline.walk import Cut, Layout, Units, Walk
from hdgemm.plan_terms import expected_line, terms
from hdgemm.tables import Table
from hdgemm.units import format_duration, format_flops, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.tiles import Rect
    from hdgemm.pipeline.walk import Runs

Operand = Literal["A", "B", "C"]
OPERANDS: Final[tuple[Operand, ...]] = ("A", "B", "C")
Stage = Literal["load1", "load2", "mult1", "store1", "store2"]
STAGES: Final[tuple[Stage, ...]] = ("load1", "load2", "mult1", "store1", "store2")
#: Copied through staging, moved by DMA from page-locked memory, or used by the kernel in place.
Path = Literal["staged", "direct", "resident"]
Place = Literal["memory", "file"]  # where the caller keeps an operand

#: Of a plan as JSON: incremented when a reader of the previous format would misread this one.
FORMAT: Final = 2
_SLOTS: Final = ("a_slots", "b_slots", "c_slots", "up", "down")
#: C tiles of which a notebook shows the order.
_MOST_DRAWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """What the planner must know of A, B or C.

    Parameters
    ----------
    trans
        Stored row-major as the transpose of op(X). Never for C: the transposed product is planned.
    place, path
        Where the caller keeps it, and how it meets the device.
    itemsize
        Bytes of an element as stored; differs from the product's where load1 converts.
    chunk, encoded, chunk_origin
        Stored rows and columns of a chunk, whether it is decoded as a whole, and the place of the
        operand's first element in its chunk (a view may begin inside one).
    """

    trans: bool = False
    place: Place = "memory"
    path: Path = "staged"
    itemsize: int = 8
    chunk: tuple[int, int] | None = None
    encoded: bool = False
    chunk_origin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Problem:
    """C (m×n) := alpha·op(A)·op(B) + beta·C; with `reads_c` (beta ≠ 0) store2 reads the old C.

    With `exact_terms`, alpha is 1, A and B are integers that are multiplied in half of C's
    precision, and sums of so many of their products are exact there; 0 for products in `dtype`.
    """

    m: int
    n: int
    k: int
    dtype: str = "float64"
    a: OperandSpec = field(default_factory=OperandSpec)
    b: OperandSpec = field(default_factory=OperandSpec)
    c: OperandSpec = field(default_factory=OperandSpec)
    reads_c: bool = False
    exact_terms: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element of a C tile."""
        return np.dtype(self.dtype).itemsize

    @property
    def factor_dtype(self) -> str:
        """Element type in which A and B are multiplied."""
        half = ELEMENT_TYPES[self.dtype].half if self.exact_terms else None
        return half or self.dtype

    def tile_dtype(self, operand: Operand) -> np.dtype[Any]:
        """Return the element type of an operand's tiles."""
        return np.dtype(self.dtype if operand == "C" else self.factor_dtype)

    def tile_itemsize(self, operand: Operand) -> int:
        """Bytes of an element of an operand's tiles."""
        return self.tile_dtype(operand).itemsize

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole product; a complex multiply-add counts 8."""
        return self.m * self.n * self.k * flops_per_multiply_add(self.dtype)

    @property
    def in_place(self) -> bool:
        """Whether the kernel uses all three operands where the caller keeps them."""
        return self.a.path == self.b.path == self.c.path == "resident"

    @property
    def in_files(self) -> bool:
        """Whether any operand lies in a file."""
        return "file" in {self.a.place, self.b.place, self.c.place}

    def spec(self, operand: Operand) -> OperandSpec:
        """Return the description of one operand."""
        return self.a if operand == "A" else self.b if operand == "B" else self.c


def flops_per_multiply_add(dtype: str) -> int:
    """Return 2 for real dtypes and 8 for complex ones."""
    return ELEMENT_TYPES[dtype].flops


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What a plan depends on of a device.

    Parameters
    ----------
    name
        As in `Options.devices`, ``"cuda:0"``.
    unified
        Staging *is* device memory: no load2, no store1.
    memory_bytes, max_buffer_bytes
        What it can hold in all, and in one allocation; None where only the options limit it.
    granularity
        Tiles are stored with (m, n, k) extents rounded up to these, and run best in them.
    allocation_bytes, fp64_ratio
        The unit of the driver's allocations; single-precision rate over double-precision rate.
    widens
        It is a `WideningDevice`: adds exact products of half the precision.
    """

    name: str = "host"
    unified: bool = True
    memory_bytes: int | None = None
    max_buffer_bytes: int | None = None
    granularity: tuple[int, int, int] = (1, 1, 1)
    allocation_bytes: int = 1
    fp64_ratio: int = 2
    widens: bool = False

    def limit(self, asked: int | None = None) -> int | None:
        """Return the smaller of its memory and the bytes asked for; None where neither is known."""
        return min((size for size in (asked, self.memory_bytes) if size), default=None)

    def exceeded(self, sizes: Sequence[int]) -> tuple[int, int] | None:
        """Return bytes of buffers of these sizes, of all or of the largest, and the limit that they
        exceed; None where the device holds them.
        """
        for nbytes, most in (
            (sum(sizes), self.limit()),
            (max(sizes, default=0), self.max_buffer_bytes),
        ):
            if most is not None and nbytes > most:
                return nbytes, most
        return None


@dataclass(frozen=True, slots=True)
class Slots:
    """Equal fixed pieces of memory that tiles reuse: how many, and the bytes of each."""

    count: int
    nbytes: int

    @property
    def total(self) -> int:
        """Bytes of all slots."""
        return self.count * self.nbytes


NO_SLOTS: Final = Slots(0, 0)
SCRATCH_BYTES: Final = 16 << 20  # the most that store2 reads of the old C at once


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which stages of the pipeline overlap: one step of the paper's ladder.

    The next tiles load while this unit multiplies (DR, section 3.2); C is stored meanwhile (DB,
    3.1); the kernel writes C into device memory, not staging (DP, 3.3).
    """

    loads: bool = True
    stores: bool = True
    c_on_device: bool = True


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the model expects: seconds in all, busy seconds by stage, the limiting resource."""

    seconds: float
    stage_seconds: Mapping[str, float]
    limit: str


class Counts(NamedTuple):
    """How many bars, work units, steps and loads a plan has; they may exceed 64 bits."""

    bars: int
    units: int
    steps: int
    loads: int


@dataclass(frozen=True)
class Plan:
    """How a product is cut into loads, work units and steps, and the memory that these reuse.

    A plan of any size is small: its work units, steps and loads follow from its shape and are
    generated when they are executed, simulated or drawn; their numbers and bytes are formulas.

    Parameters
    ----------
    tile
        ``(mb, nb, kb)``: C tile and k-chunk of a step; those at edges are smaller.
    a_slots, b_slots, c_slots
        Device memory; C's slots lie in staging where `overlap.c_on_device` is false.
    up, down
        Staging for load1→load2 and for store1→store2; empty where staging is device memory.
    layout
        The order of the C tiles, and what a load of A and of B brings.
    host_limit, device_limit
        The limits in bytes that the plan was made for; 0 where none was named and it takes none.
    in_place
        One BLAS call on the caller's arrays in RAM computes the product: no loads, no slots.
    skipped
        Runs of work units, by their numbers in the whole plan, that an earlier run has stored.
    """

    problem: Problem
    device: DeviceSpec
    strategy: str
    overlap: Overlap
    tile: tuple[int, int, int]
    a_slots: Slots
    b_slots: Slots
    c_slots: Slots
    up: Slots
    down: Slots
    layout: Layout
    host_limit: int
    device_limit: int
    in_place: bool = False
    expected: Expectation | None = None
    skipped: Runs = field(default=(), repr=False)

    def slots(self, operand: Operand) -> Slots:
        """Return the slots of one operand's tiles."""
        return {"A": self.a_slots, "B": self.b_slots, "C": self.c_slots}[operand]

    @cached_property
    def walk(self) -> Walk:
        """All C tiles in order, and the chunks of k."""
        problem = self.problem
        extents = problem.m, problem.n, problem.k
        return Walk(extents, self.tile, self.layout, wriggled=self.overlap.loads)

    @cached_property
    def units(self) -> Units:
        """The work units that the plan computes, in their order."""
        return Units(self.walk, self.skipped, self.c_slots.count)

    @cached_property
    def course(self) -> Course:
        """Its steps with the loads that they need, in their order, and sums over them."""
        layout, (mb, nb, _) = self.layout, self.tile
        return Course(
            self.units,
            Cut(self.problem.m, mb * layout.blocks),
            Cut(self.problem.n, nb),
            Held(layout.a_depth, self.a_slots.count),
            Held(layout.b_depth, self.b_slots.count),
        )

    @cached_property
    def counts(self) -> Counts:
        """How many bars, work units, steps and loads it has."""
        course, walk = self.course, self.walk
        bars, last = 0, -1
        for first, end in self.units.runs:
            bars += walk.bar(end - 1) - max(last, walk.bar(first) - 1)
            last = walk.bar(end - 1)
        loads = course.loaded["A"].tiles + course.loaded["B"].tiles
        units = self.units.length
        return Counts(bars, units, units * walk.chunks.count, loads)

    @property
    def done(self) -> list[Rect]:
        """Rectangles of C that an earlier run has stored, and this plan leaves as they are."""
        walk = self.walk
        return [walk.rect(number) for run in self.skipped for number in range(*run)]

    @cached_property
    def elements(self) -> int:
        """Elements of C that the plan computes."""
        walk = self.walk
        return self.problem.m * self.problem.n - sum(walk.area(*run) for run in self.skipped)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of its units."""
        return self.elements * self.problem.k * flops_per_multiply_add(self.problem.dtype)

    @cached_property
    def scratch_bytes(self) -> int:
        """Bytes in which store2 reads the old C, block by block, where beta is not zero."""
        if not self.problem.reads_c or self.problem.c.path == "resident":
            return 0
        return max(min(SCRATCH_BYTES, self.c_slots.nbytes), self.tile[1] * self.problem.itemsize)

    @cached_property
    def device_bytes(self) -> int:
        """Bytes held on the device."""
        c = self.c_slots.total if self.overlap.c_on_device else 0
        return self.a_slots.total + self.b_slots.total + c

    @cached_property
    def staging_bytes(self) -> int:
        """Bytes of staging held, C's slots included where the kernel writes into staging."""
        c = 0 if self.overlap.c_on_device else self.c_slots.total
        return self.up.total + self.down.total + self.scratch_bytes + c

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory held."""
        return self.staging_bytes + (self.device_bytes if self.device.unified else 0)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves."""
        return planned_bytes(self)

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration; None where rates are not known."""
        return None if self.expected is None else self.expected.seconds

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        """Expected busy seconds of each stage."""
        return {} if self.expected is None else self.expected.stage_seconds

    @property
    def expected_limit(self) -> str | None:
        """The stage or resource that determines the duration."""
        return None if self.expected is None else self.expected.limit

    def __str__(self) -> str:
        return plan_text(self)

    def _repr_html_(self) -> str:
        return plan_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self), **terms(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the plan as JSON text, from which `from_json` makes an equal plan."""
        return json.dumps(self.to_dict(), indent=indent)


def planned_bytes(plan: Plan) -> dict[Stage, int]:
    """Return the bytes that each stage moves in a whole run of the plan.

    load1 and store2 count bytes as the application stores them, load2 and store1 as the device
    does; store2 counts the old C that it reads.
    """
    course = plan.course
    return bytes_of(plan, course.loaded["A"].elements, course.loaded["B"].elements, plan.elements)


def bytes_of(plan: Plan, a: int, b: int, c: int) -> dict[Stage, int]:
    """Return the bytes that each stage moves for so many elements of A, of B and of C."""
    moved: dict[Stage, int] = dict.fromkeys(STAGES, 0)
    problem, unified = plan.problem, plan.device.unified
    factor_bytes = problem.tile_itemsize("A")
    for spec, elements in ((problem.a, a), (problem.b, b)):
        if spec.path == "staged":
            moved["load1"] += elements * spec.itemsize
        if not unified:
            moved["load2"] += elements * factor_bytes
    if plan.in_place or problem.c.path == "resident":
        return moved
    if plan.overlap.c_on_device and not unified:
        moved["store1"] = c * problem.itemsize
    if problem.c.path == "staged":
        moved["store2"] = c * problem.c.itemsize * (2 if problem.reads_c else 1)
    return moved


def largest_tiles(plan: Plan) -> dict[Operand, tuple[int, int]]:
    """Return rows and columns of the largest tile of each operand, in op-space."""
    problem, layout, (mb, nb, _) = plan.problem, plan.layout, plan.tile
    rows, cols = min(mb * layout.blocks, problem.m), min(nb, problem.n)
    return {
        "A": (rows, min(layout.a_depth, problem.k)),
        "B": (min(layout.b_depth, problem.k), cols),
        "C": (min(mb, problem.m), cols),
    }


def summarize(plan: Plan) -> dict[str, Any]:
    """Return a plan's shape, tiles, counts and memory as plain values; bytes and seconds."""
    problem, counts = plan.problem, plan.counts
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype,
        "device": plan.device.name,
        "strategy": plan.strategy,
        "in_place": plan.in_place,
        "paths": {"A": problem.a.path, "B": problem.b.path, "C": problem.c.path},
        "tile": list(plan.tile),
        "units": counts.units,
        "steps": counts.steps,
        "loads": counts.loads,
        "staging_bytes": plan.staging_bytes,
        "device_bytes": plan.device_bytes,
        "device_limit": plan.device_limit,
        **terms(plan),
    }


def plan_lines(plan: Plan, *, alone: bool = True) -> list[str]:
    """Return what a plan does in a few lines: shape, tiles, order, time and the bottleneck.

    A device that is not `alone` draws an unknown number of tiles.
    """
    p, (mb, nb, kb) = plan.problem, plan.tile
    exact = f": sums of {p.exact_terms} exact products in {p.factor_dtype}" if p.exact_terms else ""
    lines = [
        f"C ({p.m} × {p.n}) := A ({p.m} × {p.k}) · B ({p.k} × {p.n}), {p.dtype}{exact}",
        f"{format_flops(p.flops)} on {plan.device.name}, {plan.strategy}",
    ]
    if plan.in_place:
        lines.append("in place: one BLAS call on the caller's arrays, nothing is copied")
    else:
        bars, units, steps, loads = plan.counts
        counts = f"; wriggled order: bars {bars}, work units {units}, steps {steps}, loads {loads}"
        tiles = f"tiles: C {mb} × {nb}, A {mb} × {kb}, B {kb} × {nb}"
        lines.append(tiles + counts if alone else tiles)
    if plan.expected is not None:
        among = "" if alone else "without the other devices, "
        lines.append(among + expected_line(plan))
    return lines


def stage_table(plan: Plan) -> Table:
    """Return the bytes that each stage will move and the time it is expected to be busy."""
    moved = planned_bytes(plan)
    busy = plan.expected_phase_seconds
    return Table(
        ("stage", "bytes", "expected busy"),
        [
            (
                stage,
                format_size(moved[stage]) if moved[stage] else "–",
                format_duration(busy.get(stage)),
            )
            for stage in STAGES
            if moved[stage] or busy.get(stage)
        ],
    )


def memory_table(plan: Plan) -> Table:
    """Return the memory that a plan holds, by kind, and its limits."""
    kinds = {
        "A tiles": plan.a_slots,
        "B tiles": plan.b_slots,
        "C tiles": plan.c_slots,
        "staging up": plan.up,
        "staging down": plan.down,
    }
    rows = [
        (kind, f"{slots.count}", format_size(slots.total))
        for kind, slots in kinds.items()
        if slots.total
    ]
    rows.append(("host, in all", "", _against(plan.host_bytes, plan.host_limit)))
    if not plan.device.unified:
        rows.append(("device, in all", "", _against(plan.device_bytes, plan.device_limit)))
    return Table(("memory held", "slots", "bytes"), rows)


def _against(held: int, limit: int) -> str:
    return f"{format_size(held)} of {format_size(limit)}" if limit else format_size(held)


def held_line(plan: Plan) -> str:
    """Return a line with the memory that a plan holds, and its limits."""
    held = f"memory held: host {_against(plan.host_bytes, plan.host_limit)}"
    if not plan.device.unified:
        held += f", device {_against(plan.device_bytes, plan.device_limit)}"
    return held


def plan_text(plan: Plan) -> str:
    """Return the plan as `hdgemm plan` prints it, in at most 25 lines."""
    tables = (stage_table(plan), memory_table(plan))
    return "\n".join([*plan_lines(plan), *("\n".join(["", *table.lines()]) for table in tables)])


def plan_html(plan: Plan) -> str:
    """Return the plan as HTML for a notebook; a picture of its tiles needs Matplotlib."""
    from hdgemm.pictures.figure import inline_picture
    from hdgemm.pictures.tilemap import save_order

    lines = "<br>".join(map(escape, plan_lines(plan)))
    units, extents, order = plan.units, (plan.problem.m, plan.problem.n), ""
    if units.length <= _MOST_DRAWN:
        tiles = [unit.rect for unit in units]
        order = inline_picture(
            lambda file: save_order(tiles, extents, file), "order of the tiles of C"
        )
    return f"<p>{lines}</p>{stage_table(plan).html()}{memory_table(plan).html()}{order}"


#: What makes a plan; the rest of its JSON follows from these.
_FIELDS: Final = tuple(each.name for each in fields(Plan))


def from_json(text: str) -> Plan:
    """Read a plan that `to_json` wrote; `validate` checks whether it can be run.

    Raises `InputError` where the text is not a plan, or has another format.
    """
    try:
        given: dict[str, Any] = json.loads(text)
        written = given.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError("the text is not a plan in JSON") from error
    if written != FORMAT:
        raise InputError(f"the plan has format {written}, this version reads format {FORMAT}")
    try:
        return _plan({name: given[name] for name in _FIELDS if name in given})
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"the plan's fields are not what format {FORMAT} has: {error}") from error


def _plan(given: dict[str, Any]) -> Plan:
    expected, problem = given.pop("expected"), given["problem"]
    granularity = given["device"]["granularity"]
    given |= {name: Slots(**given[name]) for name in _SLOTS}
    return Plan(
        **given
        | {
            "problem": Problem(
                **problem | {name: _spec(problem[name]) for name in ("a", "b", "c")}
            ),
            "device": DeviceSpec(**given["device"] | {"granularity": tuple(granularity)}),
            "overlap": Overlap(**given["overlap"]),
            "tile": tuple(given["tile"]),
            "layout": Layout(**given["layout"]),
            "skipped": tuple((first, end) for first, end in given["skipped"]),
            "expected": None if expected is None else Expectation(**expected),
        }
    )


def _spec(fields: dict[str, Any]) -> OperandSpec:
    pairs = {name: tuple(fields[name]) for name in ("chunk", "chunk_origin") if fields.get(name)}
    return OperandSpec(**fields | pairs)
