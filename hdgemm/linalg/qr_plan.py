"""Where a QR factorisation stores R and its reflectors, for its plan and for its run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.device_run import device_names
from hdgemm.linalg.operands import open_matrix
from hdgemm.linalg.row_plan import rows_for
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.slab_plan import SlabPlan

#: Rows for each column from which R is computed by TSQR.
_TALL = 4


def rows_of_r(shape: tuple[int, int], r_out: Any) -> int:
    """Return the rows of R alone: all m in an array, the k that are not zero in a file."""
    m = shape[0]
    given = r_out is not None and (is_location(r_out) or open_matrix(r_out, "out").shape[0] != m)
    return min(shape) if given else m


def adds_r(out: Any, folder: Path | None, *, overwrite_a: bool) -> bool:
    """Say whether reflectors come with R: those in a new array, or over an array A, do."""
    return out is None and not (overwrite_a and folder is not None)


def stored_rows(last: int, pivots: int, rows: int, *, new: bool) -> int:
    """Return how many of R's rows are stored up to some column: all where it has old elements."""
    return min(last, pivots) if new else rows


def with_r(plan: SlabPlan, kept: int, rows: int, *, new: bool) -> SlabPlan:
    """Return the plan of reflectors with the bytes of R, which has some rows in a `new` place or in
    one that has old elements; the first `kept` columns of reflectors have a place.
    """
    r = sum(stored_rows(x.last, plan.pivots, rows, new=new) * x.width for x in plan.slabs)
    beside = r - plan.m * max(0, plan.n - kept)
    return replace(plan, beside=beside * plan.itemsize)


class ReflectorsOfR(NamedTuple):
    """Where the reflectors of R alone are stored: `over_a`, or in a scratch matrix of some columns,
    which is a file in a folder, or in memory.
    """

    over_a: bool
    folder: Path | None
    columns: int

    @classmethod
    def of(
        cls, shape: tuple[int, int], folder: Path | None, *, overwrite_a: bool, durable: bool
    ) -> ReflectorsOfR:
        """Return it for an A of this shape; a durable run keeps a file as large as A."""
        over_a = overwrite_a and not durable
        return cls(over_a, folder, shape[1] if durable else min(shape))


def tall_plan(
    shape: tuple[int, int], dtype: np.dtype[Any], folder: Path | None, run: OpenRun
) -> RowPlan | None:
    """Return the plan of R by TSQR; None with devices, which TSQR has no products for, where the
    matrix is not tall, and where R does not fit the memory.
    """
    m, n = shape
    if m < _TALL * n or not n or device_names(run.options):
        return None
    try:
        return rows_for(shape, 0, dtype, folder, run)
    except DoesNotFitError:
        return None
