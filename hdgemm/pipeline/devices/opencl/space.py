"""The search space as data, and the candidates in it.

A core decides what a work-group computes and how (BEAST's `dim` and `blk` parameters, figure 7, and
how operands reach the registers); a walk decides only in which order it goes through memory. The
nine rules judge cores; walks are tried on the best of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.devices.opencl.shape import Shape, reals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

CORE: Final[Mapping[str, tuple[int, ...]]] = {
    "lanes": (1, 2, 4, 8, 16),
    "dim_m": (1, 2, 4, 8, 16, 32),
    "dim_n": (1, 2, 4, 8, 16, 32),
    "rows": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16),
    "vectors": (1, 2, 3, 4, 6, 8, 12, 16),
    "block_k": (1, 2, 4, 8, 16),
}
#: Local memory or not, and operands in panels or as stored.
OPERANDS: Final = ((False, True), (True, True), (True, False))
WALK: Final[Mapping[str, tuple[int, ...]]] = {
    "walk_m": (1, 4, 8, 16, 32),
    "walk_n": (1, 2, 4, 8, 16),
    "cache_k": (128, 256, 512, 1024, 1 << 20),
    "ahead": (0, 4, 16),
}
#: Where every core starts.
_FIRST_WALK: Final = {"walk_m": 16, "walk_n": 4, "cache_k": 256}


def cores(dtype: np.dtype[Any]) -> Iterator[Shape]:
    """Give every core for a dtype; a vector holds whole elements."""
    for local, packed in OPERANDS:
        walk = {} if local else _FIRST_WALK
        for values in product(*CORE.values()):
            chosen = dict(zip(CORE, values, strict=True))
            if chosen["lanes"] % reals(dtype) == 0:
                yield Shape(**chosen, **walk, local=local, packed=packed)


def walks(shape: Shape) -> Iterator[Shape]:
    """Give the shapes that differ from `shape` in one parameter of its walk or its unrolling."""
    names = ("block_k",) if shape.local else ("block_k", *WALK)
    for name in names:
        for value in {**CORE, **WALK}[name]:
            if value != getattr(shape, name):
                changed: dict[str, Any] = {name: value}
                yield replace(shape, **changed)
