"""Freivalds check of a finished product, and its outcome."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.tables import Table

if TYPE_CHECKING:
    from hdgemm.verify.freivalds import Check

_ROWS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of a check by random vectors: rows of C times a vector, and how far they are off.

    It is true where the check has passed.

    Parameters
    ----------
    passed
        No row deviates by more than its bound, and NaN and Inf lie where they must.
    worst
        The largest deviation divided by its row's bound; Inf for a misplaced NaN or Inf.
    bound
        The largest bound of a row that was compared, in the unit of C.
    miss_probability
        Largest probability that an element off by more than `detects` was missed.
    rounds
        Number of vectors.
    failing_rows
        The first rows that failed, counted from 0.
    failures
        Number of rows that failed.
    unchecked_rows
        Number of rows that could not be compared in numbers, because of NaN, Inf or overflow.

    See Also
    --------
    verify : Returns it.

    Examples
    --------
    >>> check = hdgemm.verify("A.npy", "B.npy", "C.npy")
    >>> check.passed
    True
    >>> print(check.detects, check.miss_probability)
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
        """Errors above this are missed with probability `miss_probability` at most."""
        return 2 * self.bound

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, with the outcome as a sentence: ``summary``."""
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {**values, "failing_rows": list(self.failing_rows), "summary": str(self)}

    def _repr_html_(self) -> str:
        """Return the fields as a table, for a notebook."""
        title = "the product is right" if self.passed else "the product is wrong"
        rows = [(name, str(value)) for name, value in asdict(self).items()]
        return Table(("verification", title), rows, text=True).html()

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


def conclude(check: Check) -> Verification:
    """Read A, B and C and return whether C is their product."""
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
