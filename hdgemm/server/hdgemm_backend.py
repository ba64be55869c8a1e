"""hdgemm itself behind the service's `Library`; imported where it is used, it loads BLAS."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import CancelledRunError
from hdgemm.server.backend import Demand, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec
    from hdgemm.profiling import Profile
    from hdgemm.progress import Progress
    from hdgemm.report import Report
    from hdgemm.server.backend import GemmCall, Problem, ProfileCall, Watch


#: A map of more work units than this shows nothing that a percentage does not.
_MOST_MAPPED: Final = 2500


class HdgemmLibrary:
    """Plans, multiplies, verifies and profiles with the library."""

    def plan(self, problem: Problem, options: Options) -> Demand:
        """Plan a product of files."""
        from hdgemm.machine.calibration import machine_for
        from hdgemm.pipeline.plan import OperandSpec
        from hdgemm.pipeline.plan import Problem as PlannedProblem
        from hdgemm.planning.planner import plan_for
        from hdgemm.report import summarize
        from hdgemm.run.members import names_for

        if 0 in {problem.m, problem.n, problem.k}:
            extents = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype}
            return Demand(0, extents)
        file = OperandSpec(place="file")
        planned = PlannedProblem(
            problem.m, problem.n, problem.k, problem.dtype, file, file, file,
            reads_c=problem.reads_c,
        )  # fmt: skip
        names = names_for(options, 2 * problem.m * problem.n * problem.k)
        specs = [_device_spec(name, options) for name in names]
        plans = [
            plan_for(planned, options, spec, machine_for(planned, spec), members=len(specs))
            for spec in specs
        ]
        plan, host_bytes = plans[0], sum(plan.host_bytes for plan in plans)
        # Several devices draw their units while they run.
        drawn = len(plans) > 1 or len(plan.units) > _MOST_MAPPED
        return Demand(host_bytes, summarize(plan), [] if drawn else [[*u.rect] for u in plan.units])

    def multiply(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Compute a product, file to file."""
        from hdgemm.blas import multiply

        def progress(snapshot: Progress) -> None:
            watch.progress(asdict(snapshot))

        report = multiply(
            call.a, call.b, alpha=call.alpha, beta=call.beta, c=call.c, trans_a=call.trans_a,
            trans_b=call.trans_b, out=call.out, options=options, progress=progress,
            cancel=watch.cancel,
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
            trans_b=call.trans_b, **memory,
        )  # fmt: skip
        watch.progress({"percent": 100.0})
        report: Mapping[str, Any] = {**asdict(check), "summary": str(check)}
        return Outcome(report)

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


def _device_spec(name: str, options: Options) -> DeviceSpec:
    """Return the figures of a device that its plan depends on."""
    from hdgemm.pipeline.devices.registry import open_device
    from hdgemm.pipeline.plan import DeviceSpec

    if name == "host":
        return DeviceSpec()
    device = open_device(name, options.device_bytes)
    try:
        return device.spec
    finally:
        device.close()


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
        plan = report.plan
        title = f"{plan['m']} × {plan['n']} × {plan['k']}: {report.gflops:.1f} GFLOP/s"
        save_gantt(report.timeline, folder / "gantt.png", title=title)
