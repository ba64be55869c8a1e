"""The plan of the copies of L and U from the matrix that has both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.linalg.slab_plan import Columns, SlabPlan
from hdgemm.linalg.updates import host_bytes, update_devices

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Stage


@dataclass(frozen=True, slots=True)
class TriangleCopies:
    """The plan of the copies of L (m×k) and U (k×n) from the matrix that has both.

    Parameters
    ----------
    plan
        Groups of columns of L, which a durable run records one by one.
    upper
        Groups of columns of U.
    """

    plan: SlabPlan
    upper: tuple[Columns, ...]

    @classmethod
    def of(cls, shape: tuple[int, int], dtype: np.dtype[Any], options: Options) -> TriangleCopies:
        """Cut both into groups of columns that fit the memory, or as wide as a tile forces."""
        (m, n), memory = shape, host_bytes(options)
        width = max(1, memory // (8 * max(1, m * dtype.itemsize)))
        width = options.tile[1] if options.tile is not None else width
        lower, upper = (
            tuple(Columns(at, min(at + width, columns), 0) for at in range(0, columns, width))
            for columns in (min(m, n), n)
        )
        block = options.tile[2] if options.tile is not None else width
        plan = SlabPlan("copy", m, min(m, n), dtype.name, lower, block, 1, memory // 4, memory,
                        devices=update_devices(options))  # fmt: skip
        return cls(plan, upper)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves."""
        return self.bytes_from(0)

    def bytes_from(self, group: int) -> dict[Stage, int]:
        """Return the bytes that each stage moves when groups of L are stored already.

        Only rows of a triangle are read.
        """
        m, k, itemsize = self.plan.m, self.plan.n, self.plan.itemsize
        left = self.plan.slabs[group:]
        read = sum(part.width * (m - part.first) for part in left)
        read += sum(part.width * min(k, part.last) for part in self.upper)
        written = m * sum(part.width for part in left) + k * sum(part.width for part in self.upper)
        return {"load1": read * itemsize, "store2": written * itemsize}

    def summary(self) -> dict[str, Any]:
        """Return shape and memory as plain values, for reports."""
        plan = self.plan
        return {"kind": "copies of L and U", "m": plan.m, "n": plan.n, "dtype": plan.dtype,
                "host_bytes": plan.bytes_held, "host_limit": plan.host_limit}  # fmt: skip
