"""Overlaps of matrices: shared elements in memory, in files and through mappings of files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import walk
from hdgemm.matrices.memmaps import mapped_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix, Operand

    #: A file's identity, and an array laid out over its offsets.
    _Span = tuple[tuple[int, int], NDArray[Any]]

#: Effort that NumPy may spend on strides that interleave; beyond it the answer is True.
_MAX_WORK: Final[Any] = 100_000
#: Added to file offsets, so that no stand-in lies at address 0.
_BASE: Final = 1 << 20
#: Stands for a file's identity where a matrix lies in device memory.
_DEVICE_MEMORY: Final = (-1, 0)


def overlaps(x: Matrix | Path, y: Matrix | Path) -> bool:
    """Return whether an element of `x` may be an element of `y`.

    A path means the whole file, whether or not it exists.
    """
    if isinstance(x, Path) or isinstance(y, Path):
        return _share_files(x, y)
    if _one_store(x, y):
        return _chunks_meet(x, y)
    if x.files or y.files or any(each.home and each.home.is_dir() for each in (x, y)):
        return _share_files(x, y)
    if x.array is not None and y.array is not None:
        return arrays_overlap(x.array, y.array)
    return _share_file(_in_file(x), _in_file(y))


def same_elements(x: Operand, y: Operand) -> bool:
    """Return whether both are one matrix, element for element."""
    if x.shape != y.shape or x.matrix.dtype != y.matrix.dtype:
        return False
    if _one_store(x.matrix, y.matrix):
        return x.trans == y.trans and all(
            getattr(x.matrix, name) == getattr(y.matrix, name) for name in ("origin", "steps")
        )
    spans = [_in_file(operand.matrix) or ("memory", operand.matrix.array) for operand in (x, y)]
    (x_space, x_array), (y_space, y_array) = spans
    if x_space != y_space or x_array is None or y_array is None:
        return False
    seen = [array.T if op.trans else array for array, op in ((x_array, x), (y_array, y))]
    return _layout(seen[0]) == _layout(seen[1])


def _one_store(x: Matrix, y: Matrix) -> bool:
    """Return whether both are parts of one HDF5 dataset, Zarr array or other store."""
    return x.source is not None and x.source == y.source


def _chunks_meet(x: Matrix, y: Matrix) -> bool:
    """Return whether two rectangles of one store share an element, or a chunk that can only be
    encoded as a whole.
    """
    chunk = next((m.chunk for m in (x, y) if m.chunk is not None and m.encoded), (1, 1))
    for axis, step in enumerate(chunk):
        (first, last), (begin, end) = (
            (m.origin[axis] // step, -(-(m.origin[axis] + m.span[axis]) // step)) for m in (x, y)
        )
        if last <= begin or end <= first:
            return False
    return bool(min(*x.shape, *y.shape))


def arrays_overlap(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Return whether two arrays share an element, in memory or through mappings of one file."""
    return _share_memory(x, y) or _share_file(_mapped(x), _mapped(y))


def _share_memory(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Return whether two arrays share an address; True where that is too hard to tell."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def _layout(x: NDArray[Any]) -> tuple[int, tuple[int, ...]]:
    strides = tuple(step for step, extent in zip(x.strides, x.shape, strict=True) if extent > 1)
    return x.__array_interface__["data"][0], strides


def _share_files(x: Matrix | Path, y: Matrix | Path) -> bool:
    found = _files(y)
    return bool(found) and not found.isdisjoint(_files(x))


def _files(x: Matrix | Path) -> set[tuple[int, int]]:
    """Return the identities of the files that elements of `x` are in."""
    if isinstance(x, FileMatrix):
        return {x.file.identity}
    if not isinstance(x, Path) and (span := _in_file(x)) is not None:
        return {span[0]}
    found = set()
    for path in (x,) if isinstance(x, Path) else (*x.files, *_in_home(x)):
        with suppress(OSError):
            status = path.stat()
            found.add((status.st_dev, status.st_ino))
    return found


def _in_home(x: Matrix) -> Iterator[Path]:
    """Yield the file that holds a matrix, or the folder and all files in it, which may have other
    names, too.
    """
    if x.home is not None:
        yield x.home
        for folder, names in walk(x.home):
            yield from (folder / name for name in names)


def _in_file(x: Matrix) -> _Span | None:
    """Return the file that `x` lies in, and an array laid out over file offsets as `x` is."""
    if isinstance(x, FileMatrix):
        strides = (x.pitch, x.dtype.itemsize)
        return x.file.identity, _stand_in(x.offset, x.shape, strides, x.dtype)
    if isinstance(x, DeviceArrayMatrix):
        found = x.device_array
        # Device addresses are unique in a process, whatever the number of GPUs.
        return _DEVICE_MEMORY, _stand_in(found.pointer, found.shape, found.strides, found.dtype)
    return None if x.array is None else _mapped(x.array)


def _mapped(array: NDArray[Any]) -> _Span | None:
    place = mapped_place(array)
    if place is None:
        return None
    return place.identity, _stand_in(place.offset, array.shape, array.strides, array.dtype)


def _share_file(x: _Span | None, y: _Span | None) -> bool:
    return x is not None and y is not None and x[0] == y[0] and _share_memory(x[1], y[1])


def _stand_in(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Make an array whose addresses are file offsets; to be compared, never read."""

    class Layout:
        __array_interface__: Final = {
            "data": (offset + _BASE, True),
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str,
            "version": 3,
        }

    return np.asarray(Layout())
