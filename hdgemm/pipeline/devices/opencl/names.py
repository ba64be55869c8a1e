"""OpenCL devices by name: list them, open one, divide one into parts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.opencl.platforms import Found, found_devices, missing_runtime
from hdgemm.pipeline.devices.registry import DeviceInfo

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.opencl._driver import Facts
    from hdgemm.pipeline.devices.opencl._factoring import OpenCLNativeDevice

_NAME = re.compile(r"opencl(?::(\d{1,4})(?:/(\d{1,4}):(\d{1,4}))?)?")


def _parse(text: str) -> tuple[int, int, int]:
    """Return the index of a device, its number of equal parts and the part that a name means."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise DeviceUnavailableError(
            f"there is no device {text!r}: an OpenCL device has a name like 'opencl:0', and a "
            "part of one a name like 'opencl:0/2:1'"
        )
    index, parts, part = int(match[1] or 0), int(match[2] or 1), int(match[3] or 0)
    if part >= parts:
        raise DeviceUnavailableError(
            f"there is no {text!r}: the numbers of {parts} parts start at 0", parts=parts
        )
    return index, parts, part


def list_devices() -> list[DeviceInfo]:
    """Return every OpenCL device, and an entry with the reason where one cannot be used."""
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
    reason = _unusable(found)
    single = "" if facts.has_double else "single precision only; "
    note = reason or single + _tuning_state(name, facts)
    return DeviceInfo(name, text, facts.memory_bytes, not reason, note, facts.kind != "cpu")


def _tuning_state(name: str, facts: Facts) -> str:
    """Return the dtypes for which a device was tuned, or how to tune it."""
    from hdgemm.pipeline.devices.opencl.tuning_cache import shapes_for

    shapes = shapes_for(facts)
    tuned = [dtype.name for dtype, each in shapes.items() if each.origin == "tuned"]
    if tuned:
        return f"tuned for {', '.join(tuned)}"
    stale = any(each.origin == "stale" for each in shapes.values())
    state = "tuned for another driver version" if stale else "not tuned"
    return f"{state}: hdgemm tune --device {name}"


def _unusable(found: Found) -> str:
    """Return the reason why a device cannot build a kernel; empty where it can."""
    import pyopencl as cl

    from hdgemm.pipeline.devices.opencl._driver import driver_errors
    from hdgemm.pipeline.devices.opencl._programs import build

    try:
        with driver_errors("its driver refused a context"):
            if not (found.handle.available and found.handle.compiler_available):
                return "its driver says that it, or its compiler, is not available"
            context = cl.Context([found.handle])
        build(context, "__kernel void probe(__global float *x) { *x += 1; }")
    except (DeviceError, MemoryError) as error:
        return str(error)
    return ""


def locate(text: str) -> Found:
    """Find a device, or a part of one, by name; raise `DeviceUnavailableError` without it."""
    (index, parts, part), found = _parse(text), found_devices()
    if index >= len(found):
        raise DeviceUnavailableError(
            f"there is no {text}: this machine has {len(found)} OpenCL device(s), numbered from 0 "
            "(`hdgemm devices` lists them)",
            devices=len(found),
        )
    return found[index] if parts == 1 else _divide(found[index], parts, text)[part]


def _divide(whole: Found, parts: int, text: str) -> list[Found]:
    import pyopencl as cl

    name, _, _ = text.partition("/")
    available = whole.facts.compute_units
    units = available // parts
    if units == 0:
        raise DeviceUnavailableError(
            f"{name} has {available} units, too few for {text}", units=available, parts=parts
        )
    try:
        how: list[Any] = [cl.device_partition_property.EQUALLY, units]
        divided = whole.handle.create_sub_devices(how)
    except cl.Error as error:
        raise DeviceUnavailableError(
            f"{name} cannot be divided into {parts} parts: {error}"
        ) from error
    memory = whole.facts.memory_bytes // parts
    facts = replace(whole.facts, compute_units=units, memory_bytes=memory)
    return [Found(facts, handle) for handle in divided]


def open_device(
    name: str, memory_bytes: int | None = None, *, zero_copy: bool | None = None
) -> OpenCLNativeDevice:
    """Open ``"opencl:N"``, or a part like ``"opencl:N/2:0"``, to hold at most `memory_bytes`.

    `zero_copy` false uses a CPU device as if it had memory of its own; None decides by its kind.
    Raises `DeviceUnavailableError` with the reason where it is not there or cannot be used.
    """
    found = locate(name)

    from hdgemm.pipeline.devices.opencl._factoring import OpenCLNativeDevice
    from hdgemm.pipeline.devices.opencl.tuning_cache import shapes_for

    shared = found.facts.kind == "cpu" if zero_copy is None else zero_copy
    shapes = shapes_for(found.facts)
    try:
        return OpenCLNativeDevice(name, found, shapes, memory_bytes=memory_bytes, zero_copy=shared)
    except DeviceError as error:
        raise DeviceUnavailableError(f"{name} cannot be opened: {error}") from error
