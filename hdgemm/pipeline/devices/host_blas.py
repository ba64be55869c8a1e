"""The host's gemm, called by address, and the number of threads of the BLAS that holds it.

The routine is the one of the BLAS that NumPy is linked to, or SciPy's where NumPy's hides its
names. `numpy.matmul` cannot accumulate into C, and SciPy's wrappers copy operands whose leading
dimension is not their width. A call by address releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from threadpoolctl import ThreadpoolController

from hdgemm.dtypes import LETTERS
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

#: Parts of NumPy and of SciPy that are linked to their BLAS.
_NUMPY: Final = "numpy.linalg._umath_linalg"
_SCIPY: Final = "scipy.linalg.cython_blas"
#: SciPy's first module that is linked to its BLAS.
_SCIPYS_BLAS: Final = "scipy.linalg._fblas"
#: Prefix and suffix of a routine's name, and the largest integer that it takes: NumPy's wheels,
#: BLAS with 64-bit integers, and any other.
_SPELLINGS: Final = (
    ("scipy_", "_64_", 2**63 - 1),
    ("", "_64_", 2**63 - 1),
    ("scipy_", "_", 2**31 - 1),
    ("", "_", 2**31 - 1),
)
#: OpenBLAS: whether it has threads of its own or OpenMP's, and their number.
_OPENBLAS: Final = ("get_parallel", "get_num_threads", "set_num_threads")
_OPENMP: Final = 2


class Routine(NamedTuple):
    """A gemm with Fortran's arguments, all by address.

    Integers are passed as 64 bits: on a little-endian machine, a BLAS with 32-bit integers reads
    the lower half, which is the value up to `largest`.
    """

    call: Callable[..., None]
    largest: int


class Gemm(NamedTuple):
    """C := alpha·op(A)·op(B) + beta·C on row-major matrices given by address.

    op(A) is m×k, op(B) is k×n; `scalars` are alpha and beta in the dtype of the matrices.
    """

    routine: Routine
    scalars: NDArray[Any]
    trans_a: bool
    trans_b: bool
    m: int
    n: int
    k: int
    a: int
    lda: int
    b: int
    ldb: int
    c: int
    ldc: int

    @property
    def c_itemsize(self) -> int:
        """Bytes of an element of C."""
        return self.scalars.itemsize

    def check(self) -> None:
        """Raise `InputError` when an extent exceeds the integers of this BLAS."""
        largest = max(self.m, self.n, self.k, self.lda, self.ldb, self.ldc)
        if largest > self.routine.largest:
            raise InputError(
                f"an extent of {largest:,} is more than this BLAS takes "
                f"({self.routine.largest:,}); force a smaller tile with Options(tile=...)"
            )

    def block(self, row: int, col: int, rows: int, cols: int) -> Gemm:
        """Return the product for one rectangle of C."""
        size = self.scalars.itemsize
        return self._replace(
            m=rows,
            n=cols,
            a=self.a + row * size * (1 if self.trans_a else self.lda),
            b=self.b + col * size * (self.ldb if self.trans_b else 1),
            c=self.c + (row * self.ldc + col) * size,
        )

    def terms(self, first: int, count: int) -> Gemm:
        """Return the product of some columns of op(A) and the same rows of op(B)."""
        size = self.scalars.itemsize
        return self._replace(
            k=count,
            a=self.a + first * size * (self.lda if self.trans_a else 1),
            b=self.b + first * size * (1 if self.trans_b else self.ldb),
        )

    def run(self) -> None:
        """Call BLAS, which sees column-major matrices: C' := alpha·op(B)'·op(A)' + beta·C'."""
        alpha = self.scalars.ctypes.data
        extents = (self.n, self.m, self.k, self.ldb, self.lda, self.ldc)
        n, m, k, ldb, lda, ldc = [ctypes.byref(ctypes.c_int64(value)) for value in extents]
        self.routine.call(
            b"T" if self.trans_b else b"N",
            b"T" if self.trans_a else b"N",
            n,
            m,
            k,
            alpha,
            self.b,
            ldb,
            self.a,
            lda,
            alpha + self.scalars.itemsize,
            self.c,
            ldc,
        )


@cache
def routine_for(dtype: np.dtype[Any]) -> Routine:
    """Return gemm for a supported dtype."""
    name = LETTERS[dtype.char] + "gemm"
    return _from_numpy(name) or _from_scipy(name)


def _from_numpy(name: str) -> Routine | None:
    """Look the routine up in the library that NumPy is linked to."""
    linked = _linked(_NUMPY)
    for prefix, suffix, largest in _SPELLINGS:
        if hasattr(linked, prefix + name + suffix):
            return Routine(_typed(linked[prefix + name + suffix]), largest)
    return None


def _linked(extension: str) -> Any:
    """Return an extension; it has the names of its linked libraries, too."""
    path = getattr(sys.modules.get(extension), "__file__", None)
    if path is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _from_scipy(name: str) -> Routine:
    from scipy.linalg import cython_blas

    from hdgemm.fortran import LARGEST, address_of

    return Routine(_typed(ctypes.CFUNCTYPE(None)(address_of(cython_blas, name))), LARGEST)


def _typed(function: Any) -> Callable[..., None]:
    function.restype = None
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_void_p] * 11]
    typed: Callable[..., None] = function
    return typed


class _SingleThreaded:
    """Context in which BLAS runs each call in the thread that makes it.

    Contexts may nest and overlap in several threads: the first one to be entered remembers the
    number of threads that BLAS is set to, the last one to be left restores it. `extension` is the
    module that is linked to the BLAS.
    """

    def __init__(self, extension: str) -> None:
        self._extension = extension
        self._lock = threading.Lock()
        self._contexts = 0
        self._before: list[int] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def __enter__(self) -> None:
        with self._lock:
            if self._contexts == 0:
                self._before = [setting.get() for setting in self._settings()]
            self._contexts += 1
            # Each time: with OpenMP, the number is the thread's own.
            for setting in self._settings():
                setting.set(1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._contexts -= 1
            if self._contexts == 0:
                self._restore()

    @property
    def threads(self) -> int:
        """The number of threads that BLAS is set to outside of all contexts."""
        with self._lock:
            before = self._before if self._contexts else [x.get() for x in self._settings()]
        return max(before, default=1)

    def _settings(self) -> list[_Setting]:
        return _settings(self._extension)

    def _restore(self) -> None:
        for setting, threads in zip(self._settings(), self._before, strict=True):
            setting.set(threads)

    def _reset(self) -> None:
        """Leave all contexts in a forked child, which has none of the threads that hold them."""
        self._lock = threading.Lock()
        if self._contexts:
            self._contexts = 0
            self._restore()


def blas_threads(count: int) -> Any:
    """Limit the threads of NumPy's and SciPy's BLAS at once, and until a `with` block ends.

    `threadpoolctl.threadpool_limits` looks for libraries in the process's memory map each time,
    which takes milliseconds. Here it looks once, and again when SciPy's BLAS has been loaded.
    """
    return _loaded_blas(_SCIPYS_BLAS in sys.modules).limit(limits=count, user_api="blas")


@cache
def _loaded_blas(_scipys: bool) -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


SINGLE_THREADED: Final = _SingleThreaded(_NUMPY)
SCIPY_SINGLE_THREADED: Final = _SingleThreaded(_SCIPY)


class _Setting(NamedTuple):
    """The number of threads of one BLAS library."""

    get: Callable[[], int]
    set: Callable[[int], object]


@cache
def _settings(extension: str) -> list[_Setting]:
    """Return the setting of an extension's OpenBLAS; of all loaded BLAS where it is another.

    threadpoolctl is not used for OpenBLAS with threads of its own: it accepts changes from one
    Python thread only.
    """
    linked = _linked(extension)
    for prefix in ("scipy_openblas_", "openblas_"):
        for suffix in ("64_", "_64", ""):
            names = [prefix + name + suffix for name in _OPENBLAS]
            if all(hasattr(linked, name) for name in names):
                parallel, get, set_threads = (linked[name] for name in names)
                if parallel() != _OPENMP:
                    return [_Setting(get, set_threads)]
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return [_Setting(library.get_num_threads, library.set_num_threads) for library in found]
