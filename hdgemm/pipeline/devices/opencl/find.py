"""OpenCL devices by name: list, open, and divide one into parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.opencl.platforms import Found, found_devices, missing_runtime
from hdgemm.pipeline.devices.registry import DeviceInfo

if TYPE_CHECKING:
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl.device import OpenCLDevice
    from hdgemm.pipeline.devices.opencl.driver import Facts

_NAMES = "an OpenCL device's name is like 'opencl:0', a part of one like 'opencl:0/2:1'"


@dataclass(frozen=True, slots=True)
class Name:
    """``opencl:INDEX``, or number `part` of `parts` equal parts: ``opencl:INDEX/PARTS:PART``."""

    index: int
    parts: int = 1
    part: int = 0

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read a name; ``opencl`` alone is the first device."""
        match = re.fullmatch(r"opencl(?::(\d+)(?:/(\d+):(\d+))?)?", text)
        if match is None:
            raise DeviceUnavailableError(f"there is no device {text!r}; {_NAMES}")
        name = cls(int(match[1] or 0), int(match[2] or 1), int(match[3] or 0))
        if not 0 <= name.part < name.parts:
            raise DeviceUnavailableError(
                f"there is no {text!r}: {name.parts} parts are numbered from 0", parts=name.parts
            )
        return name


def parts(text: str) -> tuple[str, ...]:
    """Spell out ``"opencl:0/2"``: the names of both halves. Other names are their only part."""
    match = re.fullmatch(r"(opencl:\d+/(\d+))", text)
    if match is None:
        return (text,)
    return tuple(f"{match[1]}:{part}" for part in range(int(match[2])))


def list_devices() -> list[DeviceInfo]:
    """Return every OpenCL device, and one entry that says why where one cannot be used."""
    try:
        found = found_devices()
        hint = missing_runtime()
    except DeviceError as error:
        return [DeviceInfo("opencl", "OpenCL devices", usable=False, note=str(error))]
    listed = [_describe(f"opencl:{index}", each) for index, each in enumerate(found)]
    if hint:
        listed.append(DeviceInfo("opencl", "Intel's CPU runtime", usable=False, note=hint))
    return listed


def _describe(name: str, found: Found) -> DeviceInfo:
    facts = found.facts
    text = f"{facts.device}, {facts.compute_units} units, {facts.platform} {facts.driver}"
    reason = why_not(found)
    notes = [reason] if reason else []
    if not reason:
        notes += ["single precision only"] if not facts.has_double else []
        notes.append(_tuning(name, facts))
    return DeviceInfo(
        name, text, facts.memory_bytes, not reason, "; ".join(notes), facts.kind != "cpu"
    )


def _tuning(name: str, facts: Facts) -> str:
    """Say for which dtypes a device was tuned, and how to tune it for none."""
    from hdgemm.pipeline.devices.opencl.store import shapes_for

    shapes = shapes_for(facts)
    tuned = [dtype.name for dtype, kernels in shapes.items() if kernels.origin == "tuned"]
    if tuned:
        return f"tuned for {', '.join(tuned)}"
    stale = any(kernels.origin == "stale" for kernels in shapes.values())
    state = "tuned for another driver version" if stale else "not tuned"
    return f"{state}: hdgemm tune --device {name}"


def why_not(found: Found) -> str:
    """Say why a device cannot be used, by building a kernel for it; empty if it can."""
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl.programs import build

    if not (found.handle.available and found.handle.compiler_available):
        return "its driver says that it, or its compiler, is not available"
    try:
        build(cl.Context([found.handle]), "__kernel void probe(__global float *x) { *x += 1; }")
    except DeviceError as error:
        return str(error)
    except cl.Error as error:
        return f"its driver refused a context: {error}"
    return ""


def locate(text: str) -> tuple[Facts, cl.Device]:
    """Find a device, or a part of one, by name.

    Raises
    ------
    DeviceUnavailableError
        When it is not there or cannot be divided so.
    """
    name, found = Name.parse(text), found_devices()
    if name.index >= len(found):
        raise DeviceUnavailableError(
            f"there is no {text}: {len(found)} OpenCL device(s) are there", devices=len(found)
        )
    whole = found[name.index]
    if name.parts == 1:
        return whole.facts, whole.handle
    return _divide(whole, name, text)


def _divide(whole: Found, name: Name, text: str) -> tuple[Facts, Any]:
    import pyopencl as cl

    units = whole.facts.compute_units // name.parts
    if units == 0:
        raise DeviceUnavailableError(
            f"opencl:{name.index} has {whole.facts.compute_units} units, too few for {text}",
            units=whole.facts.compute_units, parts=name.parts,
        )  # fmt: skip
    try:
        how: list[Any] = [cl.device_partition_property.EQUALLY, units]
        divided = whole.handle.create_sub_devices(how)
    except cl.Error as error:
        raise DeviceUnavailableError(
            f"opencl:{name.index} cannot be divided into {name.parts} parts: {error}"
        ) from error
    facts = replace(
        whole.facts, compute_units=units, memory_bytes=whole.facts.memory_bytes // name.parts
    )
    return facts, divided[name.part]


def open_device(
    name: str, memory_bytes: int | None = None, *, zero_copy: bool | None = None
) -> OpenCLDevice:
    """Open ``"opencl:N"``, or a part like ``"opencl:N/2:0"``, to hold at most `memory_bytes`.

    `zero_copy` false drives a CPU device as if its memory were its own; None decides by kind.

    Raises
    ------
    DeviceUnavailableError
        When there is no such device, or no way to use it; the message says why.
    """
    facts, handle = locate(name)

    from hdgemm.pipeline.devices.opencl.device import OpenCLDevice
    from hdgemm.pipeline.devices.opencl.host_memory import SharedMemoryDevice
    from hdgemm.pipeline.devices.opencl.store import shapes_for

    shares = facts.kind == "cpu" if zero_copy is None else zero_copy
    kind = SharedMemoryDevice if shares else OpenCLDevice
    try:
        return kind(
            name, handle, facts, shapes_for(facts), memory_bytes=memory_bytes, zero_copy=shares
        )
    except DeviceError as error:
        raise DeviceUnavailableError(f"{name} cannot be opened: {error}") from error
