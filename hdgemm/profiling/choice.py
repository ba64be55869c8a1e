"""Which device a profile takes when it is told none, and which others stand beside it."""

from __future__ import annotations

from hdgemm.pipeline.devices.registry import list_devices


def choose(name: str | None) -> str:
    """Return the device to profile: the named one, an accelerator, an OpenCL device, the host."""
    if name is not None:
        return name
    usable = [info for info in list_devices() if info.usable]
    accelerators = [info.name for info in usable if info.accelerator]
    opencl = [info.name for info in usable if info.name.startswith("opencl")]
    return (accelerators + opencl + ["host"])[0]


def peers_of(name: str) -> tuple[str, ...]:
    """Return all accelerators of the named one's kind, itself first; just itself if it is none.

    Devices that are the host's own processor have no peers: they would be the same cores.
    """
    kind = name.partition(":")[0]
    alike = [
        info.name
        for info in list_devices()
        if info.usable and info.accelerator and info.name.partition(":")[0] == kind
    ]
    if name not in alike:
        return (name,)
    return (name, *(other for other in alike if other != name))


def on_host_cores(name: str) -> bool:
    """Say whether a device is the host's own processor under another driver."""
    listed = [info for info in list_devices() if info.name == name.partition("/")[0]]
    return name.startswith("opencl") and not any(info.accelerator for info in listed)
