"""The one place that calls the library: plans at submit, computes in a job's own process."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hdgemm.options import Options


@dataclass(frozen=True)
class Demand:
    """What a plan asks for.

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


@dataclass(frozen=True, kw_only=True)
class Problem:
    """C (m×n) := alpha·op(A)·op(B) + beta·C as far as its plan depends on it."""

    m: int
    n: int
    k: int
    dtype: str = "float64"
    reads_c: bool = False


@dataclass(frozen=True, kw_only=True)
class GemmCall:
    """Operands as .npy files, and where the result goes."""

    a: Path
    b: Path
    c: Path | None
    out: Path
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False


@dataclass(frozen=True, kw_only=True)
class ProfileCall:
    """What is profiled: a device of this machine, or a system that is simulated.

    `folder` lies on the disk that is measured; what is written there meanwhile is large.
    """

    device: str = "host"
    simulate: str | None = None
    quick: bool = True
    folder: Path | None = None


@dataclass(frozen=True)
class Watch:
    """How a running job is watched and stopped: `progress` gets plain values now and then."""

    progress: Callable[[Mapping[str, Any]], None]
    cancel: threading.Event


@dataclass(frozen=True)
class Outcome:
    """What came of a computation: its report as plain values, and pictures to draw into a folder.

    `draw` gets the job's folder and writes ``trace.json`` and ``gantt.png``, for a profile
    ``report.html`` too.
    """

    report: Mapping[str, Any]
    draw: Callable[[Path], None] = field(default=lambda _folder: None)


class Library(Protocol):
    """What the service needs of the library. Errors raised on purpose are `HdgemmError`."""

    def plan(self, problem: Problem, options: Options) -> Demand:
        """Plan a product; raise `DoesNotFitError` where none fits."""

    def multiply(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Compute a product; raise `CancelledRunError` once `watch.cancel` is set."""

    def verify(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Check that the file `call.out` holds the product."""

    def profile(self, call: ProfileCall, options: Options, watch: Watch) -> Outcome:
        """Measure a device's contention, or simulate a system's."""


def load_library(name: str) -> Library:
    """Make the library named ``module:Class``."""
    module, _, cls = name.partition(":")
    return cast("Library", getattr(importlib.import_module(module), cls)())
