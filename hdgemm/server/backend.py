"""The interface between the service and the library that plans and computes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Event

#: Names of pictures in a job's folder.
TRACE: Final = "trace.json"
GANTT: Final = "gantt.png"


@dataclass(frozen=True)
class Demand:
    """A plan, as far as the service uses it.

    Parameters
    ----------
    host_bytes
        Host memory held.
    plan
        The plan's summary as plain values.
    units
        Row, column, rows and columns of each work unit in order, where they are few enough to
        draw.
    """

    host_bytes: int
    plan: Mapping[str, Any]
    units: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Source:
    """A stored matrix: its shape and dtype, and the reference to it as a job keeps it.

    `path` is None for the result of a job that has not run yet; `reads` names the uploaded matrix
    or the job that it comes from.
    """

    shape: tuple[int, int]
    dtype: str
    path: Path | None = None
    stored: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product, a factorisation or a solve, as far as its plan depends on it.

    Parameters
    ----------
    process
        The service's process: gemm, verify, or a routine.
    m, n, dtype
        Of the result.
    k
        The common extent of a product's factors.
    operands
        Matrices that are read, by name of the input.
    parameters
        The process's other inputs, such as alpha.
    folder
        Where the result goes.
    """

    process: str
    m: int
    n: int
    k: int = 0
    dtype: str = "float64"
    operands: Mapping[str, Source]
    parameters: Mapping[str, Any]
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A computation on .npy files.

    Parameters
    ----------
    process, parameters
        As in `Problem`; the process may be profile or linpack, too.
    operands
        Files by name of the input.
    out
        Path of the result; of a profile a folder on the disk that is measured.
    journal
        With it the run is durable: a later call with the same journal continues it.
    cluster
        Its workers compute the product; a journal is needed then.
    """

    process: str
    parameters: Mapping[str, Any]
    operands: Mapping[str, Path] = field(default_factory=dict)
    out: Path = Path()
    journal: Path | None = None
    cluster: str = ""


@dataclass(frozen=True)
class JobWatch:
    """Progress and cancellation of a running job.

    `progress` is called with plain values, `observer` with each operation of a stage.
    """

    progress: Callable[[Mapping[str, Any]], None]
    cancel: threading.Event
    observer: Callable[[Event], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """The report of a computation as plain values, and a function that draws its pictures.

    `draw` gets the job's folder and writes ``trace.json`` and ``gantt.png``, for a profile
    ``report.html`` too, each under a hidden name until it is whole.
    """

    report: Mapping[str, Any]
    draw: Callable[[Path], None] = field(default=lambda _folder: None)


def finite(value: Any) -> Any:
    """Return plain values that JSON can hold: NaN and infinity become None, keys text."""
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [finite(item) for item in value]
    return int(value) if isinstance(value, np.integer) else str(value)


class Library(Protocol):
    """The part of the library that the service calls; its errors are `HdgemmError`."""

    def preload(self) -> None:
        """Import what `run` uses; start no thread and open no device, for jobs are forked then."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        """Plan a computation; raise `DoesNotFitError` where none fits, end soon after `cancel`."""

    def run(self, call: Call, options: Options, watch: JobWatch) -> Outcome:
        """Compute, check or measure; raise `CancelledRunError` once `watch.cancel` is set."""

    def linpack_bytes(self, parameters: Mapping[str, Any]) -> int:
        """Return the bytes that a run of HPL's benchmark holds."""


def load_library(name: str) -> Library:
    """Make the library named ``module:Class``."""
    module, _, cls = name.partition(":")
    return cast("Library", getattr(importlib.import_module(module), cls)())
