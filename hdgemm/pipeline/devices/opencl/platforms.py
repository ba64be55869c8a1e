"""Which OpenCL devices there are, under which names, with runtimes from pip found by themselves.

Numbering is stable: GPUs first, then other accelerators, then CPUs with Intel's runtime before
PoCL, which is slower; within those by platform and by the platform's own order.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hdgemm.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl.driver import Facts

_INSTALL: Final = "pip install 'hdgemm[opencl]'"
_USERS_OWN: Final = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
_SYSTEM_VENDORS: Final = Path("/etc/OpenCL/vendors")
_RANK: Final = {"gpu": 0, "accelerator": 1, "cpu": 2}


@dataclass(frozen=True, slots=True)
class Found:
    """One device of the machine; `handle` is the driver's."""

    facts: Facts
    handle: cl.Device


@functools.cache
def found_devices() -> tuple[Found, ...]:
    """Return every device in the order of its number; asks the loader once in a process.

    Raises
    ------
    DeviceUnavailableError
        When PyOpenCL is not installed, or no platform is there.
    """
    if importlib.util.find_spec("pyopencl") is None:
        raise DeviceUnavailableError(f"PyOpenCL is not installed: {_INSTALL}")
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl.driver import driver_errors, read_facts

    with driver_errors("asking for OpenCL platforms"), pip_runtimes():
        try:
            platforms = cl.get_platforms()
        except cl.LogicError as error:
            raise DeviceUnavailableError(f"no OpenCL platform is there: {_INSTALL}") from error
        handles = [each for platform in platforms for each in enumerate(_devices(platform))]
    unique: dict[tuple[object, ...], Found] = {}
    for index, handle in handles:
        facts = read_facts(handle)
        # A runtime that two vendor files name is loaded twice.
        unique.setdefault((facts.platform, facts.device, facts.driver, index), Found(facts, handle))
    return tuple(sorted(unique.values(), key=_order))


def _devices(platform: cl.Platform) -> list[cl.Device]:
    import pyopencl as cl

    try:
        return platform.get_devices()
    except cl.RuntimeError:
        # A driver without its hardware is no device.
        return []


def _order(found: Found) -> tuple[int, int, str]:
    facts = found.facts
    slow = facts.platform.startswith("Portable Computing Language")
    return _RANK[facts.kind], int(slow), facts.platform


@contextlib.contextmanager
def pip_runtimes() -> Iterator[None]:
    """Let the OpenCL loader see runtimes that pip installed, within this block.

    The loader reads its folder of vendor files once, at its first query; PyOpenCL's own PoCL it
    finds by itself. A user's own setting is respected, and the environment is as before
    afterwards.
    """
    intel = intel_library()
    if intel is None or users_setting():
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
    """Make a folder of vendor files, for `libraries` and for what the system has of its own."""
    with tempfile.TemporaryDirectory(prefix="hdgemm-opencl-") as name:
        folder = Path(name)
        for vendor in sorted(_SYSTEM_VENDORS.glob("*.icd")):
            with contextlib.suppress(OSError):
                (folder / vendor.name).write_bytes(vendor.read_bytes())
        for library in libraries:
            (folder / f"hdgemm-{library.stem}.icd").write_text(f"{library}\n", encoding="utf-8")
        yield folder


def users_setting() -> str:
    """Return the variable by which the user told the loader where to look; empty if none."""
    return next((name for name in _USERS_OWN if name in os.environ), "")


def may_find_accelerators() -> bool:
    """Say whether a driver is installed of which the loader could know.

    What pip installs are CPU runtimes; drivers of GPUs come with the system, or with Conda.
    """
    if sys.platform != "linux" or users_setting():
        return True
    folders = [_SYSTEM_VENDORS]
    if Path(sys.prefix, "conda-meta").is_dir():  # else what lies there is pip's
        folders.append(Path(sys.prefix, "etc", "OpenCL", "vendors"))
    return any(vendor for folder in folders for vendor in folder.glob("*.icd"))


def pip_libraries() -> list[Path]:
    """Return the runtimes that pip installed: Intel's, and the PoCL beside PyOpenCL's loader."""
    intel, pyopencl = intel_library(), importlib.util.find_spec("pyopencl")
    beside = Path(pyopencl.origin).parent if pyopencl and pyopencl.origin else None
    pocl = sorted(beside.glob(".libs/libpocl*.so")) if beside else []
    return [*([intel] if intel else []), *pocl]


def intel_library() -> Path | None:
    """Return where pip put Intel's CPU runtime, None where it is not installed."""
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
    """Say in one line what hides Intel's runtime, or that it could be had; empty if it is there."""
    if any("Intel" in found.facts.platform for found in found_devices()):
        return ""
    library = intel_library()
    if library is None:
        return "pip install intel-opencl-rt intel-cmplr-lib-rt for the fastest CPU device"
    if setting := users_setting():
        return f"{setting} is set and does not name {library}: add an .icd file that does"
    return (
        f"the OpenCL loader was asked before hdgemm could name {library}; set OCL_ICD_VENDORS to "
        "a folder with an .icd file that does, or list hdgemm's devices first"
    )
