"""Checksums of the rows that a pass stores, by which a durable run finds them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.durable.fingerprint import as_stored, checksum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix


@dataclass(slots=True)
class RowChecks:
    """Checksums of the blocks of rows that one core of a pass has stored, in their order.

    Parameters
    ----------
    target
        Where the rows are stored.
    places
        The first row and the one behind the last row of each block of the core.
    found
        The checksum of each block that is stored.
    """

    target: StoredMatrix
    places: Sequence[tuple[int, int]]
    found: list[int] = field(default_factory=list)

    def add(self, rows: NDArray[Any]) -> None:
        """Add the next block."""
        self.found.append(checksum(as_stored(rows, self.target.dtype)))

    def restore(self, recorded: Iterable[int]) -> bool:
        """Take recorded checksums where the stored rows have them; return whether they do."""
        dtype, columns = self.target.dtype.newbyteorder("="), self.target.shape[1]
        self.found, checksums = [], [int(each) for each in recorded]
        for (first, last), expected in zip(self.places, checksums, strict=False):
            rows = self.target[first:last, :].read(np.empty((last - first, columns), dtype))
            if checksum(rows) != expected:
                return False
        self.found = checksums
        return True
