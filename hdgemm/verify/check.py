"""Check of a finished product by the method of `hdgemm.verify.freivalds`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.product.arguments import check_shape
from hdgemm.product.product import check_product
from hdgemm.verify import MEMORY, ROUNDS
from hdgemm.verify.freivalds import Check

if TYPE_CHECKING:
    from hdgemm.matrices.base import Operand

_ROWS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of a check; `hdgemm.verify.freivalds` says what its numbers mean.

    Parameters
    ----------
    passed
        No row deviates by more than its bound, and NaN and Inf lie where they must.
    worst
        The largest deviation, in units of its row's bound; Inf for a misplaced NaN or Inf.
    bound
        The largest bound of a row that was compared, in C's own unit.
    miss_probability
        That an element off by more than `detects` goes unnoticed, at most.
    rounds
        Vectors that were tried.
    failing_rows
        The first rows that failed, counted from 0.
    failures
        How many rows failed.
    unchecked_rows
        Rows that could not be compared in numbers, because of NaN, Inf or overflow.
    """

    passed: bool
    worst: float
    bound: float
    miss_probability: float
    rounds: int
    failing_rows: tuple[int, ...] = ()
    failures: int = 0
    unchecked_rows: int = 0

    @property
    def detects(self) -> float:
        """An element that is off by more than this is found, but for `miss_probability`."""
        return 2 * self.bound

    def __str__(self) -> str:
        found = f"worst deviation {self.worst:.2g} of its bound"
        if not self.passed:
            rows = ", ".join(map(str, self.failing_rows))
            more = ", …" if self.failures > len(self.failing_rows) else ""
            return f"C is not the product: {self.failures} rows fail ({rows}{more}); {found}"
        text = (
            f"C is the product: {found}; an element off by more than {self.detects:.2g} would be "
            f"missed with probability {self.miss_probability:.1g}"
        )
        if self.unchecked_rows:
            text += f"; {self.unchecked_rows} rows were not compared: NaN, Inf or overflow"
        return text


def verify_operands(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    old: Operand | None = None,
    rounds: int = ROUNDS,
    seed: int | None = None,
    memory: int = MEMORY,
) -> Verification:
    """Do what `hdgemm.verify` does, on opened operands, which stay open."""
    check = prepare(
        a, b, c, alpha=alpha, beta=beta, old=old, rounds=rounds, seed=seed, memory=memory
    )
    return conclude(check)


def prepare(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    old: Operand | None = None,
    rounds: int = ROUNDS,
    seed: int | None = None,
    memory: int = MEMORY,
) -> Check:
    """Return a check to `conclude` when C is there; nothing is read yet.

    Where C will overwrite `old`, its `remember_old` must be called before.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, got {rounds}")
    product = check_product(alpha, a, b, beta, old)
    check_shape(c.shape, (product.m, product.n), "c")
    return Check(product, a, b, c, old if product.reads_c else None, rounds, memory, seed)


def conclude(check: Check) -> Verification:
    """Read A, B and C, and say whether C is the product."""
    check.run()
    failing = np.flatnonzero(check.failed)
    return Verification(
        passed=failing.size == 0,
        worst=check.worst,
        bound=check.bound,
        miss_probability=2.0**-check.rounds,
        rounds=check.rounds,
        failing_rows=tuple(int(row) for row in failing[:_ROWS_SHOWN]),
        failures=int(failing.size),
        unchecked_rows=int(np.count_nonzero(check.unchecked)),
    )
