"""Checks of BLAS arguments: shapes, dtypes, scalars, transposition codes."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.dtypes import WHOLE
from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.conversion import computed_in, is_whole
from hdgemm.matrices.layout import check_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_shapes(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int, int]:
    """Return m, n and k of op(A)·op(B)."""
    if a[1] != b[0]:
        raise InputError(
            f"op(A) is {a[0]}×{a[1]} and op(B) is {b[0]}×{b[1]}: the columns of op(A) must be as "
            "many as the rows of op(B); transpose one: .T of an array or an opened matrix, or "
            "trans_a or trans_b of multiply",
            a_shape=a,
            b_shape=b,
        )
    return a[0], b[1], a[1]


def check_shape(found: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    """Raise unless C or out has the shape of the result."""
    if found != expected:
        raise InputError(
            f"{what} has shape {found}; it must be {expected}", found=found, expected=expected
        )


def result_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the arithmetic by NumPy's promotion, in native byte order.

    float16 and bfloat16 are computed in float32; operands that are all integers, in float64.
    """
    return _computed(dtypes, [is_whole(dtype) for dtype in dtypes])


def _computed(dtypes: Sequence[np.dtype[Any]], whole: list[bool]) -> np.dtype[Any]:
    if all(whole):
        return np.dtype(np.float64)
    pairs = zip(dtypes, whole, strict=True)
    found = [dtype if integer else computed_in(dtype) for dtype, integer in pairs]
    return np.result_type(*found).newbyteorder("=")


def stored_dtype(
    operands: tuple[np.dtype[Any], ...], wanted: Any = None, *, whole: bool = True
) -> np.dtype[Any]:
    """Return the dtype of a new C, with the parameters and errors of `product_dtypes`."""
    return product_dtypes(operands, wanted, whole=whole)[1]


def product_dtypes(
    operands: tuple[np.dtype[Any], ...], wanted: Any = None, *, whole: bool = True
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the dtype of the arithmetic, as `result_dtype`, and the dtype of a new C: int64 for
    products of integers, else the arithmetic's.

    Parameters
    ----------
    operands
        The operands' dtypes.
    wanted
        The caller's `dtype`; None for the default.
    whole
        Whether a product of integers is int64.

    Raises
    ------
    InputTypeError
        For a dtype that hdgemm does not compute in, and one that cannot hold the product.
    """
    are_whole = [is_whole(dtype) for dtype in operands]
    computed, integers = _computed(operands, are_whole), all(are_whole)
    if wanted is None:
        return computed, np.dtype(WHOLE) if integers and whole else computed
    dtype = check_dtype(wanted, "the product", (WHOLE,)).newbyteorder("=")
    if dtype.name == WHOLE:
        if not integers or not whole:
            raise InputTypeError(
                "dtype='int64' is for products A·B of integers: leave it out, or pass "
                f"dtype={computed.name!r}"
            )
    elif not np.can_cast(computed, dtype, "same_kind"):
        raise InputTypeError(f"the product is {computed}, which dtype={dtype.name!r} cannot hold")
    return computed, dtype


def check_out_dtype(found: np.dtype[Any], computed: np.dtype[Any]) -> None:
    """Raise unless `found` can store C by NumPy's casting rule ``same_kind``."""
    if not np.can_cast(computed, found, "same_kind"):
        raise InputTypeError(
            f"out has dtype {found}, the product is {computed}: pass an out of {computed}, or take "
            "real parts first",
            found=str(found),
            computed=str(computed),
        )


def check_beta(beta: Any, c: Any) -> None:
    """Raise where beta is not zero and no old C is given."""
    if c is None and as_scalar(beta, np.dtype(complex), "beta") != 0:
        raise InputError(
            f"beta is {beta}, but there is no C to multiply: pass c (c=out to update out in place)"
        )


def as_scalar(value: Any, dtype: np.dtype[Any], name: str) -> complex:
    """Round alpha or beta to the product's dtype, to Inf or 0 where that is nearest.

    `InputTypeError` when it is no number, or complex where the product is real.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, numbers.Number) or isinstance(value, np.timedelta64):
        raise InputTypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        number = complex(value)  # type: ignore[call-overload]
    except OverflowError as error:
        raise InputError(f"{name} = {value} is beyond floating point") from error
    if dtype.kind == "f" and number.imag != 0:
        raise InputTypeError(
            f"{name} = {value} is complex, but the operands are real ({dtype}): convert one of them"
        )
    with np.errstate(over="ignore", under="ignore"):
        if dtype.kind == "f":
            return float(dtype.type(number.real))
        return complex(dtype.type(number))


def trans_flags(code: Any, name: str) -> tuple[bool, bool]:
    """Return (transposed, conjugated) from BLAS's codes, as SciPy takes them: 0, 1 or 2.

    False is 0 and True is 1; 2 is the conjugate transpose, the transpose for real matrices.
    """
    if not isinstance(code, int | np.integer | np.bool_) or int(code) not in (0, 1, 2):
        raise InputError(
            f"{name} must be 0 (as it is), 1 (transposed) or 2 (conjugate transposed), got {code!r}"
        )
    return int(code) > 0, int(code) == 2


def flag(code: Any, name: str) -> bool:
    """Return BLAS's `side`, `lower` or `diag` from its code, as SciPy takes it: 0 or 1.

    Reference BLAS's letters are refused: as truth values, "N" and "U" would mean the same.
    """
    if not isinstance(code, int | np.integer | np.bool_) or int(code) not in (0, 1):
        raise InputError(f"{name} must be 0 or 1, got {code!r}")
    return bool(code)
