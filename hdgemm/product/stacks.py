"""numpy.matmul's rules for vectors and stacks, on top of a product of two matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.device_arrays import is_device_array
from hdgemm.matrices.layout import check_read
from hdgemm.matrices.operands import as_array
from hdgemm.matrices.stores import is_stored
from hdgemm.product.aliasing import arrays_overlap
from hdgemm.product.arguments import check_out_dtype, check_shape, stored_dtype
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    #: product2d(a, b, out) -> C: all 2-D; `out` None asks for a new array.
    Product2D = Callable[[Any, Any, Any], Any]

_PLAIN: Final = frozenset(np.dtype(code) for code in "fdFD")
#: Operands up to this many bytes may be copied by NumPy, for their dtype's or their layout's sake.
_SMALL: Final = 1 << 20


def matmul_plain(a: Any, b: Any, out: Any = None) -> Any:
    """Return numpy.matmul of arrays in RAM that need nothing else; None for all others.

    Costs a microsecond: no plan, no threads, NumPy's own rules for vectors and stacks. Left to the
    pipeline are other types, dtypes and byte orders, and large operands that NumPy would copy as a
    whole: of two dtypes, or with strides that BLAS does not take.

    Raises `InputError` for shapes that do not fit, and an `out` that overlaps A or B or is
    read-only, `InputTypeError` for an `out` whose dtype cannot hold the product.
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    if a.dtype not in _PLAIN or b.dtype not in _PLAIN:
        return None
    if a.nbytes + b.nbytes > _SMALL and not (a.dtype == b.dtype and _blas(a) and _blas(b)):
        return None
    if out is not None:
        if type(out) is not np.ndarray or not _takes_plain(out.dtype):
            return None
        # NumPy would write one product several times into an `out` of more dimensions.
        if a.ndim and b.ndim:
            check_shape(out.shape, _product_shape(a.shape, b.shape), "non-broadcastable out")
        _refuse_overlap(out, a, b)
    try:
        return np.matmul(a, b, out=out)
    except TypeError as error:
        raise InputTypeError(str(error), a_shape=a.shape, b_shape=b.shape) from error
    except ValueError as error:
        if not (a.ndim and b.ndim):
            return None  # `matmul_stacked` refuses scalars
        _product_shape(a.shape, b.shape)
        raise InputError(str(error), a_shape=a.shape, b_shape=b.shape) from error


def _takes_plain(dtype: np.dtype[Any]) -> bool:
    """Say whether NumPy takes an `out` of this dtype only if the pipeline does; integers are not
    taken by either.
    """
    return dtype.kind in "iu" or dtype.newbyteorder("=") in _PLAIN


def _blas(x: NDArray[Any]) -> bool:
    """Say whether NumPy hands each matrix of a stack to BLAS as it lies."""
    if x.flags.c_contiguous or x.flags.f_contiguous:
        return True
    return x.ndim >= 2 and x.itemsize in x.strides[-2:] and min(x.strides[-2:]) > 0


def _refuse_overlap(out: Any, a: Any, b: Any) -> None:
    for operand, what in ((a, "a"), (b, "b")):
        if isinstance(operand, np.ndarray) and arrays_overlap(out, operand):
            raise InputError(
                f"out overlaps {what}, which is still read while C is written: pass an out of its "
                f"own, or copy {what} first"
            )


def matmul_stacked(a: Any, b: Any, out: Any, product2d: Product2D, dtype: Any = None) -> Any:
    """Multiply as numpy.matmul does: vectors, matrices, and stacks of matrices that broadcast.

    a and b are arrays of one dimension or more (anything that `numpy.asarray` takes), stored
    matrices, HDF5 datasets, Zarr arrays, or paths of matrices; `out` is None, an array of the
    result's shape, or, for a product of two matrices, a path. `product2d` is called once for each
    two matrices; `dtype` is a new C's. C has the shape (..., m, n), less the axis of an
    operand that is a vector; two vectors give a scalar.

    Raises `InputError` for scalars, shapes that do not fit or broadcast, and paths where only
    arrays can be, `InputTypeError` for dtypes that cannot be multiplied.
    """
    if is_device_array(a) or is_device_array(b):  # matrices only; the checks say so
        return product2d(a, b, out)
    a, b = _operand(a, "a"), _operand(b, "b")
    ndim_a, ndim_b = _ndim(a), _ndim(b)
    if ndim_a == 2 and ndim_b == 2:
        return product2d(a, b, out)
    if is_location(out):
        raise InputError(
            f"out is the path {out}, but a .npy file takes a matrix and this product is "
            "of vectors or stacks: pass an array"
        )
    if not (is_location(a) or is_location(b)):
        shape = _product_shape(a.shape, b.shape)
        if out is not None:
            check_shape(np.shape(out), shape, "non-broadcastable out")
    columns, rows = ndim_b == 1, ndim_a == 1
    matrix_a = a[np.newaxis, :] if rows else a
    matrix_b = b[:, np.newaxis] if columns else b
    if max(ndim_a, ndim_b) <= 2:
        wide = None if out is None else _widened(out, rows=rows, columns=columns)
        result = product2d(matrix_a, matrix_b, wide)
    else:
        result = _stack(matrix_a, matrix_b, out, (rows, columns), product2d, dtype)
    if out is not None:
        return out
    dropped = tuple(axis for axis, drop in ((-2, rows), (-1, columns)) if drop)
    # Two vectors give a scalar, as indexing by () does.
    return np.squeeze(result, axis=dropped)[()]


