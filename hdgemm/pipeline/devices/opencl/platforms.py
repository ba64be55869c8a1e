"""The OpenCL devices of this machine in a stable order, with runtimes that pip installed.

GPUs come first, then other accelerators, then CPUs, with Intel's runtime before PoCL, which is
slower. Within these the order is by platform name, then the platform's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hdgemm.errors import DeviceError, DeviceUnavailableError, installation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl._driver import Facts, OwnerProcess

_LOG: Final = logging.getLogger(__name__)
_INSTALL: Final = installation("opencl")
#: Variables by which a user tells an OpenCL loader where to find runtimes.
_LOADER_SETTINGS: Final = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
_SYSTEM_VENDORS: Final = Path("/etc/OpenCL/vendors")
_RANK: Final = {"gpu": 0, "accelerator": 1, "cpu": 2}


class Found(NamedTuple):
    """One device; `handle` is the driver's."""

    facts: Facts
    handle: cl.Device


def found_devices() -> tuple[Found, ...]:
    """Return every device in the order of its number; queries the loader once in a process.

    Raises `DeviceUnavailableError` where PyOpenCL cannot be imported or there is no platform, and
    `DeviceError` in a forked child of the process that queried the loader.
    """
    owner, found = _query_loader()
    owner.check()
    return found


@functools.cache
def _query_loader() -> tuple[OwnerProcess, tuple[Found, ...]]:
    if importlib.util.find_spec("pyopencl") is None:
        raise DeviceUnavailableError(f"PyOpenCL is not installed: {_INSTALL}")
    try:
        import pyopencl as cl
    except (ImportError, OSError) as error:
        raise DeviceUnavailableError(f"PyOpenCL cannot be imported: {error}") from error

    from hdgemm.pipeline.devices.opencl._driver import OwnerProcess, driver_errors

    try:
        with driver_errors("querying the OpenCL loader for platforms"), pip_runtimes():
            platforms = cl.get_platforms()
    except (DeviceError, OSError) as error:
        raise DeviceUnavailableError(
            f"there is no OpenCL platform ({error}): {_INSTALL}; except on x86-64 Linux this needs "
            "a runtime of the system, too"
        ) from error
    unique: dict[tuple[object, ...], Found] = {}
    for platform in platforms:
        for index, found in enumerate(_devices(platform)):
            facts = found.facts
            # A runtime that two vendor files name is loaded twice.
            unique.setdefault((facts.platform, facts.device, facts.driver, index), found)
    return OwnerProcess("OpenCL"), tuple(sorted(unique.values(), key=_order))


def _devices(platform: cl.Platform) -> list[Found]:
    """Return a platform's devices; a runtime without its hardware has none."""
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl._driver import read_facts

    try:
        return [Found(read_facts(handle), handle) for handle in platform.get_devices()]
    except (cl.Error, DeviceError) as error:
        _LOG.info("the OpenCL platform %s has no usable device: %s", platform.name, error)
        return []


def _order(found: Found) -> tuple[int, bool, str]:
    platform = found.facts.platform
    return _RANK[found.facts.kind], platform.startswith("Portable Computing Language"), platform


@contextlib.contextmanager
def pip_runtimes() -> Iterator[None]:
    """Make runtimes that pip installed visible to the OpenCL loader within this block.

    The loader reads its folder of vendor files once, at its first query; PyOpenCL's own PoCL it
    finds without help. A setting of the user's is left alone, and the environment is restored.
    """
    intel = intel_library()
    if intel is None or loader_setting():
        yield
        return
    with vendor_folder([intel]) as folder:
        os.environ["OCL_ICD_VENDORS"] = str(folder)
        try:
            yield
        finally:
            os.environ.pop("OCL_ICD_VENDORS", None)


@contextlib.contextmanager
def vendor_folder(libraries: Iterable[Path]) -> Iterator[Path]:
    """Make a folder of vendor files: the system's own and one for each of `libraries`."""
    with tempfile.TemporaryDirectory(prefix="hdgemm-opencl-") as name:
        folder = Path(name)
        for vendor in sorted(_SYSTEM_VENDORS.glob("*.icd")):
            with contextlib.suppress(OSError):
                (folder / vendor.name).write_bytes(vendor.read_bytes())
        for library in libraries:
            (folder / f"hdgemm-{library.stem}.icd").write_text(f"{library}\n", encoding="utf-8")
        yield folder


def loader_setting() -> str:
    """Return the variable by which the user told the loader where to look; empty if none."""
    return next((name for name in _LOADER_SETTINGS if name in os.environ), "")


def may_find_accelerators() -> bool:
    """Return whether a GPU's driver may be installed that the loader knows.

    What pip installs are CPU runtimes; drivers of GPUs come with the system, or with Conda.
    """
    if sys.platform != "linux" or loader_setting():
        return True
    folders = [_SYSTEM_VENDORS]
    if Path(sys.prefix, "conda-meta").is_dir():  # otherwise pip put the files there
        folders.append(Path(sys.prefix, "etc", "OpenCL", "vendors"))
    return any(vendor for folder in folders for vendor in folder.glob("*.icd"))


def intel_library() -> Path | None:
    """Return the path of Intel's CPU runtime that pip installed, None where there is none."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "libintelocl.so":
            library = Path(str(file.locate())).resolve()
            return library if library.exists() else None
    return None


def missing_runtime() -> str:
    """Return in one line why Intel's runtime is missing and how to get it; empty if it is there."""
    if any("Intel" in found.facts.platform for found in found_devices()):
        return ""
    library = intel_library()
    if library is None:
        return "pip install intel-opencl-rt intel-cmplr-lib-rt for the fastest CPU device"
    if setting := loader_setting():
        return f"{setting} is set and does not name {library}: add an .icd file that does"
    return (
        f"the OpenCL loader was queried before hdgemm could name {library}; set OCL_ICD_VENDORS "
        "to a folder with an .icd file that does, or list hdgemm's devices first"
    )
