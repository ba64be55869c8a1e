"""Arrays of other libraries: the namespace of operands, and results returned to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def namespace_of(operands: Iterable[Any]) -> Any:
    """Return the operands' array namespace; None for NumPy's.

    Raises
    ------
    InputTypeError
        When there is none, or more than one.
    """
    operands = tuple(operands)
    if all(isinstance(x, np.ndarray) for x in operands):
        return None
    try:
        from array_api_compat import array_namespace
    except ImportError:
        found = {getattr(x, "__array_namespace__", lambda: None)() for x in operands}
        if None in found or len(found) != 1:
            raise InputTypeError(
                "operands must be arrays of one library that has __array_namespace__; for PyTorch "
                "and Dask: pip install array-api-compat"
            ) from None
        return found.pop()
    try:
        return array_namespace(*operands)
    except TypeError as error:
        raise InputTypeError(f"operands must be arrays of one library: {error}") from error


def in_namespace(space: Any, result: Any, like: Any) -> Any:
    """Return a NumPy array as an array of a namespace, on the device of the array `like`."""
    device = getattr(like, "device", None)
    on = {} if device is None or isinstance(device, str) else {"device": device}
    return space.asarray(np.ascontiguousarray(result).reshape(np.shape(result)), **on)


def in_callers_library(result: Any, args: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the result of a call in its operands' library: an array, or a tuple of arrays.

    Scalars, values with names, and results with an `out` stay as they are, and so do results of
    operands from several libraries, which are NumPy's.
    """
    given = (*args, *keywords.values())
    foreign = [x for x in given if _is_foreign(x)]
    if not foreign or keywords.get("out") is not None:
        return result
    if any(isinstance(x, np.ndarray) for x in given):
        return result
    try:
        space = namespace_of(foreign)
    except InputTypeError:
        return result
    return _returned(result, space, foreign[0])


def _returned(result: Any, space: Any, like: Any) -> Any:
    if type(result) is tuple:
        return tuple(_returned(each, space, like) for each in result)
    return in_namespace(space, result, like) if type(result) is np.ndarray else result


def _is_foreign(x: Any) -> bool:
    """Say whether a value is an array of another library than NumPy."""
    if isinstance(x, np.ndarray | np.generic) or not hasattr(x, "dtype"):
        return False
    if hasattr(x, "__array_namespace__"):
        return True
    try:
        from array_api_compat import is_array_api_obj
    except ImportError:
        return False
    return bool(is_array_api_obj(x))
