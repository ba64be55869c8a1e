"""Rows divided by the largest element of A, where squares would overflow or underflow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.run import folder_of
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.rows.sums import Norm
from hdgemm.linalg.rows.triangle_svd import check_reduced

if TYPE_CHECKING:
    from hdgemm.linalg.rows.passes import Passes
    from hdgemm.linalg.rows.source import TallRows


def scaled(rows: TallRows, passes: Passes) -> tuple[TallRows, float]:
    """Find the largest absolute value in one pass; return the rows divided by it, and the value.

    The value is 1 where all elements are zero. `InputError` where one is not finite.
    """
    n = rows.a.shape[1]
    largest = Norm("max", n)
    folder = folder_of(rows.a)
    passes.reduce(
        rows, [largest], rows_for(rows.shape, [largest.work(rows.shape)], folder, passes.how)
    )
    size = largest.value or 1.0
    check_reduced(np.full(1, size), "A")
    scale = np.full(n, size, np.zeros(0, rows.dtype).real.dtype)
    return replace(rows, scale=scale if rows.scale is None else scale * rows.scale), size


def in_range(largest: float, dtype: np.dtype[Any], power: int, terms: int = 1) -> bool:
    """Say whether sums of `power`-th powers neither overflow nor lose digits to underflow.

    `largest` is the largest absolute value, and `terms` their number.
    """
    limits = np.finfo(dtype)
    least, most = float(limits.tiny) / float(limits.eps), float(limits.max) / max(1, terms)
    return bool(least ** (1 / power) < largest < most ** (1 / power))
