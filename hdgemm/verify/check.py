"""Check of a finished product by the method of `hdgemm.verify.freivalds`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.options import parse_size
from hdgemm.product.arguments import check_shape, trans_flags
from hdgemm.product.product import check_product
from hdgemm.verify.freivalds import Check

if TYPE_CHECKING:
    from hdgemm.matrices.base import Operand

_ROUNDS: Final = 30
#: Bytes that a check takes unless it is told; more make it no faster.
MEMORY: Final = 256_000_000
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


def verify(
    a: Any,
    b: Any,
    c: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c_before: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    rounds: int = _ROUNDS,
    seed: int | None = None,
    memory: int | str = MEMORY,
) -> Verification:
    """Check that C = alpha·op(A)·op(B) + beta·C₀ by Freivalds' method.

    Parameters
    ----------
    a, b, c
        As in `hdgemm.dgemm`: arrays, memmaps or paths; each is read once, `b` twice where it
        holds NaN or Inf.
    c_before
        C₀, the C that beta multiplied; needed where beta is not zero.
    rounds
        Random vectors; an error above the stated bound is missed with probability 2^-rounds.
    seed
        Makes the vectors the same each time; None takes new ones.
    memory
        Bytes that the check may take, as a number or a text such as ``"256MB"``. Where they do
        not hold all vectors at once, the matrices are read several times.

    Returns
    -------
    Verification
        Whether it passed, by what margin, and what such a check would miss.

    Raises
    ------
    InputError
        For operands that do not fit together.
    DoesNotFitError
        When `memory` does not hold one vector of each extent.
    """
    with ExitStack() as stack:

        def opened(x: Any, what: str, code: int = 0) -> Operand:
            trans, conj = trans_flags(code, f"trans_{what}")
            operand = open_operand(x, what=what, trans=trans, conj=conj)
            stack.callback(operand.matrix.close)
            return operand

        left, right = opened(a, "a", trans_a), opened(b, "b", trans_b)
        result = opened(c, "c")
        old = None if c_before is None else opened(c_before, "c_before")
        if beta != 0 and old is None:
            raise InputError(f"beta = {beta}: pass c_before, the C that beta multiplied")
        return verify_operands(
            left, right, result, alpha=alpha, beta=beta, old=old,
            rounds=rounds, seed=seed, memory=parse_size(memory),
        )  # fmt: skip


def verify_operands(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    old: Operand | None = None,
    rounds: int = _ROUNDS,
    seed: int | None = None,
    memory: int = MEMORY,
) -> Verification:
    """Do what `verify` does, on opened operands, which stay open."""
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
    rounds: int = _ROUNDS,
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
