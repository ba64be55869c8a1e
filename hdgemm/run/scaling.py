"""C := beta·C, the product for alpha = 0 and for k = 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.matrices.layout import rectangles

if TYPE_CHECKING:
    import threading

    from hdgemm.matrices.base import Matrix, Operand

#: Bytes of the only buffer.
_BUFFER: Final = 64 << 20


def run_scaling(
    beta: complex,
    old: Operand | None,
    out: Operand,
    dtype: np.dtype[Any],
    *,
    cancel: threading.Event | None = None,
) -> None:
    """Compute C := beta·C by rectangles, in arithmetic of `dtype`.

    beta = 0 never reads the old C (which may hold NaN) and stores zeros; only then `old` may be
    None. `out` has the same elements as `old`, or others. When `cancel` is set, `CancelledRunError`
    is raised: some rectangles of C hold their new values, the others their old ones.
    """
    if beta == 0:
        old = None
    elif beta == 1 and old is not None and old.matrix is out.matrix:
        return
    target = out.matrix
    tiles = list(rectangles(target.shape, _BUFFER // dtype.itemsize))
    buffer = np.zeros(max((rows * cols for _, _, rows, cols in tiles), default=0), dtype)
    for row, col, rows, cols in tiles:
        if cancel is not None and cancel.is_set():
            raise CancelledRunError("cancelled while C was multiplied by beta; C is not finished")
        tile = buffer[: rows * cols]
        if old is None:
            target.write(row, col, tile.reshape(rows, cols))
        elif old.trans == out.trans:
            target.write(row, col, _scaled(old.matrix, row, col, tile.reshape(rows, cols), beta))
        else:
            target.write(row, col, _scaled(old.matrix, col, row, tile.reshape(cols, rows), beta).T)
    target.flush()


def _scaled(
    matrix: Matrix, row: int, col: int, tile: np.ndarray[Any, Any], beta: complex
) -> np.ndarray[Any, Any]:
    matrix.read(row, col, tile)
    if beta == 1:
        return tile
    # BLAS raises no floating-point signals: Inf·0 and overflow are results like others.
    with np.errstate(all="ignore"):
        np.multiply(tile, tile.dtype.type(beta), out=tile)
    return tile
