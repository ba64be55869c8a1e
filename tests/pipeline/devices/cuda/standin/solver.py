"""The stand-in's cuSOLVER: the functions of `cupy.cuda.cusolver` that the device calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm import fortran
from tests.pipeline.devices.cuda.standin.blas import DTYPES, Library, Stored
from tests.pipeline.devices.cuda.standin.memory import DEVICE
from tests.pipeline.devices.cuda.standin.streams import CUSOLVERError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tests.pipeline.devices.cuda.standin.standin import StandIn

_INVALID_VALUE: Final = 3
_EXECUTION_FAILED: Final = 6
#: Elements of workspace that each routine asks for, and fills with NaN.
_WORK: Final = 64


class Solver(Library):
    """The functions of `cupy.cuda.cusolver`, which reach device memory only."""

    def __init__(self, standin: StandIn) -> None:
        super().__init__(standin, CUSOLVERError)

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by CuPy's names."""
        found: dict[str, Callable[..., Any]] = {"create": self._create, "destroy": self._destroy}
        routines = {"getrf": self._getrf, "geqrf": self._geqrf, "potrf": self._potrf}
        for letter, dtype in DTYPES.items():
            for name, call in routines.items():
                found[letter + name] = partial(call, dtype)
            found[f"{letter}potrf_bufferSize"] = self._potrf_size
            found[f"{letter}getrf_bufferSize"] = self._panel_size
            found[f"{letter}geqrf_bufferSize"] = self._panel_size
        return found

    def _use(self, handle: int, rows: int, lda: int) -> Callable[..., NDArray[Any]]:
        """Check a handle; return a function that views device memory, by default one column."""
        self._check(handle, _EXECUTION_FAILED)
        if lda < max(1, rows):
            raise CUSOLVERError(_INVALID_VALUE, "a short leading dimension")
        viewer = self._viewer(DEVICE)

        def view(dtype: Any, address: int, rows: int, cols: int = 1, ld: int = 0) -> NDArray[Any]:
            return viewer(Stored(address, ld or rows, rows, cols), dtype)

        return view

    def _panel_size(self, handle: int, m: int, _n: int, _a: int, lda: int) -> int:
        self._use(handle, m, lda)
        return _WORK

    def _potrf_size(self, handle: int, _uplo: int, n: int, _a: int, lda: int) -> int:
        self._use(handle, n, lda)
        return _WORK

    def _getrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        m, n, a, lda, work, ipiv, info = args
        view = self._use(handle, m, lda)

        def run() -> None:
            view(dtype, work, _WORK)[...] = np.nan
            pivots, zero = fortran.getrf(view(dtype, a, m, n, lda))
            view(np.int32, ipiv, n)[:, 0] = pivots + 1
            view(np.int32, info, 1)[...] = zero

        self._enqueue(run)

    def _geqrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        m, n, a, lda, tau, work, lwork, info = args
        view = self._use(handle, m, lda)

        def run() -> None:
            view(dtype, work, lwork)[...] = np.nan
            t = np.zeros((n, n), dtype, "F")
            fortran.geqrt(view(dtype, a, m, n, lda), t)
            view(dtype, tau, n)[:, 0] = t.diagonal()
            view(np.int32, info, 1)[...] = 0

        self._enqueue(run)

    def _potrf(self, dtype: np.dtype[Any], handle: int, *args: int) -> None:
        uplo, n, a, lda, work, lwork, info = args
        view = self._use(handle, n, lda)
        if uplo != 1:
            raise CUSOLVERError(_INVALID_VALUE, "the upper triangle alone is made here")

        def run() -> None:
            view(dtype, work, lwork)[...] = np.nan
            upper = view(dtype, a, n, n, lda)
            lower = np.array(upper.conj().T, order="F")
            view(np.int32, info, 1)[...] = fortran.potrf(lower)
            own = np.triu_indices(n)
            upper[own] = lower.conj().T[own]

        self._enqueue(run)
