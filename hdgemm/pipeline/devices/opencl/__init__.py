"""OpenCL devices: any vendor's GPU, and CPUs through Intel's runtime or PoCL.

Names are ``opencl:0``, ``opencl:1``, … and ``opencl:0/2:0`` for the first of two equal parts.
"""

from hdgemm.pipeline.devices.opencl.names import list_devices, open_device
from hdgemm.pipeline.devices.opencl.platforms import may_find_accelerators

__all__ = ["list_devices", "may_find_accelerators", "open_device"]
