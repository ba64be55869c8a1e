"""Plans of block Krylov iterations: width of the blocks, columns of the basis, passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.call.run import machine_of, plan_parts
from hdgemm.errors import InputError
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.machine.limits import host_bytes
from hdgemm.options import whole_number
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.rows import RowPlan, RowShape, RowWork

#: Columns of a block beyond the wanted ones: the last of them converge faster.
_EXTRA: Final = 8
#: Width of a block at most, in units of the least one: wider blocks waste directions.
_WIDEST: Final = 4
#: Passes over A at most.
_PASSES: Final = 20
#: Part of the memory that the basis and its products may take.
_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class KrylovPlan:
    """Extents of a block Krylov iteration for k pairs.

    Parameters
    ----------
    k, width
        Wanted pairs, and columns of a block.
    basis
        Columns of the basis at most; it restarts when it is full.
    passes
        Applications of the operator at most.
    tolerance
        Residual at which a pair has converged, in units of the largest value.
    seed
        Of the first block.
    """

    k: int
    width: int
    basis: int
    passes: int
    tolerance: float
    seed: int

    def decisive(self, routine: str, block: Any) -> dict[str, Any]:
        """Return what decides the pairs of a routine, for a journal; `block` as it was given."""
        return {
            "routine": routine,
            "k": self.k,
            "tolerance": self.tolerance,
            "passes": self.passes,
            "seed": self.seed,
            "block": None if block is None else int(block),
        }


def plan_iteration(
    work: Callable[[int], RowWork],
    n: int,
    k: Any,
    shape: RowShape,
    folder: Path | None,
    run: OpenRun,
    **given: Any,
) -> tuple[KrylovPlan, RowPlan]:
    """Return the extents of an iteration, and the plan of one pass that applies the operator.

    Parameters
    ----------
    work
        Returns the work of a pass for a block of some columns.
    n
        The order of the operator, which reads rows of A of some shape.
    k
        Wanted pairs.
    given
        The other arguments of the routine: tol, maxiter, block, seed.

    Raises
    ------
    DoesNotFitError
        When basis and blocks do not fit the memory.
    InputError
        When k is not in 1 … n, or another argument is out of range.
    """

    def plans(run: OpenRun) -> tuple[KrylovPlan, RowPlan]:
        extents = _plan_extents(n, k, shape, folder, run, **given)
        return extents, _plan_application(extents, n, work(extents.width), shape, folder, run)

    return plan_parts(f"the Krylov iteration with {shape}", plans, run)


def _plan_extents(
    n: int,
    k: Any,
    shape: RowShape,
    folder: Path | None,
    run: OpenRun,
    *,
    tol: Any,
    maxiter: Any,
    block: Any,
    seed: Any,
) -> KrylovPlan:
    """Return the extents of an iteration on an operator of order n that reads rows of A.

    Without `block`, a block has as many columns as cost no time where the disk limits: 2F/β for
    F flop/s and β bytes/s, rounded down to a power of two, within k + 8 and 4·(k + 8).
    """
    wanted = whole_number(k, "k")
    if n == 0:
        raise InputError("A has no elements, and so no singular values or eigenvalues")
    if wanted > n:
        raise InputError(f"k must be at most {n}, the smaller extent of A, got {wanted}")
    if not isinstance(tol, float | int) or not 0 <= tol <= 1:
        raise InputError(f"tol must be a number from 0 to 1, got {tol!r}")
    least = min(n, wanted + _EXTRA)
    if block is not None:
        width = min(n, max(wanted, whole_number(block, "block")))
    else:
        width = min(n, max(least, min(_free_columns(shape, folder, run), _WIDEST * least)))
    dtype = np.dtype(shape.dtype)
    eps = float(np.finfo(dtype).eps)
    passes = _PASSES if maxiter is None else whole_number(maxiter, "maxiter")
    room = int(_PART * host_bytes(run.options)) // max(1, 2 * n * dtype.itemsize) - 3 * width
    basis = min(n, passes * width, max(wanted + 3 * width, room))
    return KrylovPlan(wanted, width, basis, passes, max(float(tol), 8 * eps * n**0.5), _seed(seed))


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be an integer that is not negative, got {seed!r}")
    return int(seed)


def _free_columns(shape: RowShape, folder: Path | None, run: OpenRun) -> int:
    """Return the columns of a block that are multiplied while the rows are read."""
    dtype = np.dtype(shape.dtype)
    machine = machine_of((shape.m, shape.n), dtype, folder, run, depth=shape.n)
    read = machine.disk_read if folder is not None else machine.copy
    flops = 2 * flops_per_multiply_add(shape.dtype)  # of an element and a column
    columns = machine.flop_rate(shape.dtype) * dtype.itemsize / (flops * read)
    return 1 << max(0, int(columns).bit_length() - 1)


def _plan_application(
    plan: KrylovPlan, n: int, work: RowWork, shape: RowShape, folder: Path | None, run: OpenRun
) -> RowPlan:
    """Return the plan of one pass that applies the operator, beside the basis in memory."""
    # Basis and products, and the blocks that are orthogonalised.
    held = n * (2 * plan.basis + 6 * plan.width) * np.dtype(shape.dtype).itemsize
    beside = replace(work, result="the Krylov basis", shared_bytes=work.shared_bytes + held)
    return rows_for(shape, [beside], folder, run)
