"""The service's `Library` on hdgemm; its parts are imported where they are used."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import CancelledRunError
from hdgemm.server.backend import Demand, Outcome, RoutineProblem
from hdgemm.server.planner import Planner

if TYPE_CHECKING:
    import threading

    from hdgemm.hpl.settings import Settings as LinpackSettings
    from hdgemm.options import Options
    from hdgemm.profiling import Profile
    from hdgemm.progress import Progress
    from hdgemm.report import Report
    from hdgemm.server.backend import (
        GemmCall,
        LinpackCall,
        PlannedOperand,
        Problem,
        ProfileCall,
        RoutineCall,
        Watch,
    )


#: A map of more work units than this shows nothing that a percentage does not.
_MOST_MAPPED: Final = 2500


class HdgemmLibrary:
    """Plans, multiplies, verifies and profiles with the library."""

    def __init__(self) -> None:
        self._planner = Planner()

    def plan(
        self, problem: Problem | RoutineProblem, options: Options, cancel: threading.Event
    ) -> Demand:
        """Plan a product or a routine of files in a child process, which `cancel` ends."""
        return self._planner.plan(problem, options, cancel)

    def multiply(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Compute a product, file to file."""
        if call.cluster:
            return _multiply_on_cluster(call, options, watch)
        from hdgemm.blas import multiply

        def progress(snapshot: Progress) -> None:
            watch.progress(asdict(snapshot))

        report = multiply(
            call.a, call.b, alpha=call.alpha, beta=call.beta, c=call.c, trans_a=call.trans_a,
            trans_b=call.trans_b, out=call.out, options=options, progress=progress,
            observer=watch.observer, cancel=watch.cancel, checkpoint=call.journal or False,
        )  # fmt: skip
        return Outcome(report.to_dict(), lambda folder: _draw(report, folder))

    def compute(self, call: RoutineCall, options: Options, watch: Watch) -> Outcome:
        """Factor or solve, file to file."""
        from hdgemm import progress
        from hdgemm.linalg.routines import run_routine

        report = run_routine(
            call.routine, call.operands, call.out, parameters=call.parameters, options=options,
            watch=progress.Watch(
                lambda snapshot: watch.progress(asdict(snapshot)), watch.observer, watch.cancel
            ),
            checkpoint=call.journal or False,
        )  # fmt: skip
        return Outcome(report.to_dict(), lambda folder: _draw(report, folder))

    def verify(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Check a product by Freivalds' method."""
        from hdgemm.verify import verify

        memory: dict[str, Any] = {} if options.host_bytes is None else {
            "memory": options.host_bytes
        }  # fmt: skip
        check = verify(
            call.a, call.b, call.out, alpha=call.alpha, trans_a=call.trans_a,
            trans_b=call.trans_b, cancel=watch.cancel, **memory,
        )  # fmt: skip
        watch.progress({"percent": 100.0})
        return Outcome(check.to_dict())

    def profile(self, call: ProfileCall, options: Options, watch: Watch) -> Outcome:  # noqa: ARG002
        """Measure a device's contention, or simulate a system's."""
        from hdgemm import profiling

        def progress(part: float, what: str) -> None:
            if watch.cancel.is_set():
                raise CancelledRunError("the profile was cancelled")
            watch.progress({"percent": 100.0 * part, "doing": what})

        if call.simulate is not None:
            result = profiling.simulate_profile(call.simulate, progress=progress)
        else:
            result = profiling.profile(
                device=call.device, quick=call.quick, folder=call.folder, progress=progress
            )
        return Outcome(result.to_dict(), lambda folder: _draw_profile(result, folder))

    def linpack_bytes(self, call: LinpackCall) -> int:
        """Return the bytes of the matrix, the panels and the rows of U."""
        from hdgemm.hpl.machine import needed_bytes

        return needed_bytes(_linpack_settings(call), mixed=call.mixed)

    def linpack(self, call: LinpackCall, options: Options, watch: Watch) -> Outcome:
        """Run HPL's benchmark in this process."""
        from hdgemm.hpl.benchmark import linpack
        from hdgemm.hpl.communicator import Alone

        def progress(part: float) -> None:
            if watch.cancel.is_set():
                raise CancelledRunError("the benchmark was cancelled")
            watch.progress({"percent": 100.0 * part})

        result = linpack(
            _linpack_settings(call), Alone(), options=options, mixed=call.mixed, progress=progress
        )
        return Outcome({} if result is None else result.to_dict())


def _linpack_settings(call: LinpackCall) -> LinpackSettings:
    from hdgemm.hpl.settings import Settings

    return Settings(call.n, call.nb, depth=call.depth)


def _multiply_on_cluster(call: GemmCall, options: Options, watch: Watch) -> Outcome:
    from hdgemm.cluster import multiply
    from hdgemm.cluster.connection import open_cluster

    def progress(snapshot: Progress) -> None:
        shown = asdict(snapshot)
        watch.progress(shown | {"workers": len(shown["workers"]), "blocks": len(shown["blocks"])})

    with open_cluster(call.cluster) as client:
        report = multiply(
            call.a, call.b, alpha=call.alpha, beta=call.beta, c=call.c, trans_a=call.trans_a,
            trans_b=call.trans_b, out=call.out, options=options, progress=progress,
            observer=watch.observer, cancel=watch.cancel, checkpoint=call.journal or True,
            client=client,
        )  # fmt: skip
    return Outcome(report.to_dict(), lambda folder: _draw(report, folder))


def plan_problem(problem: Problem | RoutineProblem, options: Options) -> Demand:
    """Plan a product or a routine as it will run; the children of `Planner` call it."""
    if isinstance(problem, RoutineProblem):
        return _plan_routine(problem, options)
    return _plan_product(problem, options)


def _paths(problem: Problem | RoutineProblem, folder: str) -> dict[str, Path]:
    """Return the operands' files; sparse ones for results of jobs that have not run yet."""
    return {
        name: operand.path or _stand_in(Path(folder) / f"{name}.npy", operand)
        for name, operand in problem.operands.items()
    }


def _plan_routine(problem: RoutineProblem, options: Options) -> Demand:
    from hdgemm.linalg.routines import ROUTINES, plan_routine

    with TemporaryDirectory(prefix="hdgemm-plan-") as folder:
        plan = plan_routine(
            problem.routine, tuple(_paths(problem, folder).values()),
            (problem.folder or Path(folder)) / ".hdgemm-plan.npy", options=options,
            parameters=problem.parameters, checkpoint=ROUTINES[problem.routine].durable,
        )  # fmt: skip
    # Solutions with the factors take all memory that is allowed, for columns of B.
    solves = problem.routine == "solve" and options.host_bytes is not None
    held = options.host_bytes if solves and options.host_bytes else plan.bytes_held
    return Demand(held, plan.summary())


def _plan_product(problem: Problem, options: Options) -> Demand:
    import hdgemm
    from hdgemm.pipeline.plan_summary import summarize_all

    with TemporaryDirectory(prefix="hdgemm-plan-") as folder:
        paths = _paths(problem, folder)
        c = paths.get("c")
        plans = hdgemm.plan(
            paths["a"], paths["b"], alpha=problem.alpha, beta=0.0 if c is None else problem.beta,
            c=c, trans_a=problem.trans_a, trans_b=problem.trans_b,
            out=(problem.folder or Path(folder)) / ".hdgemm-plan.npy", options=options,
        )  # fmt: skip
    if not plans:
        extents = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype}
        return Demand(0, extents)
    summary, units = summarize_all(plans), plans[0].units
    # Several devices draw their units while they run.
    drawn = len(plans) == 1 and len(units) <= _MOST_MAPPED
    return Demand(summary["host_bytes"], summary, [[*u.rect] for u in units] if drawn else [])


def _stand_in(path: Path, operand: PlannedOperand) -> Path:
    """Make a sparse file for the result of a job that has not run yet."""
    rows, cols = operand.shape
    dtype = np.dtype(operand.dtype)
    with path.open("wb") as stream:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (rows, cols)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + rows * cols * dtype.itemsize)
    return path


def _draw_profile(result: Profile, folder: Path) -> None:
    from hdgemm.pictures.gantt import save_gantt
    from hdgemm.pictures.trace import save_trace

    with TemporaryDirectory(dir=folder) as whole:
        result.save(whole)
        (Path(whole) / "report.html").replace(folder / "report.html")
    for strategy, timeline in list(result.timelines.items())[-1:]:
        save_trace(timeline, folder / "trace.json")
        save_gantt(timeline, folder / "gantt.png", title=strategy)


def _draw(report: Report, folder: Path) -> None:
    from hdgemm.pictures.gantt import save_gantt
    from hdgemm.pictures.trace import save_trace

    save_trace(report.timeline, folder / "trace.json")
    if report.timeline.events:
        from hdgemm.report_text import report_title

        save_gantt(report.timeline, folder / "gantt.png", title=report_title(report))
