"""BLAS and LAPACK routines on column-major arrays with a leading dimension, called by address.

The wrappers of `scipy.linalg.blas` copy operands that are parts of a larger array. Calls by the
addresses that SciPy publishes for Cython copy nothing and release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from hdgemm.dtypes import LETTERS
from hdgemm.errors import HdgemmError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: The largest integer that the routines take.
LARGEST: Final = 2**31 - 1


class SingularMatrixError(HdgemmError, np.linalg.LinAlgError):
    """A matrix has no such factor, or a system no unique solution.

    `order` of the first leading minor that is not positive definite, or the 1-based
    index of the first pivot that is exactly zero. `scipy.linalg.LinAlgError` is a base class.

    See Also
    --------
    cholesky, cho_factor, solve : Calls that raise it.
    cond : How close a matrix is to a singular one.
    """

    @classmethod
    def of_pivot(cls, zero: int) -> Self:
        """Return the error for the 1-based index of a pivot that is exactly zero."""
        return cls(f"a is singular: pivot {zero} is exactly zero", order=zero)


def elimination_pairs(m: int, n: int, k: int | None = None) -> float:
    """Count the multiply-adds of k steps of the LU factorisation of an m×n matrix, or of all."""
    k = min(m, n) if k is None else k
    return m * n * k - (m + n) * k**2 / 2 + k**3 / 3


def cholesky_pairs(rows: int, width: int) -> float:
    """Count the multiply-adds of the Cholesky factorisation of a trapezoid of a lower triangle."""
    return width**3 / 6 + width**2 * (rows - width) / 2


def gemm(
    alpha: float,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    trans_a: str = "N",
    trans_b: str = "N",
) -> None:
    """Compute C := C + alpha·op(A)·op(B); op is N, T (transposed) or C (conjugate transposed)."""
    m, n = c.shape
    k = a.shape[1] if trans_a == "N" else a.shape[0]
    if not (m and n and k):
        return
    _call(
        cython_blas, "gemm", c.dtype, trans_a, trans_b, m, n, k, _scalar(alpha, c), a, _lead(a),
        b, _lead(b), _scalar(1.0, c), c, _lead(c),
    )  # fmt: skip


def rank_k(
    alpha: complex,
    a: NDArray[Any],
    c: NDArray[Any],
    *,
    b: NDArray[Any] | None = None,
    beta: complex = 1.0,
    lower: bool = True,
    trans: bool = False,
    hermitian: bool = True,
) -> None:
    """Compute C := beta·C + alpha·op(A)·op(A)^H for one triangle of C (herk; syrk if real, and
    with ^T without `hermitian`); op(A) is A, or A^H (A^T) with `trans`.

    With B: C := beta·C + alpha·op(A)·op(B)^H + conj(alpha)·op(B)·op(A)^H (her2k), or the same with
    ^T and alpha twice (syr2k).
    """
    n, k = len(c), a.shape[0 if trans else 1]
    if not n:
        return
    herk = hermitian and c.dtype.kind == "c"
    real = c.real if herk else c
    second = () if b is None else (b, _lead(b))
    _call(
        cython_blas, ("he" if herk else "sy") + ("r2k" if second else "rk"), c.dtype,
        "L" if lower else "U", "N" if not trans else "C" if herk else "T", n, k,
        _scalar(alpha, c if second else real), a, _lead(a), *second, _scalar(beta, real), c,
        _lead(c),
    )  # fmt: skip


def trsm(
    a: NDArray[Any],
    b: NDArray[Any],
    *,
    side: str = "L",
    lower: bool = True,
    trans: str = "N",
    unit: bool = False,
) -> None:
    """Solve op(A)·X = B (side L) or X·op(A) = B (side R) for a triangular A; X overwrites B."""
    _triangular("trsm", a, b, side, trans, lower=lower, unit=unit)


def trmm(
    a: NDArray[Any], b: NDArray[Any], *, lower: bool = True, trans: str = "N", unit: bool = False
) -> None:
    """Overwrite B by op(A)·B for a triangular A."""
    _triangular("trmm", a, b, "L", trans, lower=lower, unit=unit)


def _triangular(
    name: str, a: NDArray[Any], b: NDArray[Any], side: str, trans: str, *, lower: bool, unit: bool
) -> None:
    m, n = b.shape
    if m and n:
        _call(
            cython_blas, name, b.dtype, side, "L" if lower else "U", trans, "U" if unit else "N",
            m, n, _scalar(1.0, b), a, _lead(a), b, _lead(b),
        )  # fmt: skip


def potrf(a: NDArray[Any]) -> int:
    """Overwrite the lower triangle of A by its Cholesky factor.

    Returns the order of the first leading minor that is not positive definite, 0 without one.
    """
    info = ctypes.c_int()
    if len(a):
        _call(cython_lapack, "potrf", a.dtype, "L", len(a), a, _lead(a), info)
    return info.value


def getrf(a: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Overwrite A (m×n) by its LU factors with partial pivoting.

    Returns the 0-based interchanges, and the 1-based index of the first pivot that is exactly
    zero, 0 without one.
    """
    m, n = a.shape
    pivots = np.zeros(min(m, n), np.intc)
    info = ctypes.c_int()
    if m and n:
        _call(cython_lapack, "getrf", a.dtype, m, n, a, _lead(a), pivots, info)
    return pivots.astype(np.int64) - 1, info.value


