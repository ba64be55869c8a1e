"""Principal components of tall matrices, planned: what `pca` stores and `PCA` keeps."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np

from hdgemm.call.input_checks import reads_unchanged
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run, plan_parts
from hdgemm.errors import InputError
from hdgemm.linalg._krylov_iteration import KrylovIteration, ValuePlans, largest
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.krylov import plan_iteration
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import centred_work
from hdgemm.linalg.results import Result, open_results, outputs_of
from hdgemm.linalg.rows.centred_r_factor import CentredRFactor
from hdgemm.linalg.rows.checkpoint import (
    RunLimits,
    durable_rows,
    place_of,
    place_of_journal,
    resumed,
)
from hdgemm.linalg.rows.column_moments import ColumnMoments, column_norms
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import NormalProduct, StoredProduct, product_work
from hdgemm.linalg.rows.source import TallRows, estimated_mean
from hdgemm.linalg.rows.triangle_svd import TriangleSvd
from hdgemm.linalg.rows.tsqr import ProjectedTriangle
from hdgemm.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.call.plans import Part
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.matrices.stored import StoredMatrix

_SOLVERS: Final = ("auto", "full", "krylov")
#: Columns from which ``"auto"`` prefers several passes to a triangle of all columns.
_MANY: Final = 5000


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, with scikit-learn's names; see `hdgemm.decomposition.PCA`."""

    n_components: Any = None
    svd_solver: str = "auto"
    tol: float = 0.0
    seed: int = 0
    standardize: bool = False

    def check(self, source: StoredMatrix) -> None:
        """Raise `InputError` where the samples have no such components."""
        m, n = source.shape
        # The words that scikit-learn's estimator checks look for.
        if source.dtype.kind == "c":
            raise InputError(f"Complex data not supported: X is {source.dtype}")
        if source.dtype.kind != "f":
            raise InputError(f"PCA takes real samples, X is {source.dtype}")
        if not n:
            raise InputError(
                f"X has 0 feature(s) (shape=({m}, 0)) while a minimum of 1 is required by PCA"
            )
        if m < 2:
            raise InputError(f"X has {format_count(m, 'sample')}, PCA needs two at least")
        if self.svd_solver not in _SOLVERS:
            raise InputError(f"svd_solver must be one of {_SOLVERS}, got {self.svd_solver!r}")
        k: Any = self.n_components
        if k is None:
            return
        if isinstance(k, bool) or not isinstance(k, int | float | np.number):
            raise InputError(f"the number of components must be a number or None, got {k!r}")
        # NaN and Inf are in neither range.
        if not (0 < k < 1 or (1 <= k <= min(m, n) and k == int(k))):
            raise InputError(
                f"the number of components must be from 1 to min(m, n) = {min(m, n)}, or for PCA "
                f"a part of the variance between 0 and 1, got {k!r}"
            )

    def by_krylov(self, n: int) -> bool:
        """Say whether several passes find the components of n features, not one triangle."""
        k = self.n_components
        given = k is not None and k >= 1
        if self.svd_solver == "krylov" and not given:
            raise InputError("svd_solver='krylov' needs n_components, a number of components")
        if self.svd_solver != "auto":
            return self.svd_solver == "krylov"
        return given and n > _MANY and 10 * (k or 0) <= n

    def count(self, ratios: NDArray[Any], least: int) -> int:
        """Return the number of components for these parts of the variance."""
        k = self.n_components
        if k is None:
            return least
        if k >= 1:
            return int(k)
        return min(least, int(np.searchsorted(np.cumsum(ratios), k, side="right")) + 1)


class Centred(NamedTuple):
    """A decomposition of centred samples: their mean, what they are divided by, s, V^H and ||A||.

    `scale` is None where they are only centred.
    """

    mean: NDArray[Any]
    scale: NDArray[Any] | None
    s: NDArray[Any]
    vh: NDArray[Any]
    norm: float


def standard_deviations(norms: NDArray[Any], m: int) -> NDArray[Any]:
    """Return the deviations of m samples from norms of centred columns; 1 for constant ones."""
    found: NDArray[Any] = norms / np.sqrt(m - 1)
    found[found == 0] = 1
    return found


