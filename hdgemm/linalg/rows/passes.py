"""Several passes over a tall matrix and dense problems between them, reported as one run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from hdgemm.call.recorder import Recorder
from hdgemm.call.run_sequence import RunSequence
from hdgemm.linalg.planning.passes import row_devices
from hdgemm.linalg.rows.row_pass import RowPass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.dense import DensePlan
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.linalg.rows.source import TallRows
    from hdgemm.matrices.stored import StoredMatrix

_T = TypeVar("_T")


class Passes:
    """Passes and dense problems of one call, in turn.

    Parameters
    ----------
    run
        Options, session and callbacks; these are told of the whole.
    flops
        Floating-point operations of the whole, as far as they are known beforehand.
    checkpoint
        The durable run that this is, which records all passes; None without one.
    """

    def __init__(self, run: OpenRun, flops: int, checkpoint: RowCheckpoint | None = None) -> None:
        self.how, self._runs = run, RunSequence(run.callbacks, flops)
        self._checkpoint = checkpoint

    def reduce(
        self,
        rows: TallRows,
        reducers: Sequence[Reducer],
        plan: RowPlan,
        *,
        reverse: bool = False,
    ) -> None:
        """Execute one pass; parameters as for `RowPass`."""
        callbacks = self._runs.next(plan.flops)
        RowPass(
            rows,
            reducers,
            plan,
            callbacks,
            reverse=reverse,
            checkpoint=self._checkpoint,
            devices=row_devices(plan.devices, self.how),
        ).run()

    def keep(self, make: Callable[[], Sequence[NDArray[Any]]]) -> Sequence[NDArray[Any]]:
        """Return what `make` returns, of a durable run the same arrays when it goes on."""
        return make() if self._checkpoint is None else self._checkpoint.keep(make)

    def before(self, target: StoredMatrix) -> AbstractContextManager[StoredMatrix]:
        """Yield the place of rows that lead to those of `target`.

        It is `target` itself. A durable run takes a file beside its result, since rows that are
        half overwritten could not be computed again.
        """
        durable = self._checkpoint
        return nullcontext(target) if durable is None else durable.scratch(target)

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