def geqrt(a: NDArray[Any], t: NDArray[Any]) -> None:
    """Overwrite A (m×n, m ≥ n) by its QR factors, and the upper triangle of T by their T."""
    m, n = a.shape
    if n:
        _call(cython_lapack, "geqrt3", a.dtype, m, n, a, _lead(a), t, _lead(t), ctypes.c_int())


def geqrt_by_blocks(a: NDArray[Any], t: NDArray[Any], work: NDArray[Any]) -> None:
    """Overwrite A (m×n, m ≥ n) by its QR factors; T (nb×n) takes the triangles of blocks of nb
    columns, `work` has nb·n elements.
    """
    m, n = a.shape
    if n:
        _call(
            cython_lapack, "geqrt", a.dtype, m, n, len(t), a, _lead(a), t, _lead(t), work,
            ctypes.c_int(),
        )  # fmt: skip


def gemqrt(v: NDArray[Any], t: NDArray[Any], c: NDArray[Any], work: NDArray[Any]) -> None:
    """Overwrite C (m×p) by Q·C, with the reflectors V and T of `geqrt_by_blocks`."""
    (m, p), k = c.shape, v.shape[1]
    if m and p and k:
        _call(
            cython_lapack, "gemqrt", c.dtype, "L", "N", m, p, k, len(t), v, _lead(v), t, _lead(t),
            c, _lead(c), work, ctypes.c_int(),
        )  # fmt: skip


def tpqrt(
    r: NDArray[Any], b: NDArray[Any], t: NDArray[Any], work: NDArray[Any], *, triangle: bool = False
) -> None:
    """Overwrite the upper triangular R by the R of [R; B], and B by the reflectors.

    T (nb×n) takes the triangles of blocks of nb columns, `work` has nb·n elements; `triangle` says
    that B is upper triangular.
    """
    m, n = b.shape
    if m and n:
        _call(
            cython_lapack, "tpqrt", b.dtype, m, n, m if triangle else 0, len(t), r, _lead(r),
            b, _lead(b), t, _lead(t), work, ctypes.c_int(),
        )  # fmt: skip


