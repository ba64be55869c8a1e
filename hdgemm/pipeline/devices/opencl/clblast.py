"""CLBlast's product in a process of its own, through the OpenCL loader that CLBlast was linked to.

PyOpenCL's wheels bring a loader of their own, and CLBlast refuses another loader's objects (status
-34, invalid context). So everything here, from the platform to the buffers, is made through the
functions that libclblast itself reaches, by ctypes alone, where PyOpenCL is not imported.

Arguments are platform, device and dtype by name, and n. The first line written, a JSON object,
tells the largest error in units of k·eps after one product, or why it ``failed``; then each line
read is answered by the ``seconds`` of one more.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DeviceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: CLBlast's letter of a dtype, and its scalar's C type where ctypes has one.
SCALARS: Final[dict[str, tuple[str, type[Any]]]] = {
    "float32": ("S", ctypes.c_float),
    "float64": ("D", ctypes.c_double),
}
_ROW_MAJOR: Final = 101
_AS_STORED: Final = 111
_PLATFORM_NAME: Final = 0x0902
_DEVICE_NAME: Final = 0x102B
_ALL_DEVICES: Final = 0xFFFFFFFF
_READ_WRITE_COPY: Final = 1 | 32
#: Objects at the most of one kind that are asked for.
_MOST: Final = 64


class _Library:
    """The functions of libclblast and of the OpenCL loader that it is linked to."""

    def __init__(self, path: str) -> None:
        # A symbol is looked for in the library and in what it depends on: its own loader.
        self._all = ctypes.CDLL(path)

    def check(self, name: str, *arguments: Any) -> None:
        """Call what returns a status."""
        status = getattr(self._all, name)(*arguments)
        if status != 0:
            raise DeviceError(f"{name} returned status {status}")

    def make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call what returns an object and gives its status by its last argument."""
        function, status = getattr(self._all, name), ctypes.c_int(0)
        function.restype = ctypes.c_void_p
        made = function(*arguments, ctypes.byref(status))
        if status.value != 0:
            raise DeviceError(f"{name} returned status {status.value}")
        return ctypes.c_void_p(made)

    def all(self, name: str, *arguments: Any) -> list[ctypes.c_void_p]:
        """Call what fills an array with objects and tells how many there are."""
        found, count = (ctypes.c_void_p * _MOST)(), ctypes.c_uint(0)
        self.check(name, *arguments, _MOST, found, ctypes.byref(count))
        return [ctypes.c_void_p(each) for each in found[: count.value]]

    def name(self, function: str, of: ctypes.c_void_p, what: int) -> str:
        """Ask an object for its name."""
        text = ctypes.create_string_buffer(1024)
        self.check(function, of, what, ctypes.c_size_t(len(text)), text, None)
        return text.value.decode().strip()


class Product:
    """C := A·B of random square matrices that lie on a device."""

    def __init__(self, library: _Library, device: ctypes.c_void_p, dtype: str, n: int) -> None:
        rng = np.random.default_rng(n)
        self._host = [rng.uniform(-1, 1, (n, n)).astype(dtype) for _ in range(2)]
        self._library, self._n, self._dtype = library, n, dtype
        one = (ctypes.c_void_p * 1)(device)
        context = library.make("clCreateContext", None, 1, one, None, None)
        self._queue = library.make("clCreateCommandQueue", context, device, ctypes.c_uint64(0))
        self._held = [
            library.make(
                "clCreateBuffer", context, ctypes.c_uint64(_READ_WRITE_COPY),
                ctypes.c_size_t(each.nbytes), ctypes.c_void_p(each.ctypes.data),
            )
            for each in (*self._host, np.zeros((n, n), dtype))
        ]  # fmt: skip

    def seconds(self) -> float:
        """Multiply once, and wait for it."""
        letter, scalar = SCALARS[self._dtype]
        n, zero = ctypes.c_size_t(self._n), ctypes.c_size_t(0)
        a, b, c = self._held
        began = time.perf_counter()
        self._library.check(
            f"CLBlast{letter}gemm", _ROW_MAJOR, _AS_STORED, _AS_STORED, n, n, n, scalar(1),
            a, zero, n, b, zero, n, scalar(0), c, zero, n, ctypes.byref(self._queue), None,
        )  # fmt: skip
        self._library.check("clFinish", self._queue)
        return time.perf_counter() - began

    def error(self) -> float:
        """Compare the last product with BLAS; in units of k·eps."""
        c: NDArray[Any] = np.empty((self._n, self._n), self._dtype)
        self._library.check(
            "clEnqueueReadBuffer", self._queue, self._held[2], 1, ctypes.c_size_t(0),
            ctypes.c_size_t(c.nbytes), ctypes.c_void_p(c.ctypes.data), 0, None, None,
        )  # fmt: skip
        exact = self._host[0] @ self._host[1]
        return float(np.max(np.abs(c - exact)) / (self._n * np.finfo(c.dtype).eps))


def find_device(library: _Library, platform: str, device: str) -> ctypes.c_void_p:
    """Return the device of these names."""
    for each in library.all("clGetPlatformIDs"):
        if library.name("clGetPlatformInfo", each, _PLATFORM_NAME) == platform:
            for one in library.all("clGetDeviceIDs", each, ctypes.c_uint64(_ALL_DEVICES)):
                if library.name("clGetDeviceInfo", one, _DEVICE_NAME) == device:
                    return one
    raise DeviceError(f"its OpenCL loader sees no {device} of {platform}")


def main() -> None:
    """Make the product once, tell its error, then repeat it for every line read."""
    platform, device, dtype, extent = sys.argv[1:]
    # Compilers print to standard output; answers go where they cannot.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        library = _Library(ctypes.util.find_library("clblast") or "libclblast.so.1")
        product = Product(library, find_device(library, platform, device), dtype, int(extent))
        product.seconds()
        answers.write(json.dumps({"error": product.error()}) + "\n")
        for _ in sys.stdin:
            answers.write(json.dumps({"seconds": product.seconds()}) + "\n")
    except (DeviceError, OSError, AttributeError) as error:
        answers.write(json.dumps({"failed": str(error)}) + "\n")


if __name__ == "__main__":
    main()
