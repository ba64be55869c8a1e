"""OpenCL devices of the machine on which the tests run."""

import pytest

from hdgemm.pipeline.devices.registry import list_devices


def usable_opencl() -> list[str]:
    """Return the names of usable OpenCL devices; skip the test where there is none."""
    pytest.importorskip("pyopencl")
    names = [info.name for info in list_devices() if info.usable and "opencl" in info.name]
    if not names:
        pytest.skip("there is no OpenCL device")
    return names