class Components(NamedTuple):
    """Components of m samples; fields as the attributes of `hdgemm.decomposition.PCA`.

    `scale` has the standard deviations that features were divided by; ones without.
    """

    components: NDArray[Any]
    explained_variance: NDArray[Any]
    explained_variance_ratio: NDArray[Any]
    singular_values: NDArray[Any]
    mean: NDArray[Any]
    scale: NDArray[Any] | None
    noise_variance: float

    @classmethod
    def of(cls, found: Centred, request: Request, shape: tuple[int, int]) -> Self:
        """Return the components that a request keeps, from a decomposition of the samples."""
        m, least = shape[0], min(shape)
        s, dtype = found.s.astype(float), found.s.dtype
        ratios = (s / (found.norm or 1.0)) ** 2
        k = request.count(ratios, least)
        rest = found.norm * np.sqrt(max(0.0, 1.0 - float(ratios[:k].sum())))
        with np.errstate(over="ignore"):
            variances = (s[:k] ** 2 / (m - 1)).astype(dtype)
            noise = float(rest**2 / (m - 1))
        return cls(
            components=_with_signs(found.vh[:k]),
            explained_variance=variances,
            explained_variance_ratio=ratios[:k].astype(dtype),
            singular_values=found.s[:k].copy(),
            mean=found.mean.astype(dtype),
            scale=None if found.scale is None else found.scale.astype(dtype),
            noise_variance=noise / (least - k) if k < least else 0.0,
        )

    def kept(self, passes: Passes) -> Self:
        """Return these components, of a durable run the same ones when it goes on."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        arrays = passes.keep(lambda: [np.asarray(value) for value in given.values()])
        found = dict(zip(given, arrays, strict=True))
        noise = float(found.pop("noise_variance"))
        return self._replace(noise_variance=noise, **found)

    def projection(self, m: int, *, whiten: bool) -> NDArray[Any]:
        """Return W (n×k): the scores of m centred samples are their product with it."""
        w: NDArray[Any] = np.ascontiguousarray(self.components.T)
        return w / deviations(self.singular_values, m) if whiten else w


def deviations(s: NDArray[Any], m: int) -> NDArray[Any]:
    """Return the standard deviations that whitening divides scores by: none is 0."""
    roots = s / np.sqrt(m - 1).astype(s.dtype)
    least: NDArray[Any] = np.maximum(roots, np.finfo(roots.dtype).eps)
    return least


def _with_signs(vh: NDArray[Any]) -> NDArray[Any]:
    """Return components whose largest element is positive, as scikit-learn's."""
    largest = np.argmax(np.abs(vh), axis=1)
    signs = np.sign(vh[np.arange(len(vh)), largest])
    signs[signs == 0] = 1
    components: NDArray[Any] = vh * signs[:, np.newaxis]
    return components


class _Fit(Protocol):
    """A decomposition of centred samples that is planned: by one triangle, or by block Krylov."""

    @property
    def parts(self) -> tuple[RowPlan | DensePlan, ...]:
        """The plans of its passes and dense problems."""

    @property
    def reading(self) -> RowPlan:
        """The plan of its first pass."""

    @property
    def limits(self) -> RunLimits:
        """What decides the plans, for a journal."""

    def find(self, passes: Passes) -> tuple[Centred, dict[str, Any]]:
        """Return the decomposition, and facts for the report."""


@dataclass(frozen=True, slots=True)
class _CentredTriangle:
    """All singular values from the triangle of the centred X, in one pass."""

    rows: TallRows
    reading: RowPlan
    dense: DensePlan
    standardize: bool
    limits: RunLimits

    @classmethod
    def of(cls, source: StoredMatrix, run: OpenRun, *, standardize: bool) -> Self:
        """Plan the pass and the decomposition."""
        rows = TallRows(source, source.dtype.newbyteorder("="))
        reading = rows_for(rows.shape, [centred_work(rows.shape)], folder_of(source), run)
        dense = plan_dense("SVD of R", rows.shape.n, rows.dtype, run, vectors=True)
        return cls(rows, reading, dense, standardize, RunLimits.of(run))

    @property
    def parts(self) -> tuple[RowPlan | DensePlan, ...]:
        """The plans of the pass and of the decomposition."""
        return self.reading, self.dense

    def find(self, passes: Passes) -> tuple[Centred, dict[str, Any]]:
        """Return the decomposition."""
        rows, (m, n) = self.rows, self.rows.a.shape
        triangle = CentredRFactor(estimated_mean(rows.a, rows.dtype))
        passes.reduce(rows, [triangle], self.reading)
        r, scale = triangle.r, None
        if self.standardize:
            # The columns of R have the norms of the centred columns.
            scale = standard_deviations(column_norms(r.astype(float)), m)
            r /= scale.astype(r.dtype)
        found, least = passes.dense(self.dense, lambda: TriangleSvd.of(r)), min(m, n)
        s = found.s[:least]
        norm = float(column_norms(s.astype(float)))
        return Centred(triangle.mean, scale, s, found.vh[:least], norm), {}


