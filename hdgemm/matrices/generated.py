"""Matrices given by a function: computed by blocks when they are read, never stored."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.layout import check_read, rectangles
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.transfer import BOUNCE_SIZE, DISK_THREADS, Pool
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from hdgemm.matrices.transfer import Bounce

    #: First row, first column, rows and columns.
    _Block = tuple[int, int, int, int]

    #: Returns the elements of some rows and columns.
    BlockFunction = Callable[[slice, slice], ArrayLike]

#: Bytes of a block at most: plans have room for one in each thread.
_BLOCK_BYTES: Final = BOUNCE_SIZE
#: `within_function` of each thread.
_THREAD: Final = threading.local()


@cache
def _function_pool() -> Pool:
    """Return the threads that call functions beside the threads that read."""
    return Pool(DISK_THREADS - 1, "hdgemm-function")


# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_function_pool.cache_clear)


def within_function() -> bool:
    """Say whether this thread calls a function of the user, for which a run waits."""
    return getattr(_THREAD, "within", False)


@contextmanager
def calling_function() -> Iterator[None]:
    """Note that this thread calls a function of the user, for which a run waits."""
    before = within_function()
    _THREAD.within = True
    try:
        yield
    finally:
        _THREAD.within = before


def _next(blocks: deque[_Block]) -> _Block | None:
    """Take a block that no other thread has taken; None where none is left."""
    try:
        return blocks.popleft()
    except IndexError:
        return None


class GeneratedMatrix(Matrix):
    """A matrix whose elements a function computes; it cannot be written."""

    def __init__(
        self, function: BlockFunction, shape: tuple[int, int], dtype: np.dtype[Any], name: str
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.source = id(function)
        self._function = function

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Fill `out` from the rectangle at ``[row, col]``, by blocks in several threads.

        A function may itself read matrices or multiply, which waits for other threads. So it is
        called in none of `disk_pool`, and this thread computes all blocks that no other begins.
        """
        most = max(1, _BLOCK_BYTES // self.dtype.itemsize)
        blocks = deque(rectangles((out.shape[0], out.shape[1]), most))

        def compute(_bounce: Bounce | None = None) -> None:
            try:
                while (block := _next(blocks)) is not None:
                    top, left, rows, cols = block
                    part = out[top : top + rows, left : left + cols]
                    self._compute(row + top, col + left, part)
            except BaseException:
                blocks.clear()
                raise

        pool = _function_pool()
        others = pool.begin([compute] * min(len(blocks) - 1, pool.threads))
        try:
            compute()
        finally:
            pool.drop(others)
            others.wait()

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:  # noqa: ARG002 - refused
        """Refuse."""
        raise InputError(f"{self.name} is computed by a function and cannot be written")

    def _compute(self, row: int, col: int, out: NDArray[Any]) -> None:
        rows, cols = out.shape
        with calling_function():
            block = np.asarray(self._function(slice(row, row + rows), slice(col, col + cols)))
        if block.shape != out.shape:
            raise InputError(
                f"{self.name} gave a block of shape {block.shape} for rows {row}:{row + rows} and "
                f"columns {col}:{col + cols}, which are {rows}×{cols}",
                found=block.shape,
                expected=out.shape,
            )
        if not np.can_cast(block.dtype, self.dtype, "same_kind"):
            raise InputTypeError(
                f"{self.name} gave elements of {block.dtype}, which {self.dtype} cannot hold"
            )
        np.copyto(out, block.astype(self.dtype, copy=False), casting="same_kind")


@refuses_unknown
def generated(
    shape: tuple[int, int],
    dtype: DTypeLike,
    f: BlockFunction,
    *,
    name: str | None = None,
    version: str | None = None,
) -> StoredMatrix:
    """Return a matrix that a function gives: kernel matrices, Toeplitz matrices, tests.

    It is an operand of every call, computed by blocks of at most 1 MiB when tiles are loaded, and
    never stored. Elements are computed anew whenever a tile is loaded again.

    Parameters
    ----------
    shape
        Rows and columns.
    dtype
        Type of the elements.
    f
        ``f(rows, cols)`` returns the block of two slices as an array. Several threads call it at
        once, and each block has to be the same every time. An exception ends the run.
    name, version
        Texts that durable runs record: a run goes on only with the same ones. Without them the
        elements are computed once more, as a fingerprint.

    Returns
    -------
    StoredMatrix
        A matrix as `hdgemm.open` returns it, for reading.

    Raises
    ------
    InputError
        For a shape that is none, and for a name without a version or a version without a name.
    InputTypeError
        For a dtype that cannot be multiplied.

    See Also
    --------
    open : A stored matrix.

    Examples
    --------
    >>> def gauss(rows, cols):
    ...     return np.exp(-0.5 * (x[rows, None] - x[None, cols]) ** 2)
    >>> k = hdgemm.generated((n, n), "float64", gauss)
    >>> kx = hdgemm.matmul(k, x[:, None])
    """
    try:
        rows, cols = map(index, shape)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"shape must be two integers, got {shape!r}") from error
    if min(rows, cols) < 0:
        raise InputError(f"shape must not be negative, got {shape!r}")
    if not callable(f):
        raise InputTypeError(f"f must be a function of two slices, got {type(f).__name__}")
    if (name is None) != (version is None):
        raise InputError("name and version go together: durable runs record both")
    checked = check_read(dtype, "the generated matrix").newbyteorder("=")
    matrix = GeneratedMatrix(f, (rows, cols), checked, name or "a generated matrix")
    if name is not None and version is not None:
        matrix.content = f"{name}, version {version}"
    return StoredMatrix(Operand(matrix), writable=False)
