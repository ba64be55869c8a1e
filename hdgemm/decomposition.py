"""Principal component analysis with scikit-learn's names, for matrices of any size."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.call.input_checks import input_unchanged, reads_unchanged
from hdgemm.call.keywords import Call, ReportKeywords
from hdgemm.call.operands import open_matrix
from hdgemm.call.plans import facts_of
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg.krylov import centred_components
from hdgemm.linalg.planning.dense import plan_dense
from hdgemm.linalg.planning.rows import rows_for, triangle_work
from hdgemm.linalg.results import Result
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import StoredProduct, product_work
from hdgemm.linalg.rows.source import TallRows, estimated_mean
from hdgemm.linalg.rows.triangle_svd import TriangleSvd
from hdgemm.linalg.rows.tsqr import Triangle

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.run import OpenRun
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options

_SOLVERS: Final = ("auto", "full", "krylov")
#: Columns from which ``"auto"`` prefers several passes to a triangle of all columns.
_MANY: Final = 5000


class _Centred(NamedTuple):
    """The centred matrix: its mean, all or the leading singular values, V^H, and ||A||²."""

    mean: NDArray[Any]
    s: NDArray[Any]
    vh: NDArray[Any]
    total: float


class PCA:
    """Principal components of m samples (rows) of n features, read once or in a few passes.

    Names, attributes and signs are scikit-learn's. ``"full"`` reduces [1 | X] to a triangle by TSQR
    in one pass: its first row has the mean, the rest is the triangle of the centred samples, so
    that a mean of any size does no harm. ``"krylov"`` finds the leading components by block Krylov
    on the centred samples. Nothing is written but results.

    Parameters
    ----------
    n_components
        How many; None for min(m, n); a number between 0 and 1 for as many as explain this part of
        the variance, with ``"full"``.
    whiten
        `transform` divides each component by its standard deviation.
    svd_solver
        ``"full"``, whose triangle of n + 1 columns must fit the memory for each core;
        ``"krylov"``; ``"auto"`` takes ``"krylov"`` for more than 5000 features and at most a tenth
        as many components.
    tol
        Of ``"krylov"``, see `hdgemm.linalg.svds`.
    random_state
        Seed of ``"krylov"``; None for 0.
    options
        Memory, threads; see `hdgemm.Options`.

    Attributes
    ----------
    components_ : array of shape (n_components_, n_features_in_)
        Orthonormal rows, by decreasing variance.
    explained_variance_, explained_variance_ratio_, singular_values_ : arrays
        Of each component.
    mean_ : array of n numbers
    noise_variance_ : float
        Mean variance of the components that are left out.
    n_components_, n_features_in_, n_samples_ : int

    Examples
    --------
    >>> pca = hdgemm.decomposition.PCA(10).fit("samples.npy")
    >>> scores = pca.transform("samples.npy", out="scores.npy")

    Notes
    -----
    M. Tipping, C. Bishop: Probabilistic principal component analysis, 1999 (`noise_variance_`).
    """

    components_: NDArray[Any]
    explained_variance_: NDArray[Any]
    explained_variance_ratio_: NDArray[Any]
    singular_values_: NDArray[Any]
    mean_: NDArray[Any]
    noise_variance_: float
    n_components_: int
    n_features_in_: int
    n_samples_: int

    def __init__(
        self,
        n_components: float | None = None,
        *,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        random_state: int | None = None,
        options: Options | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.tol = tol
        self.random_state = random_state
        self.options = options

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 - scikit-learn's
        """Return the parameters by name."""
        names = list(inspect.signature(type(self)).parameters)
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"PCA has no parameter {name!r}: it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: None = None, **keywords: Unpack[ReportKeywords]) -> Self:  # noqa: ARG002, N803
        """Find the components of the samples.

        Parameters
        ----------
        X
            m×n, as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
            file.
        y
            Not used.
        **keywords
            Keywords of every call, from `options` to `report`.

        Raises
        ------
        InputError
            When X is not finite or not real, has fewer than two rows, or as many components cannot
            be found.
        DoesNotFitError
            When the triangle or the basis does not fit the memory: `missing` in bytes.
        """
        call = self._call(keywords)
        with open_matrix(X) as source, open_run(call) as run:
            self._check(source)
            m, n = source.shape
            find = self._krylov if self._chooses_krylov(n) else self._full
            found = find(source, run)
            self._keep(found, m, n)
        return self

    def fit_transform(
        self,
        X: Any,  # noqa: N803 - scikit-learn's
        y: None = None,
        *,
        out: Any = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Any:
        """Find the components, and return the scores of the same samples; see `transform`."""
        return self.fit(X, y, **keywords).transform(X, out=out, **keywords)

    def transform(self, X: Any, *, out: Any = None, **keywords: Unpack[ReportKeywords]) -> Any:  # noqa: N803 - scikit-learn's
        """Return the scores ``(X - mean_)·components_^T`` (m×k), in one pass.

        Parameters
        ----------
        X
            m×n, as in `fit`.
        out
            An array, a stored matrix, the location of a file; None for a new array.
        **keywords
            Keywords of every call, from `options` to `report`.
        """
        self._check_fitted()
        w = self.components_.T / self._deviations()
        return self._product(X, w, self.mean_, out, keywords, "transform")

    def inverse_transform(
        self,
        X: Any,  # noqa: N803 - scikit-learn's
        *,
        out: Any = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Any:
        """Return samples (m×n) from their scores X (m×k): ``X·components_ + mean_``."""
        self._check_fitted()
        rows = self.components_ * self._deviations()[:, np.newaxis]
        w = np.vstack([self.mean_, rows])
        return self._product(X, w, None, out, keywords, "inverse_transform")

    def _call(self, keywords: Any) -> Call:
        return Call.of(**({"options": self.options} | keywords))

    def _check(self, source: StoredMatrix) -> None:
        m, n = source.shape
        if source.dtype.kind != "f":
            raise InputError(f"PCA takes real samples, X is {source.dtype}")
        if m < 2 or not n:
            raise InputError(f"X is {m}×{n}: PCA needs two samples and a feature at least")
        if self.svd_solver not in _SOLVERS:
            raise InputError(f"svd_solver must be one of {_SOLVERS}, got {self.svd_solver!r}")
        k: Any = self.n_components
        if k is None:
            return
        if isinstance(k, bool) or not isinstance(k, int | float | np.number):
            raise InputError(f"n_components must be a number or None, got {k!r}")
        if not (0 < k < 1 or (k == int(k) and 1 <= k <= min(m, n))):
            raise InputError(
                f"n_components must be between 0 and 1, or from 1 to min(m, n) = {min(m, n)}, "
                f"got {k!r}"
            )

    def _chooses_krylov(self, n: int) -> bool:
        k = self.n_components
        given = k is not None and k >= 1
        if self.svd_solver == "krylov" and not given:
            raise InputError("svd_solver='krylov' needs n_components, a number of components")
        if self.svd_solver != "auto":
            return self.svd_solver == "krylov"
        return given and n > _MANY and 10 * (k or 0) <= n

    def _full(self, source: StoredMatrix, run: OpenRun) -> _Centred:
        """Return mean and all singular values from the triangle of [1 | X - shift]."""
        dtype = source.dtype.newbyteorder("=")
        shift = estimated_mean(source, dtype)
        rows = TallRows(source, dtype, ones=True, shift=shift)
        reading = rows_for(rows.shape, [triangle_work(rows.shape)], folder_of(source), run)
        dense = plan_dense("SVD of R", rows.shape.n, dtype, run, vectors=True)
        passes = Passes(run.watch, reading.flops + dense.flops)
        triangle = Triangle.zeros(rows.shape.n, 0, dtype)
        with reads_unchanged(source):
            passes.reduce(rows, [triangle], reading)
        mean = shift + triangle.r[0, 1:] / triangle.r[0, 0]
        found = passes.dense(dense, lambda: TriangleSvd.of(np.asfortranarray(triangle.r[1:, 1:])))
        passes.finish(facts_of("pca", source.shape, dtype.name, run.options))
        least = min(source.shape)
        s = found.s[:least]
        return _Centred(mean, s, found.vh[:least], float(np.sum(s.astype(float) ** 2)))

    def _krylov(self, source: StoredMatrix, run: OpenRun) -> _Centred:
        """Return mean and leading singular values by block Krylov."""
        return _Centred(
            *centred_components(
                source, run, int(self.n_components or 1), self.tol, self.random_state or 0
            )
        )

    def _keep(self, found: _Centred, m: int, n: int) -> None:
        """Set the attributes."""
        variances = found.s.astype(float) ** 2 / (m - 1)
        total, least = found.total / (m - 1), min(m, n)
        ratios = variances / total if total else np.zeros(len(variances))
        k = self._count(ratios, least)
        rest = max(0.0, total - float(variances[:k].sum()))
        dtype = found.s.dtype
        self.n_samples_, self.n_features_in_, self.n_components_ = m, n, k
        self.mean_ = found.mean.astype(dtype)
        self.components_ = _with_signs(found.vh[:k])
        self.singular_values_ = found.s[:k].copy()
        self.explained_variance_ = variances[:k].astype(dtype)
        self.explained_variance_ratio_ = ratios[:k].astype(dtype)
        self.noise_variance_ = rest / (least - k) if k < least else 0.0

    def _count(self, ratios: NDArray[Any], least: int) -> int:
        k = self.n_components
        if k is None:
            return least
        if k >= 1:
            return int(k)
        return min(least, int(np.searchsorted(np.cumsum(ratios), k, side="right")) + 1)

    def _check_fitted(self) -> None:
        if not hasattr(self, "components_"):
            raise InputError("this PCA has no components yet: call fit first")

    def _deviations(self) -> NDArray[Any]:
        """Return what whitening divides scores by; ones without it."""
        if not self.whiten:
            return np.ones_like(self.explained_variance_)
        deviations = np.sqrt(self.explained_variance_)
        least: NDArray[Any] = np.maximum(deviations, np.finfo(deviations.dtype).eps)
        return least

    def _product(
        self,
        x: Any,
        w: NDArray[Any],
        shift: NDArray[Any] | None,
        out: Any,
        keywords: Any,
        kind: str,
    ) -> Any:
        """Return ``(X - shift)·W``, or [1 | X]·W without a shift, in one pass."""
        with open_matrix(x) as source, open_run(self._call(keywords)) as run:
            dtype = np.result_type(source.dtype, w.dtype)
            rows = TallRows(source, dtype, ones=shift is None, shift=shift)
            if rows.shape.n != len(w):
                have, want = source.shape[1], len(w) - (shift is None)
                raise InputError(f"X has {have} columns, this PCA takes {want} for {kind}")
            result = Result.of(out, x, source, (len(source), w.shape[1]), dtype)
            work = product_work(rows.shape, (w.shape[1],), result.output.matrix.dtype)
            plan = rows_for(rows.shape, [work], folder_of(source), run)
            passes = Passes(run.watch, plan.flops)
            with ExitStack() as stack:
                target = result.opened(stack)
                stack.enter_context(input_unchanged(source, target.stored))
                product = StoredProduct((np.ascontiguousarray(w, dtype),), target.stored)
                passes.reduce(replace(rows, dtype=np.dtype(dtype)), [product], plan)
                passes.finish(facts_of(kind, source.shape, dtype.name, run.options))
            return result.value(target)


def _with_signs(vh: NDArray[Any]) -> NDArray[Any]:
    """Return components whose largest element is positive, as scikit-learn's."""
    largest = np.argmax(np.abs(vh), axis=1)
    signs = np.sign(vh[np.arange(len(vh)), largest])
    signs[signs == 0] = 1
    components: NDArray[Any] = vh * signs[:, np.newaxis]
    return components
