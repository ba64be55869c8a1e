"""The nine checks of BEAST (section 3) that a kernel must pass before it is compiled.

Each is a predicate over a candidate and the limits that the device itself tells; true means that
the candidate has no chance: it would not compile, not launch, or not run fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.devices.opencl.shape import real_bytes, reals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl.driver import Facts
    from hdgemm.pipeline.devices.opencl.shape import Shape

#: The least share of the work-items a compute unit can hold that a kernel must allow (the paper:
#: 256 of 2,048 threads).
_LEAST_OCCUPANCY: Final = 0.125


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape for a dtype on a device; registers are counted in 32-bit words, a lower estimate."""

    shape: Shape
    dtype: np.dtype[Any]
    facts: Facts

    @property
    def item_registers(self) -> int:
        """Registers in which a work-item keeps its part of C; complex sums are kept twice."""
        shape = self.shape
        sums = shape.rows * shape.vectors * shape.lanes * reals(self.dtype)
        return sums * real_bytes(self.dtype) // 4

    @property
    def group_local_bytes(self) -> int:
        """Local memory in which a work-group keeps its blocks of A and B."""
        shape = self.shape
        if not shape.local:
            return 0
        across = shape.block_m() + shape.block_n(self.dtype)
        return shape.block_k * across * self.dtype.itemsize

    @property
    def least_items(self) -> int:
        """Work-items that a compute unit must be able to hold."""
        return max(1, int(self.facts.resident_items * _LEAST_OCCUPANCY))


def partial_warp(it: Candidate) -> bool:
    """1. The work-items of a group are no multiple of those that run in step."""
    return it.shape.threads % it.facts.simd_width != 0


def too_many_items(it: Candidate) -> bool:
    """2. A group has more work-items, or a longer side, than the device takes."""
    sides = (it.shape.dim_n, it.shape.dim_m)
    too_long = any(a > b for a, b in zip(sides, it.facts.max_group_shape, strict=False))
    return it.shape.threads > it.facts.max_group or too_long


def too_many_item_registers(it: Candidate) -> bool:
    """3. A work-item's part of C takes more registers than it can have."""
    return it.item_registers > it.facts.registers_per_item


def too_many_group_registers(it: Candidate) -> bool:
    """4. A group's C takes more registers than it can have.

    The work-items of a group share one core of a CPU, and so its registers.
    """
    return it.item_registers * it.shape.threads > it.facts.registers_per_group


def too_much_local_memory(it: Candidate) -> bool:
    """5. The blocks of A and B do not fit local memory."""
    return it.group_local_bytes > it.facts.local_bytes


def uneven_reading(it: Candidate) -> bool:
    """6. The group cannot be shaped to read its blocks of A and B without cleanup."""
    shape, threads = it.shape, it.shape.threads
    if not shape.local:
        return False
    width = reals(it.dtype)
    a, b = shape.block_m() * width, shape.block_n(it.dtype) * width
    return shape.block_k * a % threads != 0 or shape.block_k * b % threads != 0


def more_loads_than_fmas(it: Candidate) -> bool:
    """7. The innermost loop loads more than it multiplies and adds."""
    shape, width = it.shape, reals(it.dtype)
    return shape.rows * width + shape.vectors > shape.rows * shape.vectors * width


def low_occupancy_by_registers(it: Candidate) -> bool:
    """8. Registers allow too few groups at once on a compute unit."""
    groups = it.facts.registers_per_group // max(1, it.item_registers * it.shape.threads)
    return groups * it.shape.threads < it.least_items


def low_occupancy_by_local_memory(it: Candidate) -> bool:
    """9. Local memory allows too few groups at once on a compute unit."""
    if it.group_local_bytes == 0:
        return False
    groups = it.facts.local_bytes // it.group_local_bytes
    return groups * it.shape.threads < it.least_items


RULES: Final[tuple[Callable[[Candidate], bool], ...]] = (
    partial_warp,
    too_many_items,
    too_many_item_registers,
    too_many_group_registers,
    too_much_local_memory,
    uneven_reading,
    more_loads_than_fmas,
    low_occupancy_by_registers,
    low_occupancy_by_local_memory,
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many candidates there were, how many each rule removed, and who is left."""

    candidates: int
    removed: Mapping[str, int]
    kept: tuple[Shape, ...]


def prune(shapes: Iterable[Shape], dtype: np.dtype[Any], facts: Facts) -> Pruned:
    """Apply the rules in order; a candidate counts for the first rule that removes it."""
    removed = {rule.__name__: 0 for rule in RULES}
    kept, count = [], 0
    for shape in shapes:
        count += 1
        candidate = Candidate(shape, dtype, facts)
        for rule in RULES:
            if rule(candidate):
                removed[rule.__name__] += 1
                break
        else:
            kept.append(shape)
    return Pruned(count, removed, tuple(kept))
