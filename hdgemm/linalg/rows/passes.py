"""Several passes over a tall matrix and dense problems between them, reported as one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hdgemm.call.recorder import Recorder
from hdgemm.call.run_sequence import RunSequence
from hdgemm.linalg.rows.row_pass import RowPass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.linalg.rows.source import TallRows
    from hdgemm.progress import Watch

_T = TypeVar("_T")


class Passes:
    """Passes and dense problems of one call, in turn.

    Parameters
    ----------
    watch
        Told of the whole.
    flops
        Floating-point operations of the whole, as far as they are known beforehand.
    """

    def __init__(self, watch: Watch, flops: int) -> None:
        self._runs = RunSequence(watch, flops)

    def reduce(
        self,
        rows: TallRows,
        reducers: Sequence[Reducer],
        plan: RowPlan,
        *,
        reverse: bool = False,
        checkpoint: RowCheckpoint | None = None,
    ) -> None:
        """Execute one pass; parameters as for `RowPass`."""
        watch = self._runs.next(plan.flops)
        RowPass(rows, reducers, plan, watch, reverse=reverse, checkpoint=checkpoint).run()

    def dense(self, plan: DensePlan, compute: Callable[[], _T]) -> _T:
        """Return what `compute` returns, timed as the phase ``"svd"``."""
        recorder = Recorder(self._runs.next(plan.flops), plan.flops)
        recorder.phase = "svd"
        with recorder.measuring_memory(), recorder.operation("mult1", 0, flops=plan.flops):
            found = compute()
        recorder.finish(plan)
        return found

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Report the end of all; `facts` as from `hdgemm.call.plans.facts_of`."""
        self._runs.finish(facts)
