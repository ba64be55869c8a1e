"""Built kernels: multiply kernels and two packers a dtype, built at first use."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from hdgemm.pipeline.devices.opencl.driver import driver_errors
from hdgemm.pipeline.devices.opencl.generator import gemm_source, pack_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape_classes import Kernels
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
    """The kernels of one device; `shapes` holds those of each dtype it multiplies."""

    def __init__(
        self, context: cl.Context, shapes: Mapping[np.dtype[Any], Kernels], *, in_step: bool
    ) -> None:
        self._context = context
        self._pack_lanes = _GPU_PACK_LANES if in_step else 1
        self._lock = threading.Lock()
        self._built: dict[tuple[object, ...], cl.Kernel] = {}
        self.shapes = dict(shapes)

    def gemm(self, dtype: np.dtype[Any], shape: Shape) -> cl.Kernel:
        """Return the multiply kernel of a dtype and shape."""
        return self._kernel(("gemm", dtype, shape), lambda: gemm_source(shape, dtype))

    def pack(self, dtype: np.dtype[Any], width: int, *, k_along_rows: bool) -> cl.Kernel:
        """Return the packer of a dtype into panels of `width`."""
        name = "pack_rows" if k_along_rows else "pack_columns"
        return self._kernel(
            (name, dtype, width), lambda: pack_source(width, self._pack_lanes, dtype)
        )

    @property
    def pack_lanes(self) -> int:
        """Work-items of a packer's work-group."""
        return self._pack_lanes

    def _kernel(self, key: tuple[str, object, object], source: Callable[[], str]) -> cl.Kernel:
        # A kernel's arguments are its own: each is used by one lane only.
        with self._lock:
            if key not in self._built:
                self._built[key] = cl.Kernel(build(self._context, source()), key[0])
            return self._built[key]
