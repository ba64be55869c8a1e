"""Kernel shapes: how the multiply kernel divides its work, and which shape a product takes.

The panels in a slot have one width, whatever product the slot's tile becomes part of. So the shape
for square products decides the layout of slots, and the shapes for other classes of products may
differ from it only in parameters that leave the layout alone: the walk, unrolling and prefetching.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

SQUARE: Final = "square"
#: m, n and k of each class's tuning product, as fractions of the tuning extent.
CLASSES: Final[Mapping[str, tuple[float, float, float]]] = {
    SQUARE: (1, 1, 1),
    "rank-k": (1, 1, 1 / 8),
    "tall": (1, 1 / 16, 1),
    "wide": (1 / 16, 1, 1),
}
#: m, n and k.
Extents: TypeAlias = tuple[int, int, int]
#: Where a shape comes from; ``stale``: a default, because the tuned one is for another driver.
Origin: TypeAlias = Literal["tuned", "default", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """How the kernel divides C among work-groups, work-items and registers.

    The fields are the definitions of `kernels/gemm.cl`; a complex element is two lanes.
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

    def with_panels(self, a_width: int, b_width: int, dtype: np.dtype[Any]) -> KernelShape:
        """Return the shape for panels of these widths; narrower than its own only on a CPU."""
        b_reals = b_width * reals(dtype) // self.dim_n
        lanes = min(self.lanes, b_reals)
        return replace(self, rows=a_width // self.dim_m, lanes=lanes, vectors=b_reals // lanes)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> KernelShape:
        """Make a shape of what `to_json` returned.

        Raises `TypeError` for an unknown, missing or wrongly typed field, `ValueError` for a number
        out of its range.
        """
        for name, value in values.items():
            expected = bool if name in {"local", "packed"} else int
            if type(value) is not expected:
                raise TypeError(f"{name} must be {expected.__name__}, got {value!r}")
            if expected is int and value < (0 if name == "ahead" else 1):
                raise ValueError(f"{name} must be positive, got {value}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """The shapes of one dtype on one device.

    `square` is for every product except those nearest to a class in `others`; `gflops` were
    measured with it, 0 where it was not measured.
    """

    square: KernelShape
    origin: Origin = "tuned"
    gflops: float = 0.0
    others: Mapping[str, KernelShape] = field(default_factory=dict)

    def for_product(self, extents: Extents) -> KernelShape:
        """Return the shape for a product of these m, n and k."""
        if not self.others:
            return self.square
        known = {SQUARE: self.square, **self.others}
        return known[nearest(extents, known)]


def class_extents(name: str, n: int) -> Extents:
    """Return m, n and k of a class's product at the tuning extent `n`."""
    m_part, n_part, k_part = CLASSES[name]
    return round(n * m_part), round(n * n_part), round(n * k_part)


def nearest(extents: Extents, known: Iterable[str]) -> str:
    """Return the class whose proportions are closest in log scale, whatever the size."""
    wanted = _proportions(extents)
    return min(known, key=lambda name: math.dist(wanted, _proportions(CLASSES[name])))


def _proportions(sides: tuple[float, float, float]) -> list[float]:
    logs = [math.log2(max(side, 1e-9)) for side in sides]
    mean = sum(logs) / len(logs)
    return [each - mean for each in logs]


def same_layout(one: KernelShape, other: KernelShape, dtype: np.dtype[Any]) -> bool:
    """Say whether two shapes use the same layout of A and B in slots."""
    if not (one.packed and other.packed):
        return one.packed == other.packed
    widths = [(shape.block_m(), shape.block_n(dtype)) for shape in (one, other)]
    return widths[0] == widths[1]


def reals(dtype: np.dtype[Any]) -> int:
    """Return the number of reals in an element: 2 for complex dtypes."""
    return 2 if dtype.kind == "c" else 1


def real_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of one real of an element."""
    return dtype.itemsize // reals(dtype)
