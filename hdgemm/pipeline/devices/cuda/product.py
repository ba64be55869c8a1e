"""C := alpha·A·B + beta·C on row-major blocks as one column-major cuBLAS call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.errors import InputError, InputTypeError
from hdgemm.pipeline.devices.cuda.api import GemmCall

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.pipeline.devices.protocol import Block

ROUTINES: Final = {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}
_INT32_MAX: Final = 2**31 - 1


class Scalars(NamedTuple):
    """Host addresses of alpha and beta."""

    alpha: int
    beta: int


class Addresses(NamedTuple):
    """Device addresses of the blocks' first elements."""

    a: int
    b: int
    c: int


def gemm_call(scalars: Scalars, a: Block, b: Block, c: Block, addresses: Addresses) -> GemmCall:
    """Return the call that multiplies op-space A (m×k) and B (k×n) into C (m×n).

    A row-major block is, to cuBLAS, its column-major transpose with the same leading dimension,
    and C' = B'·A': B goes first, and an operand stored as its op-space rectangle needs no flag.

    Raises
    ------
    InputError
        When an extent or a leading dimension is more than cuBLAS's 32-bit interface takes, the
        blocks do not fit together, or C is stored transposed.
    """
    m, n, k = _extents(a, b, c)
    call = GemmCall(
        routine(c.tile.dtype),
        int(b.tile.trans),
        int(a.tile.trans),
        n,
        m,
        k,
        scalars.alpha,
        addresses.b,
        _ld(b),
        addresses.a,
        _ld(a),
        scalars.beta,
        addresses.c,
        _ld(c),
    )
    for name in ("m", "n", "k", "lda", "ldb", "ldc"):
        value = getattr(call, name)
        if value > _INT32_MAX:
            raise InputError(
                f"cuBLAS takes 32-bit extents: {name} = {value:,} is more than {_INT32_MAX:,}; "
                "force a smaller tile with Options(tile=...)",
                requested=value,
                available=_INT32_MAX,
            )
    return call


def routine(dtype: np.dtype[Any]) -> str:
    """Return cuBLAS's name of the product of this dtype."""
    try:
        return ROUTINES[dtype.char]
    except KeyError:
        raise InputTypeError(
            f"cuBLAS multiplies float32, float64, complex64 and complex128, got {dtype}"
        ) from None


def _extents(a: Block, b: Block, c: Block) -> tuple[int, int, int]:
    """Return m, n, k in op-space, checked against each other."""
    a_rows, a_cols = (a.cols, a.rows) if a.tile.trans else (a.rows, a.cols)
    b_rows, b_cols = (b.cols, b.rows) if b.tile.trans else (b.rows, b.cols)
    if c.tile.trans or (c.rows, c.cols, a_cols) != (a_rows, b_cols, b_rows):
        raise InputError(
            f"cannot multiply {a_rows}×{a_cols} by {b_rows}×{b_cols} into "
            f"{c.rows}×{c.cols}{' stored transposed' if c.tile.trans else ''}"
        )
    return c.rows, c.cols, a_cols


def _ld(block: Block) -> int:
    """Return the leading dimension; of a single row any will do, but BLAS wants a row's length."""
    return block.tile.ld if block.rows > 1 else max(block.tile.ld, block.cols)
