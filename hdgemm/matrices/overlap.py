"""Whether writing C could change A or B while they are still being read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np

from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.memmaps import find_mapping

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

#: Steps after which two strided arrays count as overlapping; far more than matrices need.
_MAX_WORK: Final = 10_000


@runtime_checkable
class Sourced(Protocol):
    """A matrix that names the store it lies in: equal sources are the same elements."""

    @property
    def source(self) -> Hashable:
        """What tells this store from all others."""


def overlaps(a: Operand, out: Operand) -> bool:
    """Say whether `a` and `out` have an element in common; in doubt, yes.

    Files are compared by device, inode and bytes, arrays by the addresses of their elements, an
    array mapped from a file by that file. The check takes bounded time and reads no element.
    """
    return _same_elements(a.matrix, out.matrix)


def _same_elements(a: Matrix, out: Matrix) -> bool:
    if a is out:
        return True
    if a.array is not None and out.array is not None:
        return _arrays_overlap(a.array, out.array)
    if isinstance(a, FileMatrix) and isinstance(out, FileMatrix):
        return a.file.identity == out.file.identity and _spans_overlap(a, out)
    if isinstance(a, FileMatrix) and out.array is not None:
        return _mapped_from(out.array, a)
    if isinstance(out, FileMatrix) and a.array is not None:
        return _mapped_from(a.array, out)
    if isinstance(a, Sourced) and isinstance(out, Sourced):
        return a.source == out.source
    return False


def _arrays_overlap(a: NDArray[Any], out: NDArray[Any]) -> bool:
    if not np.may_share_memory(a, out):
        return False
    try:
        return np.shares_memory(a, out, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def _spans_overlap(a: FileMatrix, out: FileMatrix) -> bool:
    if a.offset >= out.end or out.offset >= a.end:
        return False
    if a.pitch != out.pitch or a.pitch == 0:
        return True
    # On the grid of a's rows, `out` is the rectangle whose first element is [row, start].
    row, start = divmod(out.offset - a.offset, a.pitch)
    if start + out.shape[1] * out.dtype.itemsize > a.pitch:
        return True
    rows_meet = row < a.shape[0] and row + out.shape[0] > 0
    return rows_meet and start < a.shape[1] * a.dtype.itemsize


def _mapped_from(array: NDArray[Any], matrix: FileMatrix) -> bool:
    """Say whether `array` is a mapping of the file that `matrix` lies in."""
    mapping = find_mapping(array)
    if mapping is None:
        return False
    status = mapping.path.stat()
    return (status.st_dev, status.st_ino) == matrix.file.identity
