"""Report of a run: a frozen value with its text, its HTML and its JSON."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.plan import STAGES
from hdgemm.pipeline.plans import Plans
from hdgemm.tables import Table
from hdgemm.units import format_count, format_duration, format_rate, format_size, format_speed

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from hdgemm.energy import Energy
    from hdgemm.pipeline.abft import CheckedTiles
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.run.split_report import SplitReport

#: Packages whose versions a run may depend on.
_PACKAGES: Final = (
    "hdgemm",
    "numpy",
    "scipy",
    "threadpoolctl",
    "pyopencl",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "h5py",
    "zarr",
)
#: Lines of a printed report; rows of a split beyond them are counted, not printed.
_MOST_LINES: Final = 25
#: Numbers of a value that are printed.
_MOST_NUMBERS: Final = 5


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run.

    Parameters
    ----------
    operations
        How many times the stage ran.
    nbytes, planned_bytes
        Bytes it moved, and bytes the plan said it would.
    flops
        Floating-point operations it did; mult1's business.
    seconds
        Time in which at least one of its operations ran.

    See Also
    --------
    Report : Its `stages` have one for each stage.

    Examples
    --------
    >>> report = hdgemm.multiply("A.npy", "B.npy", out="C.npy")
    >>> report.stages["load1"].nbytes == report.stages["load1"].planned_bytes
    True
    """

    operations: int
    nbytes: int
    planned_bytes: int
    flops: int
    seconds: float

    @property
    def gbytes_per_second(self) -> float | None:
        """Rate while busy in 10⁹ bytes/s; None for a stage that moved nothing."""
        return self.nbytes / self.seconds / 1e9 if self.nbytes and self.seconds > 0 else None

    @property
    def gflops(self) -> float | None:
        """Rate while busy in 10⁹ flop/s; None for a stage that computed nothing."""
        return self.flops / self.seconds / 1e9 if self.flops and self.seconds > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "operations": self.operations,
            "bytes": self.nbytes,
            "planned_bytes": self.planned_bytes,
            "flops": self.flops,
            "seconds": self.seconds,
            "gbytes_per_second": self.gbytes_per_second,
            "gflops": self.gflops,
        }


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a durable run found of an earlier one.

    Parameters
    ----------
    journal
        The journal's path.
    tiles, kept
        Tiles of C in all, and those that were done already.
    damaged
        Stored pieces of C that were found damaged, and computed again.
    finished
        The earlier run had finished; nothing was done.

    See Also
    --------
    Report : Its `resumption`, of a run with a checkpoint.

    Examples
    --------
    >>> report = hdgemm.multiply("A.npy", "B.npy", out="durable.npy", checkpoint=True)
    >>> report.resumption.kept
    0
    """

    journal: str
    tiles: int
    kept: int = 0
    damaged: int = 0
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished run: how long, how fast, what each stage did, what memory it took.

    Parameters
    ----------
    seconds
        Wall time of the run, planning and opening of files left out.
    gflops
        Floating-point operations done, per second of wall time, in 10⁹.
    stages
        Per stage that had something to do, in the order of the pipeline.
    peak_memory_bytes
        The most memory the run added to the process, as `Options.host_memory` counts it; None where
        it was not measured.
    plan
        A summary of the plan, plain values only.
    devices
        Names of the devices that took part.
    versions
        Python, the platform, and the packages that a run depends on.
    timeline
        The events, at most 16,384 for each device: in a longer run one event stands for several
        operations. `save_gantt` and `save_trace` show them; the JSON leaves them out.
    resumption
        What a durable run found; None for other runs.
    split
        How several devices shared the product; None where there was one.
    checks
        What checking each C tile found; None where it was not asked for.
    verification
        Outcome of the check of the finished product, `hdgemm.Verification` as plain values; None
        where it was not asked for.
    phases
        Seconds of each phase. Of a product: calibrating (measuring rates, on first use), planning
        (with opening of devices), multiplying, verifying. Of a factorisation: the time in which
        slabs were loaded, updated, factored (panel), stored, interchanged; phases overlap.
    energy
        Joules by source, or why they were not measured; None for a run that was not watched.
    values
        Small results as plain values, by name, such as the rank that `linalg.lstsq` found; for
        runs by the command line and the service, which return no arrays.
    warnings
        Messages of the warnings of such a run, for example that a matrix is ill-conditioned.

    See Also
    --------
    Progress : A run that goes on.
    multiply : Calls `report` with one, as most functions do.

    Examples
    --------
    >>> reports = []
    >>> s = hdgemm.linalg.svdvals(np.ones((4, 3)), report=reports.append)
    >>> reports[0].devices
    ('host',)
    """

    seconds: float
    gflops: float
    stages: Mapping[Stage, StageReport]
    peak_memory_bytes: int | None
    plan: Mapping[str, Any]
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    timeline: Timeline = field(repr=False)
    resumption: Resumption | None = None
    split: SplitReport | None = None
    checks: CheckedTiles | None = None
    verification: Mapping[str, Any] | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    energy: Energy | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that the plan said each stage would move."""
        return {name: stage.planned_bytes for name, stage in self.stages.items()}

    @property
    def moved_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moved."""
        return {name: stage.nbytes for name, stage in self.stages.items()}

    @property
    def limit(self) -> Stage | None:
        """The stage that was busy longest; None for a run without events."""
        busiest = max(self.stages, key=lambda name: self.stages[name].seconds, default=None)
        return busiest if busiest is not None and self.stages[busiest].seconds > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; the events are left to the trace."""
        return {
            "seconds": self.seconds,
            "gflops": self.gflops,
            "limit": self.limit,
            "stages": {name: stage.to_dict() for name, stage in self.stages.items()},
            "planned_bytes": self.planned_bytes,
            "moved_bytes": self.moved_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "plan": dict(self.plan),
            "phases": dict(self.phases),
            "devices": list(self.devices),
            "versions": dict(self.versions),
            "split": None if self.split is None else self.split.to_dict(),
            "checks": None if self.checks is None else asdict(self.checks),
            "verification": None if self.verification is None else dict(self.verification),
            "resumption": None if self.resumption is None else asdict(self.resumption),
            "energy": None if self.energy is None else self.energy.to_dict(self.gflops),
            "values": dict(self.values),
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """Return the report as JSON text; seconds, bytes and 10⁹ flop/s throughout."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        return report_text(self)

    def _repr_html_(self) -> str:
        return report_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON to `path`."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def save_gantt(self, path: str | os.PathLike[str]) -> None:
        """Draw when each stage of each device worked, as PNG; needs the extra plot."""
        from hdgemm.pictures.gantt import save_gantt

        save_gantt(self.timeline, path)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events as JSON for Perfetto or Chrome."""
        from hdgemm.pictures.trace import save_trace

        save_trace(self.timeline, path)


def build_report(
    plans: Sequence[Plan],
    timeline: Timeline,
    *,
    planned_bytes: Mapping[Stage, int],
    peak_memory_bytes: int | None = None,
    resumption: Resumption | None = None,
    checks: CheckedTiles | None = None,
) -> Report:
    """Make the report of a run from its timeline and the plan of each device that took part.

    A stage that is missing in `planned_bytes` was to move none.
    """
    stages = stage_reports(timeline, planned_bytes)
    flops = sum(stage.flops for stage in stages.values())
    return Report(
        seconds=timeline.seconds,
        gflops=flops / timeline.seconds / 1e9 if timeline.seconds > 0 else 0.0,
        stages=stages,
        peak_memory_bytes=peak_memory_bytes,
        plan=Plans(plans).summary(),
        devices=tuple(plan.device.name for plan in plans),
        versions=dict(versions()),
        timeline=timeline,
        resumption=resumption,
        checks=checks,
    )


def stage_reports(
    timeline: Timeline, planned_bytes: Mapping[Stage, int]
) -> Mapping[Stage, StageReport]:
    """Return what each stage did against the plan; stages without work are left out."""
    measured = timeline.stages()
    stages: dict[Stage, StageReport] = {}
    for name in STAGES:
        planned = planned_bytes.get(name, 0)
        stats = measured.get(name)
        if stats is not None:
            stages[name] = StageReport(
                stats.operations, stats.nbytes, planned, stats.flops, stats.seconds
            )
        elif planned:
            stages[name] = StageReport(0, 0, planned, 0, 0.0)
    return stages


def sum_stages(runs: Iterable[Mapping[Stage, StageReport]]) -> dict[Stage, StageReport]:
    """Add up what each stage did in several runs."""
    by_stage: dict[Stage, list[StageReport]] = {name: [] for name in STAGES}
    for stages in runs:
        for name, stage in stages.items():
            by_stage[name].append(stage)
    return {
        name: StageReport(*map(sum, zip(*map(astuple, found), strict=True)))
        for name, found in by_stage.items()
        if found
    }


@cache
def versions() -> dict[str, str]:
    """Return versions of Python, the platform and the installed packages a run depends on."""
    from importlib.metadata import PackageNotFoundError, version

    # Not platform.platform(), which runs `uname -p` under a lock: a child that another thread
    # forks meanwhile would wait for it.
    system = platform.system(), platform.release(), platform.machine(), *platform.libc_ver()
    found = {"python": platform.python_version(), "platform": "-".join(filter(None, system))}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def report_title(report: Report) -> str:
    """Return in one line what was multiplied, under which limit, and how fast."""
    plan = report.plan
    shape = " × ".join(str(plan[name]) for name in ("m", "n", "k") if name in plan)
    shape = f"{plan['kind']}, {shape}" if "kind" in plan else shape
    limit = f", {format_size(plan['host_limit'])} of host memory" if plan.get("host_limit") else ""
    return f"{shape}, {plan['dtype']}{limit}: {format_speed(report.gflops)}"


def report_text(report: Report) -> str:
    """Return the report as the command line prints it, in at most 25 lines."""
    if not report.stages:
        return f"{format_duration(report.seconds)}: {_idle(report)}"
    lines = [*_stage_table(report).lines(), *_summary(report)]
    if report.split is not None:
        notes, rows = report.split.notes(), report.split.table().lines()
        room = max(2, _MOST_LINES - len(lines) - len(notes))
        if len(rows) > room:
            rows[room - 1 :] = [f"and {len(rows) - room + 1} more devices"]
        lines += [*rows, *notes]
    return "\n".join(lines[:_MOST_LINES])


def report_html(report: Report) -> str:
    """Return the report as HTML for a notebook, with the Gantt picture and the tile map."""
    if not report.stages:
        return f"<p>{escape(report_text(report))}</p>"
    from hdgemm.pictures.figure import inline_picture
    from hdgemm.pictures.gantt import save_gantt
    from hdgemm.pictures.tilemap import save_tilemap

    parts = [_stage_table(report).html(), f"<p>{'<br>'.join(map(escape, _summary(report)))}</p>"]
    parts.append(inline_picture(lambda file: save_gantt(report.timeline, file), "Gantt picture"))
    if (split := report.split) is not None:
        extents = (report.plan["m"], report.plan["n"])
        parts += [split.table().html(), f"<p>{'<br>'.join(map(escape, split.notes()))}</p>"]
        parts.append(
            inline_picture(lambda file: save_tilemap(split.tiles, extents, file), "tiles of C")
        )
    return "".join(parts)


def _idle(report: Report) -> str:
    """Say why a run had nothing to do."""
    found = report.resumption
    if found is None:
        return "nothing to multiply"
    noun, whole = ("slab", "") if "kind" in report.plan else ("tile", " of C")
    parts = ("the " if found.tiles == 1 else "all ") + format_count(found.tiles, noun) + whole
    return f"an earlier run had stored {parts} (journal {found.journal})"


def _stage_table(report: Report) -> Table:
    """Return operations, bytes, busy time, rate and share of the run for each stage."""
    rows = [
        (
            name,
            f"{stage.operations}",
            format_size(stage.nbytes) if stage.nbytes else "–",
            format_size(stage.planned_bytes) if stage.planned_bytes else "–",
            format_duration(stage.seconds),
            _rate(stage),
            f"{100 * stage.seconds / report.seconds if report.seconds > 0 else 0.0:.1f} %",
        )
        for name, stage in report.stages.items()
    ]
    return Table(("stage", "operations", "bytes", "planned", "busy", "rate", "of the run"), rows)


def _rate(stage: StageReport) -> str:
    if stage.gflops is not None:
        return format_speed(stage.gflops)
    if stage.gbytes_per_second is not None:
        return format_rate(stage.gbytes_per_second * 1e9)
    return "–"


def _summary(report: Report) -> list[str]:
    """Return speed, bytes against the plan's, memory against the limit, and what was checked."""
    moved, planned = sum(report.moved_bytes.values()), sum(report.planned_bytes.values())
    equal = report.moved_bytes == report.planned_bytes
    against = "as planned, stage by stage" if equal else f"{moved - planned:+d} B against the plan"
    against = f", {against}" if planned else ""
    bottleneck = f"; {report.limit} was the bottleneck" if report.limit is not None else ""
    speed, limit = format_speed(report.gflops), report.plan.get("host_limit")
    allowed = f" of {format_size(limit)} allowed" if limit else ""
    lines = [
        f"{format_duration(report.seconds)}, {speed} on {', '.join(report.devices)}{bottleneck}",
        f"bytes moved: {format_size(moved)}{against}",
        f"peak memory added: {format_size(report.peak_memory_bytes)}{allowed}",
    ]
    if report.phases and (expected := report.plan.get("expected_phase_seconds")):
        expected = {"multiplying": report.plan.get("expected_seconds"), **expected}
        took = [
            f"{name} {format_duration(seconds)} ({format_duration(expected.get(name))})"
            for name, seconds in report.phases.items()
            if seconds or expected.get(name)
        ]
        lines += [f"phases, and as expected: {', '.join(took)}"] if took else []
    if note := report.plan.get("note"):
        lines.append(str(note))
    if (found := report.resumption) is not None:
        parts = format_count(found.tiles, "slab" if "kind" in report.plan else "tile")
        lines.append(
            f"journal {found.journal}: {found.kept} of {parts} done already,"
            f" {format_count(found.damaged, 'damaged piece')} computed again"
        )
    if (checks := report.checks) is not None:
        lines.append(
            f"{format_count(checks.tiles, 'tile')} checked in {format_duration(checks.seconds)}:"
            f" {checks.recomputed} computed again, worst deviation {checks.worst:.2g} of its bound,"
            f" {format_count(checks.unchecked_rows, 'row')} and"
            f" {format_count(checks.unchecked_cols, 'column')} of tiles unchecked"
        )
    if report.energy is not None:
        lines.append(report.energy.line(report.gflops))
    return [*lines, *value_lines(report.values)]


def value_lines(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each small result of a run."""
    return [f"{name}: {_value_text(value)}" for name, value in values.items()]


def _value_text(value: Any) -> str:
    """Return a value as text, of many numbers the first ones."""
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    more = f", … ({len(value)} in all)" if len(value) > _MOST_NUMBERS else ""
    return ", ".join(map(_value_text, value[:_MOST_NUMBERS])) + more
