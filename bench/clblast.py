"""CLBlast's product, in a process of its own, for the benchmarks of the OpenCL kernel.

PyOpenCL's wheels contain an OpenCL loader of their own, and CLBlast refuses another loader's
objects (status -34, invalid context). So everything in that process, from the platform to the
buffers, is made by ctypes through the functions that libclblast itself reaches, and PyOpenCL is
not imported there.

``python -m bench.clblast PLATFORM DEVICE DTYPE N`` writes JSON objects, one a line: first the
largest ``error`` in units of k·eps after one product, or why it ``failed``; then, for each line
read, the ``seconds`` of one more product.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import importlib.util
import json
import logging
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.platforms import intel_library, loader_setting, vendor_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_LOG: Final = logging.getLogger(__name__)
#: CLBlast's letter for a dtype, and the C type of its scalars; ctypes has none for complex ones.
SCALARS: Final[dict[str, tuple[str, type[Any]]]] = {
    "float32": ("S", ctypes.c_float),
    "float64": ("D", ctypes.c_double),
}
#: Longest time for CLBlast to compile its kernels, or to multiply.
_PATIENCE_SECONDS: Final = 120
#: Largest error of a correct product in units of k·eps.
_LARGEST_ERROR: Final = 2.0
_ROW_MAJOR: Final = 101
_AS_STORED: Final = 111
_PLATFORM_NAME: Final = 0x0902
_DEVICE_NAME: Final = 0x102B
_ALL_DEVICES: Final = 0xFFFFFFFF
_READ_WRITE_COPY: Final = 1 | 32
#: Most objects of one kind that are queried.
_MOST: Final = 64


@contextlib.contextmanager
def clblast_seconds(
    device: str, dtype: np.dtype[Any], n: int
) -> Iterator[Callable[[], float] | None]:
    """Give a function that times one n×n×n product by CLBlast, untuned, on random data.

    Yields
    ------
    callable or None
        None where libclblast is not installed or does not run, for complex matrices, and for
        parts of a device, which CLBlast cannot name.
    """
    missing = ctypes.util.find_library("clblast") is None
    if missing or dtype.name not in SCALARS or "/" in device:
        yield None
        return
    with _process(device, dtype, n) as process:
        try:
            error = _answer(process, "error")
        except DeviceError as refused:
            _LOG.warning("CLBlast is installed but does not run on %s: %s", device, refused)
            yield None
            return
        if not error <= _LARGEST_ERROR:
            _LOG.warning("CLBlast's product on %s is wrong by %.3g k·eps", device, error)
            yield None
            return
        yield lambda: _again(process)


@contextlib.contextmanager
def _process(device: str, dtype: np.dtype[Any], n: int) -> Iterator[subprocess.Popen[str]]:
    from hdgemm.pipeline.devices.opencl.names import locate

    facts = locate(device).facts
    command = [sys.executable, "-m", "bench.clblast", facts.platform, facts.device]
    with ExitStack() as stack:
        environment = dict(os.environ)
        if not loader_setting():
            folder = stack.enter_context(vendor_folder(_pip_libraries()))
            environment["OCL_ICD_VENDORS"] = str(folder)
        process = subprocess.Popen(
            [*command, dtype.name, str(n)], env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _pip_libraries() -> list[Path]:
    """Return the runtimes that pip installed: Intel's, and the PoCL beside PyOpenCL's loader."""
    intel, pyopencl = intel_library(), importlib.util.find_spec("pyopencl")
    beside = Path(pyopencl.origin).parent if pyopencl and pyopencl.origin else None
    pocl = sorted(beside.glob(".libs/libpocl*.so")) if beside else []
    return [*([intel] if intel else []), *pocl]


def _again(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    try:
        process.stdin.write("again\n")
    except BrokenPipeError as error:
        raise DeviceError("CLBlast's process ended") from error
    return _answer(process, "seconds")


def _answer(process: subprocess.Popen[str], what: str) -> float:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_SECONDS)
    if not ready:
        raise DeviceError(f"CLBlast gave no answer in {_PATIENCE_SECONDS} s")
    line = process.stdout.readline()
    if not line:
        raise DeviceError("CLBlast's process ended")
    answer = json.loads(line)
    if "failed" in answer:
        raise DeviceError(answer["failed"])
    return float(answer[what])


class _Library:
    """The functions of libclblast and of the OpenCL loader that it is linked to."""

    def __init__(self, path: str) -> None:
        # A symbol is looked up in the library and in its dependencies: its own loader.
        self._all = ctypes.CDLL(path)

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status."""
        status = getattr(self._all, name)(*arguments)
        if status != 0:
            raise DeviceError(f"{name} returned status {status}")

    def make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that returns an object, and a status in its last argument."""
        function, status = getattr(self._all, name), ctypes.c_int(0)
        function.restype = ctypes.c_void_p
        made = function(*arguments, ctypes.byref(status))
        if status.value != 0:
            raise DeviceError(f"{name} returned status {status.value}")
        return ctypes.c_void_p(made)

    def all(self, name: str, *arguments: Any) -> list[ctypes.c_void_p]:
        """Call a function that fills an array with objects and returns their number."""
        found, count = (ctypes.c_void_p * _MOST)(), ctypes.c_uint(0)
        self.check(name, *arguments, _MOST, found, ctypes.byref(count))
        return [ctypes.c_void_p(each) for each in found[: count.value]]

    def name(self, function: str, of: ctypes.c_void_p, what: int) -> str:
        """Query an object's name."""
        text = ctypes.create_string_buffer(1024)
        self.check(function, of, what, ctypes.c_size_t(len(text)), text, None)
        return text.value.decode().strip()


class _Product:
    """C := A·B of random square matrices in device memory."""

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
        """Multiply once, and wait for the result."""
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


def _find_device(library: _Library, platform: str, device: str) -> ctypes.c_void_p:
    """Return the device of these names."""
    for each in library.all("clGetPlatformIDs"):
        if library.name("clGetPlatformInfo", each, _PLATFORM_NAME) == platform:
            for one in library.all("clGetDeviceIDs", each, ctypes.c_uint64(_ALL_DEVICES)):
                if library.name("clGetDeviceInfo", one, _DEVICE_NAME) == device:
                    return one
    raise DeviceError(f"its OpenCL loader has no {device} of {platform}")


def main() -> None:
    """Multiply once, report the error, then repeat for every line read."""
    platform, device, dtype, extent = sys.argv[1:]
    # Compilers print to standard output, so answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        library = _Library(ctypes.util.find_library("clblast") or "libclblast.so.1")
        product = _Product(library, _find_device(library, platform, device), dtype, int(extent))
        product.seconds()
        answers.write(json.dumps({"error": product.error()}) + "\n")
        for _ in sys.stdin:
            answers.write(json.dumps({"seconds": product.seconds()}) + "\n")
    except (DeviceError, OSError, AttributeError) as error:
        answers.write(json.dumps({"failed": str(error)}) + "\n")


if __name__ == "__main__":
    main()
