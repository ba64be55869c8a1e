"""Load of the workers' machines over the last hour: processor, memory, disk and devices."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any, Final

import psutil
import sqlalchemy as sa

from hdgemm.server.tables import LoadSample

if TYPE_CHECKING:
    from collections.abc import Collection

    from hdgemm.server.settings import Settings

_KEPT_SECONDS: Final = 3600.0
#: The columns of a sample that `history` returns as lists.
_SERIES: Final = ("taken", "cpu", "memory_used", "memory_total", "disk_used", "disk_total")


class LoadMeter:
    """Measures one worker's load and stores a sample every `Settings.sample_seconds`.

    A device's load is the share of the time in which a job held it.
    """

    def __init__(self, worker: str, settings: Settings) -> None:
        self._worker = worker
        self._settings = settings
        self._held = dict.fromkeys(settings.devices, 0.0)
        self._began = self._noted = time.monotonic()
        self._busy: frozenset[str] = frozenset()
        psutil.cpu_percent()  # the first call only begins the measurement

    def note(self, busy: Collection[str]) -> None:
        """Note which devices are held by jobs from now on."""
        now = time.monotonic()
        for device in self._busy & self._held.keys():
            self._held[device] += now - self._noted
        self._busy, self._noted = frozenset(busy), now

    def store(self, conn: sa.Connection, now: float) -> None:
        """Store a sample where one is due, and delete those older than an hour."""
        elapsed = time.monotonic() - self._began
        if elapsed < self._settings.sample_seconds:
            return
        self.note(self._busy)
        memory, disk = psutil.virtual_memory(), shutil.disk_usage(self._settings.data_dir)
        conn.execute(
            sa.insert(LoadSample).values(
                worker=self._worker, taken=now, cpu=psutil.cpu_percent(),
                memory_used=memory.total - memory.available, memory_total=memory.total,
                disk_used=disk.used, disk_total=disk.total,
                devices={name: min(1.0, held / elapsed) for name, held in self._held.items()},
            )
        )  # fmt: skip
        conn.execute(sa.delete(LoadSample).where(LoadSample.taken < now - _KEPT_SECONDS))
        self._held = dict.fromkeys(self._held, 0.0)
        self._began = time.monotonic()


def history(conn: sa.Connection, now: float) -> dict[str, dict[str, Any]]:
    """Return the samples of the last hour by worker, each quantity as a list."""
    query = sa.select(LoadSample).where(LoadSample.taken > now - _KEPT_SECONDS)
    found: dict[str, dict[str, Any]] = {}
    for row in conn.execute(query.order_by(LoadSample.id)):
        series = found.setdefault(row.worker, {**{name: [] for name in _SERIES}, "devices": {}})
        for name in _SERIES:
            series[name].append(getattr(row, name))
        for device, load in row.devices.items():
            series["devices"].setdefault(device, []).append(load)
    return found
