"""Slab plans: pure functions from n, dtype, memory and rates to the slabs of a factorisation.

A left-looking factorisation holds one slab of whole columns in memory, updates it by all earlier
columns, which stream from the output in blocks, factors it, and stores it once. With two slab
buffers the next slab is loaded, and the previous one stored, while the present one is computed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.matrices.files import SHORT
from hdgemm.matrices.transfer import ALIGNMENT, BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.machine.rates import Machine

Kind = Literal["cholesky", "lu"]

#: Blocks of the stream in memory at once: one is multiplied, the next one is read.
STREAM_BUFFERS: Final = 2
#: Columns of a stream block that the planner tries.
_BLOCKS: Final = (512, 384, 256, 192, 128, 64, 32, 16, 8, 4, 2, 1)
#: Parts of the memory for slabs that the planner tries: narrower slabs overlap more.
_PARTS: Final = (1.0, 0.5, 0.25, 0.125, 0.0625)


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
class SlabPlan:
    """The slabs of one factorisation of an n×n matrix, and what they cost.

    Parameters
    ----------
    slabs
        The slabs, from left to right; Cholesky's have the rows from their diagonal on.
    block
        Columns of a stream block, at most; a block has columns of one slab only.
    slab_buffers
        2 where loading and storing slabs overlaps the computation, else 1.
    bytes_held
        Memory for slabs, stream blocks and transfers.
    seconds
        Expected duration.
    limit
        The resource that determines it: ``"kernel"`` or ``"disk"``.
    """

    kind: Kind
    n: int
    dtype: str
    slabs: tuple[Columns, ...]
    block: int
    slab_buffers: int
    bytes_held: int
    seconds: float = 0.0
    limit: str = "kernel"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def blocks(self, number: int) -> Iterator[tuple[int, Columns]]:
        """Yield the blocks that update a slab, each with the number of the slab it is a part of."""
        top = self.slabs[number].first
        for earlier, slab in enumerate(self.slabs[:number]):
            for first in range(slab.first, slab.last, self.block):
                last = min(first + self.block, slab.last)
                yield earlier, Columns(first, last, top if self.kind == "cholesky" else first)

    def nbytes(self, columns: Columns) -> int:
        """Return the bytes of the elements of some columns."""
        return (self.n - columns.top) * columns.width * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes that are read: each slab of A once, and the earlier columns for each slab."""
        slabs = sum(self.nbytes(slab) for slab in self.slabs)
        return slabs + sum(self.streamed_bytes()) + self.interchanged_bytes

    def streamed_bytes(self) -> list[int]:
        """Return the bytes of the earlier columns that are read for each slab."""
        if self.kind == "cholesky":
            return [(self.n - slab.first) * slab.first * self.itemsize for slab in self.slabs]
        earlier = [0]
        for slab in self.slabs[:-1]:
            blocks, rest = divmod(slab.width, self.block)
            whole = blocks * (self.n - slab.first) - self.block * blocks * (blocks - 1) // 2
            last = rest * (self.n - slab.last + rest)
            earlier.append(earlier[-1] + (whole * self.block + last) * self.itemsize)
        return earlier[: len(self.slabs)]

    @property
    def write_bytes(self) -> int:
        """Bytes that are written: each slab once, and for LU the rows of L in their last order."""
        return sum(self.nbytes(slab) for slab in self.slabs) + self.interchanged_bytes

    @property
    def interchanged(self) -> tuple[Columns, ...]:
        """What the last pass of LU reads and writes: the rows of L below each slab's own ones.

        Short columns that do not begin and end on blocks of the file are moved whole, since a
        slab of them is contiguous in the file.
        """
        if self.kind == "cholesky":
            return ()
        n, itemsize = self.n, self.itemsize

        def top(last: int) -> int:
            on_blocks = n * itemsize % ALIGNMENT == 0 and last * itemsize % ALIGNMENT == 0
            return last if on_blocks or (n - last) * itemsize >= SHORT else 0

        return tuple(Columns(first, last, top(last)) for first, last, _ in self.slabs if last < n)

    @property
    def interchanged_bytes(self) -> int:
        """Bytes that the last pass of LU reads, and writes."""
        return sum(map(self.nbytes, self.interchanged))

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count."""
        third = flops_per_multiply_add(self.dtype) // 2 * self.n**3 / 3
        return int(third if self.kind == "cholesky" else 2 * third)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | {
            "read_bytes": self.read_bytes, "write_bytes": self.write_bytes, "flops": self.flops,
        }  # fmt: skip


def leading(rows: int, total: int, itemsize: int) -> int:
    """Return the leading dimension of a buffer for the last `rows` rows of columns of `total`.

    Long columns start at the same phase of a 4096-byte block in memory and in the file, so that
    direct I/O needs no copy.
    """
    if rows == total or rows * itemsize < SHORT or ALIGNMENT % itemsize:
        return rows
    return rows + (total - rows) % (ALIGNMENT // itemsize)


def plan_slabs(
    kind: Kind,
    n: int,
    dtype: str,
    memory: int,
    machine: Machine,
    *,
    width: int | None = None,
    block: int | None = None,
    overlap: bool = True,
) -> SlabPlan:
    """Return the fastest slabs that fit `memory` bytes, by the model.

    Parameters
    ----------
    width, block
        Force the columns of a slab, and of a stream block.
    overlap
        Slabs may be loaded and stored while another one is computed.

    Raises
    ------
    DoesNotFitError
        When not even slabs of one column fit, or forced ones do not: `requested`, `available`
        and `missing` in bytes.
    """
    if n < 0:
        raise InputError(f"n must not be negative, got {n}")
    plans = [
        plan
        for columns in (_BLOCKS if block is None else (block,))
        if columns <= max(n, 1) or block is not None
        for buffers in ((1, 2) if overlap else (1,))
        for part in (_PARTS if width is None and buffers > 1 else (1.0,))
        if (plan := _fit(_Shape(kind, n, dtype, columns, buffers, width), memory, part)) is not None
    ]
    if not plans:
        requested = _Shape(kind, n, dtype, block or 1, 1, width or 1).least_bytes
        raise DoesNotFitError(
            f"{kind} of a {n}×{n} {dtype} matrix needs {requested} bytes for one slab of "
            f"{width or 1} columns and its stream; host_memory is {memory}: raise it by "
            f"{max(1, requested - memory)} bytes",
            requested=requested, available=memory, missing=max(1, requested - memory),
        )  # fmt: skip
    return min((_priced(plan, machine) for plan in plans), key=lambda plan: plan.seconds)


class _Shape(NamedTuple):
    """What decides the bytes of a plan; `width` None takes what fits."""

    kind: Kind
    n: int
    dtype: str
    block: int
    buffers: int
    width: int | None

    def column_bytes(self, rows: int) -> int:
        """Return the bytes of one column in a buffer."""
        itemsize = np.dtype(self.dtype).itemsize
        return leading(rows, self.n, itemsize) * itemsize

    @property
    def stream_bytes(self) -> int:
        """Bytes of the stream's buffers."""
        return STREAM_BUFFERS * (self.block * self.column_bytes(self.n) + ALIGNMENT)

    @property
    def least_bytes(self) -> int:
        """Bytes of the narrowest slabs and their stream, with those of transfers."""
        width = min(self.width or 1, self.n)
        held = self.buffers * (self.column_bytes(self.n) * width + ALIGNMENT) + self.stream_bytes
        return held + BOUNCE_BYTES


