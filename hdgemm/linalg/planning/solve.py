"""Plans of solves: groups of right-hand sides in memory, for each of which the triangles stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.planning.slab import Columns
from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.plan_terms import expected_line, memory_line, moved_line, terms
from hdgemm.units import format_count, format_flops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Stage

#: Solves that are planned, with a residual between two: each gains about the digits of single
#: precision.
STEPS: Final = 3
#: Arrays of the size of X, in its precision: X, B, the residual, and two in single precision.
COPIES: Final = 4
#: The dtype of the factors from which a solution in another one is refined.
SINGLE: Final[Mapping[str, np.dtype[Any]]] = {
    row.name: np.dtype(row.half) for row in ELEMENT_TYPES.values() if row.half
}
#: Columns of a stream block at most: trsm, which is slower than gemm, takes their triangle.
_MOST_COLUMNS: Final = 512
#: Columns of a block of triangles in memory: with 16, or with 256, solves took twice as long.
_IN_MEMORY: Final = 128


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """The groups of columns of B (n×p) that are solved at once, and what they cost.

    Parameters
    ----------
    slabs
        The groups, from left to right.
    block
        Columns of a stream block.
    triangles
        Triangular systems of a solution: 2 with LU or Cholesky factors.
    streamed
        Bytes that are read for each group beside its columns of B.
    stores
        X is stored in a file; an array is solved in place.
    host_bytes
        Memory for a group, stream blocks and transfers, and for factors that stay in memory.
    host_limit, expected_seconds, expected_phase_seconds, expected_limit
        As in `SlabPlan`.
    kept
        Bytes of the second triangle that are kept while the first one is read.
    """

    n: int
    p: int
    dtype: str
    slabs: tuple[Columns, ...]
    block: int
    triangles: int
    streamed: int
    stores: bool
    host_bytes: int
    host_limit: int = 0
    expected_seconds: float = 0.0
    expected_phase_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)
    expected_limit: str = "disk"
    kept: int = 0

    @property
    def interchanged(self) -> tuple[Columns, ...]:
        """A solve has no second pass over its groups."""
        return ()

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count: n² for each triangle and column."""
        return self.flops_of(self.p)

    def flops_of(self, columns: int) -> int:
        """Return the operations after which the first columns are solved."""
        pairs = self.triangles * self.n**2 * columns // 2
        return flops_per_multiply_add(self.dtype) * pairs

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves."""
        return self.bytes_from(0)

    def bytes_from(self, group: int) -> dict[Stage, int]:
        """Return the bytes that each stage still moves when some groups are solved."""
        left = self.slabs[group:]
        columns = sum(each.width for each in left) * self.n * np.dtype(self.dtype).itemsize
        moved: dict[Stage, int] = {"load1": columns + len(left) * self.streamed}
        return moved | {"store2": columns} if self.stores else moved

    def summary(self) -> dict[str, Any]:
        """Return shape, groups, memory and expectations as plain values, for reports."""
        return {
            "kind": "solve with factors",
            "m": self.n,
            "n": self.p,
            "dtype": self.dtype,
            "slabs": len(self.slabs),
            "slab_columns": max((group.width for group in self.slabs), default=0),
            "block_columns": self.block,
            **terms(self),
        }

    def __str__(self) -> str:
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | terms(self) | {"kind": "solve"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SolvePlan:
        """Return the plan of which `to_dict` returned these values."""
        found = {name: values[name] for name in cls.__slots__ if name in values}
        found["slabs"] = tuple(Columns(*columns) for columns in values["slabs"])
        return cls(**found)


class Stream(NamedTuple):
    """What a solve reads and holds beside B.

    Parameters
    ----------
    triangles
        Triangular systems of a solution.
    stored
        Those of them that are read from files, for each group of columns.
    itemsize
        Bytes of their elements as they are read.
    more
        Bytes that are read for each group between two steps.
    copies
        Arrays of the size of X that the solve holds, X itself among them.
    whole
        Columns are read whole, not only their part of a triangle.
    keeps_lower
        Two triangles are parts of one matrix: whether the second one is the lower one; else None.
    steps
        How often the triangles are expected to be read for each group.
    """

    triangles: int
    stored: int
    itemsize: int
    more: int = 0
    copies: int = 1
    whole: bool = False
    keeps_lower: bool | None = None
    steps: int = 1


def stream_columns(n: int, itemsize: int, memory: int) -> int:
    """Return the columns of a stream block of an n×n triangle, of which `memory` holds two."""
    column = max(1, n * itemsize)
    return max(1, min(_MOST_COLUMNS, BLOCK_BYTES // column, memory // (STREAM_BUFFERS * column)))


def plan_solve(
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    stream: Stream,
    memory: int,
    machine: Machine,
    *,
    in_array: bool,
    tile: tuple[int, int, int] | None = None,
    reserved: int = 0,
) -> SolvePlan:
    """Return the widest groups of columns of B that fit the memory beside the stream.

    Parameters
    ----------
    shape
        Of B.
    in_array
        X is an array of the caller, in which B is solved.
    tile
        ``(mb, nb, kb)`` forces groups of nb columns and stream blocks of kb columns.
    reserved
        Bytes of the memory that factors and a stream of A hold meanwhile.

    Raises
    ------
    DoesNotFitError
        When not one column fits: `requested`, `available` and `missing` in bytes.
    """
    (n, p), limit = shape, memory
    memory -= reserved
    _, width, block = tile or (None, None, None)
    given = in_array and stream.copies == 1
    column = 0 if given else max(1, n * dtype.itemsize * stream.copies)
    # Blocks of one column at least. Blocks that fit a quarter of the memory exceed it by alignment.
    smallest = _buffer_bytes(n, block or 1, stream)
    bounce = 0 if given and not smallest else BOUNCE_BYTES
    least = column + bounce + (STREAM_BUFFERS * ALIGNMENT if stream.stored else 0)
    requested = max(_with_quarter(least), column + bounce + smallest)
    if memory < requested:
        what = f"a solve with one column of b, of {n} {dtype.name} elements,"
        raise DoesNotFitError.within(what, reserved + requested, limit)
    if block is None and not stream.stored:
        block = _IN_MEMORY
    elif block is None:
        part = memory // 4 if stream.keeps_lower is None else memory // 8
        block = stream_columns(n, dtype.itemsize, part)
    buffers = _buffer_bytes(n, block, stream)
    room = memory - max(buffers, memory // 4) - bounce
    fitting = p if given else room // column
    columns = max(1, min(p, fitting, p if width is None else width))
    groups = tuple(Columns(at, min(at + columns, p), 0) for at in range(0, p, columns))
    held = buffers + bounce + columns * column * bool(p)
    streamed = stream.stored * _triangle_bytes(n, block, stream.itemsize)
    kept = 0
    if stream.whole:
        streamed = stream.stored * n * n * stream.itemsize
    if stream.keeps_lower is not None:
        blocks, kept = kept_blocks(
            n, block, stream.itemsize, memory - held, lower=stream.keeps_lower
        )
        streamed -= sum(min(block, n - first) for first in blocks) * n * stream.itemsize
    more = stream.more * (stream.steps - 1)
    plan = SolvePlan(
        n,
        p,
        dtype.name,
        groups,
        block,
        stream.triangles,
        streamed * stream.steps + more,
        not in_array,
        reserved + held + kept,
        limit,
        kept=kept,
    )
    return _priced(plan, machine, more * len(groups))


def solve_bytes(shape: tuple[int, int], itemsize: int, copies: int) -> int:
    """Return the memory in which `plan_solve` needs one group of columns, of which it holds some
    copies, and no stream.
    """
    return _with_quarter(shape[0] * shape[1] * itemsize * copies + BOUNCE_BYTES)


def _with_quarter(nbytes: int) -> int:
    """Return the least memory of which some bytes fit beside a quarter of it."""
    return (nbytes - 1) * 4 // 3 + 1


def _buffer_bytes(n: int, block: int, stream: Stream) -> int:
    """Return the bytes of the buffers of a stream of triangles; 0 where they are in memory."""
    nbytes = min(block, n) * n * stream.itemsize
    return STREAM_BUFFERS * (nbytes + ALIGNMENT) if stream.stored else 0


def kept_blocks(
    n: int, block: int, itemsize: int, memory: int, *, lower: bool
) -> tuple[range, int]:
    """Return the blocks of columns of a triangle that fit some memory, and their bytes.

    Blocks are named by their first column; blocks of the fewest rows are taken first.
    """
    starts = range(0, n, block)
    starts = starts[::-1] if lower else starts
    held = 0
    for count, first in enumerate(starts):
        last = min(first + block, n)
        size = (n - first if lower else last) * (last - first) * itemsize + ALIGNMENT
        if held + size > memory:
            return starts[:count], held
        held += size
    return starts, held


def _triangle_bytes(n: int, block: int, itemsize: int) -> int:
    """Return the bytes of a triangle with whole squares on its diagonal."""
    whole, rest = divmod(n, block)
    return (n**2 + whole * block**2 + rest**2) // 2 * itemsize


def _priced(plan: SolvePlan, machine: Machine, residual_bytes: int) -> SolvePlan:
    """Return the plan with its expected duration, by phase too, and what limits it."""
    moved = plan.planned_bytes
    residual = residual_bytes / machine.disk_read
    load = moved["load1"] / machine.disk_read - residual
    store = moved.get("store2", 0) / machine.disk_write
    # With few columns the triangles pass through the cores at the rate of the memory.
    passing = plan.streamed * len(plan.slabs) / machine.memory
    update = max(plan.flops / machine.flop_rate(plan.dtype), passing)
    phases = {"load": load, "update": update, "store": store}
    return replace(
        plan,
        expected_seconds=residual + max(load, update) + store,
        expected_phase_seconds=phases | ({"residual": residual} if residual else {}),
        expected_limit="disk" if load + store > update else "kernel",
    )


def _text(plan: SolvePlan) -> str:
    """Return what a solve with stored triangles does in a few lines."""
    widest = max((group.width for group in plan.slabs), default=0)
    systems = f"{format_count(plan.triangles, 'triangular system')} of order {plan.n}"
    groups = f"{format_count(len(plan.slabs), 'group')} of {format_count(widest, 'column')} of B"
    groups += " at most" if len(plan.slabs) > 1 else ""
    sides = format_count(plan.p, "right-hand side")
    return "\n".join(
        [
            f"{systems}, {sides}, {plan.dtype}: {format_flops(plan.flops)}",
            f"{groups}; the triangle streams in blocks of {format_count(plan.block, 'column')}",
            moved_line(plan),
            memory_line(plan),
            expected_line(plan),
        ]
    )
