"""Columns of a slab on which tasks run in turn, and what a factorisation computes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hdgemm.fortran import gemm
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs.slab import FactoredColumns, operations_on
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.slabs._core_team import CoreTeam
    from hdgemm.linalg.slabs._resident import ResidentBlock
    from hdgemm.linalg.slabs.slab import Slab
    from hdgemm.threads import Call


class ColumnSpan:
    """Columns of a slab, on which tasks run one after the other; `array` has the slab's rows."""

    def __init__(self, team: CoreTeam, slab: Slab, first: int, last: int) -> None:
        start = slab.place.first
        self.slab = slab
        self.place = Columns(first, last, slab.place.top)
        self.array = slab.array[:, first - start : last - start]
        self._team = team
        #: The last task on these columns; before the first one, their loads.
        self.latest: tuple[Call[None], ...] = operations_on(self.place, slab.loads)

    def then(self, run: Callable[[], None], *after: Call[None]) -> Call[None]:
        """Queue a task that follows the last one on this span, and others."""
        task = self._team.submit(run, (*self.latest, *after))
        self.latest = (task,)
        self.slab.tasks.append((self.place, task))
        return task

    def block(self, top: int) -> FactoredColumns:
        """Return these columns from row `top` on, as they update the spans right of them."""
        place = self.place._replace(top=top)
        return FactoredColumns(self.slab.number, place, self.array[top - self.place.top :])


class Factorisation(Protocol):
    """How one factorisation computes; the calls run in threads of the team.

    On devices `factor` and the other calls run in the thread that asks for slabs.
    """

    def update(self, span: ColumnSpan, block: FactoredColumns, number: int) -> None:
        """Update a span by earlier columns: the `number`-th block, or (0) its slab's own."""

    def factor(self, span: ColumnSpan) -> None:
        """Factor a span that all earlier columns have updated."""

    def squares(self, block: FactoredColumns) -> Sequence[NDArray[Any]]:
        """Return what a device needs beside a block: () or, for reflectors, two squares.

        They are the top of V^T with its unit diagonal, and T as an update multiplies by it.
        """

    def update_resident(self, block: ResidentBlock, number: int) -> float:
        """Enqueue the update of columns on a device; return its multiply-adds.

        `number` is the block's, 0 for a panel of the slab.
        """


def add_product(
    recorder: Recorder,
    place: tuple[int, int],
    alpha: float,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    trans_a: str = "N",
    trans_b: str = "N",
) -> None:
    """Compute C := C + alpha·op(A)·op(B) by the host's BLAS, in the calling thread.

    `place` is the slab and the stream block, for events; op is N, or C (conjugate transposed).
    """
    slab, block = place
    depth = a.shape[1] if trans_a == "N" else a.shape[0]
    flops = flops_per_multiply_add(c.dtype.name) * c.size * depth
    if not flops:
        return
    with recorder.operation("mult1", slab, flops=flops, block=block):
        gemm(alpha, a, b, c, trans_a=trans_a, trans_b=trans_b)
