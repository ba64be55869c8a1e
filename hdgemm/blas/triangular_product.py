"""Products and systems with a triangular matrix, by BLAS's arguments: `trmm`, `trsm`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np

from hdgemm.blas.blockwise import block_of, opened, product_summary, rectangle, run_blocks
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import check_square, open_matrix, open_square
from hdgemm.call.run import open_run
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import InputError
from hdgemm.linalg.solving.columns import ColumnSolver, solve_columns
from hdgemm.linalg.solving.triangles import Triangle
from hdgemm.linalg.storage import open_output
from hdgemm.matrices.triangles import TriangularMatrix
from hdgemm.product.arguments import as_scalar, flag, result_dtype, trans_flags
from hdgemm.product.product import Product
from hdgemm.product.target import check_no_operand

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.blas.products import Given, Written
    from hdgemm.call.keywords import Element, Stored, Where
    from hdgemm.linalg.solving.triangles import TriangleSolver

#: Blocks that a triangle is cut into at most: the zeros that are multiplied are 1/16 of it then.
_MOST_BLOCKS: Final = 16
#: Rows of a block at least, unless `Options.tile` forces fewer.
_LEAST_ROWS: Final = 512


@overload
def trmm(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def trmm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: Given | tuple[Given] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Given: ...
@overload
def trmm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def trmm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,  # noqa: ARG001 - SciPy's argument, a permission
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Return alpha·op(A)·B with a triangular A, argument for argument as SciPy's `dtrmm`.

    Parameters
    ----------
    alpha
        A number. Zero never reads A or B.
    a
        A square matrix as in `hdgemm.matmul`; one triangle is read, the other may hold anything.
    b
        As in `hdgemm.matmul`.
    side
        0: op(A)·B; 1: B·op(A).
    lower
        A is lower triangular; by default upper.
    trans_a
        0: A; 1: its transpose; 2: its conjugate transpose.
    diag
        1: the diagonal is not read; ones are in its place.
    overwrite_b
        Has no effect: the result goes to new memory, or to `out`, which must not overlap `b`.
    report
        As in `hdgemm.linalg.cholesky`.
    out, options, session, progress, observer, cancel
        As in `hdgemm.matmul`. ``tile=(mb, nb, kb)`` also cuts the triangle into blocks of mb rows.

    Returns
    -------
    array
        As `hdgemm.matmul`.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        No plan fits the limits.
    CancelledRunError
        When `cancel` was set; an unfinished result is never published.

    See Also
    --------
    trsm : Solve with a triangular matrix.
    symm : A symmetric A.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> b = hdgemm.trmm(1.0, "L.npy", "B.npy", lower=1, out="LB.npy")
    """
    call = Call.of(**keywords)
    side, lower, diag = flag(side, "side"), flag(lower, "lower"), flag(diag, "diag")
    left, right, trans = (b, a, (0, trans_a)) if side else (a, b, (trans_a, 0))
    product = Product.of(left, right, alpha=alpha, trans_a=trans[0], trans_b=trans[1], out=out)
    operand = product.b if side else product.a
    check_square(operand.shape)
    # `operand.trans` combines op(A) with the transposition of the stored matrix.
    stored_lower = lower != (operand.trans != bool(trans_a))
    triangle = replace(
        operand, matrix=TriangularMatrix(operand.matrix, lower=stored_lower, unit=diag)
    )
    product = replace(product, b=triangle) if side else replace(product, a=triangle)
    # op(A)·B of a lower op(A) needs the first rows of B, B·op(A) the last columns.
    first = (stored_lower != operand.trans) != side
    with opened(product, call, "trmm") as (stored, run):
        tile = run.options.tile
        blocks = _blocks(stored, side, first=first, rows=tile[0] if tile else None)
        portions = RunSequence(run.callbacks, sum(block.flops for block in blocks))
        run_blocks(blocks, run, portions)
        portions.finish(product_summary("trmm", stored, run.options))
    return product.result()


