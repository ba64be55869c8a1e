"""The stand-in's cuBLAS, and what it shares with cuSOLVER: handles, views of memory."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm import fortran
from hdgemm.pipeline.devices.cuda._calls import GemmCall, TrsmCall
from tests.pipeline.devices.cuda.standin.memory import DEVICE, ILLEGAL_ADDRESS, PINNED, matrix
from tests.pipeline.devices.cuda.standin.streams import CUBLASError, CUDARuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tests.pipeline.devices.cuda.standin.standin import StandIn
    from tests.pipeline.devices.cuda.standin.streams import StandInError

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "s": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "c": np.dtype(np.complex64),
    "z": np.dtype(np.complex128),
}
ROUTINES: Final = {letter + "gemm": dtype for letter, dtype in DTYPES.items()}
SOLVES: Final = {letter + "trsm": dtype for letter, dtype in DTYPES.items()}
TRANSPOSITIONS: Final = {letter + "geam": dtype for letter, dtype in DTYPES.items()}
SCALINGS: Final = {letter + "scal": DTYPES[letter] for letter in "sd"}
_NOT_INITIALIZED: Final = 1
_ALLOC_FAILED: Final = 3
_INVALID_VALUE: Final = 7
_EXECUTION_FAILED: Final = 13
#: Device memory that a handle takes at its first product.
WORKSPACE_BYTES: Final = 8 << 20


class Stored(NamedTuple):
    """A column-major matrix: its address, leading dimension, and extents as stored."""

    address: int
    ld: int
    rows: int
    cols: int


class Library:
    """Handles of a library, and its routines: they read and write column-major matrices.

    Methods take their arguments in the order, and by the names, of CuPy's functions.
    """

    def __init__(self, standin: StandIn, error: type[StandInError]) -> None:
        self._standin = standin
        self._error = error
        #: GPU of each handle.
        self._handles: dict[int, int] = {}

    def held(self) -> int:
        """Return how many handles exist."""
        return len(self._handles)

    def _create(self) -> int:
        handle = 0xB1A5 + 16 * len(self._handles)
        self._handles[handle] = self._standin.current.index
        return handle

    def _destroy(self, handle: int) -> None:
        self._standin.streams.drain(self._handles.pop(handle))

    def _check(self, handle: int, other_gpu: int) -> None:
        """Check a handle; `other_gpu` is the status for the handle of another GPU."""
        if handle not in self._handles:
            raise self._error(_NOT_INITIALIZED, "no such handle")
        if self._handles[handle] != self._standin.current.index:
            raise self._error(other_gpu, f"the handle belongs to GPU {self._handles[handle]}")

    def _enqueue(self, work: Callable[[], None]) -> None:
        self._standin.enqueue(self._standin.current.streams[-1], work)

    def _viewer(self, *kinds: int) -> Callable[[Stored, Any], NDArray[Any]]:
        """Return a function that views memory of these kinds as a column-major array."""
        device, memory = self._standin.current.index, self._standin.memory

        def view(stored: Stored, dtype: Any) -> NDArray[Any]:
            itemsize = np.dtype(dtype).itemsize
            nbytes = ((stored.cols - 1) * stored.ld + stored.rows) * itemsize
            if not memory.check(stored.address, nbytes, kinds, device):
                raise CUDARuntimeError(ILLEGAL_ADDRESS, f"{stored.address:#x} + {nbytes} bytes")
            shape = (stored.cols, stored.rows)
            return matrix(stored.address, stored.ld * itemsize, shape, dtype).T

        return view


class Blas(Library):
    """The functions of `cupy.cuda.cublas`; kernels reach mapped host memory, too."""

    def __init__(self, standin: StandIn) -> None:
        super().__init__(standin, CUBLASError)
        #: Handles that hold their workspace.
        self._warm: set[int] = set()

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by CuPy's names."""
        return {
            "create": self._create,
            "destroy": self._destroy,
            "setPointerMode": self._set_pointer_mode,
            **{name: partial(self._gemm, name) for name in ROUTINES},
            **{name: partial(self._trsm, name) for name in SOLVES},
            **{name: partial(self._scal, name) for name in SCALINGS},
            **{name: partial(self._geam, name) for name in TRANSPOSITIONS},
        }

    def _destroy(self, handle: int) -> None:
        device = self._handles[handle]
        super()._destroy(handle)
        if handle in self._warm:
            self._warm.remove(handle)
            self._standin.memory.reserve(-WORKSPACE_BYTES, device)

    def _use(self, handle: int) -> Callable[[Stored, Any], NDArray[Any]]:
        """Check a handle, take its workspace at the first product; return a viewer of memory."""
        self._check(handle, _EXECUTION_FAILED)
        if handle not in self._warm:
            try:
                self._standin.memory.reserve(WORKSPACE_BYTES, self._handles[handle])
            except CUDARuntimeError as error:
                raise CUBLASError(_ALLOC_FAILED, "no workspace") from error
            self._warm.add(handle)
        return self._viewer(DEVICE, PINNED)

    def _set_pointer_mode(self, handle: int, mode: int) -> None:
        if handle not in self._handles or mode != 0:
            raise CUBLASError(_NOT_INITIALIZED, "no such handle, or scalars not in host memory")

    def _gemm(self, name: str, handle: int, *args: int) -> None:
        call, dtype, view = GemmCall(name, *args), ROUTINES[name], self._use(handle)
        a_stored = (call.k, call.m) if call.transa else (call.m, call.k)
        b_stored = (call.n, call.k) if call.transb else (call.k, call.n)
        left = Stored(call.a, call.lda, *a_stored)
        right = Stored(call.b, call.ldb, *b_stored)
        product = Stored(call.c, call.ldc, call.m, call.n)
        extents = (call.m, call.n, call.k)
        if min(extents) < 0 or any(x.ld < max(1, x.rows) for x in (left, right, product)):
            raise CUBLASError(_INVALID_VALUE, "a negative extent or a short leading dimension")
        # Host scalars are read before the call returns.
        scale, keep = _scalar(call.alpha, dtype), _scalar(call.beta, dtype)

        def work() -> None:
            x, y, z = (view(stored, dtype) for stored in (left, right, product))
            result = scale * ((x.T if call.transa else x) @ (y.T if call.transb else y))
            # beta = 0 must not read C, whatever it holds.
            z[...] = result if keep == 0 else result + keep * z

        self._enqueue(work)

    def _trsm(self, name: str, handle: int, *args: int) -> None:
        call, dtype, view = TrsmCall(name, *args), SOLVES[name], self._use(handle)
        order = call.n if call.side else call.m
        left = Stored(call.a, call.lda, order, order)
        right = Stored(call.b, call.ldb, call.m, call.n)
        if min(call.m, call.n) < 0 or any(x.ld < max(1, x.rows) for x in (left, right)):
            raise CUBLASError(_INVALID_VALUE, "a negative extent or a short leading dimension")
        scale = _scalar(call.alpha, dtype)

        def work() -> None:
            if not (call.m and call.n):
                return
            a, b = view(left, dtype), view(right, dtype)
            b *= scale
            fortran.trsm(
                a, b, side="LR"[call.side], lower=call.uplo == 0, trans="NTC"[call.trans],
                unit=call.diag == 1,
            )  # fmt: skip

        self._enqueue(work)

    def _scal(self, name: str, handle: int, n: int, alpha: int, x: int, incx: int) -> None:
        dtype, view = SCALINGS[name], self._use(handle)
        scale = _scalar(alpha, dtype)

        def work() -> None:
            if n > 0:
                # Elements `incx` apart are the first row of a column-major matrix of `incx` rows.
                view(Stored(x, incx, 1, n), dtype)[0] *= scale

        self._enqueue(work)

    def _geam(self, name: str, handle: int, *args: int) -> None:
        """C := alpha·op(A) + beta·op(B); in place (B is C) B is not transposed."""
        transa, transb, m, n, alpha, a, lda, beta, b, ldb, c, ldc = args
        dtype, view = TRANSPOSITIONS[name], self._use(handle)
        source = Stored(a, lda, *((n, m) if transa else (m, n)))
        target = Stored(c, ldc, m, n)
        if (b, ldb, transb) != (c, ldc, 0) or any(x.ld < max(1, x.rows) for x in (source, target)):
            raise CUBLASError(_INVALID_VALUE, "B is not C, or a short leading dimension")
        scale, keep = _scalar(alpha, dtype), _scalar(beta, dtype)

        def work() -> None:
            x, y = (view(stored, dtype) for stored in (source, target))
            result = scale * (x.T if transa else x)
            y[...] = result if keep == 0 else result + keep * y

        self._enqueue(work)


def _scalar(address: int, dtype: np.dtype[Any]) -> Any:
    raw = (ctypes.c_uint8 * dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(raw), dtype)[0]