@dataclass(frozen=True, slots=True)
class _CentredTriplets:
    """The leading singular values of rows less their mean, planned.

    One pass finds the means; the iteration centres rows in memory, and divides columns by their
    standard deviations where that is asked for (`standardize`).
    """

    iteration: KrylovIteration
    reading: RowPlan
    final: ValuePlans
    standardize: bool

    @classmethod
    def of(cls, source: StoredMatrix, run: OpenRun, request: Request, block: int | None) -> Self:
        """Plan the means, the iteration with as many passes as are allowed, and the values."""
        folder, n, k = folder_of(source), source.shape[1], int(request.n_components)
        rows = TallRows(source, source.dtype.newbyteorder("="))
        shape, dtype = rows.shape, rows.dtype
        reading = rows_for(shape, [ColumnMoments(0, dtype).work(shape)], folder, run)
        shape = shape.transformed  # centred
        extents, application = plan_iteration(
            lambda width: NormalProduct(np.zeros((0, width), dtype)).work(shape),
            n, k, shape, folder, run,
            tol=request.tol, maxiter=None, block=block, seed=request.seed,
        )  # fmt: skip
        iteration = KrylovIteration(rows, extents, application, run)
        return cls(iteration, reading, ValuePlans.of(shape, k, folder, run), request.standardize)

    @property
    def parts(self) -> tuple[RowPlan | DensePlan, ...]:
        """The plan of each pass, as many as are allowed, and of the values."""
        return (self.reading, *self.iteration.parts, *self.final)

    @property
    def limits(self) -> RunLimits:
        """What decides the plans, for a journal."""
        return self.iteration.limits

    def find(self, passes: Passes) -> tuple[Centred, dict[str, Any]]:
        """Return the decomposition, and facts for the report."""
        rows, (m, n) = self.iteration.rows, self.iteration.rows.a.shape
        moments = ColumnMoments(n, rows.dtype)
        passes.reduce(rows, [moments], self.reading)
        scale = standard_deviations(moments.norms, m) if self.standardize else None
        centred = replace(
            rows,
            shift=moments.mean.astype(rows.dtype),
            scale=None if scale is None else scale.astype(rows.dtype),
            check_finite=False,
        )
        pairs, facts = replace(self.iteration, rows=centred).run(passes, NormalProduct, largest)
        v = np.ascontiguousarray(pairs.vectors)
        triangle = ProjectedTriangle(v)
        passes.reduce(centred, [triangle], self.final.reading)
        found = passes.dense(self.final.dense, lambda: TriangleSvd.of(triangle.r))
        norm = float(column_norms(moments.norms if scale is None else moments.norms / scale))
        return Centred(moments.mean, scale, found.s, found.vh @ v.T, norm), facts


@dataclass(frozen=True, slots=True)
class PlannedComponents:
    """Components of one matrix that are planned."""

    source: StoredMatrix
    request: Request
    fit: _Fit
    facts: dict[str, Any]

    @classmethod
    def of(
        cls, source: StoredMatrix, request: Request, run: OpenRun, block: int | None = None
    ) -> Self:
        """Check the request and plan it, with a block of Krylov's iteration of some columns."""
        request.check(source)
        (m, n), dtype = source.shape, source.dtype.newbyteorder("=")

        def plan(run: OpenRun) -> _Fit:
            if request.by_krylov(n):
                return _CentredTriplets.of(source, run, request, block)
            return _CentredTriangle.of(source, run, standardize=request.standardize)

        fit = plan_parts(f"pca of a {m}×{n} {dtype} matrix", plan, run)
        return cls(source, request, fit, facts_of("pca", source.shape, dtype.name, run.options))

    def passes(self, run: OpenRun, parts: Sequence[Part], durable: RowCheckpoint | None) -> Passes:
        """Return the passes over the rows of all parts, which a durable run records."""
        if durable is not None:
            durable.begin(self.fit.reading, self.fit.limits)
        return Passes(run, sum(part.flops for part in parts), durable)

    def find(self, passes: Passes) -> tuple[Components, dict[str, Any]]:
        """Return the components, and facts for the report."""
        found, facts = self.fit.find(passes)
        return Components.of(found, self.request, self.source.shape), self.facts | facts