def _blocks(product: Product, side: int, *, first: bool, rows: int | None) -> list[Product]:
    """Cut the product along the triangle, so that most of its zeros are not multiplied.

    Parameters
    ----------
    first
        A block needs k up to its own end; else from its own begin.
    rows
        Forces the rows (columns for side 1) of a block.
    """
    n = product.k
    step = rows or max(_LEAST_ROWS, -(-n // _MOST_BLOCKS))
    every = slice(None)
    blocks = []
    for begin in range(0, n, step):
        part = slice(begin, min(begin + step, n))
        inner = slice(0, part.stop) if first else slice(begin, n)
        block = block_of(product, every, part) if side else block_of(product, part, every)
        a, b = rectangle(block.a, every, inner), rectangle(block.b, inner, every)
        blocks.append(replace(block, a=a, b=b))
    return blocks


@overload
def trsm(
    alpha: Any,
    a: NDArray[Element],
    b: NDArray[Element],
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def trsm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: Literal[False, 0] = False,
    *,
    out: Written | tuple[Written] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Written: ...
@overload
def trsm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: Literal[False, 0] = False,
    *,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@overload
def trsm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any: ...
@public_call(ReportKeywords)
def trsm(
    alpha: Any,
    a: Any,
    b: Any,
    side: int = False,
    lower: int = False,
    trans_a: int = False,
    diag: int = False,
    overwrite_b: int = False,
    *,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Return X with op(A)·X = alpha·B for a triangular A, argument for argument as SciPy's `dtrsm`.

    A streams through memory once for all columns of B (rows, with ``side=1``) that fit beside it.
    As in BLAS nothing is checked: a zero on the diagonal gives Inf and NaN;
    `hdgemm.linalg.solve_triangular` raises an error for it.

    Parameters
    ----------
    alpha
        A number. Zero never reads A or B, and X is zero.
    side
        0: op(A)·X = alpha·B; 1: X·op(A) = alpha·B.
    overwrite_b
        Without `out`, X may be stored in place of `b`, also where `b` is a file.
    out
        As in `hdgemm.matmul`, or `b` itself.
    a, b, lower, trans_a, diag
        As in `trmm`.
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
        When not one column of B fits the memory.
    CancelledRunError
        When `cancel` was set; an unfinished X is never published.

    See Also
    --------
    trmm : Multiply by a triangular matrix.
    hdgemm.linalg.solve_triangular : Raises an error for zeros on the diagonal.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> x = hdgemm.trsm(1.0, "L.npy", "B.npy", lower=1, out="X.npy")
    """
    call = Call.of(**keywords)
    side, lower, diag = flag(side, "side"), flag(lower, "lower"), flag(diag, "diag")
    matrix, rhs = open_square(a), open_matrix(b, "b")
    n = matrix.shape[0]
    if rhs.shape[side] != n:
        what = "columns" if side else "rows"
        raise InputError(f"b has shape {rhs.shape}: it needs {n} {what}, as a has")
    check_no_operand(out, matrix)
    dtype = result_dtype(matrix.dtype, rhs.dtype)
    factor = as_scalar(alpha, dtype, "alpha")
    trans, conj = trans_flags(trans_a, "trans_a")
    code = ("C" if conj else "T") if trans else "N"
    # X·op(A) = alpha·B is solved as op(A)^T·X^T = alpha·B^T, of which conj(A) is a case.
    conjugate = side and code == "C"
    if side:
        code = {"N": "T", "T": "N", "C": "N"}[code]
    triangle = Triangle(matrix, lower, code, unit=diag)

    def solve(solver: TriangleSolver, x: NDArray[Any]) -> None:
        np.multiply(x, dtype.type(factor), out=x)
        if conjugate:
            np.conjugate(x, out=x)
        solver.solve(triangle, x)
        if conjugate:
            np.conjugate(x, out=x)

    in_place = bool(overwrite_b) and rhs.dtype == dtype
    with (
        open_run(call) as run,
        open_output(out, b, rhs, order="C", overwrite_a=in_place, dtype=dtype) as target,
    ):
        solver = ColumnSolver(solve, (triangle,))
        if factor == 0:
            rhs = open_matrix(np.broadcast_to(dtype.type(0), rhs.shape))
            solver = ColumnSolver(lambda _solver, _x: None, ())
        turned = (rhs.T, target.stored.T) if side else (rhs, target.stored)
        solve_columns(solver, *turned, dtype, run, check_finite=False)
    return target.result()
