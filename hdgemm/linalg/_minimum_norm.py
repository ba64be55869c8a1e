"""Least squares of a wide matrix: the solution of least norm, in two passes over its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.linalg.pinv import two_passes
from hdgemm.linalg.rows.checkpoint import RunLimits, durable_rows
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import StoredProduct
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.source import TallRows, check_finite_rows
from hdgemm.linalg.rows.triangle_svd import TriangleSvd
from hdgemm.matrices.fingerprint import unchanged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.solving.columns import RightHandSides
    from hdgemm.linalg.storage import Output
    from hdgemm.matrices.stored import StoredMatrix


@dataclass(frozen=True, slots=True)
class MinimumNorm:
    """The x of least norm with A·x = b, or that minimises ||A·x - b||, for a wide A (m×n).

    TSQR reduces A^T to an m×m triangle R, and ``x = A^H·(R^H·R)^+·b`` takes a second read. Its
    error is of the order of eps·κ(A), like a solution by Q (C. C. Paige: An error analysis of a
    method for solving matrix equations, 1973).

    Parameters
    ----------
    source, rhs
        A, and b.
    out, output
        Where x goes, as the caller gave it and described.
    how, call
        Options, session and callbacks; of a run that goes on, with the earlier run's limits.
    cond
        Singular values below `cond` times the largest one count as zero; None for eps.
    values
        Return the singular values.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    """

    source: StoredMatrix
    rhs: RightHandSides
    out: Any
    output: Output
    how: OpenRun
    call: Call
    cond: float | None
    values: bool
    check_finite: bool

    def prepared(self) -> Prepared[tuple[Any, Any, int, NDArray[Any] | None]]:
        """Plan both passes; the run returns what `lstsq` returns."""
        rows = TallRows(
            self.source.T, self.rhs.dtype, check_finite=self.check_finite, transposed=True
        )
        stored, p = self.output.matrix.dtype, self.rhs.matrix.shape[1]
        plans = two_passes("lstsq", rows, (p,), stored, self.source, self.how)
        facts = facts_of("lstsq", self.source.shape, rows.dtype.name, self.how.options)
        plan = JointPlan(facts, plans)
        return Prepared(plan, lambda: self._run(rows, plans, facts), self.how.session)

    def _run(
        self, rows: TallRows, plans: tuple[RowPlan, DensePlan, RowPlan], facts: dict[str, Any]
    ) -> tuple[Any, Any, int, NDArray[Any] | None]:
        reading, dense, multiplying = plans
        inputs = {"A": self.source, "b": self.rhs.matrix}
        read = {name: matrix.operand for name, matrix in inputs.items()}
        decisive = {"routine": "lstsq", "cond": self.cond, "check_finite": self.check_finite}
        with (
            durable_rows(self.call, self.out, inputs, decisive) as durable,
            self.output.opened(rows=durable) as target,
            unchanged(read, target.stored.operand.matrix),
        ):
            if durable is not None:
                durable.begin(reading, RunLimits.of(self.how))
            passes = Passes(self.how, sum(plan.flops for plan in plans), durable)
            b = self._right_hand_sides()
            triangle = RFactor(dense.n, rows.dtype)
            passes.reduce(rows, [triangle], reading)
            found = TriangleSvd(
                *passes.dense(dense, lambda: passes.keep(lambda: TriangleSvd.of(triangle.r)))
            )
            cond = np.finfo(rows.dtype).eps if self.cond is None else self.cond
            rank = found.rank(cond * found.largest)
            w, scale = found.inverse_gram(rank, b.conj())
            again = replace(rows, check_finite=False, scale=scale)
            product = StoredProduct((w,), target.stored, conjugate=True)
            passes.reduce(again, [product], multiplying)
            passes.finish(facts | {"rank": rank})
        residues = np.empty(0, rows.dtype)
        return self.rhs.result(self.out, target), residues, rank, found.s if self.values else None

    def _right_hand_sides(self) -> NDArray[Any]:
        """Return b in memory."""
        b = np.asfortranarray(self.rhs.matrix.read().astype(self.rhs.dtype, copy=False))
        if self.check_finite:
            check_finite_rows(0, b, "b")
        return b
