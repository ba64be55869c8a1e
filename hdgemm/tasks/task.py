"""Tasks: one kernel call each on named tiles, with the tiles that it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.tasks.tiles import TaskTile, TileWorkspace


@dataclass(eq=False, slots=True)
class Kernel:
    """One call of a numerical kernel, with what it costs.

    Parameters
    ----------
    kind
        Name of the routine: a device has one capability weight for each kind.
    flops
        Floating-point operations.
    depth
        Extent of the summation: short ones run below a device's full rate.
    nbytes
        Bytes that it moves through memory at a low arithmetic intensity, 0 for none.
    host
        Runs it on the host, on the arrays of the tiles.
    device
        Enqueues it on a device, after some completions; None where it runs on the host only.
    unit, step
        Block column that it writes, and number of the panel that it applies: for events.
    """

    kind: str
    flops: int = 0
    depth: int = 1
    nbytes: int = 0
    host: Callable[[], None] | None = None
    device: Callable[[TileWorkspace, Sequence[Completion]], None] | None = None
    unit: int = 0
    step: int = 0


@dataclass(eq=False, slots=True)
class Task:
    """One inserted task, with its place in the serial order, from 0, as `number`.

    Of two ready tasks the one with the larger priority runs first. It must run on the device
    `where`; None: the scheduler chooses. `tiles` are all that it accesses, each once. It
    `waits_for` so many unfinished tasks, and its `successors` wait for it.
    """

    number: int
    kernel: Kernel
    reads: tuple[TaskTile, ...]
    writes: tuple[TaskTile, ...]
    priority: int = 0
    where: str | None = None
    tiles: tuple[TaskTile, ...] = ()
    waits_for: int = 0
    successors: list[Task] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.kernel.kind} {self.number}"


class Access(TypedDict, total=False):
    """The tiles of a task and its place: `reads`, `writes`, `priority` and `where` of `Task`.

    A tile that is read and written is named in both.
    """

    reads: Sequence[TaskTile]
    writes: Sequence[TaskTile]
    priority: int
    where: str | None


class Insert(Protocol):
    """Inserts a task after all earlier ones; waits while the window of tasks is full."""

    def __call__(self, kernel: Kernel, **access: Unpack[Access]) -> object:
        """Insert one task."""
