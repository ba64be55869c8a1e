"""Transfers of tiles between the host and devices, ordered by the places that they touch."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from hdgemm.pipeline.devices.protocol import DONE, Block, Tile
from hdgemm.pipeline.sync import Stopped
from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hdgemm.pipeline.devices.protocol import Buffer, Completion, Device
    from hdgemm.pipeline.plan import Stage
    from hdgemm.tasks._residency import Move
    from hdgemm.tasks.task import Task
    from hdgemm.tasks.tiles import TaskTile


class Transfer:
    """One planned move; the lane that planned it enqueues it, others can wait for it.

    It comes after unfinished moves of the same tile that touch what it writes, or write what it
    reads.
    """

    def __init__(self, move: Move, after: Sequence[Transfer]) -> None:
        self.move = move
        self.after = after
        self.enqueued = threading.Event()
        self.start = 0.0
        self.completion: Completion = DONE

    @property
    def over(self) -> bool:
        """Whether nothing has to wait for it."""
        return self.enqueued.is_set() and self.completion is DONE

    def precedes(self, move: Move) -> bool:
        """Say whether a later move of the same tile must wait for this one."""
        read, written = self.move.source, _written(self.move)
        return _written(move) in (read, written) or move.source == written


def _written(move: Move) -> str | None:
    """Return the place of the copy that a move changes: memory that is freed is changed, too."""
    return move.source if move.target is None else move.target


class Transfers:
    """Memory of tiles on devices, and the moves between the host and them.

    A device holds the transpose of a column-major tile of the host, row-major: the elements are in
    the same order. `plan` and `arriving` are called under the runtime's lock, the other methods
    without it. `stopped` says whether the run has failed or was cancelled; `record` is called with
    the device, the stage, bytes, start and end of each copy.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        stopped: Callable[[], bool],
        record: Callable[[str, Stage, int, float, float], None],
    ) -> None:
        self._devices, self._stopped, self._record = devices, stopped, record
        self._buffers: dict[tuple[TaskTile, str], Buffer] = {}
        self._unfinished: dict[TaskTile, list[Transfer]] = {}
        # A device takes uploads from one thread at a time, and downloads too.
        self._enqueueing = {name: threading.Lock() for name in devices}

    def plan(self, moves: Iterable[Move]) -> list[Transfer]:
        """Order some moves after the unfinished ones that they conflict with."""
        planned = []
        for move in moves:
            earlier = [each for each in self._unfinished.get(move.tile, ()) if not each.over]
            transfer = Transfer(move, [each for each in earlier if each.precedes(move)])
            self._unfinished[move.tile] = [*earlier, transfer]
            planned.append(transfer)
        return planned

    def arriving(self, task: Task, device: str) -> list[Transfer]:
        """Return the unfinished moves that bring a task's tiles to a device."""
        if not self._unfinished:
            return []
        return [
            each
            for tile in task.tiles
            for each in self._unfinished.get(tile, ())
            if each.move.target == device and not each.over
        ]

    def enqueue(self, transfer: Transfer) -> None:
        """Start one planned move; an upload may still be running on return."""
        tile, source, target = transfer.move
        after = [done for each in transfer.after if (done := self.wait(each)) is not DONE]
        transfer.after = ()
        transfer.start = time.perf_counter()
        if target is not None and target != HOST:
            if source is None:
                self._buffers[tile, target] = self._devices[target].allocate(tile.nbytes)
            else:
                with self._enqueueing[target]:
                    transfer.completion = self._devices[target].upload(
                        tile.data().T, self.block(tile, target), after
                    )
        else:
            assert source is not None  # noqa: S101  (a move has a source or a target)
            for completion in after:
                completion.wait()
            if target is None:
                self._devices[source].free(self._buffers.pop((tile, source)))
            else:
                self._download(tile, source, transfer.start)
        transfer.enqueued.set()

    def _download(self, tile: TaskTile, source: str, start: float) -> None:
        with self._enqueueing[source]:
            completion = self._devices[source].download(self.block(tile, source), tile.data().T, ())
        completion.wait()
        start, end = completion.interval() or (start, time.perf_counter())
        self._record(source, "store1", tile.nbytes, start, end)

    def wait(self, transfer: Transfer) -> Completion:
        """Wait until a move is enqueued; return its completion."""
        while not transfer.enqueued.wait(0.1):
            if self._stopped():
                raise Stopped
        return transfer.completion

    def retire(self, transfer: Transfer) -> None:
        """Wait for a move, and keep its completion no longer."""
        transfer.completion.wait()
        completion, tile, target = transfer.completion, transfer.move.tile, transfer.move.target
        transfer.completion = DONE
        if completion is not DONE and target is not None:
            start, end = completion.interval() or (transfer.start, time.perf_counter())
            self._record(target, "load2", tile.nbytes, start, end)

    def block(self, tile: TaskTile, device: str) -> Block:
        """Return a whole tile in the memory of a device."""
        stored: Any = tile.data().T
        rows, cols = stored.shape
        held = Tile("C", self._buffers[tile, device], rows, cols, cols, stored.dtype)
        return Block(held, 0, 0, rows, cols)

    def free(self) -> None:
        """Free the memory of all tiles; no operation may use it any more."""
        while self._buffers:
            (_, device), buffer = self._buffers.popitem()
            self._devices[device].free(buffer)
        self._unfinished.clear()
