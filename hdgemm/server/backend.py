"""The interface between the service and the library that plans and computes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Event


#: Factorisations and solves, and whether each keeps a journal. `linalg.routines` has the same
#: names, and takes half a second to import.
ROUTINES: Final[Mapping[str, bool]] = {
    "cholesky": True, "lu": True, "qr": True, "solve": True, "lstsq": True, "syrk": False,
}  # fmt: skip


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


@dataclass(frozen=True, kw_only=True)
class PlannedOperand:
    """A stored matrix; `path` is None for the result of a job that has not run yet."""

    shape: tuple[int, int]
    dtype: str
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """C (m×n) := alpha·op(A)·op(B) + beta·C, as far as its plan depends on it.

    Parameters
    ----------
    operands
        A, B and, where it is read, C, by small letter.
    folder
        Where the result goes.
    """

    m: int
    n: int
    k: int
    dtype: str = "float64"
    operands: Mapping[str, PlannedOperand]
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RoutineProblem:
    """A factorisation or a solve, as far as its plan depends on it.

    Parameters
    ----------
    m, n, dtype
        Of the result.
    operands
        A and, where there is one, B, by small letter.
    parameters
        The routine's own arguments.
    folder
        Where the result goes.
    """

    routine: str
    m: int
    n: int
    dtype: str
    operands: Mapping[str, PlannedOperand]
    parameters: Mapping[str, Any]
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RoutineCall:
    """A factorisation or a solve of .npy files, and the path of its result.

    With a `journal` the run is durable: a later call with the same journal continues it.
    """

    routine: str
    operands: tuple[Path, ...]
    out: Path
    parameters: Mapping[str, Any]
    journal: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GemmCall:
    """A product of .npy files, and the path of its result.

    With a `journal` the run is durable: a later call with the same journal continues it. With a
    `cluster` its workers compute the product; a journal is needed then.
    """

    a: Path
    b: Path
    c: Path | None
    out: Path
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    journal: Path | None = None
    cluster: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileCall:
    """A profile of a device of this machine, or of a simulated system.

    `folder` lies on the disk that is measured; large files are written to it.
    """

    device: str = "host"
    simulate: str | None = None
    quick: bool = True
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class LinpackCall:
    """A run of HPL's benchmark in one process."""

    n: int
    nb: int
    depth: int
    mixed: bool

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> LinpackCall:
        """Return the run that a request's inputs describe."""
        return cls(n=inputs["n"], nb=inputs["nb"], depth=inputs["depth"], mixed=inputs["mxp"])


@dataclass(frozen=True)
class Watch:
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
    ``report.html`` too.
    """

    report: Mapping[str, Any]
    draw: Callable[[Path], None] = field(default=lambda _folder: None)


class Library(Protocol):
    """The part of the library that the service calls; its errors are `HdgemmError`."""

    def plan(
        self, problem: Problem | RoutineProblem, options: Options, cancel: threading.Event
    ) -> Demand:
        """Plan a computation; raise `DoesNotFitError` where none fits, end soon after `cancel`."""

    def multiply(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Compute a product; raise `CancelledRunError` once `watch.cancel` is set."""

    def compute(self, call: RoutineCall, options: Options, watch: Watch) -> Outcome:
        """Factor or solve; raise `CancelledRunError` once `watch.cancel` is set."""

    def verify(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Check that the file `call.out` holds the product."""

    def profile(self, call: ProfileCall, options: Options, watch: Watch) -> Outcome:
        """Measure a device's contention, or simulate a system's."""

    def linpack_bytes(self, call: LinpackCall) -> int:
        """Return the bytes that a run of HPL's benchmark holds."""

    def linpack(self, call: LinpackCall, options: Options, watch: Watch) -> Outcome:
        """Run HPL's benchmark; raise `CancelledRunError` once `watch.cancel` is set."""


def load_library(name: str) -> Library:
    """Make the library named ``module:Class``."""
    module, _, cls = name.partition(":")
    return cast("Library", getattr(importlib.import_module(module), cls)())
