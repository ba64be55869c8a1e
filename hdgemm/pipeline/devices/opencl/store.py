"""The shapes for a device: what a tuning run found on it, or a shipped default for its kind.

Tuned shapes lie in the user's cache folder, one small JSON file per device and dtype, with a shape
for each class of products that has its own. An entry that another driver version was tuned for is
not used, and said to be stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.machine.cache import cache_folder
from hdgemm.errors import DeviceUnavailableError
from hdgemm.pipeline.devices.opencl.shape_classes import (
    CLASSES,
    SQUARE,
    Kernels,
    Origin,
    same_layout,
)
from hdgemm.pipeline.devices.opencl.result import Result
from hdgemm.pipeline.devices.opencl.shape import DTYPES, Shape, real_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.devices.opencl.driver import Facts

_LOG: Final = logging.getLogger(__name__)
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A shape, where it comes from, and the GFLOP/s it was measured at (0 if it was not).

    `others` holds the shapes of those classes of products that have their own.
    """

    shape: Shape
    origin: Origin
    gflops: float = 0.0
    others: Mapping[str, Shape] = field(default_factory=dict)


class Store:
    """Tuned shapes in one folder; None is the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "opencl"

    def path(self, facts: Facts, dtype: np.dtype[Any]) -> Path:
        """Return the file of one device and dtype; parts of a device have their own."""
        identity = f"{facts.platform}\n{facts.device}\n{facts.compute_units}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return self._folder / f"{key}-{dtype.name}.json"

    def unwritable(self) -> str:
        """Say why nothing can be kept in the folder; empty if it can."""
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
        shape: Shape,
        gflops: float,
        others: Mapping[str, Shape] = MappingProxyType({}),
    ) -> Path:
        """Keep tuned shapes: written beside and moved into place, so never half there."""
        path = self.path(facts, dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            "format": _FORMAT, "platform": facts.platform, "device": facts.device,
            "driver": facts.driver, "gflops": gflops, "shape": shape.to_json(),
            "classes": {name: each.to_json() for name, each in others.items()},
        }  # fmt: skip
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(entry, file, indent=1)
        return Path(file.name).replace(path)

    def note(self, facts: Facts, dtype: np.dtype[Any], result: Result) -> None:
        """Add one trial to the journal of a device, driver and dtype."""
        path = self._journal_path(facts, dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {**result._asdict(), "shape": result.shape.to_json()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def journal(self, facts: Facts, dtype: np.dtype[Any]) -> list[Result]:
        """Return the trials noted so far; a line that cannot be read ends them."""
        path, results = self._journal_path(facts, dtype), []
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                shape = Shape.from_json(entry["shape"])
                results.append(Result(**{"of": SQUARE, **entry, "shape": shape}))
        return results

    def forget(self, facts: Facts, dtype: np.dtype[Any]) -> None:
        """Drop the journal, so that a search begins anew; the tuned shape stays."""
        self._journal_path(facts, dtype).unlink(missing_ok=True)

    def _journal_path(self, facts: Facts, dtype: np.dtype[Any]) -> Path:
        driver = hashlib.sha256(facts.driver.encode()).hexdigest()[:8]
        return self.path(facts, dtype).with_suffix(f".{driver}.trials")

    def choose(self, facts: Facts, dtype: np.dtype[Any]) -> Choice:
        """Return the tuned shape, or the default where there is none that fits this driver."""
        default = default_shape(facts, dtype)
        try:
            entry = json.loads(self.path(facts, dtype).read_text(encoding="utf-8"))
            shape, driver = Shape.from_json(entry["shape"]), entry["driver"]
            gflops, others = float(entry["gflops"]), _others(entry, shape, dtype)
        except FileNotFoundError:
            return Choice(default, "default")
        except (OSError, ValueError, TypeError, KeyError) as error:
            _LOG.warning("ignoring %s: %s", self.path(facts, dtype), error)
            return Choice(default, "default")
        if driver != facts.driver:
            return Choice(default, "stale")
        return Choice(shape, "tuned", gflops, others)


def _others(entry: dict[str, Any], square: Shape, dtype: np.dtype[Any]) -> dict[str, Shape]:
    """Return the classes' shapes of an entry; one that needs other slots would read wrongly."""
    read = {name: Shape.from_json(values) for name, values in entry.get("classes", {}).items()}
    return {
        name: shape
        for name, shape in read.items()
        if name in CLASSES and same_layout(square, shape, dtype)
    }


@cache
def _defaults() -> list[dict[str, Any]]:
    text = files(__package__).joinpath("defaults.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def default_shape(facts: Facts, dtype: np.dtype[Any]) -> Shape:
    """Return the shipped shape of the first class that a device belongs to.

    Raises
    ------
    DeviceUnavailableError
        When the device has no double precision and the dtype needs it.
    """
    if real_bytes(dtype) == 8 and not facts.has_double:
        raise DeviceUnavailableError(f"{facts.device} has no double precision: no {dtype.name}")
    for entry in _defaults():
        if all(getattr(facts, name) == value for name, value in entry["when"].items()):
            return Shape.from_json(entry["shapes"][dtype.name])
    raise DeviceUnavailableError(f"no default shape is shipped for {facts.device}")


@cache
def hint(name: str, device: str, dtype: str, origin: Origin) -> None:
    """Say once in a process that a device multiplies with a shape that was not tuned for it."""
    reason = {
        "default": "with a shipped kernel shape, untuned",
        "stale": "with a shipped kernel shape: it was tuned for another driver version",
    }
    if origin != "tuned":
        _LOG.warning(
            "%s (%s) multiplies %s %s; `hdgemm tune --device %s --dtype %s` may make it faster",
            name, device, dtype, reason[origin], name, dtype,
        )  # fmt: skip


def shapes_for(facts: Facts, store: Store | None = None) -> dict[np.dtype[Any], Kernels]:
    """Choose shapes for each dtype that a device multiplies."""
    store = store or Store()
    dtypes = [np.dtype(each) for each in DTYPES]
    usable = [each for each in dtypes if facts.has_double or real_bytes(each) == 4]
    choices = {dtype: store.choose(facts, dtype) for dtype in usable}
    return {
        dtype: Kernels(choice.shape, choice.others, choice.origin)
        for dtype, choice in choices.items()
    }
