"""From a shape and a dtype to OpenCL C: the definitions that the two sources are written in."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hdgemm.pipeline.devices.opencl.shape import real_bytes, reals

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape import Shape

#: k steps that one work-group packs: long enough for a stream, short enough to balance cores.
PACK_CHUNK = 256


@cache
def _kernel_text(name: str) -> str:
    return files(__package__).joinpath("kernels", name).read_text(encoding="utf-8")


def _definitions(values: dict[str, object]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _prelude(dtype: np.dtype[Any]) -> str:
    return "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if real_bytes(dtype) == 8 else ""


def gemm_source(shape: Shape, dtype: np.dtype[Any]) -> str:
    """Return the source of the kernel ``gemm`` for one shape and dtype."""
    values: dict[str, object] = {
        "REAL": "double" if real_bytes(dtype) == 8 else "float",
        "CPLX": reals(dtype) - 1,
        "VW": shape.lanes,
        "DIM_M": shape.dim_m,
        "DIM_N": shape.dim_n,
        "RM": shape.rows,
        "RV": shape.vectors,
        "REP_M": shape.walk_m,
        "REP_N": shape.walk_n,
        "BLK_K": shape.block_k,
        "KC": shape.cache_k,
        "LOCAL": int(shape.local),
        "PACKED": int(shape.packed),
        "AHEAD": shape.ahead,
    }
    return _prelude(dtype) + _definitions(values) + _kernel_text("gemm.cl")


def pack_source(width: int, lanes: int, dtype: np.dtype[Any]) -> str:
    """Return the source of ``pack_rows`` and ``pack_columns`` into panels of `width` elements.

    `lanes` work-items share a panel: 1 on a CPU, many on a GPU.
    """
    element = "double" if real_bytes(dtype) == 8 else "float"
    values: dict[str, object] = {
        "ELEMENT": element + ("2" if dtype.kind == "c" else ""),
        "WIDTH": width,
        "LANES": lanes,
        "CHUNK": PACK_CHUNK,
    }
    return _prelude(dtype) + _definitions(values) + _kernel_text("pack.cl")
