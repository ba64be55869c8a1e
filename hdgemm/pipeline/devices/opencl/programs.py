"""Built kernels: one multiply kernel and two packers a dtype, built at first use."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from hdgemm.pipeline.devices.opencl.driver import driver_errors
from hdgemm.pipeline.devices.opencl.generator import gemm_source, pack_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape import Shape

#: Work-items that share a panel where neighbours run in step.
_GPU_PACK_LANES = 128
_BUILDING = threading.Lock()


def build(context: cl.Context, source: str) -> cl.Program:
    """Compile; the compiler's remarks on working code are no one's business.

    Raises
    ------
    DeviceError
        With the beginning of the compiler's log.
    """
    # Filters of warnings are the process's, and lanes build in threads of their own.
    with _BUILDING, warnings.catch_warnings(), driver_errors("building an OpenCL kernel"):
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program: cl.Program = cl.Program(context, source).build(options=["-cl-std=CL1.2"])
        return program


class Programs:
    """The kernels of one device; `shapes` holds one for each dtype it multiplies."""

    def __init__(
        self, context: cl.Context, shapes: Mapping[np.dtype[Any], Shape], *, in_step: bool
    ) -> None:
        self._context = context
        self._pack_lanes = _GPU_PACK_LANES if in_step else 1
        self._lock = threading.Lock()
        self._built: dict[tuple[object, ...], cl.Kernel] = {}
        self.shapes = dict(shapes)

    def gemm(self, dtype: np.dtype[Any]) -> cl.Kernel:
        """Return the multiply kernel of a dtype."""
        return self._kernel("gemm", dtype, 0)

    def pack(self, dtype: np.dtype[Any], width: int, *, k_along_rows: bool) -> cl.Kernel:
        """Return the packer of a dtype into panels of `width`."""
        return self._kernel("pack_rows" if k_along_rows else "pack_columns", dtype, width)

    @property
    def pack_lanes(self) -> int:
        """Work-items of a packer's work-group."""
        return self._pack_lanes

    def _kernel(self, name: str, dtype: np.dtype[Any], width: int) -> cl.Kernel:
        # A kernel's arguments are its own: each is used by one lane only.
        key = (name, dtype, width)
        with self._lock:
            if key not in self._built:
                source = (
                    gemm_source(self.shapes[dtype], dtype)
                    if name == "gemm"
                    else pack_source(width, self._pack_lanes, dtype)
                )
                self._built[key] = cl.Kernel(build(self._context, source), name)
            return self._built[key]
