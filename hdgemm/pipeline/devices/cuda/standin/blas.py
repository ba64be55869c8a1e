"""The stand-in's cuBLAS: the functions of `cupy.cuda.cublas` that the device calls."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm import fortran
from hdgemm.pipeline.devices.cuda.calls import GemmCall, TrsmCall
from hdgemm.pipeline.devices.cuda.standin.memory import DEVICE, ILLEGAL_ADDRESS, PINNED, matrix
from hdgemm.pipeline.devices.cuda.standin.streams import CUBLASError, CUDARuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.standin.standin import StandIn

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "s": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "c": np.dtype(np.complex64),
    "z": np.dtype(np.complex128),
}
ROUTINES: Final = {letter + "gemm": dtype for letter, dtype in _DTYPES.items()}
SOLVES: Final = {letter + "trsm": dtype for letter, dtype in _DTYPES.items()}
TRANSPOSITIONS: Final = {letter + "geam": dtype for letter, dtype in _DTYPES.items()}
SCALINGS: Final = {letter + "scal": _DTYPES[letter] for letter in "sd"}
_NOT_INITIALIZED: Final = 1
_ALLOC_FAILED: Final = 3
_INVALID_VALUE: Final = 7
_EXECUTION_FAILED: Final = 13
#: Device memory that a handle takes at its first product.
WORKSPACE_BYTES: Final = 8 << 20


class _Stored(NamedTuple):
    """A column-major matrix: its address, leading dimension, and extents as stored."""

    address: int
    ld: int
    rows: int
    cols: int


class Blas:
    """Methods take their arguments in the order, and by the names, of CuPy's functions."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin
        #: By handle, its GPU and whether it holds its workspace.
        self._handles: dict[int, tuple[int, bool]] = {}

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by CuPy's names."""
        products = {name: partial(self._gemm, name) for name in ROUTINES}
        solves = {name: partial(self._trsm, name) for name in SOLVES}
        scalings = {name: partial(self._scal, name) for name in SCALINGS}
        return {
            "create": self._create,
            "destroy": self._destroy,
            "setPointerMode": self._set_pointer_mode,
            **products,
            **solves,
            **scalings,
            **{name: partial(self._geam, name) for name in TRANSPOSITIONS},
        }

    def held(self) -> int:
        """Return how many handles exist."""
        return len(self._handles)

    def _create(self) -> int:
        handle = 0xB1A5 + 16 * len(self._handles)
        self._handles[handle] = (self._standin.current.index, False)
        return handle

    def _destroy(self, handle: int) -> None:
        device, warm = self._handles.pop(handle)
        self._standin.streams.drain(device)
        if warm:
            self._standin.memory.reserve(-WORKSPACE_BYTES, device)

    def _use(self, handle: int) -> None:
        """Check a handle, and take its workspace at the first product."""
        if handle not in self._handles:
            raise CUBLASError(_NOT_INITIALIZED, "no such handle")
        device, warm = self._handles[handle]
        if device != self._standin.current.index:
            raise CUBLASError(_EXECUTION_FAILED, f"the handle belongs to GPU {device}")
        if not warm:
            try:
                self._standin.memory.reserve(WORKSPACE_BYTES, device)
            except CUDARuntimeError as error:
                raise CUBLASError(_ALLOC_FAILED, "no workspace") from error
            self._handles[handle] = (device, True)

    def _set_pointer_mode(self, handle: int, mode: int) -> None:
        if handle not in self._handles or mode != 0:
            raise CUBLASError(_NOT_INITIALIZED, "no such handle, or scalars not in host memory")

    def _gemm(self, name: str, handle: int, *args: int) -> None:
        call, dtype = GemmCall(name, *args), ROUTINES[name]
        self._use(handle)
        device = self._standin.current.index
        a_stored = (call.k, call.m) if call.transa else (call.m, call.k)
        b_stored = (call.n, call.k) if call.transb else (call.k, call.n)
        left = _Stored(call.a, call.lda, *a_stored)
        right = _Stored(call.b, call.ldb, *b_stored)
        product = _Stored(call.c, call.ldc, call.m, call.n)
        extents = (call.m, call.n, call.k)
        if min(extents) < 0 or any(x.ld < max(1, x.rows) for x in (left, right, product)):
            raise CUBLASError(_INVALID_VALUE, "a negative extent or a short leading dimension")
        # Host scalars are read before the call returns.
        scale, keep = _scalar(call.alpha, dtype), _scalar(call.beta, dtype)

        def work() -> None:
            x, y, z = (self._view(stored, dtype, device) for stored in (left, right, product))
            result = scale * ((x.T if call.transa else x) @ (y.T if call.transb else y))
            # beta = 0 must not read C, whatever it holds.
            z[...] = result if keep == 0 else result + keep * z

        self._standin.enqueue(self._standin.current.streams[-1], work)

    def _trsm(self, name: str, handle: int, *args: int) -> None:
        call, dtype = TrsmCall(name, *args), SOLVES[name]
        self._use(handle)
        device = self._standin.current.index
        order = call.n if call.side else call.m
        left, right = _Stored(call.a, call.lda, order, order), _Stored(
            call.b, call.ldb, call.m, call.n)  # fmt: skip
        if min(call.m, call.n) < 0 or any(x.ld < max(1, x.rows) for x in (left, right)):
            raise CUBLASError(_INVALID_VALUE, "a negative extent or a short leading dimension")
        scale = _scalar(call.alpha, dtype)

        def work() -> None:
            if not (call.m and call.n):
                return
            a, b = self._view(left, dtype, device), self._view(right, dtype, device)
            b *= scale
            fortran.trsm(
                a, b, side="LR"[call.side], lower=call.uplo == 0, trans="NTC"[call.trans],
                unit=call.diag == 1,
            )  # fmt: skip

        self._standin.enqueue(self._standin.current.streams[-1], work)

    def _scal(self, name: str, handle: int, n: int, alpha: int, x: int, incx: int) -> None:
        self._use(handle)
        dtype, device = SCALINGS[name], self._standin.current.index
        scale = _scalar(alpha, dtype)

        def work() -> None:
            if n > 0:
                # Elements `incx` apart are the first row of a column-major matrix of `incx` rows.
                self._view(_Stored(x, incx, 1, n), dtype, device)[0] *= scale

        self._standin.enqueue(self._standin.current.streams[-1], work)

    def _geam(self, name: str, handle: int, *args: int) -> None:
        """C := alpha·op(A) + beta·op(B); in place (B is C) B is not transposed."""
        transa, transb, m, n, alpha, a, lda, beta, b, ldb, c, ldc = args
        self._use(handle)
        dtype, device = TRANSPOSITIONS[name], self._standin.current.index
        source = _Stored(a, lda, *((n, m) if transa else (m, n)))
        target = _Stored(c, ldc, m, n)
        if (b, ldb, transb) != (c, ldc, 0) or any(x.ld < max(1, x.rows) for x in (source, target)):
            raise CUBLASError(_INVALID_VALUE, "B is not C, or a short leading dimension")
        scale, keep = _scalar(alpha, dtype), _scalar(beta, dtype)

        def work() -> None:
            x, y = (self._view(stored, dtype, device) for stored in (source, target))
            result = scale * (x.T if transa else x)
            y[...] = result if keep == 0 else result + keep * y

        self._standin.enqueue(self._standin.current.streams[-1], work)

    def _view(self, stored: _Stored, dtype: np.dtype[Any], device: int) -> NDArray[Any]:
        """Return a stored matrix as a column-major array; kernels reach mapped host memory too."""
        nbytes = ((stored.cols - 1) * stored.ld + stored.rows) * dtype.itemsize
        if not self._standin.memory.check(stored.address, nbytes, (DEVICE, PINNED), device):
            raise CUDARuntimeError(ILLEGAL_ADDRESS, f"{stored.address:#x} + {nbytes} bytes")
        shape = (stored.cols, stored.rows)
        return matrix(stored.address, stored.ld * dtype.itemsize, shape, dtype).T


def _scalar(address: int, dtype: np.dtype[Any]) -> Any:
    raw = (ctypes.c_uint8 * dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(raw), dtype)[0]
