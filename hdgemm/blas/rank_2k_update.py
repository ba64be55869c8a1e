"""Rank-2k updates of a symmetric or Hermitian C: `syr2k`, `her2k`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from hdgemm.blas.rank_update import updated
from hdgemm.call.keywords import Call, ReportKeywords, public_call

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.blas.products import Written
    from hdgemm.call.keywords import Element, Stored, Where


@overload
def syr2k(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def syr2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Written | tuple[Written] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Written: ...
@overload
def syr2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def syr2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Compute one triangle of C := alpha·A·B^T + alpha·B·A^T + beta·C, as SciPy's `dsyr2k`.

    ``trans=1`` computes alpha·A^T·B + alpha·B^T·A. `b` has the shape of `a`; all other arguments,
    results and errors are as in `syrk`.

    Parameters
    ----------
    alpha, beta
        Numbers, as in `syrk`.
    a, b
        Matrices of one shape, n×k, as in `hdgemm.matmul`.
    c, lower, overwrite_c, out
        As in `syrk`.
    trans
        0: the sum above; 1: alpha·A^T·B + alpha·B^T·A, with A and B k×n.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `syrk`.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        When not even single elements fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    her2k : The Hermitian update.
    syrk : The update of rank k.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.syr2k(1.0, "A.npy", "B.npy", lower=1, out="C.npy")
    """
    return updated(
        "syr2k", (alpha, a, b), (beta, c, overwrite_c), trans, lower, out, Call.of(**keywords)
    )


@overload
def her2k(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def her2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Written | tuple[Written] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Written: ...
@overload
def her2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def her2k(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Compute one triangle of C := alpha·A·B^H + conj(alpha)·B·A^H + beta·C, as SciPy's `zher2k`.

    beta is real. ``trans=2`` computes alpha·A^H·B + conj(alpha)·B^H·A. `b` has the shape of `a`;
    all other arguments, results and errors are as in `syrk`.

    Parameters
    ----------
    alpha, beta
        alpha is any number, beta is real.
    a, b
        n×k, as in `syr2k`.
    c, lower, overwrite_c, out
        As in `syrk`.
    trans
        0: the sum above; 2: alpha·A^H·B + conj(alpha)·B^H·A, with A and B k×n.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `syrk`.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        When not even single elements fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    syr2k : The symmetric update.
    herk : The update of rank k.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.her2k(1.0, "A.npy", "B.npy", lower=1, out="C.npy")
    """
    return updated(
        "her2k", (alpha, a, b), (beta, c, overwrite_c), trans, lower, out, Call.of(**keywords)
    )
