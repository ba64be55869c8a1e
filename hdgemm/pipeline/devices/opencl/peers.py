"""What others reach for the same product on the same machine: NumPy's BLAS, and CLBlast."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyopencl as cl

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.find import locate
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_LOG: Final = logging.getLogger(__name__)
_REPEATS: Final = 5
#: CLBlast's letter of a dtype, and its scalar's C type where ctypes has one.
_CLBLAST: Final[dict[str, tuple[str, type[Any]]]] = {
    "float32": ("S", ctypes.c_float),
    "float64": ("D", ctypes.c_double),
}
_ROW_MAJOR: Final = 101
_AS_STORED: Final = 111


def peer_speeds(device: str, dtype: np.dtype[Any], n: int) -> dict[str, float]:
    """Return median GFLOP/s of an n×n×n product: ``"numpy"``, and ``"clblast"`` where it is."""
    rng = np.random.default_rng(n)
    a, b = (rng.uniform(-1, 1, (n, n)).astype(dtype) for _ in range(2))
    c = np.empty_like(a)
    contenders = {"numpy": lambda: _seconds(lambda: np.matmul(a, b, out=c))}
    clblast = clblast_seconds(device, a, b)
    if clblast is not None:
        contenders["clblast"] = clblast
    flops = n**3 * flops_per_multiply_add(dtype.name)
    return {name: flops / _median(seconds) / 1e9 for name, seconds in contenders.items()}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median(seconds: Callable[[], float]) -> float:
    return float(np.median([seconds() for _ in range(_REPEATS + 1)][1:]))


def clblast_seconds(device: str, a: NDArray[Any], b: NDArray[Any]) -> Callable[[], float] | None:
    """Return what times one A·B of square matrices by CLBlast, as it comes: untuned.

    None where libclblast is not installed or does not run, and for complex matrices, whose
    scalars ctypes cannot pass.
    """
    library = ctypes.util.find_library("clblast")
    if library is None or a.dtype.name not in _CLBLAST:
        return None
    _, handle = locate(device)
    context = cl.Context([handle])
    queue = cl.CommandQueue(context, handle)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    held = [cl.Buffer(context, flags, hostbuf=each) for each in (a, b, np.zeros_like(a))]
    letter, scalar = _CLBLAST[a.dtype.name]
    gemm = getattr(ctypes.CDLL(library), f"CLBlast{letter}gemm")
    n, zero, pointer = (
        ctypes.c_size_t(len(a)), ctypes.c_size_t(0), ctypes.c_void_p(queue.int_ptr)
    )  # fmt: skip

    def work() -> None:
        memories = [ctypes.c_void_p(each.int_ptr) for each in held]
        status = gemm(
            _ROW_MAJOR, _AS_STORED, _AS_STORED, n, n, n, scalar(1),
            memories[0], zero, n, memories[1], zero, n, scalar(0), memories[2], zero, n,
            ctypes.byref(pointer), None,
        )  # fmt: skip
        if status != 0:
            raise DeviceError(f"CLBlast returned status {status}", status=status)
        queue.finish()

    try:
        work()
    except DeviceError as error:
        _LOG.warning("CLBlast is installed but does not run on %s: %s", device, error)
        return None
    return lambda: _seconds(work)
