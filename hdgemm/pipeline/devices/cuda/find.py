"""Which GPUs there are, and why one cannot be used."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import re
from typing import TYPE_CHECKING, Final

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.cuda.api import CudaApi
from hdgemm.pipeline.devices.cuda.device import CudaDevice
from hdgemm.pipeline.devices.cuda.driver import Driver
from hdgemm.pipeline.devices.registry import DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INSTALL: Final = "install hdgemm[cuda13] (or hdgemm[cuda12] for a driver older than 580)"
#: `cudaErrorNoDevice` and `cudaErrorInsufficientDriver`.
_NO_DEVICE: Final = 100
_OLD_DRIVER: Final = 35
#: `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR` and `..._RANGE_SIZE`.
_RANGE: Final = (11, 12)


class Cuda:
    """The driver of this process, and what all its GPUs share."""

    def __init__(self, api: CudaApi) -> None:
        self.api = api

    def count(self) -> int:
        """Return the number of GPUs.

        Raises
        ------
        DeviceUnavailableError
            When the driver has none, or is missing or too old.
        """
        runtime = self.api.runtime
        try:
            found = int(runtime.getDeviceCount())
        except RuntimeError as error:
            raise DeviceUnavailableError(_why_no_device(self.api, error)) from error
        if found == 0:
            raise DeviceUnavailableError("the driver shows no GPU; see CUDA_VISIBLE_DEVICES")
        return found


def _why_no_device(api: CudaApi, error: RuntimeError) -> str:
    status, driver = getattr(error, "status", None), api.runtime.driverGetVersion()
    if status == _OLD_DRIVER and driver == 0:
        return "no NVIDIA driver is installed (libcuda.so.1 was not found)"
    if status == _OLD_DRIVER:
        return (
            f"the NVIDIA driver speaks CUDA {_version(driver)}, CuPy was built for "
            f"{_version(api.runtime.runtimeGetVersion())}; install a newer driver or hdgemm[cuda12]"
        )
    if status == _NO_DEVICE:
        return "the NVIDIA driver sees no GPU; see CUDA_VISIBLE_DEVICES"
    return f"the NVIDIA driver refused: {error}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _load_cupy() -> CudaApi:
    if importlib.util.find_spec("cupy") is None:
        raise DeviceUnavailableError(f"CuPy is not installed; {_INSTALL}")
    try:
        import cupy
    except Exception as error:  # a broken installation raises whatever it likes
        raise DeviceUnavailableError(f"CuPy cannot be imported: {error}") from error
    try:
        # A missing cuBLAS shows only when the attribute is first read.
        blas = cupy.cuda.cublas
    except ImportError as error:
        raise DeviceUnavailableError(f"cuBLAS was not found: {error}; {_INSTALL}") from error
    return CudaApi(
        f"CuPy {cupy.__version__}",
        cupy.cuda.runtime,
        blas,
        functools.partial(cupy.cuda.Stream, non_blocking=True),
        _address_range(),
    )


def _address_range() -> Callable[[int], tuple[int, int] | None]:
    """Bind `cuPointerGetAttribute`, which CuPy does not."""
    try:
        get = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return lambda _pointer: None
    get.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]

    def address_range(pointer: int) -> tuple[int, int] | None:
        values = []
        for attribute in _RANGE:
            value = ctypes.c_uint64()
            if get(ctypes.byref(value), attribute, pointer) != 0:
                return None
            values.append(value.value)
        return values[0], values[1]

    return address_range


class _Loaded:
    """The process's driver, loaded at first use; a stand-in may take its place."""

    def __init__(self) -> None:
        self._cuda: Cuda | None = None

    def get(self) -> Cuda:
        if self._cuda is None:
            self._cuda = Cuda(_load_cupy())
        return self._cuda

    @contextlib.contextmanager
    def replaced(self, api: CudaApi) -> Iterator[None]:
        before, self._cuda = self._cuda, Cuda(api)
        try:
            yield
        finally:
            self._cuda = before


_LOADED: Final = _Loaded()


def driven_by(api: CudaApi) -> contextlib.AbstractContextManager[None]:
    """Within a ``with`` block let every CUDA device be driven by `api`: a stand-in, for tests."""
    return _LOADED.replaced(api)


def list_devices() -> list[DeviceInfo]:
    """Return every GPU; one entry that says why where none can be used."""
    try:
        cuda = _LOADED.get()
        return [_describe(cuda, index) for index in range(cuda.count())]
    except DeviceUnavailableError as error:
        return [DeviceInfo("cuda", "NVIDIA GPUs", usable=False, note=str(error))]


def _describe(cuda: Cuda, index: int) -> DeviceInfo:
    try:
        facts = Driver(cuda.api, index).facts()
    except DeviceError as error:
        return DeviceInfo(f"cuda:{index}", "NVIDIA GPU", usable=False, note=str(error))
    major, minor = facts.compute_capability
    return DeviceInfo(
        f"cuda:{index}",
        f"{facts.name} (sm_{major}{minor}, {facts.multiprocessors} SMs), driver for CUDA "
        f"{_version(cuda.api.runtime.driverGetVersion())}, {cuda.api.name}",
        facts.total,
        accelerator=True,
    )


def open_device(name: str, memory_bytes: int | None = None) -> CudaDevice:
    """Open ``"cuda:N"``, to hold at most `memory_bytes`; ``"cuda"`` is the first.

    Raises
    ------
    DeviceUnavailableError
        When there is no such GPU, or no way to use it; the message says why.
    """
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise DeviceUnavailableError(f"there is no device {name!r}; a GPU's name is like 'cuda:0'")
    index, cuda = int(match[1] or 0), _LOADED.get()
    if index >= (count := cuda.count()):
        raise DeviceUnavailableError(f"there is no {name}: {count} GPU(s) are visible")
    try:
        return CudaDevice(Driver(cuda.api, index), memory_bytes)
    except DeviceError as error:
        raise DeviceUnavailableError(f"{name} cannot be opened: {error}") from error
