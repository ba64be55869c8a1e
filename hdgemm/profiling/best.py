"""The best this machine was ever seen to do, kept between profiles: what quiet looks like."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

if TYPE_CHECKING:
    from collections.abc import Mapping


class BestKnown:
    """Figures by name, for one device on this machine; more is better.

    Parameters
    ----------
    path
        The JSON file; None for the user's cache folder (or ``HDGEMM_CACHE``).
    """

    def __init__(self, device: str, path: Path | None = None) -> None:
        folder = os.environ.get("HDGEMM_CACHE")
        home = Path(folder) if folder else user_cache_path("hdgemm")
        self._path = path or home / "best.json"
        self._key = f"{platform.node()} {device}"
        self.figures = self._read().get(self._key, {})

    def keep(self, measured: Mapping[str, float]) -> None:
        """Remember what is better than ever before; a folder that is read-only is no error."""
        entries = self._read()
        known = entries.get(self._key, {})
        entries[self._key] = {
            **known,
            **{name: max(value, known.get(name, 0.0)) for name, value in measured.items()},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._path.parent, delete=False, encoding="utf-8"
            ) as stream:
                json.dump(entries, stream, indent=1)
            Path(stream.name).replace(self._path)
        except OSError:
            return

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                str(key): {str(name): float(value) for name, value in figures.items()}
                for key, figures in entries.items()
            }
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
