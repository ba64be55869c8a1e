"""The search space of kernel shapes: all candidates, the rules that prune them, the trial order.

A core determines what a work-group computes and how (BEAST's `dim` and `blk` parameters, figure 7,
and how operands reach the registers); a walk determines only the order in which it reads memory.
The nine rules of BEAST (section 3) are predicates over a core and the limits that the device
reports: a core for which one is true would not compile, not launch, or not run fast. Walks are
tried on the best cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape, real_bytes, reals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl._driver import Facts

CORE: Final[Mapping[str, tuple[int, ...]]] = {
    "lanes": (1, 2, 4, 8, 16),
    "dim_m": (1, 2, 4, 8, 16, 32),
    "dim_n": (1, 2, 4, 8, 16, 32),
    "rows": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16),
    "vectors": (1, 2, 3, 4, 6, 8, 12, 16),
    "block_k": (1, 2, 4, 8, 16),
}
#: `local` and `packed` of a core.
OPERANDS: Final = ((False, True), (True, True), (True, False))
WALK: Final[Mapping[str, tuple[int, ...]]] = {
    "walk_m": (1, 4, 8, 16, 32),
    "walk_n": (1, 2, 4, 8, 16),
    "cache_k": (128, 256, 512, 1024, 1 << 20),
    "ahead": (0, 4, 16),
}
#: The walk with which every core is tried first.
_FIRST_WALK: Final = {"walk_m": 16, "walk_n": 4, "cache_k": 256}
#: The least share of a compute unit's work-items that a kernel must occupy (BEAST: 256 of 2,048).
_LEAST_OCCUPANCY: Final = 0.125


def cores(dtype: np.dtype[Any]) -> Iterator[KernelShape]:
    """Yield every core for a dtype; a vector holds whole elements."""
    for local, packed in OPERANDS:
        walk = {} if local else _FIRST_WALK
        for values in product(*CORE.values()):
            chosen = dict(zip(CORE, values, strict=True))
            if chosen["lanes"] % reals(dtype) == 0:
                yield KernelShape(**chosen, **walk, local=local, packed=packed)


def walks(shape: KernelShape) -> Iterator[KernelShape]:
    """Yield the shapes that differ from `shape` in one parameter of its walk or its unrolling."""
    names = ("block_k",) if shape.local else ("block_k", *WALK)
    for name in names:
        for value in {**CORE, **WALK}[name]:
            if value != getattr(shape, name):
                changed: dict[str, Any] = {name: value}
                yield replace(shape, **changed)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape for a dtype on a device; registers are counted in 32-bit words, a lower estimate."""

    shape: KernelShape
    dtype: np.dtype[Any]
    facts: Facts

    @property
    def item_registers(self) -> int:
        """Registers for a work-item's part of C; complex sums take twice as many."""
        shape = self.shape
        sums = shape.rows * shape.vectors * shape.lanes * reals(self.dtype)
        return sums * real_bytes(self.dtype) // 4

    @property
    def group_local_bytes(self) -> int:
        """Local memory for a work-group's blocks of A and B."""
        shape = self.shape
        across = shape.block_m() + shape.block_n(self.dtype)
        return shape.block_k * across * self.dtype.itemsize if shape.local else 0

    @property
    def least_items(self) -> int:
        """Work-items that a compute unit must be able to hold."""
        return max(1, int(self.facts.resident_items * _LEAST_OCCUPANCY))


def partial_warp(it: Candidate) -> bool:
    """1. A group's work-items are no multiple of those that execute in lockstep."""
    return it.shape.threads % it.facts.simd_width != 0


def too_many_items(it: Candidate) -> bool:
    """2. A group has more work-items, or a longer side, than the device allows."""
    sides = (it.shape.dim_n, it.shape.dim_m)
    too_long = any(a > b for a, b in zip(sides, it.facts.max_group_shape, strict=False))
    return it.shape.threads > it.facts.max_group or too_long


