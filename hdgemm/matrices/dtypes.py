"""Which element types can be multiplied, and what to say of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputTypeError

if TYPE_CHECKING:
    import numpy as np

SUPPORTED: Final = ("float32", "float64", "complex64", "complex128")
_ADVICE: Final = {
    "f": "convert it with .astype('float32') or .astype('float64')",
    "c": "convert it with .astype('complex128')",
    "i": "convert it with .astype('float64')",
    "u": "convert it with .astype('float64')",
    "b": "convert it with .astype('float64')",
    "O": "give it a number type with .astype('float64')",
    "V": "take one field of it",
}


def check_dtype(dtype: np.dtype[Any], what: str) -> None:
    """Raise unless `dtype`, in whatever byte order, is one that BLAS knows.

    Raises
    ------
    InputTypeError
        Saying what `what` has and what to do about it.
    """
    if dtype.newbyteorder("=").name in SUPPORTED and dtype.kind in "fc":
        return
    advice = _ADVICE.get(dtype.kind, "a matrix holds numbers")
    raise InputTypeError(
        f"{what} has dtype {dtype}; it must be one of {', '.join(SUPPORTED)}: {advice}",
        dtype=str(dtype),
    )
