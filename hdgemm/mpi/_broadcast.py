"""Broadcast of a factored panel along a row of the grid, by HPL's topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.mpi._panel import Panel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.mpi.communicator import Communicator, Request

#: HPL's names, in the order of its numbers 0 to 5 (HPL.dat, BCASTs).
TOPOLOGIES: Final = (
    "1ring",
    "1ring-modified",
    "2ring",
    "2ring-modified",
    "long",
    "long-modified",
)


def children(topology: str, size: int) -> list[tuple[int, ...]]:
    """Return for each process, counted from the root, those to which it passes a panel on.

    A ring passes it from one to the next; two rings take half of the processes each. Modified, the
    root's neighbour, which factors the next panel, receives it first and passes nothing on. In the
    long broadcasts, the root sends all others a part each, which then go around their ring.
    """
    passed: list[list[int]] = [[] for _ in range(size)]
    rest = list(range(1, size))
    if topology.endswith("-modified") and rest:
        passed[0].append(rest.pop(0))
    if topology.startswith("long"):
        passed[0] += rest
        return [tuple(targets) for targets in passed]
    middle = -(-len(rest) // 2) if topology.startswith("2ring") else len(rest)
    for ring in (rest[:middle], rest[middle:]):
        for source, target in zip([0, *ring], ring, strict=False):
            passed[source].append(target)
    return [tuple(targets) for targets in passed]


class PanelBroadcast:
    """Broadcasts along one row of the grid."""

    def __init__(self, row: Communicator, topology: str) -> None:
        self._row = row
        self._children = children(topology, row.size)
        self._parent = {
            target: source for source, targets in enumerate(self._children) for target in targets
        }
        # Processes that share a long broadcast, counted from the root.
        alone = 2 if topology.endswith("-modified") else 1
        self._ring = range(alone, row.size) if topology.startswith("long") else range(0)
        self._sent: list[Request] = []

    def send(self, panel: Panel) -> None:
        """Begin to send a panel from the process that factored it."""
        if self._row.size > 1:
            width, below, dtype = panel.width, len(panel.below), panel.top.dtype
            message = np.empty(_nbytes(width, below, dtype), np.uint8)
            pivots, top, rest = _parts_of(message, width, dtype)
            pivots[:], top[:], rest[:] = panel.pivots, panel.top, panel.below
            self._pass_on(message, root=self._row.rank)

    def arrived(self, root: int) -> bool:
        """Return whether the panel of another process can be received without blocking."""
        return self._row.arrived(self._at(root, self._parent[self._place(root)]))

    def receive(self, root: int, first: int, width: int, below: int, dtype: np.dtype[Any]) -> Panel:
        """Receive the panel that the process `root` of the row has factored, and pass it on.

        It has `width` columns from `first` on, and this row of the grid holds so many rows `below`
        its diagonal block.
        """
        message = np.empty(_nbytes(width, below, dtype), np.uint8)
        place = self._place(root)
        if place in self._ring:
            self._roll(message, root)
        else:
            self._row.receive(message, self._at(root, self._parent[place]))
            self._pass_on(message, root)
        return Panel(first, *_parts_of(message, width, dtype))

    def finish(self) -> None:
        """Wait until everything was sent."""
        for request in self._sent:
            request.wait()
        self._sent = []

    def _place(self, root: int) -> int:
        """Return the number of this process, counted from the root."""
        return (self._row.rank - root) % self._row.size

    def _at(self, root: int, place: int) -> int:
        return (root + place) % self._row.size

    def _parts(self, message: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return the part of each process that shares a long broadcast."""
        return np.array_split(message, len(self._ring))

    def _pass_on(self, message: NDArray[np.uint8], root: int) -> None:
        self.finish()
        parts = dict(zip(self._ring, self._parts(message), strict=True)) if self._ring else {}
        self._sent = [
            self._row.send(parts.get(child, message), self._at(root, child))
            for child in self._children[self._place(root)]
        ]

    def _roll(self, message: NDArray[np.uint8], root: int) -> None:
        """Receive one part from the root, and all others from the ring."""
        self.finish()
        parts, size = self._parts(message), len(self._ring)
        own = self._place(root) - self._ring[0]
        self._row.receive(parts[own], root)
        after, before = (self._at(root, self._ring[(own + turn) % size]) for turn in (1, -1))
        for turn in range(size - 1):
            request = self._row.send(parts[(own - turn) % size], after)
            self._row.receive(parts[(own - turn - 1) % size], before)
            request.wait()


def _nbytes(width: int, below: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a panel's message: its interchanges, its block, the rows below."""
    return width * (8 + (width + below) * dtype.itemsize)


def _parts_of(
    message: NDArray[np.uint8], width: int, dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Return a message's interchanges, its block, and the rows below it, column-major."""
    pivots, top, below = np.split(message, [8 * width, 8 * width + width * width * dtype.itemsize])
    return (
        pivots.view(np.int64),
        top.view(dtype).reshape((width, width), order="F"),
        below.view(dtype).reshape((-1, width), order="F"),
    )
