"""Leading singular values and eigenpairs of large matrices by block Krylov: `svds`, `eigsh`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

import numpy as np

from hdgemm.call.input_checks import check_reread
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg._krylov_iteration import CHOICES, KrylovIteration, ValuePlans, largest
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.krylov import plan_iteration
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.planning.rows import RowShape, triangle_work, vectors_bytes
from hdgemm.linalg.results import Result, open_results, outputs_of
from hdgemm.linalg.rows.checkpoint import durable_rows, place_of, resumed
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import (
    GatheredProduct,
    NormalProduct,
    StoredProduct,
    product_work,
)
from hdgemm.linalg.rows.source import TallRows, tall_view
from hdgemm.linalg.rows.tall_svd import TallSvd
from hdgemm.linalg.rows.triangle_svd import TriangleSvd, triangle_values
from hdgemm.linalg.rows.tsqr import ProjectedTriangle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Place, Source, Stored
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.results import Vector
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.matrices.stored import StoredMatrix


@overload
def svds(
    a: Source,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    return_singular_vectors: Literal[True] = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...
@overload
def svds(
    a: Source,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    return_singular_vectors: Literal[True] = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: tuple[Place, Vector, None],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any], NDArray[Any]]: ...
@overload
def svds(
    a: Source,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    return_singular_vectors: Literal[True] = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: tuple[Place, Vector, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, NDArray[Any], Stored]: ...
@overload
def svds(
    a: Source,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    *,
    return_singular_vectors: Literal[False],
    block: int | None = None,
    seed: int = 0,
    out: Vector = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def svds(
    a: Any,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    return_singular_vectors: bool = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def svds(
    a: Any,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    return_singular_vectors: bool = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the k largest singular values of an m×n matrix, with their vectors.

    A block Krylov iteration applies A^H·A to n×b blocks, with one read of A for each of them, and
    keeps the whole basis. A last read gives U.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file. The basis, of order min(m, n), must fit the memory.
    k
        How many, from 1 to min(m, n).
    tol
        A pair has converged when ``||A^H·A·v - s²·v||`` is at most `tol`·s[0]²; 0 for working
        precision.
    which
        ``"LM"``, the largest ones.
    maxiter
        Reads of A at most; None for 20.
    return_singular_vectors
        Return U and Vh, too.
    block
        Columns b of a block. None: as many as are multiplied while the rows are read.
    seed
        Of the first block. The same seed, block and memory give the same bits.
    out
        A tuple (U, s, Vh), or s without vectors. Each is an array, a stored matrix or view, or the
        location of a file, which appears when it is complete; None for a new array.
    report
        Called with the report: ``report.plan`` has ``"passes"``, ``"block"``, ``"residual"``, the
        largest residual in units of s[0]², and ``"note"`` where small values took a further pass.
    checkpoint
        As in `svd`: no pass is repeated.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    U, s, Vh : arrays
        m×k, k in descending order, k×n; s alone without vectors.

    Warns
    -----
    LinAlgWarning
        When values have not converged after `maxiter` reads; when ``||A^H·u - s·v||`` exceeds
        `tol`·s[0] for values below 2·eps^(1/3)·s[0], which A^H·A cannot resolve.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When the basis does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    svd : All of them.
    eigsh : Eigenvalues of a Hermitian matrix.

    Notes
    -----
    Values and U come from TSQR of A·V. Where the least value is below 2·eps^(1/3)·s[0], A^H·A mixes
    its vector with others: a further read finds V by TSQR of A times the whole basis. Values then
    have errors of some eps·s[0], where the basis holds their vectors.

    References
    ----------
    C. Musco, C. Musco: Randomized block Krylov methods for stronger and faster approximate
    singular value decomposition, 2015.

    Examples
    --------
    >>> u, s, vh = hdgemm.linalg.svds("A.npy", 20, tol=1e-8)
    """
    with prepare_svds(
        a,
        out,
        Call.of(**keywords),
        k=k,
        tol=tol,
        which=which,
        maxiter=maxiter,
        block=block,
        seed=seed,
        vectors=return_singular_vectors,
    ) as prepared:
        return prepared.run()


