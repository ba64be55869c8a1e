"""NVIDIA GPUs through CuPy's bindings of the CUDA runtime and cuBLAS."""

from hdgemm.pipeline.devices.cuda._find import driven_by, list_devices, open_device

__all__ = ["driven_by", "list_devices", "open_device"]
