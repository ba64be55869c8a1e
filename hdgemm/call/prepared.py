"""A computation that is checked and planned, and not yet executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.call.plans import LinearPlan
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.run.session import Session

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[_R]):
    """What one call computes, decided once: `run` executes the plan `plan`.

    It is yielded by a context that holds the operands and the session open. Dry runs, the command
    line and the service show `plan`; the public functions call `run`.

    Parameters
    ----------
    plan
        Memory, bytes by stage, operations, expected time.
    compute
        Computes and stores the result, and returns what the public function returns.
    session
        Warns where the plan holds more memory than is available.
    """

    plan: LinearPlan
    compute: Callable[[], _R]
    session: Session

    def run(self) -> _R:
        """Compute and store the result, and return what the public function returns."""
        self.session.warn_of_memory(self.plan.host_bytes)
        return self.compute()


@dataclass(frozen=True, slots=True)
class PreparedMatrix(Prepared[_R]):
    """A computation of one matrix, with which a computation that reads it is planned.

    Parameters
    ----------
    result
        The matrix that `run` stores: opened, or only described.
    """

    result: StoredMatrix
