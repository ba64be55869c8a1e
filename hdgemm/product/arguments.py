"""What a call must satisfy before anything is written: shapes, dtypes, scalars, codes of op."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.product.aliasing import overlaps, same_elements

if TYPE_CHECKING:
    from hdgemm.matrices.base import Matrix, Operand


@dataclass(frozen=True, slots=True)
class Product:
    """What a call that passed its checks computes: C (m×n) := alpha·op(A)·op(B) + beta·C.

    Parameters
    ----------
    m, n, k
        Op-space extents.
    dtype
        What is multiplied and added up, in native byte order; C may be stored in another.
    alpha, beta
        Rounded to `dtype`, as BLAS would see them.
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    alpha: complex
    beta: complex

    @property
    def reads_product(self) -> bool:
        """Whether A and B are read at all: not for alpha = 0, nor for k = 0."""
        return self.alpha != 0 and min(self.m, self.n, self.k) > 0

    @property
    def reads_c(self) -> bool:
        """Whether the old C is read: not for beta = 0."""
        return self.beta != 0 and min(self.m, self.n) > 0


def check_product(
    alpha: Any,
    a: Operand,
    b: Operand,
    beta: Any = 0.0,
    c: Operand | None = None,
    out: Operand | Path | None = None,
) -> Product:
    """Hold a whole call against BLAS's rules; nothing is read and nothing is written.

    Parameters
    ----------
    alpha, beta
        Python or NumPy numbers, or 0-d arrays.
    a, b
        op(A), m×k, and op(B), k×n.
    c
        The old C, m×n; None stands for zeros, as in SciPy, so that beta is then 0.
    out
        Where C is to be written: `c` itself, another matrix, a path that is to be created or
        replaced, or None for a new array.

    Raises
    ------
    InputError
        For shapes that do not fit together, and for an `out` that overlaps A, B or, unless it
        is C element for element, a C that is read.
    InputTypeError
        For scalars and an `out` that cannot hold the numbers asked of them.
    """
    m, n, k = check_shapes(a.shape, b.shape)
    dtype = result_dtype(*(x.matrix.dtype for x in (a, b, c) if x is not None))
    product = Product(
        m, n, k, dtype,
        alpha=as_scalar(alpha, dtype, "alpha"),
        beta=0.0 if c is None else as_scalar(beta, dtype, "beta"),
    )  # fmt: skip
    if c is not None:
        check_shape(c.shape, (m, n), "c")
    if out is not None:
        _check_out(out, product, a, b, c)
    return product


def check_shapes(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int, int]:
    """Return m, n and k of op(A)·op(B)."""
    if a[1] != b[0]:
        raise InputError(
            f"op(A) is {a[0]}×{a[1]} and op(B) is {b[0]}×{b[1]}: the columns of op(A) must be as "
            f"many as the rows of op(B); transpose one, or check trans_a and trans_b",
            a_shape=a, b_shape=b,
        )  # fmt: skip
    return a[0], b[1], a[1]


def check_shape(found: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    """Raise unless C or out has the product's shape."""
    if found != expected:
        raise InputError(
            f"{what} has shape {found}; the product's is {expected}", found=found, expected=expected
        )


def result_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return what NumPy's promotion makes of the operands, in native byte order."""
    return np.result_type(*dtypes).newbyteorder("=")


def check_out_dtype(found: np.dtype[Any], computed: np.dtype[Any]) -> None:
    """Raise unless C can be stored in `found`: NumPy's rule ``same_kind``, as for its own `out`."""
    if not np.can_cast(computed, found, "same_kind"):
        raise InputTypeError(
            f"out has dtype {found}, the product is {computed}: pass an out of {computed}, or take "
            "real parts first",
            found=str(found), computed=str(computed),
        )  # fmt: skip


def as_scalar(value: Any, dtype: np.dtype[Any], name: str) -> complex:
    """Round alpha or beta to the product's dtype, to Inf or 0 where that is nearest.

    Raises
    ------
    InputTypeError
        When it is no number, or complex where the product is real.
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


def _check_out(
    out: Operand | Path, product: Product, a: Operand, b: Operand, c: Operand | None
) -> None:
    place: Matrix | Path
    if isinstance(out, Path):
        place = out
    else:
        check_shape(out.shape, (product.m, product.n), "out")
        check_out_dtype(out.matrix.dtype, product.dtype)
        place = out.matrix
    for operand, what in ((a, "a"), (b, "b")):
        if overlaps(place, operand.matrix):
            raise InputError(
                f"out overlaps {what} ({operand.matrix.name}), which is still read while C is "
                f"written: write to other memory or another file, or copy {what} first"
            )
    # A path is written aside and takes its name at the end, so it may name the old C.
    if c is None or not product.reads_c or isinstance(out, Path):
        return
    if overlaps(place, c.matrix) and not same_elements(out, c):
        raise InputError(
            "out overlaps c without being the same elements: pass c itself as out, or memory that "
            "c does not use"
        )
