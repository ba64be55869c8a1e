"""Keys of stored matrices: the rows and columns that integers and slices name."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

from hdgemm.errors import InputError, InputIndexError, InputTypeError


class Selection(NamedTuple):
    """Rows and columns that a key names; `dropped` are the axes that it gives one integer for."""

    rows: range
    cols: range
    dropped: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what the key names, without the dropped axes."""
        extents = len(self.rows), len(self.cols)
        return tuple(each for axis, each in enumerate(extents) if axis not in self.dropped)


def select(key: Any, shape: tuple[int, int]) -> Selection:
    """Return the rows and columns of ``matrix[key]``, by NumPy's rules for integers and slices.

    Raises
    ------
    InputError
        For more than two indices, and for lists, arrays and None.
    InputIndexError
        For an integer outside the matrix.
    InputTypeError
        For bounds of a slice that are no integers.
    """
    keys = _expanded(key if isinstance(key, tuple) else (key,))
    if len(keys) > 2:
        raise InputError(f"a matrix takes an index of rows and one of columns, got {key!r}")
    rows, cols = (_range(*each) for each in zip(keys, shape, strict=True))
    dropped = tuple(axis for axis, each in enumerate(keys) if not isinstance(each, slice))
    return Selection(rows, cols, dropped)


def _expanded(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return keys with a slice for each axis that an ellipsis, or nothing, stands for."""
    missing = slice(None)
    ellipses = [place for place, each in enumerate(keys) if each is Ellipsis]
    if len(ellipses) > 1:
        raise InputError("a matrix takes one ellipsis at most")
    if ellipses:
        place = ellipses[0]
        rest = len(keys) - 1
        return (*keys[:place], *[missing] * (2 - rest), *keys[place + 1 :])
    return (*keys, *[missing] * (2 - len(keys)))


def _range(key: Any, extent: int) -> range:
    """Return the indices that a slice or an integer names in an axis."""
    if isinstance(key, slice):
        try:
            return range(*key.indices(extent))
        except TypeError as error:
            raise InputTypeError(f"the bounds of a slice must be integers, got {key}") from error
        except ValueError as error:
            raise InputError(f"the step of a slice must not be zero, got {key}") from error
    try:
        place = index(key)
    except TypeError:
        place = None
    if place is None or isinstance(key, bool):
        raise InputError(
            f"a stored matrix takes integers and slices, such as M[0] or M[0:1000, 50:], got "
            f"{key!r}; read it with numpy.asarray for any other indexing"
        )
    if not -extent <= place < extent:
        raise InputIndexError(f"index {place} is outside the {extent} rows or columns", index=place)
    place %= extent
    return range(place, place + 1)
