"""Products with a symmetric or Hermitian matrix of which one triangle is stored: `symm`, `hemm`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from hdgemm.blas.products import result_place
from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import check_square
from hdgemm.matrices.triangles import symmetric
from hdgemm.product.arguments import flag
from hdgemm.product.product import Product

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.blas.products import Given
    from hdgemm.call.keywords import Element, Stored, Where


@overload
def symm(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def symm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Given | tuple[Given] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Given: ...
@overload
def symm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def symm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Return C := alpha·A·B + beta·C with a symmetric A, argument for argument as SciPy's `dsymm`.

    One triangle of A is read; the other one may hold anything. Results and errors are as in
    `hdgemm.matmul`.

    Parameters
    ----------
    alpha, beta, b, c, overwrite_c, out
        As in `hdgemm.dgemm`.
    a
        A square matrix as in `hdgemm.matmul`.
    side
        0: A·B; 1: B·A.
    lower
        The lower triangle of A is read; by default the upper one.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `hdgemm.matmul`.

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
    hemm : A Hermitian A.
    trmm : A triangular A.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.symm(1.0, "S.npy", "B.npy", lower=1, out="C.npy")
    """
    call = Call.of(**keywords)
    out = result_place(out, c, a, b, overwrite_c=overwrite_c)
    product = _product((alpha, a, b), (beta, c), side, lower, out, hermitian=False)
    return _computed(product, call)


@overload
def hemm(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def hemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Given | tuple[Given] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Given: ...
@overload
def hemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def hemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    side: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Return C := alpha·A·B + beta·C with a Hermitian A, argument for argument as SciPy's `zhemm`.

    Imaginary parts on the diagonal of A are taken as zero. Arguments, results and errors are those
    of `symm`, which this is for real matrices.

    Parameters
    ----------
    alpha, beta, b, c, side, lower, overwrite_c, out
        As in `symm`.
    a
        A square matrix as in `hdgemm.matmul`; imaginary parts on its diagonal are taken as zero.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `symm`.

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
    symm : A symmetric A.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.hemm(1.0, "S.npy", "B.npy", lower=1, out="C.npy")
    """
    call = Call.of(**keywords)
    out = result_place(out, c, a, b, overwrite_c=overwrite_c)
    product = _product((alpha, a, b), (beta, c), side, lower, out, hermitian=True)
    return _computed(product, call)


def _computed(product: Product, call: Call) -> Any:
    found = compute(product, call)
    if call.callbacks.report is not None:
        call.callbacks.report(found)
    return product.result()


def _product(
    factors: tuple[Any, Any, Any],
    old: tuple[Any, Any],
    side: int,
    lower: int,
    out: Any,
    *,
    hermitian: bool,
) -> Product:
    """Return the product with alpha, A and B, and beta and C, for the whole of A."""
    (alpha, a, b), (beta, c) = factors, old
    right_side, lower = flag(side, "side"), flag(lower, "lower")
    left, right = (b, a) if right_side else (a, b)
    product = Product.of(left, right, alpha=alpha, beta=beta, c=c, out=out)
    operand = product.b if right_side else product.a
    check_square(operand.shape)
    whole = symmetric(operand, lower=lower, hermitian=hermitian)
    return replace(product, b=whole) if right_side else replace(product, a=whole)
