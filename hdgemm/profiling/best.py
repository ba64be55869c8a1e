"""The best this machine was ever seen to do, kept between profiles: what quiet looks like."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Final

from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: In the cache folder: an entry for each machine and disk.
_FILE: Final = "best.json"


class BestKnown:
    """Figures by name, for this machine and the disk below a folder; more is better."""

    def __init__(self, folder: Path) -> None:
        self._key = f"{platform.node()} {cores()} cores, disk {folder.stat().st_dev}"
        self.figures = self._read()

    def keep(self, measured: Mapping[str, float]) -> None:
        """Remember what is better than ever before; a folder that is read-only is no error."""
        known = self._read()
        better = {name: max(value, known.get(name, 0.0)) for name, value in measured.items()}
        write_entry(_FILE, self._key, {**known, **better})

    def _read(self) -> dict[str, float]:
        entry = read_entries(_FILE).get(self._key)
        if not isinstance(entry, dict):
            return {}
        return {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
