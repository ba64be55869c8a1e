"""Copies of blocks and products of blocks as driver calls: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.dtypes import LETTERS, listed
from hdgemm.errors import InputError, InputTypeError
from hdgemm.pipeline.devices.protocol import extents_of

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.pipeline.devices.protocol import Block, Triangle

#: `cudaDevAttrMaxPitch` of every GPU so far, in bytes.
MAX_PITCH: Final = 2**31 - 1
#: The largest extent of cuBLAS's 32-bit interface.
INT32_MAX: Final = 2**31 - 1


class Rows(NamedTuple):
    """Rows of `width` bytes that begin `pitch` bytes apart, the first at `address`."""

    address: int
    pitch: int


class CopyCall(NamedTuple):
    """One call: `rows` rows of `width` bytes; a plain copy where `rows` is 1."""

    target: Rows
    source: Rows
    width: int
    rows: int


def copy_calls(target: Rows, source: Rows, width: int, rows: int) -> list[CopyCall]:
    """Cut a copy of `rows` rows of `width` bytes into the fewest driver calls.

    One plain copy where both sides are dense; one two-dimensional copy where both pitches are
    ones that the driver takes (at least the width, at most `MAX_PITCH`); else a plain copy for
    each row, which also serves rows stored upwards (negative pitch).
    """
    if rows == 0 or width == 0:
        return []
    if rows == 1 or target.pitch == source.pitch == width:
        return [CopyCall(target, source, width * rows, 1)]
    if all(width <= pitch <= MAX_PITCH for pitch in (target.pitch, source.pitch)):
        return [CopyCall(target, source, width, rows)]
    return [
        CopyCall(
            Rows(target.address + row * target.pitch, width),
            Rows(source.address + row * source.pitch, width),
            width,
            1,
        )
        for row in range(rows)
    ]


class GemmCall(NamedTuple):
    """The arguments of one cuBLAS gemm after its stream, column-major as cuBLAS reads them.

    `alpha`, `beta`: addresses of host scalars of the product's dtype, read before the call
    returns. `a`, `b`, `c`: device addresses. `transa`, `transb`: 0 as stored, 1 transposed.
    """

    routine: str
    transa: int
    transb: int
    m: int
    n: int
    k: int
    alpha: int
    a: int
    lda: int
    b: int
    ldb: int
    beta: int
    c: int
    ldc: int


def gemm_call(
    scalars: tuple[int, int], a: Block, b: Block, c: Block, addresses: tuple[int, int, int]
) -> GemmCall:
    """Return the call that multiplies op-space A (m×k) and B (k×n) into C (m×n).

    A row-major block is, to cuBLAS, its column-major transpose with the same leading dimension,
    and C' = B'·A': B goes first, and an operand stored as its op-space rectangle needs no flag.
    `scalars` are the host addresses of alpha and beta, `addresses` the device's of the blocks.
    Raises `InputError` where an extent or a leading dimension is more than cuBLAS's 32-bit
    interface takes, and `DeviceError` as `extents_of` does.
    """
    m, n, k = extents_of(a, b, c)
    (alpha, beta), (at_a, at_b, at_c) = scalars, addresses
    call = GemmCall(
        routine(c.tile.dtype),
        int(b.tile.trans),
        int(a.tile.trans),
        n,
        m,
        k,
        alpha,
        at_b,
        _ld(b),
        at_a,
        _ld(a),
        beta,
        at_c,
        _ld(c),
    )
    _check_extents(call, ("m", "n", "k", "lda", "ldb", "ldc"))
    return call


class TrsmCall(NamedTuple):
    """The arguments of one cuBLAS trsm after its stream, column-major as cuBLAS reads them."""

    routine: str
    side: int
    uplo: int
    trans: int
    diag: int
    m: int
    n: int
    alpha: int
    a: int
    lda: int
    b: int
    ldb: int


def trsm_call(one: int, a: Block, b: Block, form: Triangle, addresses: tuple[int, int]) -> TrsmCall:
    """Return the call that overwrites B by op(A)^-1·B or B·op(A)^-1.

    To cuBLAS both are the transposes: B' := B'·op(A')^-1 for side L, where the lower triangle is
    A's upper one. `one` is the host address of the scalar 1 in the dtype of B, `addresses` are the
    device's of A and B. Raises as `gemm_call` does.
    """
    order = b.rows if form.side == "L" else b.cols
    if (a.rows, a.cols) != (order, order):
        raise InputError(
            f"cannot solve with {a.rows}×{a.cols} for {b.rows}×{b.cols} on side {form.side}"
        )
    call = TrsmCall(
        routine(b.tile.dtype, "trsm"),
        int(form.side == "L"),
        int(form.lower),
        "NTC".index(form.trans),
        int(form.unit),
        b.cols,
        b.rows,
        one,
        addresses[0],
        _ld(a),
        addresses[1],
        _ld(b),
    )
    _check_extents(call, ("m", "n", "lda", "ldb"))
    return call


def _check_extents(call: GemmCall | TrsmCall, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(call, name)
        if value > INT32_MAX:
            raise InputError(
                f"cuBLAS takes 32-bit extents: {name} = {value:,} is more than {INT32_MAX:,}; "
                "force a smaller tile with Options(tile=...)",
                requested=value,
                available=INT32_MAX,
            )


def routine(dtype: np.dtype[Any], kind: str = "gemm") -> str:
    """Return cuBLAS's name of an operation of this dtype."""
    try:
        return LETTERS[dtype.char] + kind
    except KeyError:
        raise InputTypeError(f"cuBLAS multiplies {listed('and')}, got {dtype}") from None


def _ld(block: Block) -> int:
    """Return the leading dimension; of a single row any will do, but BLAS wants a row's length."""
    return block.tile.ld if block.rows > 1 else max(block.tile.ld, block.cols)
