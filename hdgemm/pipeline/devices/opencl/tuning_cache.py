"""Cache of tuned kernel shapes and tuning trials in the user's cache folder; shipped defaults.

One JSON file per device and dtype holds the tuned shapes. An entry made for another driver version
is not used; the shapes that replace it are reported as stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from hdgemm.dtypes import SUPPORTED
from hdgemm.errors import DeviceUnavailableError
from hdgemm.machine.cache import cache_folder, replace_file
from hdgemm.pipeline.devices.opencl.kernel_shapes import (
    CLASSES,
    SQUARE,
    KernelShape,
    KernelShapes,
    Origin,
    real_bytes,
    same_layout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hdgemm.pipeline.devices.opencl._driver import Facts

_LOG: Final = logging.getLogger(__name__)
_FORMAT: Final = 1
#: What reading a damaged or foreign JSON file can raise.
_UNREADABLE: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)

Outcome: TypeAlias = Literal["timed", "wrong", "failed", "crashed", "slow"]


class Trial(NamedTuple):
    """The result of one candidate on the product of class `of` at the tuning extent `n`.

    `error` is in units of k·eps; `note` is the reason why the candidate was not timed.
    """

    shape: KernelShape
    n: int
    outcome: Outcome
    gflops: float = 0.0
    error: float = 0.0
    note: str = ""
    of: str = SQUARE

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**self._asdict(), "shape": self.shape.to_json()}


class TuningCache:
    """Tuned shapes and trials in one folder; None is the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "opencl"

    def path(self, facts: Facts, dtype: np.dtype[Any]) -> Path:
        """Return the file of one device and dtype; a part of a device has its own."""
        identity = f"{facts.platform}\n{facts.device}\n{facts.compute_units}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return self._folder / f"{key}-{dtype.name}.json"

    def unwritable(self) -> str:
        """Return the reason why the folder cannot be written; empty where it can."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                return ""
        except OSError as error:
            return f"{self._folder} cannot be written ({error.strerror})"

    def save(
        self,
        facts: Facts,
        dtype: np.dtype[Any],
        shape: KernelShape,
        gflops: float,
        others: Mapping[str, KernelShape] = MappingProxyType({}),
    ) -> None:
        """Write the tuned shapes of a device and dtype."""
        entry = {
            "format": _FORMAT,
            "platform": facts.platform,
            "device": facts.device,
            "driver": facts.driver,
            "gflops": gflops,
            "shape": shape.to_json(),
            "classes": {name: each.to_json() for name, each in others.items()},
        }
        replace_file(self.path(facts, dtype), json.dumps(entry, indent=1).encode())

    def shapes(self, facts: Facts, dtype: np.dtype[Any]) -> KernelShapes:
        """Return the tuned shapes, or the default where none fits this driver."""
        default, path = default_shape(facts, dtype), self.path(facts, dtype)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if entry["format"] != _FORMAT:
                raise ValueError(f"its format is {entry['format']}, this version reads {_FORMAT}")
            driver, square = entry["driver"], KernelShape.from_json(entry["shape"])
            others = _others(entry, square, dtype)
            tuned = KernelShapes(square, "tuned", float(entry["gflops"]), others)
        except FileNotFoundError:
            return KernelShapes(default, "default")
        except _UNREADABLE as error:
            _LOG.warning("%s is ignored; `hdgemm tune` writes it anew: %r", path, error)
            return KernelShapes(default, "default")
        return tuned if driver == facts.driver else KernelShapes(default, "stale")

    def add_trial(self, facts: Facts, dtype: np.dtype[Any], trial: Trial) -> None:
        """Append one trial to the journal of a device, driver and dtype."""
        path = self._journal(facts, dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial.to_json()) + "\n")

    def trials(self, facts: Facts, dtype: np.dtype[Any]) -> list[Trial]:
        """Return the journal's trials, up to the first line that cannot be read."""
        path, trials = self._journal(facts, dtype), []
        with contextlib.suppress(*_UNREADABLE):
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                trials.append(Trial(**{**entry, "shape": KernelShape.from_json(entry["shape"])}))
        return trials

    def forget_trials(self, facts: Facts, dtype: np.dtype[Any]) -> None:
        """Delete the journal, so that a search starts anew; the tuned shapes stay."""
        self._journal(facts, dtype).unlink(missing_ok=True)

    def _journal(self, facts: Facts, dtype: np.dtype[Any]) -> Path:
        driver = hashlib.sha256(facts.driver.encode()).hexdigest()[:8]
        return self.path(facts, dtype).with_suffix(f".{driver}.trials")


def _others(
    entry: dict[str, Any], square: KernelShape, dtype: np.dtype[Any]
) -> dict[str, KernelShape]:
    """Return the other classes' shapes, without those that need another layout of slots."""
    read = {n: KernelShape.from_json(values) for n, values in entry.get("classes", {}).items()}
    return {n: x for n, x in read.items() if n in CLASSES and same_layout(square, x, dtype)}


@cache
def _defaults() -> list[dict[str, Any]]:
    text = files(__package__).joinpath("defaults.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def default_shape(facts: Facts, dtype: np.dtype[Any]) -> KernelShape:
    """Return the shipped shape of the first kind of device that matches.

    Raises `DeviceUnavailableError` where the dtype needs double precision and the device has none.
    """
    if real_bytes(dtype) == 8 and not facts.has_double:
        raise DeviceUnavailableError(f"{facts.device} has no double precision: no {dtype.name}")
    for entry in _defaults():
        if all(getattr(facts, name) == value for name, value in entry["when"].items()):
            return KernelShape.from_json(entry["shapes"][dtype.name])
    raise DeviceUnavailableError(f"no default shape is shipped for {facts.device}")


def shapes_for(facts: Facts, tuned: TuningCache | None = None) -> dict[np.dtype[Any], KernelShapes]:
    """Return the shapes of each dtype that a device multiplies."""
    tuned = tuned or TuningCache()
    dtypes = [np.dtype(each) for each in SUPPORTED]
    usable = [each for each in dtypes if facts.has_double or real_bytes(each) == 4]
    return {dtype: tuned.shapes(facts, dtype) for dtype in usable}


@cache
def warn_untuned(name: str, device: str, dtype: str, origin: Origin) -> None:
    """Log, once in a process, that a device multiplies with a shape that was not tuned for it."""
    reasons: dict[Origin, str] = {
        "default": "with a shipped kernel shape, untuned",
        "stale": "with a shipped kernel shape: it was tuned for another driver version",
    }
    if origin in reasons:
        _LOG.warning(
            "%s (%s) multiplies %s %s; `hdgemm tune --device %s --dtype %s` may make it faster",
            name,
            device,
            dtype,
            reasons[origin],
            name,
            dtype,
        )
