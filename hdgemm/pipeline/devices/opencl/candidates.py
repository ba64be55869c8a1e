"""The order in which candidates are tried: best-first, among groups of like ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hdgemm.pipeline.devices.opencl.shape import Shape

#: Vector length, local memory, layout, and whether work-items share a tile: compilers treat each
#: combination differently, and no rule knows how.
Group: TypeAlias = tuple[int, bool, bool, bool]

_FIRST_TRIES: Final = 1
#: Every so often a group that does not lead is given another try.
_EXPLORE_EVERY: Final = 5


class BestFirst:
    """Gives candidates: each group's most promising ones, then mostly the leading group's."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._waiting: dict[Group, list[Shape]] = {}
        for shape in shapes:
            self._waiting.setdefault(_group(shape), []).append(shape)
        for members in self._waiting.values():
            members.sort(key=_promise)
        self._tries = dict.fromkeys(self._waiting, 0)
        self._best = dict.fromkeys(self._waiting, 0.0)
        self._given = 0

    def take(self) -> Shape | None:
        """Return the next candidate, None when there is none."""
        open_groups = [group for group, members in self._waiting.items() if members]
        if not open_groups:
            return None
        self._given += 1
        fewest = min(open_groups, key=lambda group: self._tries[group])
        if self._tries[fewest] < _FIRST_TRIES or self._given % _EXPLORE_EVERY == 0:
            group = fewest
        else:
            group = max(open_groups, key=lambda group: self._best[group])
        self._tries[group] += 1
        return self._waiting[group].pop()

    def learn(self, shape: Shape, gflops: float) -> None:
        """Take note of how fast a candidate was."""
        group = _group(shape)
        self._best[group] = max(self._best[group], gflops)

    def give_up(self, shape: Shape) -> None:
        """Drop the group of a candidate that the compiler died of: its like would do the same."""
        self._waiting[_group(shape)].clear()


def _group(shape: Shape) -> Group:
    return shape.lanes, shape.local, shape.packed, shape.threads > 1


def _promise(shape: Shape) -> tuple[float, float]:
    """Rank a group's members: a usual k block first, then multiplications per load."""
    usual = 3 if shape.local else 2
    across = shape.rows * shape.dim_m, shape.vectors * shape.dim_n
    return -abs(math.log2(shape.block_k) - usual), across[0] * across[1] / sum(across)
