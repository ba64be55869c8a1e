"""The peers of the CUDA pipeline: cuBLASXt, called through ctypes, and plain CuPy."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    #: Calls one function of cublasXt.h by name and returns its `cublasStatus_t`.
    Invoke = Callable[..., int]

_LIBRARIES: Final = ("libcublas.so.13", "libcublas.so.12")
_NO_TRANSPOSE: Final = 0
_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
_INT: Final = ctypes.c_int
_DOUBLE: Final = ctypes.POINTER(ctypes.c_double)
#: As declared in cublasXt.h.
_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "cublasXtCreate": [ctypes.POINTER(_POINTER)],
    "cublasXtDestroy": [_POINTER],
    "cublasXtDeviceSelect": [_POINTER, _INT, ctypes.POINTER(_INT)],
    "cublasXtSetBlockDim": [_POINTER, _INT],
    "cublasXtGetBlockDim": [_POINTER, ctypes.POINTER(_INT)],
    "cublasXtDgemm": [
        *(_POINTER, _INT, _INT, _SIZE, _SIZE, _SIZE, _DOUBLE),
        *(_POINTER, _SIZE, _POINTER, _SIZE, _DOUBLE, _POINTER, _SIZE),
    ],
}


def load_cublas() -> Invoke:
    """Load cuBLASXt, which is part of cuBLAS; `OSError` where there is none."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for function, arguments in _ARGUMENTS.items():
            getattr(library, function).argtypes = arguments
        return lambda function, *values: int(getattr(library, function)(*values))
    raise OSError(f"none of {', '.join(_LIBRARIES)} can be loaded")


class CublasXt:
    """One cuBLASXt handle on one GPU.

    Parameters
    ----------
    block
        The edge of its square tiles; None for its default.
    """

    def __init__(self, invoke: Invoke, device: int, block: int | None) -> None:
        self._invoke = invoke
        self._handle = _POINTER()
        self._do("cublasXtCreate", ctypes.byref(self._handle))
        devices = (_INT * 1)(device)
        self._do("cublasXtDeviceSelect", self._handle, 1, devices)
        if block is not None:
            self._do("cublasXtSetBlockDim", self._handle, block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._do("cublasXtDestroy", self._handle)

    @property
    def block(self) -> int:
        """The edge of its tiles."""
        block = _INT()
        self._do("cublasXtGetBlockDim", self._handle, ctypes.byref(block))
        return block.value

    def dgemm(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> float:
        """Compute C = A·B on row-major arrays; return the seconds. The call blocks."""
        (m, k), n = a.shape, b.shape[1]
        one, zero = ctypes.c_double(1.0), ctypes.c_double(0.0)
        began = time.perf_counter()
        # Column-major, the row-major arrays are the transposes: C' = B'·A'.
        self._do(
            "cublasXtDgemm",
            *(self._handle, _NO_TRANSPOSE, _NO_TRANSPOSE, n, m, k, ctypes.byref(one)),
            *(b.ctypes.data, n, a.ctypes.data, k, ctypes.byref(zero), c.ctypes.data, n),
        )
        return time.perf_counter() - began

    def _do(self, function: str, *values: Any) -> None:
        status = self._invoke(function, *values)
        if status != 0:
            raise RuntimeError(f"{function} failed with cuBLAS status {status}")


def plain_cupy(
    cupy: Any, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], repeats: int
) -> list[float]:
    """Copy A and B to the GPU, multiply, copy C back, as a user of CuPy would; return seconds."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        product = cupy.matmul(cupy.asarray(a), cupy.asarray(b))
        product.get(out=c)
        seconds.append(time.perf_counter() - began)
        del product
        cupy.get_default_memory_pool().free_all_blocks()
    return seconds[1:]


class PretendXt:
    """cuBLASXt's functions on the host, for dry runs: the calls are made, nothing is fast."""

    def __init__(self) -> None:
        self.block = 0

    def __call__(self, function: str, *values: Any) -> int:
        """Call a function by name; those that change nothing here succeed."""
        known: dict[str, Callable[..., None]] = {
            "cublasXtCreate": self._create,
            "cublasXtSetBlockDim": self._set_block,
            "cublasXtGetBlockDim": self._get_block,
            "cublasXtDgemm": self._dgemm,
        }
        known.get(function, lambda *_: None)(*values)
        return 0

    def _create(self, _handle: Any) -> None:
        self.block = 1024

    def _set_block(self, _handle: Any, block: int) -> None:
        self.block = block

    def _get_block(self, _handle: Any, block: Any) -> None:
        ctypes.cast(block, ctypes.POINTER(_INT))[0] = self.block

    def _dgemm(self, *values: Any) -> None:
        _, _, _, m, n, k, _, a, lda, b, ldb, _, c, ldc = values
        left, right, product = (
            _column_major(address, ld, cols)
            for address, ld, cols in ((a, lda, k), (b, ldb, n), (c, ldc, n))
        )
        product[:m] = left[:m] @ right[:k]


def _column_major(address: int, ld: int, cols: int) -> NDArray[Any]:
    memory = (ctypes.c_double * (ld * cols)).from_address(address)
    return np.ctypeslib.as_array(memory).reshape(cols, ld).T


class PretendCupy:
    """The names of CuPy that `plain_cupy` uses, on NumPy, for dry runs."""

    def asarray(self, array: NDArray[Any]) -> NDArray[Any]:
        """Copy, as to a GPU."""
        return array.copy()

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> PretendCupy:
        """Multiply."""
        self._product = a @ b
        return self

    def get(self, out: NDArray[Any]) -> None:
        """Copy back."""
        out[...] = self._product

    def get_default_memory_pool(self) -> PretendCupy:
        """Return something that can be told to free its blocks."""
        return self

    def free_all_blocks(self) -> None:
        """Forget the product."""
        del self._product
