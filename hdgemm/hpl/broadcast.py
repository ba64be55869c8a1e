"""Broadcast of a factored panel along a row of the grid, by HPL's topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.hpl.panel import Panel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.hpl.communicator import Communicator, Request

#: HPL's names, in the order of its numbers 0 to 3 (HPL.dat, BCASTs).
TOPOLOGIES: Final = ("1ring", "1ring-modified", "2ring", "2ring-modified")


def children(topology: str, size: int) -> list[tuple[int, ...]]:
    """Return for each process, counted from the root, those to which it passes a panel on.

    A ring passes it from one to the next; two rings take half of the processes each. Modified, the
    root's neighbour, which factors the next panel, receives it first and passes nothing on.
    """
    passed: list[list[int]] = [[] for _ in range(size)]
    rest = list(range(1, size))
    if topology.endswith("-modified") and rest:
        passed[0].append(rest.pop(0))
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
        self._sent: list[Request] = []

    def send(self, panel: Panel) -> None:
        """Begin to send a panel from the process that factored it."""
        if self._row.size > 1:
            parts = (panel.pivots, panel.top.ravel("F"), panel.below.ravel("F"))
            message = np.concatenate([part.view(np.uint8) for part in parts])
            self._pass_on(message, root=self._row.rank)

    def receive(
        self, root: int, first: int, width: int, below: int, dtype: np.dtype[np.floating]
    ) -> Panel:
        """Receive the panel that another process of the row has factored, and pass it on.

        Parameters
        ----------
        root
            The process that factored it.
        first, width
            Its first column, and how many it has.
        below
            How many rows below the diagonal block this row of the grid holds.
        """
        ends = width * np.array([8, 8 + width * dtype.itemsize])
        message = np.empty(ends[1] + width * below * dtype.itemsize, np.uint8)
        place = (self._row.rank - root) % self._row.size
        self._row.receive(message, (root + self._parent[place]) % self._row.size)
        self._pass_on(message, root)
        pivots, top, rest = np.split(message, ends)
        return Panel(
            first,
            pivots.view(np.int64),
            top.view(dtype).reshape((width, width), order="F"),
            rest.view(dtype).reshape((below, width), order="F"),
        )

    def finish(self) -> None:
        """Wait until everything was sent."""
        for request in self._sent:
            request.wait()
        self._sent = []

    def _pass_on(self, message: NDArray[np.uint8], root: int) -> None:
        self.finish()
        place = (self._row.rank - root) % self._row.size
        self._sent = [
            self._row.send(message, (root + child) % self._row.size)
            for child in self._children[place]
        ]
