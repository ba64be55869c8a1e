"""Block Krylov iterations that are planned: the passes, and the values of A times the basis."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from scipy.linalg import LinAlgWarning

from hdgemm.call.run import folder_of
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.rows.checkpoint import RunLimits
from hdgemm.linalg.rows.krylov import KrylovBasis
from hdgemm.linalg.rows.products import GatheredProduct, NormalProduct
from hdgemm.linalg.rows.scaling import in_range, scaled
from hdgemm.linalg.rows.triangle_svd import TriangleSvd
from hdgemm.linalg.rows.tsqr import ProjectedTriangle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.krylov import KrylovPlan
    from hdgemm.linalg.planning.rows import RowPlan, RowShape
    from hdgemm.linalg.rows.krylov import Choice, RitzPairs
    from hdgemm.linalg.rows.passes import Passes
    from hdgemm.linalg.rows.source import TallRows


def largest(values: NDArray[Any]) -> NDArray[Any]:
    """Return the indices of ascending values, the largest first."""
    return np.arange(len(values))[::-1]


def _smallest(values: NDArray[Any]) -> NDArray[Any]:
    return np.arange(len(values))


def _largest_magnitude(values: NDArray[Any]) -> NDArray[Any]:
    return np.argsort(-np.abs(values), kind="stable")


def _both_ends(values: NDArray[Any]) -> NDArray[Any]:
    count = len(values)
    ends = np.stack([largest(values), _smallest(values)], axis=1).ravel()
    return ends[:count]


#: Eigenvalues of `eigsh`, by SciPy's names.
CHOICES: Final[Mapping[str, Choice]] = {
    "LM": _largest_magnitude,
    "LA": largest,
    "SA": _smallest,
    "BE": _both_ends,
}


class ValuePlans(NamedTuple):
    """Plans of the singular values of A·V: the pass of its TSQR, and the decomposition."""

    reading: RowPlan
    dense: DensePlan

    @classmethod
    def of(cls, shape: RowShape, k: int, folder: Path | None, run: OpenRun) -> Self:
        """Plan them for a V of k columns."""
        dtype = np.dtype(shape.dtype)
        work = ProjectedTriangle(np.zeros((0, k), dtype)).work(shape)
        dense = plan_dense("SVD of R", k, dtype, run, vectors=True)
        return cls(rows_for(shape, [work], folder, run), dense)


@dataclass(frozen=True, slots=True)
class KrylovIteration:
    """A block Krylov iteration that is planned; `application` is the plan of each pass."""

    rows: TallRows
    plan: KrylovPlan
    application: RowPlan
    how: OpenRun

    @property
    def parts(self) -> tuple[RowPlan, ...]:
        """The plan of each pass, as many as are allowed."""
        return (self.application,) * self.plan.passes

    @property
    def limits(self) -> RunLimits:
        """What decides these plans, for a journal."""
        return RunLimits.of(self.how, self.plan.width)

    def run(
        self,
        passes: Passes,
        apply: Callable[[NDArray[Any]], NormalProduct | GatheredProduct],
        choice: Choice,
    ) -> tuple[RitzPairs, dict[str, Any]]:
        """Return the wanted pairs, and facts for the report.

        Parameters
        ----------
        apply
            Returns the reducer that computes the operator times a block.
        """
        plan, rows, count, size = self.plan, self.rows, 0, 1.0
        n = rows.a.shape[1]
        basis = KrylovBasis(n, plan.width, plan.basis, rows.dtype, plan.seed, choice)
        while count < plan.passes:
            (basis.block,) = passes.keep(lambda: (basis.block,))
            product = apply(basis.block)
            passes.reduce(rows, [product], self.application)
            count += 1
            rows = replace(rows, check_finite=False)
            if count == 1 and not _in_range(product.y):
                rows, size = scaled(rows, passes)
                product = apply(basis.block)
                passes.reduce(rows, [product], self.application)
            basis.extend(product.y)
            pairs = basis.ritz(plan.k)
            scale = float(np.abs(pairs.values).max(initial=0.0)) or 1.0
            residual = float(pairs.residuals.max(initial=0.0)) / scale
            if basis.exhausted or residual <= plan.tolerance:
                break
        else:
            open_pairs = int(np.count_nonzero(pairs.residuals > plan.tolerance * scale))
            warnings.warn(
                f"{open_pairs} of {plan.k} pairs have not converged after {count} passes: the "
                f"largest residual is {residual:.1e}, wanted are {plan.tolerance:.1e}; raise "
                "maxiter, tol or block",
                LinAlgWarning,
                stacklevel=4,
            )
        facts: dict[str, Any] = {"passes": count, "block": plan.width, "residual": residual}
        if isinstance(product, GatheredProduct):
            pairs = pairs._replace(values=pairs.values * size)
        if isinstance(product, NormalProduct) and _mixed(pairs.values, rows.dtype):
            try:
                pairs = self._of_whole_basis(passes, rows, basis, len(pairs.values))
            except DoesNotFitError as error:
                facts["note"] = str(error)
            else:
                facts["passes"] += 1
                facts["note"] = (
                    "one pass of A times the whole basis, since A^H·A mixes vectors of values "
                    f"below {_mixing(rows.dtype):.1e}·s[0]"
                )
            _warn_of_small(pairs, basis, rows.dtype, plan.tolerance)
        return pairs, facts

    def _of_whole_basis(
        self, passes: Passes, rows: TallRows, basis: KrylovBasis, k: int
    ) -> RitzPairs:
        """Return k pairs from the singular values of A times the basis, with errors of eps·s[0].

        Raises
        ------
        DoesNotFitError
            When the triangle does not fit beside the basis.
        """
        q = np.ascontiguousarray(basis.columns)
        triangle = ProjectedTriangle(q)
        work = triangle.work(rows.shape)
        work = replace(work, shared_bytes=work.shared_bytes + basis.nbytes)
        reading = rows_for(rows.shape, [work], folder_of(rows.a), self.how)
        dense = plan_dense("SVD of R", q.shape[1], rows.dtype, self.how, vectors=True)
        (q,) = passes.keep(lambda: (q,))
        triangle = ProjectedTriangle(q)
        passes.reduce(rows, [triangle], reading)
        found = passes.dense(dense, lambda: TriangleSvd.of(triangle.r))
        coefficients, values = found.vh[:k].conj().T, found.s[:k] ** 2
        return basis.pairs(values, q @ coefficients, coefficients)


def _in_range(product: NDArray[Any]) -> bool:
    """Say whether sums of squares of a product are in range."""
    return in_range(float(np.abs(product).max(initial=0.0)), product.dtype, 2, product.size)


def _mixing(dtype: np.dtype[Any]) -> float:
    """Return the part of s[0] below which vectors from A^H·A spoil the values of A·V.

    A rounding error of eps·s[0]² turns a vector by eps·(s[0]/s)², which changes its value by half
    the square of this angle times s: eps·s[0] where s is the cube root of eps times s[0].
    """
    return 2.0 * float(np.cbrt(np.finfo(dtype).eps))


def _mixed(squares: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Say whether the least of some values, given by their squares, is too small for A^H·A."""
    return bool(len(squares)) and float(squares[-1]) < _mixing(dtype) ** 2 * float(squares[0])


def _warn_of_small(
    pairs: RitzPairs, basis: KrylovBasis, dtype: np.dtype[Any], tolerance: float
) -> None:
    """Warn of small values whose residuals for A exceed a tolerance, in units of s[0].

    The residuals of A^H·A are relative to s[0]². A basis of the whole space has exact values.
    """
    eps, n = float(np.finfo(dtype).eps), len(pairs.vectors)
    values = np.sqrt(np.maximum(pairs.values.astype(float), 0))
    unit = float(values[0]) or 1.0
    small = (values < _mixing(dtype) * unit) & (values > n * eps * unit)
    if basis.complete or not small.any():
        return
    residuals = pairs.residuals[small] / values[small] / unit
    wrong = int(np.count_nonzero(residuals > tolerance))
    if wrong:
        warnings.warn(
            f"{wrong} of {len(values)} singular values are so small, below "
            f"{_mixing(dtype):.1e}·s[0], that A^H·A has lost digits of them: ||A^H·u - s·v|| is up "
            f"to {residuals.max():.1e}·s[0], wanted are {tolerance:.1e}·s[0]; raise tol or block, "
            "or take svd",
            LinAlgWarning,
            stacklevel=5,
        )
