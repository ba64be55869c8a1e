"""Silent errors on purpose: what a device with failing memory or arithmetic would do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from hdgemm.pipeline.devices.dense import view

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from hdgemm.pipeline.devices.protocol import Block
    from hdgemm.pipeline.devices.recording.races import Kind

#: Given an operation's kind, its number among its kind (from 0) and what it wrote, may change it.
Corruption: TypeAlias = "Callable[[Kind, int, Block], None]"


class Corrupter:
    """Numbers the operations of each kind and hands them to a `Corruption`, if there is one."""

    def __init__(self, corrupt: Corruption | None) -> None:
        self._corrupt = corrupt
        self._numbers: Counter[Kind] = Counter()

    def __call__(self, kind: Kind, block: Block) -> None:
        """Take note of an operation that has just been done; one thread for each kind."""
        if self._corrupt is not None:
            self._corrupt(kind, self._numbers[kind], block)
            self._numbers[kind] += 1


def flip_bit(block: Block, element: int, bit: int) -> tuple[np.generic, np.generic]:
    """Flip one bit of an element, counted along rows; return its value before and after."""
    seen = view(block)
    row, col = divmod(element, seen.shape[1])
    value = seen[row : row + 1, col : col + 1].copy()
    before = value[0, 0]
    value.view("u1")[0, bit // 8] ^= 1 << bit % 8
    seen[row, col] = value[0, 0]
    return before, value[0, 0]
