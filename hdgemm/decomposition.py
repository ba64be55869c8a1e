"""Principal component analysis with scikit-learn's names, for matrices of any size."""

from __future__ import annotations

import importlib
import inspect
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, overload

import numpy as np

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, ReportKeywords, public_call
from hdgemm.call.operands import open_matrix
from hdgemm.call.plans import facts_of
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg.absent_names import missing as _missing
from hdgemm.linalg.components import Request, deviations, prepare, prepare_fit
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.results import Result
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.products import StoredProduct, product_work
from hdgemm.linalg.rows.source import TallRows
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Unpack

    from numpy.typing import NDArray
    from typing_extensions import TypeVar as DefaultTypeVar

    from hdgemm.blas.products import Written
    from hdgemm.call.keywords import Place, Stored, Where
    from hdgemm.call.plans import LinearPlan
    from hdgemm.call.prepared import Prepared
    from hdgemm.linalg.components import Components
    from hdgemm.linalg.results import Vector
    from hdgemm.options import Options

    #: The matrix of the scores, and the matrix of the components.
    Scores_co = DefaultTypeVar("Scores_co", default=Any, covariant=True)
    Components_co = DefaultTypeVar("Components_co", default=Any, covariant=True)
else:
    Scores_co = TypeVar("Scores_co", covariant=True)
    Components_co = TypeVar("Components_co", covariant=True)

__all__ = ["PCA", "PrincipalComponents", "pca"]

if not TYPE_CHECKING:  # a type checker would take every name for present

    def __getattr__(name: str) -> Never:
        """Say what to use instead of a name that this module does not have."""
        raise _missing(__name__, name)


@dataclass(frozen=True, slots=True)
class PrincipalComponents(Generic[Scores_co, Components_co]):
    """Scores and components of m samples of n features.

    Attributes
    ----------
    scores
        m×k: the centred samples in the directions of the components.
    components
        k×n, orthonormal rows, by decreasing variance; the largest element of each is positive.
    mean
        Of each feature.
    scale
        Standard deviation of each feature, by which it was divided; None without `standardize`.
    explained_variance, explained_variance_ratio, singular_values
        Of each component.
    noise_variance
        Mean variance of the components that are left out.

    See Also
    --------
    pca : Returns it.
    PCA : The same as attributes of an estimator.

    Examples
    --------
    >>> found = hdgemm.decomposition.pca("samples.npy", 5)
    >>> print(found.explained_variance_ratio.sum())
    """

    scores: Scores_co
    components: Components_co
    mean: NDArray[Any]
    scale: NDArray[Any] | None
    explained_variance: NDArray[Any]
    explained_variance_ratio: NDArray[Any]
    singular_values: NDArray[Any]
    noise_variance: float