@overload
def eigsh(
    a: Source,
    k: int = 6,
    which: str = "LM",
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: Literal[True] = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def eigsh(
    a: Source,
    k: int = 6,
    which: str = "LM",
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: Literal[True] = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: tuple[Vector, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], Stored]: ...
@overload
def eigsh(
    a: Source,
    k: int = 6,
    which: str = "LM",
    maxiter: int | None = None,
    tol: float = 0.0,
    *,
    return_eigenvectors: Literal[False],
    block: int | None = None,
    seed: int = 0,
    out: Vector = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def eigsh(
    a: Any,
    k: int = 6,
    which: str = "LM",
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: bool = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@public_call(DurableKeywords, callers_arrays=True)
def eigsh(
    a: Any,
    k: int = 6,
    which: str = "LM",
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: bool = True,
    *,
    block: int | None = None,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    r"""Return k eigenvalues of a symmetric or Hermitian matrix, with their vectors.

    A block Krylov iteration applies A to n×b blocks, with one read of A for each of them.

    Parameters
    ----------
    a
        A square matrix as in `hdgemm.matmul`, both triangles of which are read. That they agree is
        not checked.
    k
        How many, from 1 to n.
    which
        ``"LM"``, ``"LA"``, ``"SA"``: the largest by magnitude, the largest, the smallest ones;
        ``"BE"``: from both ends.
    maxiter
        Reads of A at most; None for 20.
    tol
        A pair has converged when ``||A·v - w·v||`` is at most `tol` times the largest abs(w); 0 for
        working precision.
    return_eigenvectors
        Return the vectors, too.
    block, seed
        See `svds`.
    out
        A tuple (w, V), or w without vectors, as in `svds`.
    report
        Called with the report: ``report.plan`` has ``"passes"``, ``"block"`` and ``"residual"``.
    checkpoint
        As in `svd`: no pass is repeated.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    w, V : arrays
        k values in ascending order, as SciPy's, and n×k; w alone without vectors.

    Warns
    -----
    LinAlgWarning
        When pairs have not converged after `maxiter` reads.

    Raises
    ------
    InputError
        When A is not square, or not finite.
    DoesNotFitError
        When the basis does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    svds : Singular values.
    scipy.sparse.linalg.eigsh : Its names.

    References
    ----------
    C. Musco, C. Musco: Randomized block Krylov methods for stronger and faster approximate
    singular value decomposition, 2015.

    Examples
    --------
    >>> w, v = hdgemm.linalg.eigsh("S.npy", 10, which="LA")
    """
    with prepare_eigsh(
        a,
        out,
        Call.of(**keywords),
        k=k,
        tol=tol,
        which=which,
        maxiter=maxiter,
        block=block,
        seed=seed,
        vectors=return_eigenvectors,
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare_svds(
    a: Any,
    out: Any,
    call: Call,
    *,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    block: int | None = None,
    seed: int = 0,
    vectors: bool = True,
) -> Iterator[Prepared[Any]]:
    """Yield the leading singular values, planned with as many passes as are allowed."""
    if which != "LM":
        raise InputError(f"which must be 'LM': svds finds the largest values, got {which!r}")
    outs = outputs_of(out, ("U", "s", "Vh")) if vectors else (None, out, None)
    outs = tuple(map(absolute, outs))
    with open_matrix(a) as source, open_run(call) as opened:
        run, limits = resumed(call, place_of(outs), opened)
        recorded = block if limits is None else limits.block
        view, wide = tall_view(source)
        rows = TallRows(view, source.dtype.newbyteorder("="), transposed=wide)
        (m, n), dtype, folder, shape = source.shape, rows.dtype, folder_of(source), rows.shape
        order = view.shape[1]
        extents, application = plan_iteration(
            lambda width: NormalProduct(np.zeros((0, width), dtype)).work(shape),
            order, k, shape, folder, run, tol=tol, maxiter=maxiter, block=recorded, seed=seed,
        )  # fmt: skip
        k = extents.k
        results = (
            Result.of(outs[0], a, source, (m, k), dtype, order="C"),
            Result.of(outs[1], a, source, (k,), np.zeros(0, dtype).real.dtype),
            Result.of(outs[2], a, source, (k, n), dtype, order="F" if wide else "C"),
        )
        large = results[2 if wide else 0].output.matrix.dtype
        check_reread(large, dtype)
        final: ValuePlans | _VectorPlans = (
            _VectorPlans.of(shape, k, large, folder, run)
            if vectors
            else ValuePlans.of(shape, k, folder, run)
        )
        facts = facts_of("svds", source.shape, dtype.name, run.options)
        iteration = KrylovIteration(rows, extents, application, run)
        plan = JointPlan(facts, (*iteration.parts, *final))
        decisive = extents.decisive("svds", block) | {"vectors": vectors}
        found = _LeadingTriplets(source, wide, iteration, results, final, call, facts, decisive)
        yield Prepared(plan, found.run, run.session)


class _VectorPlans(NamedTuple):
    """Plans of the vectors: A·V, which is stored, its TSQR, the decomposition, and U."""

    multiplying: RowPlan
    reading: RowPlan
    dense: DensePlan
    forming: RowPlan

    @classmethod
    def of(
        cls, shape: RowShape, k: int, stored: np.dtype[Any], folder: Path | None, run: OpenRun
    ) -> Self:
        """Plan them for a V of k columns, and a U that is stored in some dtype."""
        small = RowShape(shape.m, k, 0, shape.dtype)
        forming = product_work(small, (k,), stored, beside=vectors_bytes(small))
        return cls(
            rows_for(shape, [product_work(shape, (k,), stored)], folder, run),
            rows_for(small, [triangle_work(small)], folder, run),
            plan_dense("SVD of R", k, np.dtype(shape.dtype), run, vectors=True),
            rows_for(small, [forming], folder, run),
        )


@dataclass(frozen=True, slots=True)
class _LeadingTriplets:
    """Leading singular values that are planned."""

    source: StoredMatrix
    wide: bool
    iteration: KrylovIteration
    results: tuple[Result, Result, Result]
    final: ValuePlans | _VectorPlans
    call: Call
    facts: dict[str, Any]
    decisive: dict[str, Any]

    def run(self) -> Any:
        """Compute and store the results, and return them."""
        place, iteration = place_of([each.given for each in self.results]), self.iteration
        with durable_rows(self.call, place, {"A": self.source}, self.decisive) as durable:
            if durable is not None:
                durable.begin(iteration.application, iteration.limits)
            flops = sum(plan.flops for plan in (*iteration.parts, *self.final))
            return self._stored(Passes(iteration.how, flops, durable), durable)

    def _stored(self, passes: Passes, durable: RowCheckpoint | None) -> Any:
        values = isinstance(self.final, ValuePlans)
        results, rows = (self.results[1:2], None) if values else (self.results, durable)
        with ExitStack() as stack:
            large = 2 if self.wide else 0
            targets = open_results(stack, results, self.source, rows=rows, large=large)
            pairs, facts = self.iteration.run(passes, NormalProduct, largest)
            (v,) = passes.keep(lambda: (np.ascontiguousarray(pairs.vectors),))
            places = [target.stored for target in targets]
            if isinstance(self.final, ValuePlans):
                self._values(passes, v, self.final, places[0])
            else:
                self._triplets(passes, v, self.final, places)
            passes.finish(self.facts | facts)
        found = tuple(map(Result.value, results, targets))
        return found[0] if values else found

    def _values(
        self, passes: Passes, v: NDArray[Any], final: ValuePlans, target: StoredMatrix
    ) -> None:
        triangle = ProjectedTriangle(v)
        rows = replace(self.iteration.rows, check_finite=False)
        passes.reduce(rows, [triangle], final.reading)
        s = passes.dense(final.dense, lambda: triangle_values(triangle.r))
        target[:, :] = s[:, np.newaxis]

    def _triplets(
        self, passes: Passes, v: NDArray[Any], final: _VectorPlans, places: list[StoredMatrix]
    ) -> None:
        u, s, vh = places
        found = self._vectors(passes, v, final, vh.T if self.wide else u)
        small = found.vh @ v.conj().T
        (u.T if self.wide else vh)[:, :] = small
        s[:, :] = found.s[:, np.newaxis]

    def _vectors(
        self, passes: Passes, v: NDArray[Any], final: _VectorPlans, target: StoredMatrix
    ) -> TriangleSvd:
        """Store A·V, and from it its left vectors in `target`."""
        rows = replace(self.iteration.rows, check_finite=False)
        with passes.before(target) as product:
            passes.reduce(rows, [StoredProduct((v,), product)], final.multiplying)
            stored = TallRows(product, rows.dtype, check_finite=False, intermediate=True)
            how = self.iteration.how
            plans = final.reading, final.dense, final.forming
            tall = TallSvd(stored, plans, "gesdd", folder_of(self.source), how)
            return tall.run(passes, target)[0]


@contextmanager
def prepare_eigsh(
    a: Any,
    out: Any,
    call: Call,
    *,
    k: int = 6,
    tol: float = 0.0,
    which: str = "LM",
    maxiter: int | None = None,
    block: int | None = None,
    seed: int = 0,
    vectors: bool = True,
) -> Iterator[Prepared[Any]]:
    """Yield eigenpairs, planned with as many passes as are allowed."""
    if which not in CHOICES:
        raise InputError(f"which must be one of {', '.join(CHOICES)}, got {which!r}")
    outs = tuple(map(absolute, outputs_of(out, ("w", "V")) if vectors else (out, None)))
    with open_matrix(a) as source, open_run(call) as opened:
        run, limits = resumed(call, place_of(outs), opened)
        recorded = block if limits is None else limits.block
        m, n = source.shape
        if m != n:
            raise InputError(f"A is {m}×{n}: eigsh takes square matrices", shape=source.shape)
        # The transpose of a Hermitian matrix is its conjugate: contiguous lines are read.
        turned = source.order == "F"
        view = source.T if turned else source
        rows = TallRows(view, source.dtype.newbyteorder("="), transposed=turned)
        dtype, folder, shape = rows.dtype, folder_of(source), rows.shape
        extents, application = plan_iteration(
            lambda width: GatheredProduct(np.zeros((0, width), dtype), 0).work(shape),
            n, k, shape, folder, run, tol=tol, maxiter=maxiter, block=recorded, seed=seed,
        )  # fmt: skip
        results = (
            Result.of(outs[0], a, source, (extents.k,), np.zeros(0, dtype).real.dtype),
            Result.of(outs[1], a, source, (n, extents.k), dtype, order="F"),
        )
        facts = facts_of("eigsh", source.shape, dtype.name, run.options)
        iteration = KrylovIteration(rows, extents, application, run)

        decisive = extents.decisive("eigsh", block) | {"vectors": vectors, "which": which}

        def compute() -> Any:
            with durable_rows(call, place_of(outs), {"A": source}, decisive) as durable:
                if durable is not None:
                    durable.begin(application, iteration.limits)
                return store(Passes(run, application.flops * extents.passes, durable))

        def store(passes: Passes) -> Any:
            wanted = results if vectors else results[:1]
            with ExitStack() as stack:
                targets = open_results(stack, wanted, source)
                pairs, found = iteration.run(
                    passes, lambda q: GatheredProduct(q, n), CHOICES[which]
                )
                order = np.argsort(pairs.values)
                v = pairs.vectors[:, order]
                values = (pairs.values[order][:, np.newaxis], v.conj() if turned else v)
                for target, value in zip(targets, values, strict=False):
                    target.stored[:, :] = value
                passes.finish(facts | found)
            returned = [x.value(target) for x, target in zip(wanted, targets, strict=True)]
            return tuple(returned) if vectors else returned[0]

        yield Prepared(JointPlan(facts, iteration.parts), compute, run.session)
