"""Residency of tiles: places of valid copies, the transfers that a task needs, eviction."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from hdgemm.errors import DoesNotFitError
from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hdgemm.tasks.task import Task
    from hdgemm.tasks.tiles import TaskTile

_HOST_ONLY = frozenset((HOST,))


class Move(NamedTuple):
    """A step that makes a tile usable on a device.

    A tile without `source` is given memory at `target`; one without `target` loses its memory at
    `source`; otherwise it is copied. One of the two is the host.
    """

    tile: TaskTile
    source: str | None
    target: str | None


class Residency:
    """Valid copies of tiles on the host and on devices with memories of limited size.

    A tile that no task has used is valid on the host. A task's transfers are decided when the
    task is issued. The least recently used tiles leave a full device; those that are valid
    nowhere else are written back first. It has no lock: its caller has one.
    """

    def __init__(self, memory_bytes: Mapping[str, int | None]) -> None:
        self._limits = {name: size for name, size in memory_bytes.items() if name != HOST}
        self._valid: dict[TaskTile, frozenset[str]] = {}
        # Tiles with memory on a device, least recently used first, and how many tasks use each.
        self._held: dict[str, OrderedDict[TaskTile, int]] = {x: OrderedDict() for x in self._limits}
        self._used_bytes = dict.fromkeys(self._limits, 0)
        self.held_bytes = dict.fromkeys(self._limits, 0)
        self.peak_bytes = dict.fromkeys(self._limits, 0)

    def valid(self, tile: TaskTile) -> frozenset[str]:
        """Return the places with a valid copy."""
        return self._valid.get(tile, _HOST_ONLY)

    def place(self, tile: TaskTile, device: str) -> None:
        """Declare that a tile lies on a device at first, and not on the host."""
        if device != HOST:
            self._hold(tile, device)
            self._valid[tile] = frozenset((device,))

    def acquire(self, task: Task, device: str) -> list[Move]:
        """Return the moves before a task on a device, in order; its tiles stay until `release`.

        Raise `DoesNotFitError` when the device cannot hold them together with the tiles of
        issued tasks.
        """
        moves: list[Move] = []
        tiles = [tile for tile in task.tiles if tile.nbytes]
        if device != HOST:
            held = self._held[device]
            absent = []
            for tile in tiles:
                if tile in held:
                    self._use(tile, device)
                    held.move_to_end(tile)
                else:
                    absent.append(tile)
            for tile in absent:
                moves += self._evict(device, tile, task)
                self._hold(tile, device)
                self._use(tile, device)
                moves.append(Move(tile, None, device))
        for tile in task.reads:
            if tile.nbytes and device not in self.valid(tile):
                moves += self._fetch(tile, device)
        return moves

    def fetch(self, task: Task) -> list[Move]:
        """Return the copies to the host of what a task will read there."""
        tiles = [tile for tile in task.reads if tile.nbytes and HOST not in self.valid(tile)]
        return [move for tile in tiles for move in self._fetch(tile, HOST)]

    def fits(self, task: Task, device: str) -> bool:
        """Say whether a task's tiles fit a device beside the tiles of issued tasks."""
        if device == HOST or (limit := self._limits[device]) is None:
            return True
        held = self._held[device]
        more = sum(tile.nbytes for tile in task.tiles if not held.get(tile))
        return self._used_bytes[device] + more <= limit

    def release(self, task: Task, device: str) -> None:
        """Note that a task has finished: what it wrote is valid here, and nowhere else."""
        here = frozenset((device,))
        for tile in task.writes:
            if device == HOST:
                self._valid.pop(tile, None)
            elif tile.nbytes:
                self._valid[tile] = here
        if device != HOST:
            held = self._held[device]
            for tile in task.tiles:
                if tile.nbytes:
                    held[tile] -= 1
                    if not held[tile]:
                        self._used_bytes[device] -= tile.nbytes

    def write_back(self) -> Iterator[Move]:
        """Yield the copies after which every tile is valid on the host."""
        for tile in [tile for tile, valid in self._valid.items() if HOST not in valid]:
            yield from self._fetch(tile, HOST)

    def _fetch(self, tile: TaskTile, device: str) -> list[Move]:
        valid = self.valid(tile)
        moves = []
        if HOST not in valid:
            moves.append(Move(tile, min(valid), HOST))
        if device != HOST:
            moves.append(Move(tile, HOST, device))
        self._valid[tile] = valid | {HOST, device}
        return moves

    def _hold(self, tile: TaskTile, device: str) -> None:
        self._held[device][tile] = 0
        self.held_bytes[device] += tile.nbytes
        self.peak_bytes[device] = max(self.peak_bytes[device], self.held_bytes[device])

    def _use(self, tile: TaskTile, device: str) -> None:
        held = self._held[device]
        held[tile] += 1
        if held[tile] == 1:
            self._used_bytes[device] += tile.nbytes

    def _evict(self, device: str, wanted: TaskTile, task: Task) -> list[Move]:
        limit, held = self._limits[device], self._held[device]
        if limit is None:
            return []
        moves = []
        while self.held_bytes[device] + wanted.nbytes > limit:
            tile = next((tile for tile, users in held.items() if not users), None)
            if tile is None:
                raise DoesNotFitError(
                    f"{device}: {wanted.nbytes:,} bytes of {wanted} for {task} do not fit: "
                    f"{self.held_bytes[device]:,} of {limit:,} bytes are in use; "
                    "choose narrower panels",
                    requested=wanted.nbytes,
                    available=limit - self.held_bytes[device],
                )
            moves += self._drop(tile, device)
        return moves

    def _drop(self, tile: TaskTile, device: str) -> list[Move]:
        valid = self.valid(tile)
        moves = []
        if valid == {device}:
            moves.append(Move(tile, device, HOST))
            valid = _HOST_ONLY
        self._valid[tile] = valid - {device} or _HOST_ONLY
        if self._valid[tile] == _HOST_ONLY:
            del self._valid[tile]
        del self._held[device][tile]
        self.held_bytes[device] -= tile.nbytes
        moves.append(Move(tile, device, None))
        return moves
