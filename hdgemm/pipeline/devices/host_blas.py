"""The host's gemm by address: in NumPy's own BLAS, or SciPy's where NumPy's hides its names.

`numpy.matmul` cannot accumulate, and SciPy's wrappers copy operands whose leading dimension is
not their width. NumPy's BLAS is loaded in any case; SciPy brings another one, with threads of
its own, and a fifth of a second of imports.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: Part of NumPy that is linked to its BLAS.
_EXTENSION: Final = "numpy.linalg._umath_linalg"
_ROUTINES: Final = {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}
#: What precedes and follows a routine's name, and the largest integer that it then takes: as in
#: NumPy's wheels, in BLAS with 64-bit integers, and in any other.
_NAMES: Final = (
    ("scipy_", "_64_", 2**63 - 1),
    ("", "_64_", 2**63 - 1),
    ("scipy_", "_", 2**31 - 1),
    ("", "_", 2**31 - 1),
)


class Routine(NamedTuple):
    """A gemm with Fortran's arguments, all by address.

    Integers are handed over as 64 bits: on a little-endian machine a BLAS with 32-bit integers
    finds in the first half what it looks for, up to `most`.
    """

    call: Callable[..., None]
    most: int


def find_routines() -> dict[str, Routine]:
    """Return gemm for each dtype character."""
    found = {char: _of_numpy(name) for char, name in _ROUTINES.items()}
    return {char: found[char] or _of_scipy(name) for char, name in _ROUTINES.items()}


def _of_numpy(name: str) -> Routine | None:
    """Look for a routine in the library that NumPy is linked to."""
    extension = getattr(sys.modules.get(_EXTENSION), "__file__", None)
    if extension is None or sys.byteorder != "little":
        return None
    try:
        # Names are looked up in what the extension is linked to as well.
        linked = ctypes.CDLL(extension)
    except OSError:
        return None
    for before, after, most in _NAMES:
        if hasattr(linked, before + name + after):
            return Routine(_typed(linked[before + name + after]), most)
    return None


def _of_scipy(name: str) -> Routine:
    """Take the address that SciPy publishes for Cython."""
    from scipy.linalg import cython_blas

    published: dict[str, object] = dict(cython_blas.__pyx_capi__)
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = published[name]
    pointer = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return Routine(_typed(ctypes.CFUNCTYPE(None)(pointer)), 2**31 - 1)


def _typed(function: Any) -> Callable[..., None]:
    # Functions of ctypes release the interpreter's lock while BLAS works.
    function.restype = None
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_void_p] * 11]
    typed: Callable[..., None] = function
    return typed
