"""Which operands are worth page-locking, so that DMA takes them without staging.

Locking a page costs time once; staging costs a copy every time a tile travels, of which all is
hidden behind the kernel while the copies keep up. So the two are compared by what the planner
expects of the whole run, once with each choice of operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.pipeline.plan import Operand, OperandSpec, Problem

#: What registering must save to be taken, as a share of the run: figures are no surer than that,
#: and staging leaves the application's memory alone.
MARGIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Lockable:
    """An operand in memory that DMA could take as it lies.

    Parameters
    ----------
    nbytes
        Of the array, gaps between its rows included.
    locked
        It is page-locked already: it skips both copies at no cost (HDGEMM, observation 2).
    """

    nbytes: int
    locked: bool = False


@dataclass(frozen=True, slots=True)
class LockCost:
    """Measured seconds per byte of page-locking memory and of unlocking it."""

    register: float
    unregister: float

    def seconds(self, nbytes: int) -> float:
        """Return what locking `nbytes` for one run costs."""
        return nbytes * (self.register + self.unregister)


@dataclass(frozen=True, slots=True)
class PathChoice:
    """The problem with its operands' paths chosen, and why.

    Parameters
    ----------
    problem
        With ``path="direct"`` for the operands that DMA takes where they lie.
    register
        Operands to lock for this run; direct ones that are not named are locked already.
    seconds
        What the run is expected to take, locking included.
    lock_seconds
        The part of it that is locking and unlocking.
    staged_seconds
        What it is expected to take when nothing is locked for it.
    """

    problem: Problem
    register: tuple[Operand, ...]
    seconds: float
    lock_seconds: float
    staged_seconds: float


def choose_paths(
    problem: Problem,
    lockable: Mapping[Operand, Lockable],
    cost: LockCost,
    expected_seconds: Callable[[Problem], float],
) -> PathChoice:
    """Choose which operands go directly, by the seconds expected of the run.

    Parameters
    ----------
    problem
        With every lockable operand staged.
    lockable
        The operands that DMA could take; those locked already always go directly.
    expected_seconds
        What the planner expects of a problem with given paths.
    """
    free = [name for name, operand in lockable.items() if operand.locked]
    base = _direct(problem, free)
    staged = expected_seconds(base)
    best = PathChoice(base, (), staged, 0.0, staged)
    others = [name for name in lockable if name not in free]
    # No choice can beat all of them at no cost: where that saves nothing, the search is over.
    if not others or expected_seconds(_direct(base, others)) >= (1 - MARGIN) * staged:
        return best
    for size in range(1, len(others) + 1):
        for names in combinations(others, size):
            lock = sum(cost.seconds(lockable[name].nbytes) for name in names)
            # Even a run that took no time at all could not win.
            if lock >= (1 - MARGIN) * staged:
                continue
            candidate = _direct(base, names)
            seconds = lock + expected_seconds(candidate)
            if seconds < min(best.seconds, (1 - MARGIN) * staged):
                best = PathChoice(candidate, names, seconds, lock, staged)
    return best


def _direct(problem: Problem, names: list[Operand] | tuple[Operand, ...]) -> Problem:
    def path(name: Operand) -> OperandSpec:
        spec = problem.spec(name)
        return replace(spec, path="direct") if name in names else spec

    return replace(problem, a=path("A"), b=path("B"), c=path("C"))
