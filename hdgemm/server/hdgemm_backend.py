"""The service's `Library` on hdgemm; its parts are imported where they are used."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import CancelledRunError
from hdgemm.matrices.factor_files import FactorFiles
from hdgemm.routines.registry import commands
from hdgemm.server.backend import GANTT, TRACE, Demand, Outcome
from hdgemm.server.planner import Planner

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping

    from hdgemm.mpi.linpack.settings import Settings as LinpackSettings
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.profiling import Profile
    from hdgemm.report import Report
    from hdgemm.server.backend import Call, JobWatch, Problem

#: The most events of a stored trace, which has about 200 bytes for each.
_MOST_TRACED: Final = 20_000


class HdgemmLibrary:
    """Plans and computes with the library."""

    def __init__(self) -> None:
        self._planner = Planner()

    def preload(self) -> None:
        """Import what products, routines and their pictures use."""
        import hdgemm.blas.products
        import hdgemm.linalg.routines
        import hdgemm.pictures.gantt
        import hdgemm.pictures.trace  # noqa: F401 - for jobs, which are forked

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        """Plan a product or a routine of files in a child process, which `cancel` ends."""
        return self._planner.plan(problem, options, cancel)

    def run(self, call: Call, options: Options, watch: JobWatch) -> Outcome:
        """Compute a product or a routine file to file, check a product, or measure."""
        own = {"gemm": _multiply, "verify": _verify, "profile": _profile, "linpack": _linpack}
        return own.get(call.process, _run_routine)(call, options, watch)

    def linpack_bytes(self, parameters: Mapping[str, Any]) -> int:
        """Return the bytes of the matrix, the panels and the rows of U."""
        from hdgemm.mpi.machine import needed_bytes

        return needed_bytes(_linpack_settings(parameters), itemsize=4 if parameters["mxp"] else 8)


def _multiply(call: Call, options: Options, watch: JobWatch) -> Outcome:
    product: dict[str, Any] = {
        **call.operands, **call.parameters, "out": call.out, "options": options,
        "progress": lambda snapshot: watch.progress(asdict(snapshot)),
        "observer": watch.observer, "cancel": watch.cancel,
    }  # fmt: skip
    if not call.cluster:
        from hdgemm.blas.products import multiply

        report = multiply(**product, checkpoint=call.journal or False)
    else:
        from hdgemm import cluster
        from hdgemm.cluster.connection import open_cluster

        with open_cluster(call.cluster) as client:
            report = cluster.multiply(**product, checkpoint=call.journal or True, client=client)
    return Outcome(report.to_dict(), lambda folder: _draw(report, folder))


def _run_routine(call: Call, options: Options, watch: JobWatch) -> Outcome:
    from hdgemm import progress
    from hdgemm.call import keywords
    from hdgemm.linalg.routines import run_routine

    routine = commands()[call.process]
    seen = progress.Callbacks(
        lambda snapshot: watch.progress(asdict(snapshot)), watch.observer, watch.cancel
    )
    outs = routine.places(call.parameters, call.out, FactorFiles.of(call.out).array)
    how = keywords.Call(options, None, seen, call.journal or False)
    report = run_routine(routine, call.operands, outs, call.parameters, how)
    return Outcome(report.to_dict(), lambda folder: _draw(report, folder))


def _verify(call: Call, options: Options, watch: JobWatch) -> Outcome:
    """Check a product by Freivalds' method."""
    from hdgemm.verify import verify

    product: dict[str, Any] = {**call.operands, **call.parameters}
    if options.host_bytes is not None:
        product["memory"] = options.host_bytes
    check = verify(**product, cancel=watch.cancel)
    watch.progress({"percent": 100.0})
    return Outcome(check.to_dict())


def _profile(call: Call, _: Options, watch: JobWatch) -> Outcome:
    """Measure a device's contention."""
    from hdgemm import profiling

    def progress(part: float, what: str) -> None:
        if watch.cancel.is_set():
            raise CancelledRunError("the profile was cancelled")
        watch.progress({"percent": 100.0 * part, "doing": what})

    wanted = call.parameters
    result = profiling.profile(
        device=wanted["device"], quick=wanted["quick"], folder=call.out, progress=progress
    )
    return Outcome(result.to_dict(), lambda folder: _draw_profile(result, folder))


def _linpack(call: Call, options: Options, watch: JobWatch) -> Outcome:
    """Run HPL's benchmark in this process."""
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.linpack.benchmark import linpack

    def progress(part: float) -> None:
        if watch.cancel.is_set():
            raise CancelledRunError("the benchmark was cancelled")
        watch.progress({"percent": 100.0 * part})

    result = linpack(
        _linpack_settings(call.parameters), Communicator(), options=options,
        mixed=call.parameters["mxp"], progress=progress,
    )  # fmt: skip
    return Outcome({} if result is None else result.to_dict())


def _linpack_settings(parameters: Mapping[str, Any]) -> LinpackSettings:
    from hdgemm.mpi.linpack.settings import Settings

    return Settings(parameters["n"], parameters["nb"], depth=parameters["depth"])


def _draw_profile(result: Profile, folder: Path) -> None:
    with TemporaryDirectory(dir=folder) as whole:
        result.save(whole)
        (Path(whole) / "report.html").replace(folder / "report.html")
    for strategy, timeline in list(result.timelines.items())[-1:]:
        _draw_timeline(timeline, folder, strategy)


def _draw(report: Report, folder: Path) -> None:
    from hdgemm.report import report_title

    title = report_title(report) if report.timeline.events else ""
    _draw_timeline(report.timeline, folder, title)


def _draw_timeline(timeline: Timeline, folder: Path, title: str) -> None:
    """Write the trace, and the Gantt chart of a run that did anything."""
    from hdgemm.pictures.gantt import save_gantt
    from hdgemm.pictures.trace import save_trace

    with _draft(folder / TRACE) as draft:
        save_trace(timeline, draft, most=_MOST_TRACED)
    if timeline.events:
        with _draft(folder / GANTT) as draft:
            save_gantt(timeline, draft, title=title)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield the hidden name of a file, which gets its own name at the end of the block."""
    draft = path.with_name(f".{path.name}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
