"""The stand-in's cuSOLVER: the functions of `cupy.cuda.cusolver` that the device calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm import fortran
from hdgemm.pipeline.devices.cuda.standin.memory import DEVICE, ILLEGAL_ADDRESS, matrix
from hdgemm.pipeline.devices.cuda.standin.streams import CUDARuntimeError, CUSOLVERError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.standin.standin import StandIn

_DTYPES: Final = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
_NOT_INITIALIZED: Final = 1
_INVALID_VALUE: Final = 3
_EXECUTION_FAILED: Final = 6
#: Elements of workspace that each routine asks for, and fills with NaN.
_WORK: Final = 64


class Solver:
    """Methods take their arguments in the order of CuPy's functions."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin
        #: GPU of each handle.
        self._handles: dict[int, int] = {}

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by CuPy's names."""
        found: dict[str, Callable[..., Any]] = {"create": self._create, "destroy": self._destroy}
        routines = {"getrf": self._getrf, "geqrf": self._geqrf, "potrf": self._potrf}
        for letter, dtype in _DTYPES.items():
            for name, call in routines.items():
                found[letter + name] = partial(call, np.dtype(dtype))
            found[f"{letter}potrf_bufferSize"] = self._potrf_size
            found[f"{letter}getrf_bufferSize"] = self._panel_size
            found[f"{letter}geqrf_bufferSize"] = self._panel_size
        return found

    def held(self) -> int:
        """Return how many handles exist."""
        return len(self._handles)

    def _create(self) -> int:
        handle = 0x501E + 16 * len(self._handles)
        self._handles[handle] = self._standin.current.index
        return handle

    def _destroy(self, handle: int) -> None:
        self._standin.streams.drain(self._handles.pop(handle))

    def _check(self, handle: int, rows: int, lda: int) -> None:
        if handle not in self._handles:
            raise CUSOLVERError(_NOT_INITIALIZED, "no such handle")
        if self._handles[handle] != self._standin.current.index:
            raise CUSOLVERError(_EXECUTION_FAILED, "the handle belongs to another GPU")
        if lda < max(1, rows):
            raise CUSOLVERError(_INVALID_VALUE, "a short leading dimension")

    def _panel_size(self, handle: int, m: int, _n: int, _a: int, lda: int) -> int:
        self._check(handle, m, lda)
        return _WORK

    def _potrf_size(self, handle: int, _uplo: int, n: int, _a: int, lda: int) -> int:
        self._check(handle, n, lda)
        return _WORK

    def _getrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        m, n, a, lda, work, ipiv, info = args
        self._check(handle, m, lda)
        view = self._view_function()

        def run() -> None:
            view(work, _WORK, 1, _WORK, dtype)[...] = np.nan
            pivots, zero = fortran.getrf(view(a, m, n, lda, dtype))
            view(ipiv, n, 1, n, np.int32)[:, 0] = pivots + 1
            view(info, 1, 1, 1, np.int32)[...] = zero

        self._enqueue(run)

    def _geqrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        m, n, a, lda, tau, work, lwork, info = args
        self._check(handle, m, lda)
        view = self._view_function()

        def run() -> None:
            view(work, lwork, 1, lwork, dtype)[...] = np.nan
            t = np.zeros((n, n), dtype, "F")
            fortran.geqrt(view(a, m, n, lda, dtype), t)
            view(tau, n, 1, n, dtype)[:, 0] = t.diagonal()
            view(info, 1, 1, 1, np.int32)[...] = 0

        self._enqueue(run)

    def _potrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        uplo, n, a, lda, work, lwork, info = args
        self._check(handle, n, lda)
        if uplo != 1:
            raise CUSOLVERError(_INVALID_VALUE, "the upper triangle alone is made here")
        view = self._view_function()

        def run() -> None:
            view(work, lwork, 1, lwork, dtype)[...] = np.nan
            upper = view(a, n, n, lda, dtype)
            lower = np.array(upper.conj().T, order="F")
            view(info, 1, 1, 1, np.int32)[...] = fortran.potrf(lower)
            own = np.triu_indices(n)
            upper[own] = lower.conj().T[own]

        self._enqueue(run)

    def _enqueue(self, run: Callable[[], None]) -> None:
        self._standin.enqueue(self._standin.current.streams[-1], run)

    def _view_function(self) -> Callable[..., NDArray[Any]]:
        """Return a function that views device memory as a column-major array."""
        device, memory = self._standin.current.index, self._standin.memory

        def view(address: int, rows: int, cols: int, ld: int, dtype: Any) -> NDArray[Any]:
            nbytes = ((cols - 1) * ld + rows) * np.dtype(dtype).itemsize
            if not memory.check(address, nbytes, (DEVICE,), device):
                raise CUDARuntimeError(ILLEGAL_ADDRESS, f"{address:#x} + {nbytes} bytes")
            return matrix(address, ld * np.dtype(dtype).itemsize, (cols, rows), dtype).T

        return view
