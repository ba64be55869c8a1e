"""NumPy's functions on stored matrices, computed out of core; registered at their first use.

A result without `out` is an array, and must fit `host_memory` together with the memory of the run.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.blas.products import matmul
from hdgemm.errors import DoesNotFitError, InputError, InputTypeError
from hdgemm.linalg.cholesky import cholesky
from hdgemm.linalg.determinant import det, slogdet
from hdgemm.linalg.inverse import inv
from hdgemm.linalg.lstsq import lstsq
from hdgemm.linalg.norm import norm
from hdgemm.linalg.pinv import pinv
from hdgemm.linalg.qr import qr
from hdgemm.linalg.solve import solve
from hdgemm.linalg.svd import svd, svdvals
from hdgemm.machine.limits import host_bytes
from hdgemm.matrices.array_protocols import register
from hdgemm.matrices.conversion import computed_in
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.options import Options
from hdgemm.product.arguments import check_shape, result_dtype
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import DTypeLike, NDArray

#: Bytes that a run takes beside its result at least.
_LEAST: Final = 32 << 20
#: NumPy's named tuples.
_QR: Final[Any] = type(np.linalg.qr(np.eye(1)))
_SVD: Final[Any] = type(np.linalg.svd(np.eye(1)))
_SLOGDET: Final[Any] = type(np.linalg.slogdet(np.eye(1)))


def _options_beside(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Options:
    """Return the options of a run whose result is an array, which takes its part of the memory.

    Raises
    ------
    DoesNotFitError
        When the array does not fit `host_memory`.
    """
    options = Options()
    allowed = host_bytes(options)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > allowed - min(_LEAST, allowed // 2):
        raise DoesNotFitError(
            f"{what} of {'×'.join(map(str, shape))} {dtype} takes {format_size(nbytes)} as an "
            f"array, and host_memory is {format_size(allowed)}: call hdgemm's function with "
            "out='FILE.npy', which computes it from file to file",
            requested=nbytes,
            available=allowed,
            missing=max(1, nbytes - allowed),
        )
    return replace(options, host_memory=allowed - nbytes)


def _dtype(*operands: Any) -> np.dtype[Any]:
    found = [x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype for x in operands]
    dtype = result_dtype(*found)
    return dtype if dtype.kind in "fc" else np.dtype(np.float64)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(np.shape(x))


def _multiply(a: Any, b: Any, out: Any = None) -> Any:
    """Return A·B by `numpy.matmul`'s rules."""
    if out is not None:
        return matmul(a, b, out=out)
    m, n = _shape(a)[:-1], _shape(b)[1:] if len(_shape(b)) == 2 else _shape(b)[:-2]
    return matmul(a, b, options=_options_beside((*m, *n), _dtype(a, b), "the product"))


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return `numpy.dot` of two matrices, a matrix and a vector, or a matrix and a number."""
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return _scale(*((a, b) if np.ndim(b) == 0 else (b, a)), out=out)
    if max(np.ndim(a), np.ndim(b)) > 2:
        raise InputError("dot takes matrices and vectors: use matmul for stacks of matrices")
    return _multiply(a, b, out)


def _scale(matrix: StoredMatrix, factor: Any, out: Any = None) -> Any:
    """Return a matrix times a number, by blocks of rows."""
    dtype = np.result_type(computed_in(matrix.dtype), factor)
    if out is None:
        _options_beside(matrix.shape, dtype, "the multiple")
        out = np.empty(matrix.shape, dtype)
    elif isinstance(out, str) or not hasattr(out, "shape"):
        raise InputTypeError(
            f"out must be an array or a stored matrix (hdgemm.create), got {type(out).__name__}"
        )
    check_shape(tuple(out.shape), matrix.shape, "out")
    for rows, block in matrix.blocks():
        # As in BLAS, NaN and Inf raise no floating-point warnings.
        with np.errstate(all="ignore"):
            out[rows] = np.multiply(block, factor, dtype=dtype)
    return out


def _solve(a: Any, b: Any) -> Any:
    return solve(a, b, options=_options_beside(_shape(b), _dtype(a, b), "the solution"))


def _inv(a: Any) -> Any:
    return inv(a, options=_options_beside(_shape(a), _dtype(a), "the inverse"))


def _cholesky(a: Any, /, *, upper: bool = False) -> Any:
    options = _options_beside(_shape(a), _dtype(a), "the factor")
    return cholesky(a, lower=not upper, options=options)


def _qr(a: Any, mode: str = "reduced") -> Any:
    """Return `numpy.linalg.qr` of a matrix."""
    (m, n), dtype = _shape(a), _dtype(a)
    k = min(m, n)
    if mode == "r":
        options = _options_beside((k, n), dtype, "R")
        return qr(a, mode="r", out=np.empty((k, n), dtype, "F"), options=options)[0]
    if mode not in ("reduced", "complete"):
        raise InputError(f"mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    columns = k if mode == "reduced" else m
    options = _options_beside((m + n, columns), dtype, "Q and R")
    found = qr(a, mode="economic" if mode == "reduced" else "full", options=options)
    return _QR(*found)


def _lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Return `numpy.linalg.lstsq` of a tall matrix."""
    m, n = _shape(a)
    dtype = _dtype(a, b)
    options = _options_beside((n, *_shape(b)[1:]), dtype, "the solution")
    cond = np.finfo(dtype).eps * max(m, n) if rcond is None else rcond
    x, residues, rank, s = lstsq(a, b, cond=float(cond), options=options)
    return x, np.atleast_1d(residues), rank, s