def tpmqrt(
    v: NDArray[Any], t: NDArray[Any], a: NDArray[Any], b: NDArray[Any], work: NDArray[Any],
    *, triangle: bool = False, adjoint: bool = True,
) -> None:  # fmt: skip
    """Overwrite [A; B] by Q^H·[A; B], or by Q·[A; B] without `adjoint`, with the reflectors V and T
    of `tpqrt`.
    """
    m, p = b.shape
    k = len(a)
    if m and p and k:
        trans = "C" if b.dtype.kind == "c" else "T"
        _call(
            cython_lapack, "tpmqrt", b.dtype, "L", trans if adjoint else "N", m, p, k,
            m if triangle else 0, len(t), v, _lead(v), t, _lead(t), a, _lead(a), b, _lead(b), work,
            ctypes.c_int(),
        )  # fmt: skip


def gesvd(a: NDArray[Any], driver: str, *, vectors: bool = True) -> tuple[NDArray[Any], ...]:
    """Return U, s and Vh of a square A, which is overwritten, or s alone without `vectors`.

    A is finite. The driver is ``"gesdd"`` or ``"gesvd"``.
    """
    n, job = len(a), "A" if vectors else "N"
    s = np.zeros(n, a.real.dtype)
    u, vh = (np.zeros((n, n), a.dtype, "F") for _ in range(2)) if vectors else (a, a)
    divided = driver == "gesdd"
    others: list[NDArray[Any]] = [np.zeros(8 * n, np.intc)] if divided else []
    if a.dtype.kind == "c":
        size = 5 * n if not divided else 5 * n * (n + 1) if vectors else 7 * n
        others.insert(0, np.zeros(size, s.dtype))
    info = ctypes.c_int()

    def run(work: NDArray[Any], length: int) -> None:
        _call(
            cython_lapack, driver, a.dtype, *([job] if divided else [job, job]), n, n, a, _lead(a),
            s, u, _lead(u), vh, _lead(vh), work, length, *others, info,
        )  # fmt: skip

    if n:
        run(*_workspace(a.dtype, run))
    if info.value:
        raise np.linalg.LinAlgError("SVD did not converge")
    return (u, s, vh) if vectors else (s,)


def eigh(a: NDArray[Any], *, vectors: bool = True) -> tuple[NDArray[Any], ...]:
    """Return the ascending eigenvalues of a Hermitian A, and its eigenvectors with `vectors`.

    The lower triangle is read. A is overwritten.
    """
    n, real = len(a), a.dtype.kind == "f"
    w, z = np.zeros(n, a.real.dtype), np.zeros((n, n) if vectors else (1, 1), a.dtype, "F")
    bound, place = np.zeros(1, w.dtype), np.zeros(1, np.intc)  # of values that are not asked for
    support, integers = (np.zeros(max(1, size * n), np.intc) for size in (2, 10))
    reals = [] if real else [np.zeros(max(1, 24 * n), w.dtype), max(1, 24 * n)]
    found, info = ctypes.c_int(), ctypes.c_int()

    def run(work: NDArray[Any], length: int) -> None:
        _call(
            cython_lapack, "syevr" if real else "heevr", a.dtype, "V" if vectors else "N", "A", "L",
            n, a, _lead(a), bound, bound, place, place, bound, found, w, z, _lead(z), support,
            work, length, *reals, integers, len(integers), info,
        )  # fmt: skip

    if n:
        run(*_workspace(a.dtype, run))
    if info.value:
        raise np.linalg.LinAlgError("the eigenvalues did not converge")
    return (w, z) if vectors else (w,)


