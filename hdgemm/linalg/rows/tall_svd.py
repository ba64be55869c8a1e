"""Singular value decomposition of the rows of a tall matrix, with the vectors of the long side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.rows._tree import FormQ, StoredReflectors, q_work, reflectors_work
from hdgemm.linalg.rows.products import StoredProduct
from hdgemm.linalg.rows.r_factor import RFactor
from hdgemm.linalg.rows.source import TallRows
from hdgemm.linalg.rows.triangle_svd import TriangleSvd

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.passes import Passes
    from hdgemm.matrices.stored import StoredMatrix


@dataclass(frozen=True, slots=True)
class TallSvd:
    """A (m×n) = U·diag(s)·Vh, by TSQR and the decomposition of R.

    U is A·V·diag(1/s) where s[0]/s[-1] is at most m, else formed from the reflectors of TSQR.

    Parameters
    ----------
    rows
        A; its rows may lie where U will be.
    plans
        Of the pass of TSQR, the decomposition of R, and the pass of the product.
    driver
        Of LAPACK: ``"gesdd"`` or ``"gesvd"``.
    folder
        Of the file of A, or None.
    how
        Options, session and callbacks.
    """

    rows: TallRows
    plans: tuple[RowPlan, DensePlan, RowPlan]
    driver: str
    folder: Path | None
    how: OpenRun

    @property
    def most(self) -> int:
        """The largest s[0]/s[-1] for which U is A·V·diag(1/s)."""
        return max(1, len(self.rows.a))

    def run(self, passes: Passes, target: StoredMatrix) -> tuple[TriangleSvd, dict[str, Any]]:
        """Store U in `target`; return the decomposition of R, and facts for the report.

        The facts are the condition, the number of passes, and a note why there are so many.
        """
        multiplying = self.plans[2]
        found = self._of_triangle(passes)
        rows = replace(self.rows, check_finite=False)
        with np.errstate(all="ignore"):
            w = np.ascontiguousarray(found.vh.conj().T / found.s)
        condition = found.condition
        loss = condition * float(np.finfo(rows.dtype).eps)
        why = f"A·V/s is orthogonal to s[0]/s[-1]·eps = {loss:.1e}"
        if condition <= self.most and np.isfinite(w).all():
            passes.reduce(rows, [StoredProduct((w,), target)], multiplying)
            return found, {"condition": condition, "passes": 2, "note": f"U = A·V/s: {why}"}
        del w, found  # before the next ones
        note = f"a third pass, U from the reflectors of TSQR: {why} only, s[0]/s[-1] > {self.most}"
        facts = {"condition": condition, "passes": 3, "note": note}
        return self._by_reflectors(passes, rows, target), facts

    def _of_triangle(self, passes: Passes) -> TriangleSvd:
        reading, dense, _ = self.plans
        triangle = RFactor(dense.n, self.rows.dtype)
        passes.reduce(self.rows, [triangle], reading)
        return self._decomposed(passes, triangle)

    def _decomposed(self, passes: Passes, found: RFactor | StoredReflectors) -> TriangleSvd:
        """Return the decomposition of R, of a durable run the same one when it goes on."""
        dense, driver = self.plans[1], self.driver
        return TriangleSvd(
            *passes.dense(dense, lambda: passes.keep(lambda: TriangleSvd.of(found.r, driver)))
        )

    def _by_reflectors(self, passes: Passes, rows: TallRows, target: StoredMatrix) -> TriangleSvd:
        """Factor once more, with the reflectors where the vectors will be, and apply them."""
        dense, shape = self.plans[1], rows.shape
        # The pass with the larger need says the blocks of both.
        works = q_work(shape, dense.n, target.dtype), reflectors_work(shape, target.dtype)
        forming = rows_for(shape.transformed, [works[0]], self.folder, self.how)
        options = replace(self.how.options, tile=(forming.rows, 1, 1), threads=forming.cores)
        storing = rows_for(shape, [works[1]], self.folder, self.how._replace(options=options))
        with passes.before(target) as place:
            reflectors = StoredReflectors(dense.n, rows.dtype, place)
            passes.reduce(rows, [reflectors], storing)
            found = self._decomposed(passes, reflectors)
            first = [forming.blocks(core)[0][0] for core in range(forming.cores)]
            q = FormQ(reflectors.tops(found.u), first, target)
            stored = TallRows(place, rows.dtype, check_finite=False, intermediate=True)
            passes.reduce(stored, [q], forming, reverse=True)
        return found
