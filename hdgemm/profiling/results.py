"""Results of a profile as frozen values: rates, predictions, verdict, and the `Profile` itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hdgemm.profiling._samples import (
    FAR_OFF,
    Sample as Sample,  # noqa: PLC0414  (for simulated profiles)
)
from hdgemm.profiling.report import save_profile

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.profiling._contention import Bandwidth
    from hdgemm.profiling._interference import Interference


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of one configuration.

    Parameters
    ----------
    gflops
        10⁹ flop/s of every repeat.
    peak
        10⁹ flop/s of its devices without any data movement; efficiency is relative to it.
    """

    gflops: Sample
    peak: float

    @property
    def efficiency(self) -> float:
        """Median speed relative to the peak."""
        return self.gflops.median / self.peak if self.peak > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "gflops": self.gflops.median,
            "efficiency": self.efficiency,
            "peak_gflops": self.peak,
            "spread": self.gflops.spread,
            "repeats": len(self.gflops.values),
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a run or of one of its stages, predicted by the model and measured."""

    run: str
    what: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """Measured time relative to the predicted one, less 1."""
        return self.measured / self.predicted - 1 if self.predicted > 0 else 0.0

    @property
    def far_off(self) -> bool:
        """Whether the relative error exceeds 10 %."""
        return abs(self.off) > FAR_OFF

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; seconds."""
        return {**asdict(self), "off": self.off, "far_off": self.far_off}


@dataclass(frozen=True, slots=True)
class Rung:
    """One strategy of the ladder, with the model's `predictions` for it.

    `seconds` is the length of the run of median speed, `stage_seconds` each stage's busy time in
    it.
    """

    rate: Rate
    seconds: float
    stage_seconds: Mapping[str, float]
    predictions: tuple[Prediction, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        shares = {stage: busy / self.seconds for stage, busy in self.stage_seconds.items()}
        return {
            **self.rate.to_dict(),
            "seconds": self.seconds,
            "stage_seconds": dict(self.stage_seconds),
            "stage_shares": shares,
        }


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One product of the sweep over sizes; points of the same `series` form a curve."""

    m: int
    n: int
    k: int
    rate: Rate
    series: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        extents = {"m": self.m, "n": self.n, "k": self.k, "series": self.series}
        return {**extents, **self.rate.to_dict()}


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of the paper; `confirmed` is None where this machine cannot show it."""

    number: int
    claim: str
    confirmed: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Conclusions of a profile.

    Parameters
    ----------
    limit
        A resource: of `hdgemm.machine.rates.RESOURCES`.
    gain
        Relative gain in speed from twice its rate.
    text
        What to do; which resource limits, and how sure that is. Under load by others only that
        load, and the request to repeat.
    """

    limit: str
    gain: float
    text: tuple[str, ...]
    observations: tuple[Observation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of this machine.

    Parameters
    ----------
    complete
        False for an interrupted profile, which holds what was measured until then.
    setting
        Device, product, command, machine, versions and time.
    ladder
        By strategy, in the paper's order.
    scaling
        By configuration: kernel, one device, all devices, devices + CPU, CPU alone.
    bandwidth
        By stage.
    matrix
        Rate of the row's operation beside the column's, relative to its rate alone.
    cpu
        10⁹ flop/s of the CPU ``"alone"`` and ``"within"`` a hybrid run (HDGEMM, Figure 11).
    imbalance
        Of the hybrid runs, relative to the run (HDGEMM, Figure 12).
    notes
        What could not be measured here, and why.
    timelines
        Of the runs of median speed, by strategy.
    """

    complete: bool
    setting: Mapping[str, Any]
    ladder: Mapping[str, Rung] = field(default_factory=dict)
    sizes: tuple[SizePoint, ...] = ()
    scaling: Mapping[str, Rate] = field(default_factory=dict)
    bandwidth: Mapping[str, Bandwidth] = field(default_factory=dict)
    matrix: Mapping[str, Mapping[str, Sample]] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    imbalance: float | None = None
    interference: tuple[Interference, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    timelines: Mapping[str, Timeline] = field(default_factory=dict)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The model's figures for every run and stage."""
        return tuple(row for rung in self.ladder.values() for row in rung.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; timelines are saved as traces."""
        return {
            "complete": self.complete,
            **self.setting,
            "ladder": {name: rung.to_dict() for name, rung in self.ladder.items()},
            "sizes": [point.to_dict() for point in self.sizes],
            "scaling": {name: rate.to_dict() for name, rate in self.scaling.items()},
            "bandwidth": {stage: each.to_dict() for stage, each in self.bandwidth.items()},
            "matrix": {
                row: {column: sample.to_dict() for column, sample in cells.items()}
                for row, cells in self.matrix.items()
            },
            "cpu": dict(self.cpu),
            "imbalance": self.imbalance,
            "interference": [asdict(each) for each in self.interference],
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "predictions": [row.to_dict() for row in self.predictions],
            "notes": list(self.notes),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write report.html, report.json, pictures and traces into `folder`."""
        save_profile(self.to_dict(), self.timelines, folder)
