"""What the driver module speaks in: the names it uses of CuPy, and plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class CudaApi(NamedTuple):
    """The names used of CuPy; `standin.StandIn` offers the same ones on a machine without a GPU.

    `stream` makes a non-blocking stream with a `ptr`, current within a ``with`` block.
    `address_range` returns the start and bytes of the allocation a pointer lies in, or None where
    the driver does not say.
    """

    name: str
    runtime: Any
    blas: Any
    stream: Callable[[], Any]
    address_range: Callable[[int], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the driver says of one GPU; memory in bytes, `bus_id` as in ``/sys/bus/pci``."""

    index: int
    name: str
    bus_id: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    copy_engines: int
    total: int


class GemmCall(NamedTuple):
    """The arguments of one cuBLAS gemm after its stream, column-major as cuBLAS reads them.

    `alpha`, `beta`: addresses of host scalars of the product's dtype, read before the call
    returns. `a`, `b`, `c`: device addresses. `transa`, `transb`: 0 as stored, 1 transposed.
    """

    routine: str
    transa: int
    transb: int
    m: int
    n: int
    k: int
    alpha: int
    a: int
    lda: int
    b: int
    ldb: int
    beta: int
    c: int
    ldc: int
