"""Blocks of lost workers: read again before a run is reported as finished.

A lost worker may only have been stopped, and may store its old block over the block of the
worker that has computed it since, see `hdgemm.cluster._lease`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.durable.earlier_run import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hdgemm.cluster._checkpoint import ClusterCheckpoint
    from hdgemm.cluster._panel_job import AnyJob
    from hdgemm.cluster.blocks import BlockPool
    from hdgemm.cluster.receipts import Receipt
    from hdgemm.pipeline.tiles import Rect

#: Rounds in which changed pieces are computed again.
_MOST_ROUNDS: Final = 3


class Suspects:
    """The blocks that lost workers have computed or were computing, in stored rows and columns."""

    def __init__(self, checkpoint: ClusterCheckpoint, job: AnyJob) -> None:
        self._checkpoint, self._job = checkpoint, job
        self._blocks: list[Rect] = []
        self._rounds = 0

    def add(self, worker: str, unfinished: Iterable[Rect], receipts: Sequence[Receipt]) -> None:
        """Add the blocks of a worker that is lost."""
        self._blocks += map(self._job.stored, unfinished)
        self._blocks += [each.block for each in receipts if each.worker == worker]

    def put_back(self, pool: BlockPool) -> bool:
        """Return pieces that have changed since they were recorded to their pool; say whether there
        were any.

        Raises
        ------
        DamagedError
            When they change again and again, or lie outside the pool, where others depend on them.
        """
        if not self._blocks:
            return False
        # A block as C is stored, turned twice, is the block as the pool has it.
        changed = [self._job.stored(rect) for rect in self._checkpoint.take_damaged(self._blocks)]
        if not changed:
            return False
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS or not all(map(pool.holds, changed)):
            raise DamagedError(
                f"{self._checkpoint.output.matrix.name} was changed in rows and columns "
                f"{changed[0]} by something else than the run's workers: end it, then give the "
                "same command"
            )
        for rect in changed:
            pool.undo(rect)
        return True
