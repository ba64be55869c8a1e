"""One point of the search space: how the multiply kernel cuts its work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

#: The four dtypes the kernel multiplies, by their names.
DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the kernel cuts C among work-groups, work-items and registers; see `kernels/gemm.cl`.

    Parameters
    ----------
    lanes
        Elements of a vector, in reals; a complex element is two of them.
    dim_m, dim_n
        A work-group's shape, in work-items.
    rows, vectors
        A work-item's register tile.
    walk_m, walk_n
        Panels of A and of B that a work-group walks through.
    block_k
        k of one unrolled block, and of one block in local memory.
    cache_k
        k after which C is updated, so that the panels in use stay in the cache.
    local
        Blocks of A and B go through local memory.
    packed
        A and B lie in panels; otherwise as they were stored.
    ahead
        k steps by which panels are prefetched; 0 for not.
    """

    lanes: int
    dim_m: int = 1
    dim_n: int = 1
    rows: int = 4
    vectors: int = 2
    walk_m: int = 1
    walk_n: int = 1
    block_k: int = 4
    cache_k: int = 1 << 20
    local: bool = False
    packed: bool = True
    ahead: int = 0

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.dim_m * self.dim_n

    def block_m(self) -> int:
        """Rows of a work-group's tile, and the width of A's panels."""
        return self.rows * self.dim_m

    def block_n(self, dtype: np.dtype[Any]) -> int:
        """Columns of a work-group's tile, and the width of B's panels."""
        return self.vectors * self.lanes * self.dim_n // reals(dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Shape:
        """Make a shape of what `to_json` gave; an unknown or wrong field is a `TypeError`."""
        for name, value in values.items():
            expected = bool if name in {"local", "packed"} else int
            if type(value) is not expected:
                raise TypeError(f"{name} must be {expected.__name__}, got {value!r}")
        return cls(**values)


def reals(dtype: np.dtype[Any]) -> int:
    """Return how many reals an element consists of."""
    return 2 if dtype.kind == "c" else 1


def real_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of one real of an element."""
    return dtype.itemsize // reals(dtype)
