"""Table of the element types that hdgemm computes with: the one list of them, and their facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Name of a supported dtype; each has a row in `ELEMENT_TYPES`.
DTypeName = Literal["float32", "float64", "complex64", "complex128"]
#: Name of a dtype that elements may be stored in: a supported one, or one of `CONVERTED`.
StoredDTypeName = Literal[
    DTypeName,
    "float16",
    "bfloat16",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
]


class ElementType(NamedTuple):
    """One supported dtype.

    Parameters
    ----------
    name, char
        NumPy's name of the dtype, and its character (`numpy.dtype.char`).
    letter
        First letter of the names of BLAS and LAPACK routines.
    real, real_bytes
        C type of one real of an element, in kernels, and its bytes.
    flops
        Floating-point operations of a multiply-add.
    half
        Supported dtype of half the precision, in which systems are factored before they are
        refined; None for no such dtype.
    """

    name: DTypeName
    char: str
    letter: str
    real: str
    real_bytes: int
    flops: int
    half: DTypeName | None = None


_ROWS: Final = (
    ElementType("float32", "f", "s", "float", 4, 2),
    ElementType("float64", "d", "d", "double", 8, 2, "float32"),
    ElementType("complex64", "F", "c", "float", 4, 8),
    ElementType("complex128", "D", "z", "double", 8, 8, "complex64"),
)
ELEMENT_TYPES: Final[Mapping[str, ElementType]] = {row.name: row for row in _ROWS}
#: Stored elements that are converted when they are loaded, with the dtype of the arithmetic.
CONVERTED: Final[Mapping[str, DTypeName]] = {
    "float16": "float32",
    "bfloat16": "float32",
    **dict.fromkeys(
        ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), "float64"
    ),
}
#: Element type of an exact product of integers.
WHOLE: Final = "int64"
#: Names of the supported dtypes.
SUPPORTED: Final = tuple(ELEMENT_TYPES)
#: First letters of routines by `numpy.dtype.char`, which does not depend on the byte order.
LETTERS: Final[Mapping[str, str]] = {row.char: row.letter for row in _ROWS}


def listed(last: str) -> str:
    """Return the names in a sentence, with `last`, "and" or "or", before the last of them."""
    return f"{', '.join(SUPPORTED[:-1])} {last} {SUPPORTED[-1]}"
