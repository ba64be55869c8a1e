"""Counts of calls that several threads make at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def nth_call(number: int) -> Callable[[], bool]:
    """Return a function that is true in its `number`-th call only, whichever thread makes it.

    ``calls.append(…)`` and ``len(calls) == number`` are two steps: when two threads append before
    either counts, none finds the number.
    """
    count = itertools.count(1)  # next() is one step
    return lambda: next(count) == number
