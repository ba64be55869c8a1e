"""Planning of slabs: pure functions from shape, dtype, memory and rates to a `SlabPlan`.

A left-looking factorisation holds one slab of whole columns in memory, updates it by all earlier
columns, which stream from the output in blocks, factors it, and stores it once. With two slab
buffers the next slab is loaded, and the previous one stored, while the present one is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.planning._pricing import priced
from hdgemm.linalg.planning.slab import Blocks, Columns, SlabPlan
from hdgemm.matrices.read_ahead import STREAM_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, BOUNCE_BYTES, SHORT, leading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.linalg.planning.devices import SlabDevices
    from hdgemm.linalg.planning.slab import Kind
    from hdgemm.machine.rates import Machine

#: Bytes of a piece of a slab that a checkpoint copies, sums and reads back at once: memory that a
#: durable run holds beside its slabs. A column may be longer.
PIECE_BYTES: Final = 8 << 20
#: Columns of a stream block that the planner tries.
_BLOCKS: Final = (512, 384, 256, 192, 128, 64, 32, 16, 8, 4, 2, 1)
#: Slabs of a plan at most: to price one takes about 30 µs, and the search prices dozens of plans.
_MOST_SLABS: Final = 1 << 13
#: Slabs from which on narrower ones are not tried: the first load and the last store, which they
#: shorten, take a negligible part of the time.
_MANY_SLABS: Final = 1 << 10
#: Parts of the memory for slabs that the planner tries.
_PARTS: Final = (1.0, 0.5, 0.25, 0.125, 0.0625)
#: Slabs up to which the last one may take the memory of all buffers: with many slabs it saves
#: little.
_JOINED: Final = 64
#: Factorisations, in which a slab updates the ones after it.
_ELIMINATIONS: Final = ("cholesky", "lu", "qr")


class Storage(NamedTuple):
    """What a plan depends on of the storage of A and of the output.

    Parameters
    ----------
    overlap
        Slabs may be loaded and stored while another one is computed.
    row_bytes
        See `SlabPlan`.
    copies
        The output is new and column-major in a file: slabs of A may be copied into it.
    whole
        Columns of the output lie one after the other in a file.
    decoding
        Bytes of the chunks of A that are held at once, as stored and decoded; half of the memory
        at most is left for them.
    """

    overlap: bool = True
    row_bytes: int = 0
    copies: bool = False
    whole: bool = False
    decoding: int = 0


_PLAIN: Final = Storage()


def plan_slabs(
    kind: Kind,
    n: int,
    dtype: str,
    memory: int,
    machine: Machine,
    *,
    rows: int | None = None,
    width: int | None = None,
    block: int | None = None,
    storage: Storage = _PLAIN,
    durable: bool = False,
    reflectors: Blocks = Blocks(),  # noqa: B008 - frozen
    devices: SlabDevices | None = None,
) -> SlabPlan:
    """Return the fastest slabs of an m×n matrix that fit `memory` bytes, by the model.

    Parameters
    ----------
    rows
        m; None for a square matrix.
    width, block
        Force the columns of a slab, and of a stream block.
    storage
        How A and the output are stored.
    durable
        The run keeps a checkpoint, which holds one piece of a slab.
    reflectors
        Blocks that are applied to the matrix, in this order, where `kind` is to do that.
    devices
        Hold and update slabs; None for the host.

    Raises
    ------
    DoesNotFitError
        When not even the narrowest slabs fit the memory or a device, or forced ones do not:
        `requested`, `available` and `missing` in bytes.
    """
    m = n if rows is None else rows
    if min(m, n) < 0:
        raise InputError(f"the extents of a matrix must not be negative, got {m}×{n}")
    if width is not None and n > width * _MOST_SLABS:
        raise InputError(
            f"slabs of {width} columns cut {n} columns into more than {_MOST_SLABS} slabs: take "
            f"slabs of {-(-n // _MOST_SLABS)} columns or more, or let the planner choose"
        )
    depth = min(m, n) if kind == "qr" else reflectors.last
    if block is not None:
        block = min(block, max(m, n, 1))  # a plan's sums are of 64 bits

    def shape(block: int, buffers: int, width: int | None) -> _Shape:
        held, beside = n, PIECE_BYTES if durable else 0
        beside += min(storage.decoding, memory // 2)
        if devices is not None:
            held = devices.most_columns(kind, m, n, dtype, block)
            beside += devices.locked_bytes(kind, dtype, block)
        return _Shape(kind, m, n, dtype, block, buffers, width, beside, depth, held)

    may_join = devices is None and width is None and kind in ("lu", "qr")
    plans = [
        replace(
            plan,
            reflectors=reflectors,
            row_bytes=storage.row_bytes,
            copied=copied,
            whole=storage.whole and m * plan.itemsize < SHORT,
            held=devices is None and plan.slab_buffers > 1 and kind in _ELIMINATIONS,
            devices=() if devices is None else devices.names,
            weights=() if devices is None else devices.weights(dtype),
        )
        for columns in (_BLOCKS if block is None else (block,))
        if columns <= max(n, 1) or block is not None
        for one in (shape(columns, 1, width),)
        for buffers in ((1, 2) if storage.overlap else (1,))
        for joins in ((False, True) if buffers > 1 and may_join else (False,))
        for plan in _fitting(replace(one, buffers=buffers, joins=joins), memory)
        for copied in ((False, True) if storage.copies else (False,))
        if not copied or _can_copy(plan)
    ]
    if not plans:
        narrowest = shape(block or 1, 1, width)
        if devices is not None and n:
            devices.check(kind, m, dtype, narrowest.block, min(narrowest.least_width, n))
        what = f"{kind} of a {m}×{n} {dtype} matrix by slabs of width {narrowest.least_width}"
        raise DoesNotFitError.within(what, narrowest.least_bytes, memory)
    found = (priced(plan, machine, devices) for plan in plans)
    return min(found, key=lambda plan: plan.expected_seconds)


def _can_copy(plan: SlabPlan) -> bool:
    """Say whether slabs may be copied: a row of A fits a stream buffer, and some slab waits."""
    return (
        plan.kind in ("lu", "qr")
        and plan.m * plan.block >= plan.n
        and len(plan.slabs) > plan.slab_buffers
    )


@dataclass(frozen=True)
class _Shape:
    """What decides the bytes of a plan; `width` None takes what fits, `held` columns at most.

    With `joins`, the last slab takes the memory of all buffers.
    """

    kind: Kind
    m: int
    n: int
    dtype: str
    block: int
    buffers: int
    width: int | None
    reserved: int
    depth: int
    held: int
    joins: bool = False

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def least_width(self) -> int:
        """Columns of the narrowest slab but the last one."""
        return self.width or max(1, -(-self.n // _MOST_SLABS))

    @cached_property
    def whole_column(self) -> int:
        """Bytes of one column of all rows, as `column_bytes` returns them."""
        return self.column_bytes(self.m)

    def column_bytes(self, rows: int) -> int:
        """Return the bytes of one column in a buffer, and beside it for the product V^H·C."""
        product = self.block if self.depth else 0
        return (leading(rows, self.m, self.itemsize) + product) * self.itemsize

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes for transfers, and for the triangles T of blocks of `depth` reflectors in all."""
        return BOUNCE_BYTES + self.reserved + self.block * self.depth * self.itemsize

    @cached_property
    def stream_bytes(self) -> int:
        """Bytes of the stream's buffers."""
        return STREAM_BUFFERS * (self.block * self.whole_column + ALIGNMENT)

    @property
    def least_bytes(self) -> int:
        """Bytes of the narrowest slabs, their stream and their transfers."""
        width = min(self.least_width, self.n)
        held = self.buffers * (self.whole_column * width + ALIGNMENT) + self.stream_bytes
        return held + self.fixed_bytes