def _fit(shape: _Shape, memory: int, part: float) -> SlabPlan | None:
    """Cut the columns into slabs that fill `part` of the memory; None where none fits."""
    n, stream = shape.n, shape.stream_bytes
    budget = memory - BOUNCE_BYTES - shape.buffers * ALIGNMENT
    if shape.buffers == 1 and (shape.width or n) >= n and n * shape.column_bytes(n) <= budget:
        stream = 0  # one slab: nothing streams
    budget = int((budget - stream) * part) // shape.buffers
    # Columns that begin on a block of the file need no buffered writes.
    aligned = max(1, ALIGNMENT // np.dtype(shape.dtype).itemsize)
    slabs: list[Columns] = []
    largest = first = 0
    while first < n:
        column = shape.column_bytes(n - first if shape.kind == "cholesky" else n)
        width = min(n - first, budget // column if shape.width is None else shape.width)
        if shape.width is None and first + width < n and width > aligned:
            width -= (first + width) % aligned
        largest = max(largest, width * column)
        if width < 1 or largest > budget:
            return None
        slabs.append(Columns(first, first + width, first if shape.kind == "cholesky" else 0))
        first += width
    if shape.buffers > max(1, len(slabs)):
        return None
    held = 0 if n == 0 else shape.buffers * (largest + ALIGNMENT) + stream + BOUNCE_BYTES
    return SlabPlan(shape.kind, n, shape.dtype, tuple(slabs), shape.block, shape.buffers, held)


def _priced(plan: SlabPlan, machine: Machine) -> SlabPlan:
    """Return the plan with its expected duration and what limits it."""
    kernel = disk = exposed = 0.0
    last = len(plan.slabs) - 1
    for number, (slab, streamed) in enumerate(zip(plan.slabs, plan.streamed_bytes(), strict=True)):
        # Copies between layouts and alignments take time of the cores that multiply.
        copying = (streamed + 2 * plan.nbytes(slab)) / (machine.copy * machine.cores)
        computing = _kernel_seconds(plan, slab, machine) + copying
        streaming = streamed / machine.disk_read
        load, store = plan.nbytes(slab) / machine.disk_read, plan.nbytes(slab) / machine.disk_write
        # With two buffers only the first load and the last store have nothing to overlap.
        edges = (load if number == 0 else 0.0) + (store if number == last else 0.0)
        alone = edges if plan.slab_buffers > 1 else load + store
        kernel += computing
        disk += streaming + load + store
        exposed += alone + max(0.0, streaming + load + store - alone - computing)
    final = plan.interchanged_bytes * (1 / machine.disk_read + 1 / machine.disk_write)
    limit = "disk" if disk + final > kernel else "kernel"
    return replace(plan, seconds=kernel + exposed + final, limit=limit)


def _kernel_seconds(plan: SlabPlan, slab: Columns, machine: Machine) -> float:
    """Return the seconds of the updates and of the panel of one slab."""
    rate, n, width = machine.flop_rate(plan.dtype), plan.n, slab.width
    rows = n - slab.first
    per_pair = flops_per_multiply_add(plan.dtype)
    if plan.kind == "cholesky":
        update = slab.first * (width * (rows - width) + width * (width + 1) / 2)
        panel = width**3 / 6 + width**2 * (rows - width) / 2
    else:
        update = width * (slab.first * n - slab.first**2 / 2)
        panel = width**2 * rows / 2 - width**3 / 6
    speed = rate * float(machine.efficiency(max(1, n - slab.first), width, plan.block))
    return per_pair * (update / speed + panel / rate)
