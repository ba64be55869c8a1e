"""What a pass over rows computes: the base class of reducers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hdgemm.linalg.planning.rows import RowShape, RowWork
    from hdgemm.linalg.rows._device_lane import DeviceLane
    from hdgemm.matrices.stored import StoredMatrix


class RowBlock(NamedTuple):
    """Rows ``first`` to ``first + len(a)`` of A, and of B beside it, in memory.

    Parameters
    ----------
    first
        Index of the first row.
    a
        rows×n, transformed as `hdgemm.linalg.rows.source.TallRows` says; column-major or row-major.
    b
        rows×p; p may be 0.
    """

    first: int
    a: NDArray[Any]
    b: NDArray[Any]


class Reducer(ABC):
    """Accumulates the blocks of rows of a pass.

    A pass gives the blocks of each core, in their order, to a reducer of that core: to the one that
    the caller made, and for further cores to those that `fresh` makes. At the end it combines them,
    in the order of the cores, into the caller's, which then has the result. So the same plan gives
    the same bits.

    A subclass implements `work`, `fresh`, `update`, `combine`, `arrays` and `restore`.

    Attributes
    ----------
    separate
        What it accumulates lies in memory of its own, apart from the memory of the other cores'
        reducers: another process can accumulate it.
    target
        Where the rows go that `update` returns; None where it returns none. The last reducer of a
        pass may have one.
    """

    separate: ClassVar[bool] = True
    target: StoredMatrix | None = None

    @abstractmethod
    def work(self, shape: RowShape) -> RowWork:
        """Return flops, memory and use of the blocks for a pass over rows of some shape."""

    def flops(self, rows: int, shape: RowShape) -> int:
        """Return the floating-point operations of a block of rows."""
        return self.work(shape).flops * rows // max(1, shape.m)

    @abstractmethod
    def fresh(self, core: int) -> Self:
        """Return an empty reducer of the same computation for a further core: 1, 2, ..."""

    @abstractmethod
    def update(self, block: RowBlock) -> NDArray[Any] | None:
        """Add a block; return the rows to be stored in `target`, None where it has none.

        The caller stores the rows during the next update: they must stay as they are until it
        returns. Rows in a block that the reducer overwrites are stored before the next update.

        BLAS has one thread for each core of a pass.
        """

    def use(self, lane: DeviceLane) -> None:  # noqa: B027 - work of the host alone
        """Let a device compute the products of the blocks, until `leave`.

        Subclasses with `device_tiles` in their `work` implement both.
        """

    def leave(self) -> None:  # noqa: B027 - work of the host alone
        """Take what was accumulated on a device."""

    @abstractmethod
    def combine(self, other: Self) -> None:
        """Add what another core has accumulated; `other` may be overwritten."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What was accumulated, by name, for a checkpoint."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the `arrays` that a checkpoint has."""
