"""The multiply kernel's arguments and its grid, for whoever launches it: the device, the tuner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.devices.opencl.shape import Shape


@dataclass(frozen=True, slots=True)
class Source:
    """A or B for the kernel, in elements.

    `strides` holds the stride of a panel, or, as stored, the strides of op-space rows and columns.
    """

    memory: cl.Buffer
    start: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """C for the kernel: row-major, `ld` elements from row to row."""

    memory: cl.Buffer
    start: int
    ld: int


@dataclass(frozen=True, slots=True)
class Product:
    """C (m×n) := alpha·A·B + beta·C as the kernel is told of it."""

    extents: tuple[int, int, int]
    alpha: complex
    a: Source
    b: Source
    beta: complex
    c: Target


def enqueue_gemm(
    queue: cl.CommandQueue,
    kernel: cl.Kernel,
    shape: Shape,
    dtype: np.dtype[Any],
    product: Product,
    wait_for: Sequence[cl.Event] = (),
) -> cl.Event:
    """Set the arguments and launch; the caller sees to it that no other thread does so too."""
    m, n, k = product.extents
    real = dtype.type(0).real.dtype.type
    a, b, c = product.a, product.b, product.c
    kernel.set_args(
        *map(np.int64, (m, n, k)),
        *map(real, (complex(product.alpha).real, complex(product.alpha).imag)),
        a.memory, *map(np.int64, (a.start, *a.strides)),
        b.memory, *map(np.int64, (b.start, *b.strides)),
        *map(real, (complex(product.beta).real, complex(product.beta).imag)),
        c.memory, *map(np.int64, (c.start, c.ld)),
    )  # fmt: skip
    groups_n = -(-n // (shape.block_n(dtype) * shape.walk_n))
    groups_m = -(-m // (shape.block_m() * shape.walk_m))
    grid = (groups_n * shape.dim_n, groups_m * shape.dim_m)
    return cl.enqueue_nd_range_kernel(
        queue, kernel, grid, (shape.dim_n, shape.dim_m), wait_for=list(wait_for)
    )
