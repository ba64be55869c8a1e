"""Lists and opens the GPUs; says why one cannot be used."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import re
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DeviceError, DeviceUnavailableError, installation
from hdgemm.matrices.cuda_driver import DriverLibrary
from hdgemm.pipeline.devices.cuda._context import AFTER_FORK, CudaApi, is_after_fork
from hdgemm.pipeline.devices.cuda._driver import DeviceFacts, Driver
from hdgemm.pipeline.devices.cuda._factoring import CudaNativeDevice
from hdgemm.pipeline.devices.registry import DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALL: Final = (
    f"{installation('cuda13')} (cuda12 for a driver older than 580 or a GPU before Turing)"
)
#: CUDA 13 has no kernels for GPUs before Turing (compute capability 7.5), whatever the driver.
_CUDA13: Final = 13000
_TURING: Final = (7, 5)
_NO_DRIVER: Final = "no NVIDIA driver is installed (libcuda.so.1 was not found)"
#: `cudaErrorNoDevice` and `cudaErrorInsufficientDriver`.
_NO_DEVICE: Final = 100
_OLD_DRIVER: Final = 35


def _count(api: CudaApi) -> int:
    """Return the number of GPUs; raise `DeviceUnavailableError` with the reason for none.

    Raises `DeviceError` where the driver does not even tell its version.
    """
    try:
        found = int(api.runtime.getDeviceCount())
    except RuntimeError as error:
        raise DeviceUnavailableError(_why_no_device(api, error)) from error
    if found == 0:
        raise DeviceUnavailableError("the driver shows no GPU; see CUDA_VISIBLE_DEVICES")
    return found


def _why_no_device(api: CudaApi, error: RuntimeError) -> str:
    status, driver = getattr(error, "status", None), Driver(api)
    if status == _OLD_DRIVER:
        version = driver.call("driverGetVersion")
        if version == 0:
            return _NO_DRIVER
        built = _version(driver.call("runtimeGetVersion"))
        return (
            f"the NVIDIA driver speaks CUDA {_version(version)}, CuPy was built for {built}; "
            "install a newer driver or hdgemm[cuda12]"
        )
    if status == _NO_DEVICE:
        return "the NVIDIA driver sees no GPU; see CUDA_VISIBLE_DEVICES"
    said = f"the NVIDIA driver refused: {error}"
    return f"{said}; {AFTER_FORK}" if is_after_fork(error) else said


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _without_cupy() -> str:
    """Say that CuPy is missing, and the NVIDIA driver where there is none either."""
    try:
        DriverLibrary.loaded()
    except OSError:
        return f"CuPy is not installed, and {_NO_DRIVER}; with an NVIDIA GPU and driver: {_INSTALL}"
    return f"CuPy is not installed; {_INSTALL}"


def _load_cupy() -> CudaApi:
    if importlib.util.find_spec("cupy") is None:
        raise DeviceUnavailableError(_without_cupy())
    try:
        import cupy
    except Exception as error:  # a broken installation raises whatever it likes
        raise DeviceUnavailableError(f"CuPy cannot be imported: {error}") from error
    try:
        # A missing cuBLAS shows only when the attribute is first read.
        blas = cupy.cuda.cublas
    except ImportError as error:
        raise DeviceUnavailableError(f"cuBLAS was not found: {error}; {_INSTALL}") from error
    try:
        library = DriverLibrary.loaded()
    except OSError as error:
        raise DeviceUnavailableError(_NO_DRIVER) from error
    return CudaApi(
        f"CuPy {cupy.__version__}",
        cupy.cuda.runtime,
        blas,
        lambda: cupy.cuda.cusolver,
        functools.partial(cupy.cuda.Stream, non_blocking=True),
        library,
        library.address_range,
        _raw_kernel,
    )


@functools.cache
def _raw_kernel(source: str, name: str) -> Any:
    """Return a kernel, which CuPy compiles once for each GPU, for the life of the process."""
    import cupy

    kernel = cupy.RawKernel(source, name)
    # To unload its modules at exit fails where no context is current any more.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernel))
    return kernel


#: The functions of CuPy and the driver that are in use; empty until the first use.
_LOADED: Final[list[CudaApi]] = []


def _api() -> CudaApi:
    if not _LOADED:
        _LOADED.append(_load_cupy())
    return _LOADED[-1]


@contextlib.contextmanager
def driven_by(api: CudaApi) -> Iterator[None]:
    """Within a ``with`` block drive every CUDA device by `api`, in place of CuPy and the driver."""
    _LOADED.append(api)
    try:
        yield
    finally:
        _LOADED.remove(api)


def list_devices() -> list[DeviceInfo]:
    """Return every GPU; one entry that says why where none can be used."""
    try:
        api = _api()
        return [_describe(api, index) for index in range(_count(api))]
    except DeviceError as error:
        return [DeviceInfo("cuda", "NVIDIA GPUs", usable=False, note=str(error))]


def _describe(api: CudaApi, index: int) -> DeviceInfo:
    driver = Driver(api, index)
    try:
        facts = driver.facts()
        note, version = _why_unsupported(driver, facts), driver.call("driverGetVersion")
    except DeviceError as error:
        return DeviceInfo(f"cuda:{index}", "NVIDIA GPU", usable=False, note=str(error))
    major, minor = facts.compute_capability
    return DeviceInfo(
        f"cuda:{index}",
        f"{facts.name} (sm_{major}{minor}, {facts.multiprocessors} SMs), driver for CUDA "
        f"{_version(version)}, {api.name}",
        facts.total,
        usable=not note,
        note=note,
        accelerator=True,
    )


def _why_unsupported(driver: Driver, facts: DeviceFacts) -> str:
    """Return why a GPU cannot be used; empty where it can."""
    if not facts.registers_host_memory:
        return (
            "it cannot page-lock the host memory that tiles are copied through (cudaHostRegister), "
            "as Tegra before Xavier"
        )
    if driver.call("runtimeGetVersion") < _CUDA13 or facts.compute_capability >= _TURING:
        return ""
    major, minor = facts.compute_capability
    return (
        f"CUDA 13 does not support compute capability {major}.{minor}: "
        "install hdgemm[cuda12] in place of hdgemm[cuda13]; the driver can stay"
    )


def open_device(name: str, memory_bytes: int | None = None) -> CudaNativeDevice:
    """Open ``"cuda:N"``, to hold at most `memory_bytes`; ``"cuda"`` is the first.

    Raises `DeviceUnavailableError` with the reason where there is no such GPU or no way to use it,
    `DoesNotFitError` where too little memory is free for a context and cuBLAS.
    """
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise DeviceUnavailableError(f"there is no device {name!r}; a GPU's name is like 'cuda:0'")
    try:
        return _open(name, int(match[1] or 0), memory_bytes)
    except DeviceUnavailableError as error:
        what = f"{error} (`hdgemm devices` lists all devices)"
        raise DeviceUnavailableError(what) from error
    except DeviceError as error:
        raise DeviceUnavailableError(f"{name} cannot be opened: {error}") from error


def _open(name: str, index: int, memory_bytes: int | None) -> CudaNativeDevice:
    api = _api()
    if index >= (count := _count(api)):
        raise DeviceUnavailableError(f"there is no {name}: {count} GPU(s) are visible")
    driver = Driver(api, index)
    if why := _why_unsupported(driver, driver.facts()):
        raise DeviceUnavailableError(f"{name} cannot be used: {why}")
    return CudaNativeDevice(driver, memory_bytes)
