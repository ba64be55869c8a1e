"""Who executes the passes over rows of a call: this process, or another executor."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.linalg.rows.source import TallRows


class PassExecutor(Protocol):
    """Executes a pass over rows elsewhere."""

    def reduce(
        self, rows: TallRows, reducers: Sequence[Reducer], plan: RowPlan, recorder: Recorder
    ) -> RowPlan:
        """Give all rows to the reducers, which are empty; return the plan that was executed.

        `plan` is this process's own. The recorder is told of each operation.
        """


_EXECUTOR: Final[ContextVar[PassExecutor | None]] = ContextVar("pass_executor", default=None)


@contextmanager
def passes_on(executor: PassExecutor) -> Iterator[None]:
    """Let an executor take the passes over rows of all calls in a context."""
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


def passes_move() -> bool:
    """Return whether another executor takes the passes over rows of calls in this context."""
    return _EXECUTOR.get() is not None


def executor_for(rows: TallRows, reducers: Sequence[Reducer]) -> PassExecutor | None:
    """Return the executor of a pass; None for this process.

    A pass that stores rows, gathers them in this process, or reads an unfinished result stays here.
    """
    movable = all(reducer.separate and reducer.target is None for reducer in reducers)
    return _EXECUTOR.get() if movable and not rows.intermediate else None