def _stack(
    a: NDArray[Any],
    b: NDArray[Any],
    out: Any,
    vector: tuple[bool, bool],
    product2d: Product2D,
    dtype: Any,
) -> Any:
    if is_location(a) or is_location(b):
        raise InputError(
            "a stack of matrices cannot be multiplied with a path: open the file with "
            "np.load(path, mmap_mode='r') and pass that"
        )
    rows, columns = vector
    shape = _stack_shape(a.shape, b.shape)
    computed = stored_dtype((a.dtype, b.dtype), dtype)
    if out is None:
        result = np.empty(shape, computed)
    else:
        check_shape(out.shape, _dropped(shape, vector), "non-broadcastable out")
        check_out_dtype(out.dtype, computed)
        _refuse_overlap(out, a, b)
        result = _widened(out, rows=rows, columns=columns)
    for place in np.ndindex(shape[:-2]):
        product2d(_matrix_at(a, place), _matrix_at(b, place), result[place])
    return result


def _matrix_at(stack: Any, place: tuple[int, ...]) -> Any:
    """Return the matrix of a stack that broadcasting puts at this place of the result."""
    axes = stack.shape[:-2]
    if not axes:
        return stack
    last = place[len(place) - len(axes) :]
    return stack[tuple(0 if extent == 1 else i for i, extent in zip(last, axes, strict=True))]


def _stack_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a[-1] != b[-2]:
        raise InputError(
            f"a is {_text(a)} and b is {_text(b)}: the columns of a ({a[-1]}) must be as many as "
            f"the rows of b ({b[-2]})",
            a_shape=a,
            b_shape=b,
        )
    try:
        stack = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError as error:
        raise InputError(
            f"stacks of {a[:-2]} and {b[:-2]} matrices cannot be broadcast together",
            a_shape=a,
            b_shape=b,
        ) from error
    return (*stack, a[-2], b[-1])


def _text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    vector = len(a) == 1, len(b) == 1
    if not any(vector) and len(a) == len(b) == 2 and a[1] == b[0]:
        return a[0], b[1]
    inner = a[-1], b[0 if vector[1] else -2]
    if any(vector) and inner[0] != inner[1]:
        raise InputError(
            f"a has shape {a} and b has shape {b}: their inner extents, {inner[0]} and {inner[1]}, "
            "must be equal",
            a_shape=a,
            b_shape=b,
        )
    return _dropped(_stack_shape((1, *a) if vector[0] else a, (*b, 1) if vector[1] else b), vector)


def _dropped(shape: tuple[int, ...], vector: tuple[bool, bool]) -> tuple[int, ...]:
    """Leave out the axes of operands that are vectors."""
    rows, columns = vector
    return shape[:-2] + (() if rows else shape[-2:-1]) + (() if columns else shape[-1:])


def _operand(x: Any, what: str) -> Any:
    if is_location(x):
        return x
    array = x if isinstance(x, np.ndarray) or is_stored(x) else as_array(x, what)
    if not array.shape:
        raise InputError(
            f"{what} is a scalar; matmul takes vectors, matrices and stacks: use * for a scalar"
        )
    check_read(np.dtype(array.dtype), what)
    return array


def _widened(out: Any, *, rows: bool, columns: bool) -> NDArray[Any]:
    """Return a view of `out` that has back the axes which vectors took from it."""
    if not isinstance(out, np.ndarray):
        raise InputTypeError(f"out must be an array, got {type(out).__name__}")
    wide = out[..., np.newaxis] if columns else out
    return wide[..., np.newaxis, :] if rows else wide


def _ndim(x: Any) -> int:
    return 2 if is_location(x) else len(x.shape)