def least_squares(
    a: NDArray[Any], b: NDArray[Any], cond: float, driver: str
) -> tuple[int, NDArray[Any] | None]:
    """Overwrite B by the X of least norm that minimises ||A·X - B||, and a square A.

    The driver is ``"gelsd"``, ``"gelss"`` or ``"gelsy"``. Returns the rank for the relative
    tolerance `cond`, and the singular values of A, None from gelsy.
    """
    n, p = b.shape
    s = np.zeros(n, a.real.dtype)
    ordered = np.zeros(n, np.intc)
    rank, info = ctypes.c_int(), ctypes.c_int()
    reals, integers = np.zeros(max(1, 5 * n), s.dtype), np.zeros(1, np.intc)

    def run(work: NDArray[Any], length: int) -> None:
        others = ([reals] if a.dtype.kind == "c" else []) + [integers] * (driver == "gelsd")
        _call(
            cython_lapack, driver, a.dtype, n, n, p, a, _lead(a), b, _lead(b),
            ordered if driver == "gelsy" else s, _scalar(cond, s), rank, work, length, *others,
            info,
        )  # fmt: skip

    if n and p:
        work = _workspace(a.dtype, run)
        if driver == "gelsd":  # the query returns these sizes, too
            integers = np.zeros(integers[0], np.intc)
            reals = np.zeros(max(1, int(reals[0])), s.dtype)
        run(*work)
    if info.value:
        raise np.linalg.LinAlgError("SVD did not converge in Linear Least Squares")
    return rank.value, None if driver == "gelsy" else s


def _workspace(
    dtype: np.dtype[Any], run: Callable[[NDArray[Any], int], None]
) -> tuple[NDArray[Any], int]:
    """Return the workspace that a routine asks for, and its length."""
    asked = np.zeros(1, dtype)
    run(asked, -1)
    # Single precision rounds large lengths.
    length = int(np.nextafter(asked.real, np.inf, dtype=asked.real.dtype)[0]) + 1
    return np.empty(length, dtype), length


def laswp(
    a: NDArray[Any], pivots: NDArray[np.int64], first: int = 0, *, reverse: bool = False
) -> None:
    """Interchange row ``first + i`` of A with row ``pivots[i]``, for i = 0, 1, ... in order, or in
    reverse order.
    """
    cols = a.shape[1]
    if not (len(pivots) and cols):
        return
    # LAPACK reads the pivot of row k at position k of the vector.
    padded = np.zeros(first + len(pivots), np.intc)
    padded[first:] = pivots + 1
    _call(
        cython_lapack, "laswp", a.dtype, cols, a, _lead(a), first + 1, first + len(pivots), padded,
        -1 if reverse else 1,
    )  # fmt: skip


def _scalar(value: complex, like: NDArray[Any]) -> NDArray[Any]:
    return np.array(value.real if like.dtype.kind == "f" else value, like.dtype)


def _lead(a: NDArray[Any]) -> int:
    """Return the leading dimension: elements from one column to the next."""
    rows, cols = a.shape
    if cols and rows > 1 and a.strides[0] != a.itemsize:
        raise InputError(f"a column-major array is needed, got strides {a.strides}")
    return max(1, a.strides[1] // a.itemsize if cols > 1 else rows)


def _call(module: Any, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    _routine(module, LETTERS[dtype.char] + name)(*map(_by_address, arguments))


def _by_address(value: Any) -> Any:
    """Return one argument as Fortran takes it."""
    if isinstance(value, np.ndarray):
        # The arrays are arguments of the caller, which keeps them alive during the call.
        return ctypes.c_void_p(value.__array_interface__["data"][0])
    if isinstance(value, str):
        return value.encode("ascii")
    if isinstance(value, int):
        if value > LARGEST:
            raise InputError(f"an extent of {value:,} is more than LAPACK takes ({LARGEST:,})")
        return ctypes.byref(ctypes.c_int(value))
    return ctypes.byref(value)


def unchecked(name: str, dtype: np.dtype[Any], arguments: int) -> Callable[..., None]:
    """Return a BLAS routine, by its name without the first letter, that takes so many addresses, as
    integers, and checks nothing: a call takes a microsecond, a tenth of the other functions of this
    module.
    """
    types = [ctypes.c_void_p] * arguments
    return ctypes.CFUNCTYPE(None, *types)(address_of(cython_blas, LETTERS[dtype.char] + name))


@cache
def _routine(module: Any, name: str) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None)(address_of(module, name))


def address_of(module: Any, name: str) -> int:
    """Take a routine's address from the table that SciPy publishes for Cython."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = module.__pyx_capi__[name]
    address: int = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return address