@contextmanager
def prepare_fit(x: Any, call: Call, request: Request) -> Iterator[Prepared[Components]]:
    """Yield the components of samples, planned; nothing is stored."""
    place = place_of_journal(call.checkpoint)
    with open_matrix(x) as source, open_run(call) as opened:
        run, limits = resumed(call, place, opened)
        block = None if limits is None else limits.block
        planned = PlannedComponents.of(source, request, run, block)
        parts = planned.fit.parts
        k = request.n_components
        decisive = {
            "routine": "fit of pca",
            **asdict(request),
            "n_components": None if k is None else float(k),
        }

        def compute() -> Components:
            with durable_rows(call, place, {"A": source}, decisive) as durable:
                passes = planned.passes(run, parts, durable)
                with reads_unchanged({"A": source}):
                    found, facts = planned.find(passes)
                passes.finish(facts)
            return found

        yield Prepared(JointPlan(planned.facts, parts), compute, run.session)


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    k: int = 6,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
) -> Iterator[Prepared[tuple[Any, Any, Any, Components]]]:
    """Yield scores, components and mean of samples, planned with the pass that forms the scores.

    Raises
    ------
    InputError
        For a part of the variance, too: as many scores cannot be planned.
    """
    if isinstance(k, float | np.floating) and 0 < k < 1:
        raise InputError(
            f"pca plans its scores before it reads X: k must be a number of components, got {k}; "
            f"PCA({k}) of hdgemm.decomposition finds as many as have that part of the variance, "
            "and its transform the scores"
        )
    outs = tuple(map(absolute, outputs_of(out, ("scores", "components", "mean"))))
    request = Request(k, svd_solver, tol, seed, standardize)
    with open_matrix(a) as source, open_run(call) as opened:
        run, limits = resumed(call, place_of(outs), opened)
        block = None if limits is None else limits.block
        planned = PlannedComponents.of(source, request, run, block)
        k = request.count(np.zeros(0), min(source.shape))
        (m, n), dtype = source.shape, source.dtype.newbyteorder("=")
        results = (
            Result.of(outs[0], a, source, (m, k), dtype),
            Result.of(outs[1], a, source, (k, n), dtype),
            Result.of(outs[2], a, source, (n,), dtype),
        )
        rows = TallRows(source, dtype, check_finite=False)
        shape = rows.shape.transformed  # centred
        work = product_work(shape, (k,), results[0].output.matrix.dtype)
        forming = rows_for(shape, [work], folder_of(source), run)
        parts = (*planned.fit.parts, forming)

        decisive = {"routine": "pca", "whiten": whiten, **asdict(request), "n_components": k}

        def compute() -> tuple[Any, Any, Any, Components]:
            with ExitStack() as stack:
                durable = stack.enter_context(
                    durable_rows(call, place_of(outs), {"A": source}, decisive)
                )
                passes = planned.passes(run, parts, durable)
                targets = open_results(stack, results, source, rows=durable)
                scores, components, mean = (target.stored for target in targets)
                found, facts = planned.find(passes)
                found = found.kept(passes)
                w = found.projection(m, whiten=whiten).astype(dtype)
                centred = replace(rows, shift=found.mean, scale=found.scale)
                passes.reduce(centred, [StoredProduct((w,), scores)], forming)
                components[:, :], mean[:, :] = found.components, found.mean[:, np.newaxis]
                passes.finish(facts)
            return *(map(Result.value, results, targets)), found

        yield Prepared(JointPlan(planned.facts, parts), compute, run.session)
