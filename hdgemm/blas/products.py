"""The public products: matmul, dgemm, multiply."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, ProductKeywords, public_call
from hdgemm.errors import InputError
from hdgemm.options import has_set_defaults
from hdgemm.product.arguments import check_beta
from hdgemm.product.product import Product
from hdgemm.product.stacks import matmul_plain, matmul_stacked
from hdgemm.product.target import is_location, single
from hdgemm.run.members import WORTH_AN_ACCELERATOR, best_device

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray
    from typing_extensions import TypeVar

    from hdgemm.call.keywords import Element, Stored, Where, Writable
    from hdgemm.matrices.tile_function import TileFunction
    from hdgemm.report import Report

    #: A matrix that C is written into; a new array without one.
    Written = TypeVar("Written", bound=Writable, default=NDArray[Any])
    #: The same, or a function that takes the tiles of C.
    Given = TypeVar("Given", bound=Writable | TileFunction, default=NDArray[Any])

#: Multiplications below which a product takes less time than a look at the environment.
_WORTH_A_LOOK: Final = 10**6
_PLAIN: Final = Call()


@overload
def matmul(
    a: NDArray[Element],
    b: NDArray[Element],
    out: None = None,
    *,
    dtype: None = None,
    **keywords: Unpack[ProductKeywords],
) -> NDArray[Element]: ...
@overload
def matmul(
    a: Any,
    b: Any,
    out: Given | tuple[Given] | None = None,
    *,
    dtype: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Given: ...
@overload
def matmul(
    a: Any,
    b: Any,
    out: Where | tuple[Where],
    *,
    dtype: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Stored: ...
@public_call(ProductKeywords)
def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    dtype: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Any:
    """Return A·B by `numpy.matmul`'s rules, for matrices of any size.

    Parameters
    ----------
    a, b
        Arrays of float32, float64, complex64 or complex128 with any strides, memmaps, stored
        matrices and views (`hdgemm.open`), or locations of files; 1-D and stacked arrays follow
        NumPy's rules. Elements of float16, bfloat16, integers and bool are converted when they
        are loaded.
    dtype
        Type of a new C and of the arithmetic: one of BLAS's four, or int64. None: NumPy's
        promotion, float32 for float16 and bfloat16, exact int64 for integers.
    out
        An array, a memmap, a stored matrix or view, a tuple of one of these, or the location of a
        file, which appears when it is complete.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        `out` where it is an array or a matrix; for a location, the opened result: a read-only
        memmap of a .npy file, a stored matrix of any other format; a number for two vectors.

    Raises
    ------
    InputError
        Shapes, dtypes or files that cannot be multiplied; before anything is written.
    DoesNotFitError
        No plan fits the limits.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    dgemm : With alpha, beta, C and transposes, as SciPy's.
    multiply : The same; returns the report.
    plan : Tiles, bytes, memory and seconds before the run.

    References
    ----------
    HDGEMM: a Hybrid DGEMM library on a Heterogeneous Architecture with CPU and GPU (tiles,
    their order, the pipeline).

    Examples
    --------
    >>> c = hdgemm.matmul("A.npy", "B.npy", out="C.npy", options=hdgemm.Options(host_memory="1GB"))
    """
    call = Call.of(**keywords)
    out = single(out)
    if dtype is None and call == _PLAIN and not _wants_pipeline(a, b):
        plain = matmul_plain(a, b, out)
        if plain is not None:
            return plain

    multiply_two = partial(_multiplied, call=call, dtype=dtype)
    if is_location(a) and is_location(b):
        return multiply_two(a, b, out)
    return matmul_stacked(a, b, out, multiply_two, dtype)


def _multiplied(a: Any, b: Any, out: Any, *, call: Call, dtype: Any) -> Any:
    """Return the product of two matrices."""
    product = Product.of(a, b, out=out, dtype=dtype, whole=True)
    compute(product, call)
    return product.result()


@overload
def dgemm(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    trans_a: int = False,
    trans_b: int = False,
    overwrite_c: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ProductKeywords],
) -> NDArray[Element]: ...
@overload
def dgemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    overwrite_c: int = False,
    *,
    out: Given | tuple[Given] | None = None,
    **keywords: Unpack[ProductKeywords],
) -> Given: ...
@overload
def dgemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    overwrite_c: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ProductKeywords],
) -> Stored: ...
@public_call(ProductKeywords)
def dgemm(
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    overwrite_c: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Any:
    """Return C := alpha·op(A)·op(B) + beta·C, argument for argument as SciPy's `dgemm`.

    Parameters
    ----------
    alpha, beta
        Numbers. beta = 0 never reads C; alpha = 0 never reads A or B.
    a, b, c
        op(A) is m×k, op(B) k×n and C m×n, as in `matmul`. All four BLAS dtypes work; mixed ones
        are promoted as NumPy does. Without C, beta multiplies zeros.
    trans_a, trans_b
        0: not transposed; 1: transposed; 2: conjugate transposed.
    overwrite_c
        C's memory may be used for the result.
    out
        Where the result goes: an array, a memmap, a stored matrix, a location, or `c` itself.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        As `matmul`.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        No plan fits the limits.

    See Also
    --------
    matmul : A·B by `numpy.matmul`'s rules.
    multiply : The same product; returns the report.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.dgemm(2.0, "A.npy", "B.npy", trans_b=1, out="C.npy")
    """
    call = Call.of(**keywords)
    out = result_place(out, c, a, b, overwrite_c=overwrite_c)
    product = Product.of(
        a, b, alpha=alpha, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b, out=out
    )
    compute(product, call)
    return product.result()


@public_call(ProductKeywords)
def multiply(
    a: Any,
    b: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    out: Any = None,
    dtype: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Report:
    """Do what `dgemm` does, and return the run's `Report` instead of C.

    A product A·B of integers is exact int64, as `matmul`'s; `dtype` is as there.

    Parameters
    ----------
    a, b, alpha, beta, c, trans_a, trans_b, out
        As in `dgemm`; `out` is required.
    dtype
        As in `matmul`.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    Report
        Seconds, speed, bytes of each stage, memory, plan and events of the run.

    Raises
    ------
    InputError
        Arguments that do not fit together, a beta without C among them.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    dgemm : Returns C.
    plan : The plan of this run.

    References
    ----------
    HDGEMM: a Hybrid DGEMM library on a Heterogeneous Architecture with CPU and GPU (tiles,
    their order, the pipeline).

    Examples
    --------
    >>> report = hdgemm.multiply("A.npy", "B.npy", out="C.npy")
    >>> print(report)
    """
    call = Call.of(**keywords)
    check_beta(beta, c)
    if out is None:
        raise InputError("give out=..., or use hdgemm.matmul or dgemm, which return C")
    product = Product.of(
        a,
        b,
        alpha=alpha,
        beta=beta,
        c=c,
        trans_a=trans_a,
        trans_b=trans_b,
        out=out,
        dtype=dtype,
        whole=True,
    )
    return compute(product, call)


def _wants_pipeline(a: Any, b: Any) -> bool:
    """Say whether arrays in RAM go to an accelerator, or by the defaults that a user has set.

    Neither drivers nor the environment are asked for products that take microseconds.
    """
    size = getattr(a, "size", 0) * (b.shape[-1] if getattr(b, "ndim", 0) > 1 else 1)
    if has_set_defaults(environment=size >= _WORTH_A_LOOK):
        return True
    return 2 * size >= WORTH_AN_ACCELERATOR and best_device() != "host"


def result_place(out: Any, c: Any, a: Any, b: Any, *, overwrite_c: int) -> Any:
    """Return `out`, or without it the array `c` where that may be overwritten and can hold C."""
    if out is not None or not overwrite_c or not isinstance(c, np.ndarray):
        return out
    arrays = all(isinstance(x, np.ndarray) for x in (a, b))
    fits = arrays and c.dtype == np.result_type(a, b, c) and c.dtype.isnative
    return c if fits and c.flags.writeable else None
