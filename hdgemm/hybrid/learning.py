"""What runs have taught about each device's speed, kept for the next run."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.pipeline.plan import Problem


@dataclass(frozen=True)
class Rates:
    """Flop/s of each device within one set of devices, for one dtype and shape class.

    Rates are those within the set: a CPU that also feeds the others is slower than alone.
    """

    path: Path
    key: str
    found: Mapping[str, float] = field(default_factory=dict)

    def learned(self, device: str) -> float | None:
        """Return a device's flop/s in earlier runs, None where there was none."""
        return self.found.get(device)

    def learn(self, measured: Mapping[str, float]) -> None:
        """Keep what a run measured; a folder that cannot be written to is no error."""
        entries = _read(self.path)
        entries[self.key] = {**entries.get(self.key, {}), **measured}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, delete=False, encoding="utf-8"
            ) as stream:
                json.dump(entries, stream, indent=1)
            Path(stream.name).replace(self.path)
        except OSError:
            return


def load_rates(devices: Iterable[str], problem: Problem) -> Rates:
    """Return what is known for a set of devices on this machine."""
    folder = os.environ.get("HDGEMM_CACHE")
    path = (Path(folder) if folder else user_cache_path("hdgemm")) / "rates.json"
    key = " ".join([platform.node(), *sorted(devices), problem.dtype, _shape_class(problem)])
    return Rates(path, key, _read(path).get(key, {}))


def _shape_class(problem: Problem) -> str:
    """Name shapes that run alike: by the powers of two of C's side and of k."""
    side = int((problem.m * problem.n) ** 0.5)
    return f"{side.bit_length()}x{problem.k.bit_length()}"


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {
        key: {
            name: float(rate)
            for name, rate in value.items()
            if isinstance(rate, int | float) and rate > 0
        }
        for key, value in entries.items()
        if isinstance(value, dict)
    }
