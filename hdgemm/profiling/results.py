"""What a profile found, as frozen values that save, compare and draw."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.profiling.conclusions import Interference, Verdict
    from hdgemm.profiling.sample import Sample

#: Predictions further off than this are pointed at.
FAR_OFF: Final = 0.10


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one configuration ran.

    Parameters
    ----------
    gflops
        10⁹ flop/s of every repeat.
    peak
        10⁹ flop/s that its units reach with nothing to move: what efficiency is a part of.
    """

    gflops: Sample
    peak: float

    @property
    def efficiency(self) -> float:
        """Median speed as a part of the peak."""
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
    """Seconds of a run or of one of its stages, as the model has them and as they were."""

    run: str
    what: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """How much longer it took than predicted, as a part of the prediction."""
        return self.measured / self.predicted - 1 if self.predicted > 0 else 0.0

    @property
    def far_off(self) -> bool:
        """Whether the model is off by more than a tenth."""
        return abs(self.off) > FAR_OFF

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; seconds."""
        return {**asdict(self), "off": self.off, "far_off": self.far_off}


@dataclass(frozen=True, slots=True)
class Rung:
    """One strategy of the ladder: its speed, and what its stages did in a typical run.

    Parameters
    ----------
    stage_seconds
        Seconds in which each stage was busy.
    seconds
        Length of that run.
    predictions
        What the model expected of it.
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
    """One product of the sweep over sizes; `series` says with which others it makes a line."""

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
class Bandwidth:
    """What one stage moves alone, and with everything running, in 10⁹ bytes/s (flop/s)."""

    alone: Sample
    contended: Sample
    unit: str = "GB/s"

    @property
    def kept(self) -> float:
        """The part that is left with everything running (HDGEMM, Figures 9 and 10)."""
        return self.contended.median / self.alone.median if self.alone.median else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "alone": self.alone.median,
            "contended": self.contended.median,
            "kept": self.kept,
            "unit": self.unit,
            "spread": max(self.alone.spread, self.contended.spread),
        }


@dataclass(frozen=True, slots=True)
class Reference:
    """One figure of the paper beside the same figure of the simulation."""

    figure: str
    paper: float
    simulated: float

    @property
    def off(self) -> float:
        """The simulation's relative distance from the paper."""
        return self.simulated / self.paper - 1


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of this machine, or of a simulated one.

    Parameters
    ----------
    kind
        ``"measured"`` or ``"simulated"``.
    complete
        Whether it ran to its end; an interrupted one holds what was done.
    setting
        The device, the product, the command, the machine, versions, the time.
    ladder
        By strategy, in the paper's order.
    scaling
        By configuration: kernel, one device, all devices, devices + CPU, CPU alone.
    bandwidth
        By stage.
    matrix
        What row's operation keeps of its own rate while column's runs beside it.
    notes
        What could not be measured here, and why.
    timelines
        Of typical runs, by strategy; for pictures and traces.
    """

    kind: str
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
    paper: tuple[Reference, ...] = ()
    notes: tuple[str, ...] = ()
    timelines: Mapping[str, Timeline] = field(default_factory=dict)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What the model expected of every run and stage."""
        return tuple(row for rung in self.ladder.values() for row in rung.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; timelines are left to the traces."""
        return {
            "kind": self.kind,
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
            "paper": [{**asdict(row), "off": row.off} for row in self.paper],
            "notes": list(self.notes),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write report.html, report.json, pictures and traces into `folder`."""
        from hdgemm.profiling.output import save_profile

        save_profile(self, folder)
