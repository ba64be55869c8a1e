"""Classes of products by their proportions, and the kernel's shape for each.

The panels in a slot have one width, and a slot does not know which product it will meet. So the
square class decides how operands lie in slots, and the shapes of other classes differ only in what
leaves that alone: the walk, unrolling, prefetching. They come into play where a step's extents are
nearest to their class, which in a pipeline is decided by its tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape import Shape

SQUARE: Final = "square"
#: m, n and k of each class's tuning product, as parts of the tuning extent.
CLASSES: Final[Mapping[str, tuple[float, float, float]]] = {
    SQUARE: (1, 1, 1),
    "rank-k": (1, 1, 1 / 8),
    "tall": (1, 1 / 16, 1),
    "wide": (1 / 16, 1, 1),
}
Extents: TypeAlias = tuple[int, int, int]
#: Where a shape comes from; ``stale`` is a default in place of one tuned for another driver.
Origin: TypeAlias = Literal["tuned", "default", "stale"]


def extents(name: str, n: int) -> Extents:
    """Return m, n and k of a class's product at the tuning extent `n`."""
    m_part, n_part, k_part = CLASSES[name]
    return round(n * m_part), round(n * n_part), round(n * k_part)


def nearest(product: Extents, known: Iterable[str]) -> str:
    """Return the class among `known` whose proportions are closest; on a log scale, size aside."""
    wanted = _proportions(product)
    return min(known, key=lambda name: math.dist(wanted, _proportions(CLASSES[name])))


def _proportions(sides: tuple[float, float, float]) -> list[float]:
    logs = [math.log2(max(side, 1e-9)) for side in sides]
    mean = sum(logs) / len(logs)
    return [each - mean for each in logs]


def same_layout(one: Shape, other: Shape, dtype: np.dtype[Any]) -> bool:
    """Say whether two shapes find operands in the same slots."""
    if not (one.packed and other.packed):
        return one.packed == other.packed
    widths = [(shape.block_m(), shape.block_n(dtype)) for shape in (one, other)]
    return widths[0] == widths[1]


@dataclass(frozen=True, slots=True)
class Kernels:
    """A dtype's shapes: `square` for every product but those nearest to a class in `others`.

    `origin` is where they come from.
    """

    square: Shape
    others: Mapping[str, Shape] = field(default_factory=dict)
    origin: Origin = "tuned"

    def of(self, product: Extents) -> Shape:
        """Return the shape for a product of these extents."""
        if not self.others:
            return self.square
        known = {SQUARE: self.square, **self.others}
        return known[nearest(product, known)]