def _fitting(shape: _Shape, memory: int) -> Iterator[SlabPlan]:
    """Yield a plan for each part of the memory that slabs may fill.

    With narrower slabs less of the first load and of the last store lies outside the kernel's time.
    """
    for part in _PARTS if shape.width is None and shape.buffers > 1 else (1.0,):
        plan = _fit(shape, memory, part)
        if plan is not None:
            yield plan
            if len(plan.slabs) > _MANY_SLABS:
                return


def _fit(shape: _Shape, memory: int, part: float) -> SlabPlan | None:
    """Cut the columns into slabs that fill `part` of the memory; None where none fits."""
    m, n, stream = shape.m, shape.n, shape.stream_bytes
    gaps = shape.buffers * ALIGNMENT * (2 if shape.joins else 1)
    budget = memory - shape.fixed_bytes - gaps
    widest = min(shape.held, shape.width or n)
    alone = shape.buffers == 1 and widest >= n and n * shape.whole_column <= budget
    if alone and shape.kind not in ("form q", "apply q"):
        stream = 0  # one slab: nothing streams
    budget = int((budget - stream) * part) // shape.buffers
    # Columns that begin on a block of the file need no buffered writes.
    aligned = max(1, ALIGNMENT // shape.itemsize)
    least, held_columns, short = shape.least_width, shape.held, shape.kind == "cholesky"
    slabs: list[Columns] = []
    largest = first = 0
    column = shape.whole_column
    while first < n:
        if short and first:
            column = shape.column_bytes(m - first)
        fitting = min(held_columns, budget // column if column else n)
        width = min(n - first, fitting if shape.width is None else shape.width)
        if shape.width is None and first + width < n and width > aligned:
            width -= (first + width) % aligned
        largest = max(largest, width * column)
        if fitting < min(least, n - first) or largest > budget:
            return None
        if shape.joins and n > _JOINED * width:
            return None
        slabs.append(Columns(first, first + width, first if short else 0))
        first += width
        if not short and n - first > width:
            # Columns of one length: the slabs that follow are as wide, up to the last one.
            last = shape.buffers * width if shape.joins else width
            firsts = range(first, n - last, width)
            slabs += map(Columns._make, zip(firsts, range(first + width, n, width), repeat(0)))
            first = slabs[-1].last
            if shape.joins:
                slabs.append(Columns(first, n, 0))
                break
    if shape.buffers > max(1, len(slabs)):
        return None
    held = 0 if n == 0 else shape.buffers * largest + gaps + stream + shape.fixed_bytes
    ordered = tuple(reversed(slabs)) if shape.kind == "form q" else tuple(slabs)
    return SlabPlan(
        shape.kind, m, n, shape.dtype, ordered, shape.block, shape.buffers, held, memory
    )
