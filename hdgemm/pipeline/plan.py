"""The plan of a product as a frozen value: its tiles, their order, and the memory that holds them.

All rectangles are in op-space: A is m×k, B is k×n, C is m×n, whatever way they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Operand = Literal["A", "B", "C"]
OPERANDS: Final[tuple[Operand, ...]] = ("A", "B", "C")
Stage = Literal["load1", "load2", "mult1", "store1", "store2"]
STAGES: Final[tuple[Stage, ...]] = ("load1", "load2", "mult1", "store1", "store2")
#: Copied through staging, moved by DMA from page-locked memory, or used by the kernel in place.
Path = Literal["staged", "direct", "resident"]
Place = Literal["memory", "file"]  # where the caller keeps an operand


class Rect(NamedTuple):
    """A rectangle of A, B or C in op-space: its first row and column, and its extents."""

    row: int
    col: int
    rows: int
    cols: int

    @property
    def area(self) -> int:
        """Elements in it."""
        return self.rows * self.cols

    def covers(self, other: Rect) -> bool:
        """Say whether `other` lies wholly inside."""
        rows = self.row <= other.row and other.row + other.rows <= self.row + self.rows
        return rows and self.col <= other.col and other.col + other.cols <= self.col + self.cols


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
    """C (m×n) := alpha·op(A)·op(B) + beta·C; with `reads_c` (beta ≠ 0) store2 reads the old C."""

    m: int
    n: int
    k: int
    dtype: str = "float64"
    a: OperandSpec = field(default_factory=OperandSpec)
    b: OperandSpec = field(default_factory=OperandSpec)
    c: OperandSpec = field(default_factory=OperandSpec)
    reads_c: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element as it is multiplied."""
        return np.dtype(self.dtype).itemsize

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
    return 8 if np.dtype(dtype).kind == "c" else 2


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
    """

    name: str = "host"
    unified: bool = True
    memory_bytes: int | None = None
    max_buffer_bytes: int | None = None
    granularity: tuple[int, int, int] = (1, 1, 1)
    allocation_bytes: int = 1
    fp64_ratio: int = 2

    def limit(self, asked: int | None = None) -> int | None:
        """Return the smaller of its memory and the bytes asked for; None where neither is known."""
        return min((size for size in (asked, self.memory_bytes) if size), default=None)


class Load(NamedTuple):
    """One tile of A or B brought into one slot, for `step` (its first reader) and later ones."""

    operand: Literal["A", "B"]
    rect: Rect
    slot: int
    step: int


class WorkUnit(NamedTuple):
    """One tile of C with its whole sweep over k: steps `first` to `last`, both included."""

    number: int
    bar: int
    rect: Rect
    slot: int
    first: int
    last: int


class Step(NamedTuple):
    """C tile += A[:, k0:k0+kb] · B[k0:k0+kb, :]; `a`, `b` index loads, -1 for a resident one."""

    number: int
    unit: int
    k0: int
    kb: int
    a: int
    b: int


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


@dataclass(frozen=True, slots=True)
class Plan:
    """A product cut into loads, work units and steps, with the memory that they take turns in.

    Parameters
    ----------
    tile
        ``(mb, nb, kb)``: C tile and k-chunk of a step; those at edges are smaller.
    a_slots, b_slots, c_slots
        Device memory; C's slots lie in staging where `overlap.c_on_device` is false.
    up, down
        Staging for load1→load2 and for store1→store2; empty where staging is device memory.
    host_limit, device_limit
        The limits in bytes that the plan was made for.
    in_place
        One BLAS call on the caller's arrays in RAM computes the product: no loads, no slots.
    done
        Rectangles of C that an earlier run has stored, and this plan leaves as they are.
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
    loads: tuple[Load, ...] = field(repr=False)
    units: tuple[WorkUnit, ...] = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)
    host_limit: int
    device_limit: int
    in_place: bool = False
    expected: Expectation | None = None
    done: tuple[Rect, ...] = field(default=(), repr=False)

    def slots(self, operand: Operand) -> Slots:
        """Return the slots of one operand's tiles."""
        return {"A": self.a_slots, "B": self.b_slots, "C": self.c_slots}[operand]

    @property
    def elements(self) -> int:
        """Elements of C that the plan computes."""
        return self.problem.m * self.problem.n - sum(rect.area for rect in self.done)

    @property
    def flops(self) -> int:
        """Floating-point operations of its units."""
        return self.elements * self.problem.k * flops_per_multiply_add(self.problem.dtype)

    @property
    def scratch_bytes(self) -> int:
        """Bytes in which store2 reads the old C, block by block, where beta is not zero."""
        if not self.problem.reads_c or self.problem.c.path == "resident":
            return 0
        return max(min(SCRATCH_BYTES, self.c_slots.nbytes), self.tile[1] * self.problem.itemsize)

    @property
    def device_bytes(self) -> int:
        """Bytes held on the device."""
        c = self.c_slots.total if self.overlap.c_on_device else 0
        return self.a_slots.total + self.b_slots.total + c

    @property
    def staging_bytes(self) -> int:
        """Bytes of staging held, C's slots included where the kernel writes into staging."""
        c = 0 if self.overlap.c_on_device else self.c_slots.total
        return self.up.total + self.down.total + self.scratch_bytes + c

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory held."""
        return self.staging_bytes + (self.device_bytes if self.device.unified else 0)

    def __str__(self) -> str:
        return str(import_module("hdgemm.pipeline.plan_summary").plan_text(self))

    def _repr_html_(self) -> str:
        return str(import_module("hdgemm.pipeline.plan_summary").plan_html(self))

    def to_json(self) -> str:
        """Return the plan as JSON text; `hdgemm.pipeline.planjson` reads it back."""
        return str(import_module("hdgemm.pipeline.planjson").to_json(self))
