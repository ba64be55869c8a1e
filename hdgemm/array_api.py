"""Linear algebra of the Python array API standard, for arrays of any library that follows it.

Functions have the names and arguments of the standard (2024.12, `data-apis.org/array-api`). Each
returns arrays of its operands' library: NumPy, CuPy, PyTorch, JAX and Dask by array_api_compat,
others by `__array_namespace__`. hdgemm computes in host memory or on its own devices.

`REFUSED` lists the standard's functions that nothing here computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm import linalg
from hdgemm.blas.products import matmul as _matmul
from hdgemm.call.array_library import in_namespace, namespace_of
from hdgemm.dtypes import SUPPORTED, listed
from hdgemm.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "REFUSED",
    "cholesky",
    "det",
    "inv",
    "matmul",
    "matrix_norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
]

#: Functions of the standard that are not computed, with what to call instead.
REFUSED: Final = {
    **dict.fromkeys(("eigh", "eigvalsh"), "hdgemm.linalg.eigsh for the k largest eigenpairs"),
    "matrix_rank": "hdgemm.array_api.svdvals and a tolerance",
    "matrix_power": "hdgemm.array_api.matmul",
    **dict.fromkeys(
        ("cross", "diagonal", "matrix_transpose", "outer", "tensordot", "trace", "vecdot"),
        "the array's own library",
    ),
    "vector_norm": "hdgemm.linalg.norm for all elements of a matrix",
}


class QRResult(NamedTuple):
    """Q and R."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the magnitude of a determinant."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """U, singular values and Vh."""

    U: Any
    S: Any
    Vh: Any


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """Return the factor L, or U for ``upper=True``, of a positive definite (n, n) matrix.

    Parameters
    ----------
    x
        A matrix of float32, float64, complex64 or complex128.
    upper
        Return U of x = U^H·U.

    Raises
    ------
    InputTypeError
        When `x` has another dtype, or is no array of one library.
    InputError
        When it has not two dimensions, or is not square.

    Examples
    --------
    >>> import numpy as np
    >>> import hdgemm.array_api as xp
    >>> xp.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    (a,), back = _taken(x)
    return back(linalg.cholesky(a, lower=not upper))


def det(x: Any, /) -> Any:
    """Return the determinant of an (n, n) matrix as an array without dimensions; see `cholesky`."""
    (a,), back = _taken(x)
    return back(np.asarray(linalg.det(a), a.dtype))


def inv(x: Any, /) -> Any:
    """Return the inverse of an (n, n) matrix; arguments and errors as in `cholesky`."""
    (a,), back = _taken(x)
    return back(linalg.inv(a))


def matmul(x1: Any, x2: Any, /) -> Any:
    """Return the product of (…, m, k) and (…, k, n) arrays or vectors, as `numpy.matmul`.

    Integers give a product of integers, exact or refused with an `InputError`.
    """
    (a, b), back = _taken(x1, x2, numbers="fciu", stacks=True)
    return back(np.asarray(_matmul(a, b)))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    """Return the norm of an (m, n) matrix: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    (a,), back = _taken(x)
    found = np.asarray(linalg.norm(a, ord, check_finite=False), a.real.dtype)
    return back(found.reshape(1, 1) if keepdims else found)


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """Return the pseudoinverse (n, m) of an (m, n) matrix."""
    (a,), back = _taken(x)
    return back(linalg.pinv(a, rtol=None if rtol is None else float(rtol)))


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Return Q and R of an (m, n) matrix; `mode` is "reduced" or "complete"."""
    modes = {"reduced": "economic", "complete": "full"}
    if mode not in modes:
        raise InputError(f"mode must be 'reduced' or 'complete', got {mode!r}")
    (a,), back = _taken(x)
    return QRResult(*map(back, linalg.qr(a, mode=modes[mode])))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return sign and log|det| of an (n, n) matrix as arrays without dimensions."""
    (a,), back = _taken(x)
    sign, logarithm = linalg.slogdet(a)
    return SlogdetResult(back(np.asarray(sign, a.dtype)), back(np.asarray(logarithm, a.real.dtype)))


def solve(x1: Any, x2: Any, /) -> Any:
    """Return X of x1·X = x2 for an (n, n) matrix and a vector (n,) or a matrix (n, k)."""
    (a, b), back = _taken(x1, x2, vectors=True)
    return back(linalg.solve(a, b))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Return U, the singular values in descending order, and Vh of an (m, n) matrix.

    Of a matrix that is not square only ``full_matrices=False`` is computed.
    """
    (a,), back = _taken(x)
    return SVDResult(*map(back, linalg.svd(a, full_matrices)))


def svdvals(x: Any, /) -> Any:
    """Return the singular values of an (m, n) matrix in descending order."""
    (a,), back = _taken(x)
    return back(linalg.svdvals(a))


def __getattr__(name: str) -> Any:
    """Name the replacement of a function that is refused."""
    if name in REFUSED:
        raise AttributeError(f"hdgemm.array_api has no {name}: use {REFUSED[name]}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def _taken(
    *operands: Any, numbers: str = "fc", vectors: bool = False, stacks: bool = False
) -> tuple[list[Any], Callable[[Any], Any]]:
    """Return operands as hdgemm takes them, and the function that returns results to their library.

    Parameters
    ----------
    numbers
        Kinds of dtypes: "f", "c", "i", "u".
    vectors
        The last operand may be a vector.
    stacks
        Any number of dimensions is taken.
    """
    space = namespace_of(operands)
    taken = [_host(x) for x in operands]
    for x in taken:
        if x.dtype.kind not in numbers or (x.dtype.kind in "fc" and x.dtype.name not in SUPPORTED):
            raise InputTypeError(f"dtype must be {listed('or')}, got {x.dtype}")
    for number, x in enumerate(taken):
        last = vectors and number == len(taken) - 1
        if not stacks and x.ndim != 2 and not (last and x.ndim == 1):
            raise InputError(
                f"stacks of matrices are not computed: got {x.ndim} dimensions, pass each matrix"
            )
    first = operands[0]

    def back(result: Any) -> Any:
        if space is None:
            return np.asarray(result)
        return in_namespace(space, result, first)

    return taken, back


def _host(x: Any) -> Any:
    """Return an array in host memory as NumPy's, without a copy where its library allows that."""
    if isinstance(x, np.ndarray):
        return x
    if getattr(x, "dask", None) is not None or not hasattr(x, "__dlpack_device__"):
        return np.asarray(x)
    if int(x.__dlpack_device__()[0]) == 1:
        return np.from_dlpack(x)
    return np.from_dlpack(x, device="cpu", copy=True)