def _slogdet(a: Any) -> Any:
    return _SLOGDET(*slogdet(a))


def _svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Return `numpy.linalg.svd` of a matrix."""
    if hermitian:
        raise InputError("svd of a stored matrix takes no hermitian=True: leave it out")
    if not compute_uv:
        return svdvals(a)
    shape = sum(_shape(a)), min(_shape(a))
    options = _options_beside(shape, _dtype(a), "U and Vh")
    return _SVD(*svd(a, full_matrices, options=options))


def _pinv(a: Any, rcond: float | None = None, *, rtol: float | None = None) -> Any:
    """Return `numpy.linalg.pinv` of a matrix."""
    options = _options_beside(_shape(a)[::-1], _dtype(a), "the pseudoinverse")
    return pinv(a, rtol=rcond if rtol is None else rtol, options=options)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    """Return `numpy.linalg.norm` of a matrix, with NaN for NaN."""
    if axis is not None or keepdims:
        raise InputError("norm of a stored matrix takes all elements: leave out axis")
    real = computed_in(x.dtype).type(0).real.dtype
    return real.type(norm(x, "fro" if ord == "f" else ord, check_finite=False))


def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    return _norm(x, ord, None, keepdims)


def _transpose(a: StoredMatrix, axes: Any = None) -> StoredMatrix:
    order = (1, 0) if axes is None else tuple(int(axis) % 2 for axis in axes)
    return a.T if order == (1, 0) else a


def _size(a: StoredMatrix, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


def _like(make: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
    """Return NumPy's function for a new array of a matrix's shape and dtype."""

    def new(
        prototype: StoredMatrix,
        *args: Any,
        dtype: DTypeLike | None = None,
        shape: Any = None,
        **how: Any,
    ) -> NDArray[Any]:
        # A read-only view of one element has shape and dtype, and takes no memory.
        one = np.broadcast_to(np.zeros((), prototype.dtype.newbyteorder("=")), prototype.shape)
        return make(one, *args, dtype=dtype, shape=shape, subok=False, **how)

    return new


_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.dot: _dot,
    np.inner: lambda a, b: _multiply(a, b.T),
    np.linalg.matmul: lambda x1, x2, /: _multiply(x1, x2),
    np.linalg.solve: _solve,
    np.linalg.inv: _inv,
    np.linalg.cholesky: _cholesky,
    np.linalg.qr: _qr,
    np.linalg.lstsq: _lstsq,
    np.linalg.det: det,
    np.linalg.slogdet: _slogdet,
    np.linalg.svd: _svd,
    np.linalg.svdvals: lambda x, /: svdvals(x),
    np.linalg.pinv: _pinv,
    np.linalg.norm: _norm,
    np.linalg.matrix_norm: _matrix_norm,
    np.transpose: _transpose,
    np.matrix_transpose: _transpose,
    np.linalg.matrix_transpose: _transpose,
    np.empty_like: _like(np.empty_like),
    np.zeros_like: _like(np.zeros_like),
    np.ones_like: _like(np.ones_like),
    np.full_like: _like(np.full_like),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: _size,
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.result_type: lambda *found: np.result_type(
        *(x.dtype if isinstance(x, StoredMatrix) else x for x in found)
    ),
}


class _OutOfCore:
    """The operations of `hdgemm.matrices.array_protocols`."""

    def multiply(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the matrix product."""
        return _multiply(a, b, out)

    def scale(self, matrix: Any, factor: Any, out: Any = None) -> Any:
        """Return a multiple."""
        return _scale(matrix, factor, out)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return what computes a function of NumPy."""
        return _FUNCTIONS.get(function)


register(_OutOfCore())