@overload
def pca(
    x: Any,
    k: int = 6,
    *,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> PrincipalComponents[NDArray[Any], NDArray[Any]]: ...
@overload
def pca(
    x: Any,
    k: int = 6,
    *,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
    out: tuple[Place, None, Vector],
    **keywords: Unpack[DurableKeywords],
) -> PrincipalComponents[Stored, NDArray[Any]]: ...
@overload
def pca(
    x: Any,
    k: int = 6,
    *,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
    out: tuple[Place, Place, Vector],
    **keywords: Unpack[DurableKeywords],
) -> PrincipalComponents[Stored, Stored]: ...
@overload
def pca(
    x: Any,
    k: int = 6,
    *,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> PrincipalComponents: ...
@public_call(DurableKeywords)
def pca(
    x: Any,
    k: int = 6,
    *,
    whiten: bool = False,
    standardize: bool = False,
    svd_solver: str = "auto",
    tol: float = 0.0,
    seed: int = 0,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> PrincipalComponents:
    """Return the k leading principal components of m samples of n features, and their scores.

    The components are the same as with `PCA`; a last pass over the samples forms the scores.

    Parameters
    ----------
    x
        m×n, as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a file.
    k
        How many, from 1 to min(m, n).
    whiten
        Divide each score by the standard deviation of its component.
    standardize
        Divide each feature by its standard deviation (components of the correlation matrix); a
        constant feature is only centred. No copy of X is written.
    svd_solver, tol
        See `PCA`.
    seed
        Of ``"krylov"``.
    out
        A tuple (scores, components, mean). Each is an array, a stored matrix or view, or the
        location of a file, which appears when it is complete; None for a new array.
    checkpoint
        As in `hdgemm.linalg.svd`: no pass is repeated.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    PrincipalComponents
        Scores, components, mean, and the variances that the components explain.

    Raises
    ------
    InputError
        When X is not finite or not real, has fewer than two rows, or as many components cannot be
        found.
    DoesNotFitError
        When the triangle or the basis does not fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    PCA : The same, with scikit-learn's methods.
    hdgemm.linalg.svds : Leading singular values without centring.

    References
    ----------
    J. Demmel, L. Grigori, M. Hoemmen, J. Langou: Communication-optimal parallel and sequential
    QR and LU factorizations, 2012 (TSQR).

    Examples
    --------
    >>> found = hdgemm.decomposition.pca("samples.npy", 10, out=("scores.npy", None, None))
    """
    with prepare(
        x,
        out,
        Call.of(**keywords),
        k=k,
        whiten=whiten,
        standardize=standardize,
        svd_solver=svd_solver,
        tol=tol,
        seed=seed,
    ) as prepared:
        scores, components, mean, found = prepared.run()
    return PrincipalComponents(
        scores=scores,
        components=components,
        mean=mean,
        scale=found.scale,
        explained_variance=found.explained_variance,
        explained_variance_ratio=found.explained_variance_ratio,
        singular_values=found.singular_values,
        noise_variance=found.noise_variance,
    )


class PCA:
    """Principal components of m samples (rows) of n features, read once or in a few passes.

    Names, attributes and signs are scikit-learn's. ``"full"`` finds the mean and, by TSQR, the
    triangle of the centred samples in one pass: a mean of any size does no harm. ``"krylov"`` finds
    the leading components by block Krylov on the centred samples. Nothing is written but results.

    Parameters
    ----------
    n_components
        How many; None for min(m, n); a number between 0 and 1 for as many as explain this part of
        the variance, with ``"full"``.
    whiten
        `transform` divides each component by its standard deviation.
    standardize
        Divide each feature by its standard deviation, too (components of the correlation matrix); a
        constant feature is only centred.
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
    scale_ : array of n numbers
        Standard deviation of each feature, by which it was divided; None without `standardize`.
    noise_variance_ : float
        Mean variance of the components that are left out.
    n_components_, n_features_in_, n_samples_ : int

    See Also
    --------
    pca : Scores and components by one call.
    hdgemm.linalg.svds : Leading singular values without centring.

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
    scale_: NDArray[Any] | None
    noise_variance_: float
    n_components_: int
    n_features_in_: int
    n_samples_: int

    @refuses_unknown
    def __init__(
        self,
        n_components: float | None = None,
        *,
        whiten: bool = False,
        standardize: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        random_state: int | None = None,
        options: Options | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.standardize = standardize
        self.svd_solver = svd_solver
        self.tol = tol
        self.random_state = random_state
        self.options = options

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of estimators: only it calls this."""
        utils: Any = importlib.import_module("sklearn.utils")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=utils.TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=utils.InputTags(),
        )

    def __repr__(self) -> str:
        """Return the call that makes it, as scikit-learn's estimators do."""
        parameters = inspect.signature(type(self)).parameters.items()
        given = {name: getattr(self, name) for name, each in parameters
                 if getattr(self, name) is not each.default}  # fmt: skip
        return f"PCA({', '.join(f'{name}={value!r}' for name, value in given.items())})"

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

    @public_call(DurableKeywords)
    def fit(self, X: Any, y: None = None, **keywords: Unpack[DurableKeywords]) -> Self:  # noqa: ARG002, N803
        """Find the components of the samples.

        Parameters
        ----------
        X
            m×n, as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
            file.
        y
            Not used.
        checkpoint
            The path of a journal, with which an interrupted fit goes on when it is called again;
            the journal is removed at the end.
        **keywords
            Keywords of every call, from `options` to `restart`.

        Raises
        ------
        InputError
            When X is not finite or not real, has fewer than two rows, or as many components cannot
            be found.
        DoesNotFitError
            When the triangle or the basis does not fit the memory: `missing` in bytes.
        """
        with self._prepared(X, keywords) as prepared:
            facts = prepared.plan.summary()
            self._keep(prepared.run(), facts["m"], facts["n"])
        return self

    @overload
    def fit_transform(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        *,
        out: Written | None = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Written: ...
    @overload
    def fit_transform(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        *,
        out: Where,
        **keywords: Unpack[ReportKeywords],
    ) -> Stored: ...
    @public_call(ReportKeywords)
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

    @overload
    def transform(
        self,
        X: Any,  # noqa: N803
        *,
        out: Written | None = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Written: ...
    @overload
    def transform(self, X: Any, *, out: Where, **keywords: Unpack[ReportKeywords]) -> Stored: ...  # noqa: N803
    @public_call(ReportKeywords)
    def transform(self, X: Any, *, out: Any = None, **keywords: Unpack[ReportKeywords]) -> Any:  # noqa: N803 - scikit-learn's
        """Return the scores ``(X - mean_)·components_^T`` (m×k), in one pass.

        With `standardize`, centred features are divided by their standard deviations.

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
        return self._product(X, w, (self.mean_, self.scale_), out, keywords, "transform")

    @overload
    def inverse_transform(
        self,
        X: Any,  # noqa: N803
        *,
        out: Written | None = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Written: ...
    @overload
    def inverse_transform(
        self,
        X: Any,  # noqa: N803
        *,
        out: Where,
        **keywords: Unpack[ReportKeywords],
    ) -> Stored: ...
    @public_call(ReportKeywords)
    def inverse_transform(
        self,
        X: Any,  # noqa: N803 - scikit-learn's
        *,
        out: Any = None,
        **keywords: Unpack[ReportKeywords],
    ) -> Any:
        """Return samples (m×n) from their scores X (m×k): ``X·components_ + mean_``.

        With `standardize`, features are multiplied by their standard deviations.
        """
        self._check_fitted()
        rows = self.components_ * self._deviations()[:, np.newaxis]
        if self.scale_ is not None:
            rows *= self.scale_
        w = np.vstack([self.mean_, rows])
        return self._product(X, w, None, out, keywords, "inverse_transform")

    def _call(self, keywords: Any) -> Call:
        return Call.of(**({"options": self.options} | keywords))

    @public_call(ReportKeywords)
    def plan(self, X: Any, **keywords: Unpack[ReportKeywords]) -> LinearPlan:  # noqa: N803
        """Return the plan that `fit` would execute: passes, bytes, memory, expected seconds."""
        with self._prepared(X, keywords) as prepared:
            return prepared.plan

    def _prepared(self, x: Any, keywords: Any) -> AbstractContextManager[Prepared[Components]]:
        _check_dimensions(x)
        request = Request(
            self.n_components, self.svd_solver, self.tol, self.random_state or 0, self.standardize
        )
        return prepare_fit(x, self._call(keywords), request)

    def _keep(self, found: Components, m: int, n: int) -> None:
        """Set the attributes."""
        self.n_samples_, self.n_features_in_, self.n_components_ = m, n, len(found.components)
        self.mean_, self.scale_, self.components_ = found.mean, found.scale, found.components
        self.singular_values_ = found.singular_values
        self.explained_variance_ = found.explained_variance
        self.explained_variance_ratio_ = found.explained_variance_ratio
        self.noise_variance_ = found.noise_variance

    def _check_fitted(self) -> None:
        if not hasattr(self, "components_"):
            raise InputError("this PCA has no components yet: call fit first")

    def _deviations(self) -> NDArray[Any]:
        """Return what whitening divides scores by; ones without it."""
        if not self.whiten:
            return np.ones_like(self.singular_values_)
        return deviations(self.singular_values_, self.n_samples_)

    def _product(
        self,
        x: Any,
        w: NDArray[Any],
        change: tuple[NDArray[Any], NDArray[Any] | None] | None,
        out: Any,
        keywords: Any,
        kind: str,
    ) -> Any:
        """Return ``((X - shift) / scale)·W``, or [1 | X]·W without this change, in one pass."""
        _check_dimensions(x)
        shift, scale = change or (None, None)
        with open_matrix(x) as source, open_run(self._call(keywords)) as run:
            dtype = np.result_type(source.dtype, w.dtype)
            rows = TallRows(source, dtype, ones=shift is None, shift=shift, scale=scale)
            if rows.shape.n != len(w):
                have, want = source.shape[1], len(w) - (shift is None)
                what = "components" if shift is None else "features"
                raise InputError(
                    f"X has {have} {what}, but PCA is expecting {want} {what} as input"
                )
            result = Result.of(out, x, source, (len(source), w.shape[1]), dtype)
            work = product_work(rows.shape, (w.shape[1],), result.output.matrix.dtype)
            plan = rows_for(rows.shape, [work], folder_of(source), run)
            run.session.warn_of_memory(plan.host_bytes)
            passes = Passes(run, plan.flops)
            with ExitStack() as stack:
                target = result.opened(stack)
                stack.enter_context(input_unchanged(source, target.stored))
                product = StoredProduct((np.ascontiguousarray(w, dtype),), target.stored)
                passes.reduce(replace(rows, dtype=np.dtype(dtype)), [product], plan)
                passes.finish(facts_of(kind, source.shape, dtype.name, run.options))
            return result.value(target)


def _check_dimensions(x: Any) -> None:
    """Raise `InputError` for a vector, which may be one sample or one feature."""
    if getattr(x, "ndim", 2) == 1:
        raise InputError(
            f"X has shape {x.shape}. Reshape your data: X[:, None] is one feature, X[None, :] one "
            "sample"
        )