def too_many_item_registers(it: Candidate) -> bool:
    """3. A work-item's part of C needs more registers than a work-item has."""
    return it.item_registers > it.facts.registers_per_item


def too_many_group_registers(it: Candidate) -> bool:
    """4. A group's C needs more registers than a group has.

    The work-items of a group share one core of a CPU, and so its registers.
    """
    return it.item_registers * it.shape.threads > it.facts.registers_per_group


def too_much_local_memory(it: Candidate) -> bool:
    """5. The blocks of A and B do not fit local memory."""
    return it.group_local_bytes > it.facts.local_bytes


def uneven_reading(it: Candidate) -> bool:
    """6. The group's work-items cannot share the reading of its blocks evenly."""
    shape, threads = it.shape, it.shape.threads
    if not shape.local:
        return False
    width = reals(it.dtype)
    a, b = shape.block_m() * width, shape.block_n(it.dtype) * width
    return shape.block_k * a % threads != 0 or shape.block_k * b % threads != 0


def more_loads_than_fmas(it: Candidate) -> bool:
    """7. The innermost loop has more loads than fused multiply-adds."""
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
    """The number of candidates, how many each rule removed, and those kept."""

    candidates: int
    removed: Mapping[str, int]
    kept: tuple[KernelShape, ...]


def prune(shapes: Iterable[KernelShape], dtype: np.dtype[Any], facts: Facts) -> Pruned:
    """Apply the rules in order; a candidate counts for the first rule that removes it."""
    removed = {rule.__name__: 0 for rule in RULES}
    kept = []
    for shape in shapes:
        candidate = Candidate(shape, dtype, facts)
        rule = next((rule for rule in RULES if rule(candidate)), None)
        if rule is None:
            kept.append(shape)
        else:
            removed[rule.__name__] += 1
    return Pruned(len(kept) + sum(removed.values()), removed, tuple(kept))


#: Lanes, local memory, layout, and whether work-items share a tile. Compilers treat each
#: combination differently, in ways that no rule predicts.
Group: TypeAlias = tuple[int, bool, bool, bool]
#: Every so often a group other than the leading one is tried.
_EXPLORE_EVERY: Final = 5


class BestFirst:
    """Order of trials: each group's most promising candidate, then mostly the leading group's."""

    def __init__(self, shapes: Iterable[KernelShape]) -> None:
        self._waiting: dict[Group, list[KernelShape]] = {}
        for shape in shapes:
            self._waiting.setdefault(_group(shape), []).append(shape)
        for members in self._waiting.values():
            members.sort(key=_promise)
        self._tries = dict.fromkeys(self._waiting, 0)
        self._best = dict.fromkeys(self._waiting, 0.0)
        self._given = 0

    def take(self) -> KernelShape | None:
        """Return the next candidate, None when there is none."""
        groups = [group for group, members in self._waiting.items() if members]
        if not groups:
            return None
        self._given += 1
        group = min(groups, key=lambda group: self._tries[group])
        if self._tries[group] > 0 and self._given % _EXPLORE_EVERY != 0:
            group = max(groups, key=lambda group: self._best[group])
        self._tries[group] += 1
        return self._waiting[group].pop()

    def learn(self, shape: KernelShape, gflops: float) -> None:
        """Record the speed of a candidate."""
        group = _group(shape)
        self._best[group] = max(self._best[group], gflops)

    def give_up(self, shape: KernelShape) -> None:
        """Drop the group of a candidate that crashed the compiler or did not answer."""
        self._waiting[_group(shape)].clear()


def _group(shape: KernelShape) -> Group:
    return shape.lanes, shape.local, shape.packed, shape.threads > 1


def _promise(shape: KernelShape) -> tuple[float, float]:
    """Rank a group's members: a usual k block first, then multiplications per load."""
    usual = 3 if shape.local else 2
    across = shape.rows * shape.dim_m, shape.vectors * shape.dim_n
    return -abs(math.log2(shape.block_k) - usual), across[0] * across[1] / sum(across)
