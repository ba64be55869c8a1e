"""The engine: from a checked product to its report, on one device or several."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hdgemm.energy import EnergyMeter
from hdgemm.errors import AllocationError
from hdgemm.machine.calibration import discard_low_rates
from hdgemm.machine.peak_memory import PeakMemory
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import NO_SLOTS, DeviceSpec, Overlap, Plan, planned_bytes
from hdgemm.pipeline.timeline import Timeline, both
from hdgemm.pipeline.walk import Layout
from hdgemm.planning.case import checked_problem, checks_for
from hdgemm.progress import ProgressMeter, Work
from hdgemm.report import build_report
from hdgemm.run._learned_rates import LEAST_SECONDS, learn_alone, load_rates
from hdgemm.run._shared import SharedRun
from hdgemm.run.members import Member, names_for, plan_members, with_less_memory
from hdgemm.run.operand_paths import direct_operands, gpu_of, problem_on
from hdgemm.run.scaling import run_scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Problem
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.product.product import Product
    from hdgemm.progress import Callbacks, TileGrid
    from hdgemm.report import Report, Resumption
    from hdgemm.run.checkpoint import ProductCheckpoint
    from hdgemm.run.session import Session

_LOG: Final = logging.getLogger(__name__)
#: How often a run is planned again for less memory before the device's refusal is raised.
REPLANS: Final = 2


def run_product(
    product: Product,
    options: Options,
    session: Session,
    callbacks: Callbacks,
    *,
    plan: Plan | None = None,
    checkpoint: ProductCheckpoint | None = None,
) -> Report:
    """Compute a checked product whose C is open.

    A `plan` made before for the same extents is made again, with the same tile and limits, where it
    does not fit the way these operands are stored. A `checkpoint` is the durable run that this is,
    with the plan to go on with where there is one.

    Raises `DoesNotFitError` when no plan fits the limits, `DeviceError` when a device failed and no
    other is left, `CancelledRunError` for `callbacks.cancel`: C is not finished.
    """
    if not product.reads_product:
        return _scale(product, callbacks)
    product = product.row_major()
    if plan is not None:
        names: tuple[str, ...] = (plan.device.name,)
    else:
        names = names_for(options, product.flops, gpu_of(product))
    if checkpoint is not None:
        names = checkpoint.choose_devices(names, options)
    run = _Run(product, options, session, callbacks, checkpoint)
    with session.running(options):
        start, calibrated = time.perf_counter(), session.calibration_seconds
        with EnergyMeter(names) as meter:
            report = run.alone(names[0], plan) if len(names) == 1 else run.shared(names)
        total = time.perf_counter() - start
        calibrating = session.calibration_seconds - calibrated
    planning = max(0.0, total - calibrating - report.seconds)
    phases = {"calibrating": calibrating, "planning": planning, "multiplying": report.seconds}
    return replace(report, phases=phases, energy=meter.result)


@dataclass(frozen=True, slots=True)
class _Run:
    """One product on its way through the engine."""

    product: Product
    options: Options
    session: Session
    callbacks: Callbacks
    checkpoint: ProductCheckpoint | None

    def _problem_for(self, device: Device, *, shared: bool) -> Problem:
        return problem_on(
            self.product,
            device,
            direct=direct_operands(shared=shared, durable=self.checkpoint is not None),
        )

    def _members(self, names: Sequence[str]) -> list[Member]:
        return plan_members(
            partial(self._problem_for, shared=len(names) > 1),
            names,
            self.options,
            self.session,
            folder=self.product.folder,
            callbacks=self.callbacks,
        )

    def alone(self, name: str, plan: Plan | None) -> Report:
        """Execute the fixed schedule of one plan; plan again where the device refuses memory."""
        member = self._planned(name, plan)
        if self.checkpoint is not None:
            member = replace(member, plan=self.checkpoint.begin(member.plan))
        while True:
            try:
                report = self._execute(member)
            except AllocationError as error:
                # A journal holds the tiles of its plan: a durable run is not planned again.
                if self.checkpoint is not None or len(member.refused) == REPLANS:
                    raise
                member = self._with_less_memory(member, error)
            else:
                break
        if self.checkpoint is None and self.options.tile is None:
            problem = member.plan.problem
            learn_alone(member.name, problem, report.seconds, self.options.threads)
        self._check_figures(member.plan, report)
        return replace(report, plan={**report.plan, **member.replanned()})

    def _check_figures(self, plan: Plan, report: Report) -> None:
        """Delete cached figures of the host that this run has shown to be too low."""
        mult1 = report.stages.get("mult1")
        if mult1 is None or not mult1.seconds or report.seconds < LEAST_SECONDS:
            return
        if plan.device.unified and not plan.in_place:
            discard_low_rates(
                plan.device,
                self.product.folder,
                self.options.threads,
                plan.problem.factor_dtype,
                mult1.flops / mult1.seconds,
            )

    def _planned(self, name: str, plan: Plan | None) -> Member:
        """Return the device with an earlier run's plan, the caller's, or a new one."""
        earlier = None if self.checkpoint is None else self.checkpoint.plan
        if earlier is not None or plan is not None:
            device = self.session.device(name, self.options)
            problem = checked_problem(self._problem_for(device, shared=False), self.options)
            if self.checkpoint is not None and earlier is not None:
                self.checkpoint.check(problem, self.options, device.spec)
                return Member(device.spec.name, device, earlier)
            if plan is not None and plan.problem == problem:
                return Member(device.spec.name, device, plan)
        [member] = self._members([name])
        return member

    def _with_less_memory(self, member: Member, error: AllocationError, members: int = 1) -> Member:
        # The record would keep the error, its frames and with them the closed device.
        _LOG.warning("%s; planning again with the memory that is free", str(error))
        return with_less_memory(
            member, error, self.options, self.session, self.product.folder, members
        )

    def _execute(self, member: Member) -> Report:
        plan, product = member.plan, self.product
        planned = planned_bytes(plan)
        self.session.warn_of_memory(plan.host_bytes)
        checks = checks_for(self.options, plan)
        operands = product.operands()
        peak = None if plan.in_place else PeakMemory()
        start = time.perf_counter()
        recording = self._recording(operands.c, Work.of(plan, planned))
        with peak or nullcontext(), recording as (c, observer):
            timeline = run_plan(
                plan,
                member.device,
                replace(operands, c=c),
                observer=observer,
                cancel=self.callbacks.cancel,
                checks=checks,
                cache=self.session.slots(member.device),
            )
        return build_report(
            [plan],
            Timeline(timeline.events, time.perf_counter() - start),
            planned_bytes=planned,
            peak_memory_bytes=peak.nbytes if peak is not None else 0,
            resumption=self._resumption(),
            checks=None if checks is None else checks.result(),
        )

    def shared(self, names: Sequence[str]) -> Report:
        """Let several devices draw tiles of C from one pool."""
        options, product = self.options, self.product
        opened = [self.session.device(name, options).spec.name for name in names]
        first = self._problem_for(self.session.device(names[0], options), shared=True)
        rates = load_rates(opened, first, options.threads)
        left_out = rates.left_out(opened) if options.split is None else {}
        taken = [name for name, spec in zip(names, opened, strict=True) if spec not in left_out]
        members = self._members(taken)
        self.session.warn_of_memory(sum(member.plan.host_bytes for member in members))
        done = (
            ()
            if self.checkpoint is None
            else self.checkpoint.begin_shared([member.plan for member in members])
        )
        operands = product.operands()
        work = Work(product.flops, 1, 0, 0)
        recording = self._recording(operands.c, work, lambda: run.tiles())  # noqa: PLW0108 - made below
        with PeakMemory() as peak, recording as (c, observer):
            run = SharedRun(
                product,
                replace(operands, c=c),
                members,
                rates,
                options,
                session=self.session,
                observer=observer,
                cancel=self.callbacks.cancel,
                done=done,
                replan=None if self.checkpoint else self._with_less_memory,
            )
            timeline = run.go()
        seconds = time.perf_counter() - run.start
        split = replace(run.split(seconds, rates.alone), left_out=left_out)
        if options.split is None and self.checkpoint is None:
            run.learn(rates, split, seconds)
        report = build_report(
            [member.plan for member in run.members],
            Timeline(timeline, seconds),
            planned_bytes=run.planned_bytes(),
            peak_memory_bytes=peak.nbytes,
            resumption=self._resumption(),
            checks=run.checks(),
        )
        return replace(report, split=split)

    @contextmanager
    def _recording(
        self, c: Matrix, work: Work, tiles: Callable[[], TileGrid] | None = None
    ) -> Iterator[tuple[Matrix, Observer | None]]:
        """Yield C as the run writes it, and the observer of its events; then flush C.

        In a durable run every stored piece is recorded.
        """
        callback = self.callbacks.progress
        meter = None if callback is None else ProgressMeter(work, callback, tiles=tiles)
        with nullcontext(c) if self.checkpoint is None else self.checkpoint.recording(c) as stored:
            yield stored, both(self.callbacks.observer, meter)
            stored.flush()
        if meter is not None:
            meter.finish()

    def _resumption(self) -> Resumption | None:
        return None if self.checkpoint is None else self.checkpoint.resumption


def _scale(product: Product, callbacks: Callbacks) -> Report:
    """Compute C := beta·C, where alpha or an extent is zero and no plan is needed."""
    start = time.perf_counter()
    run_scaling(product.beta, product.old, product.storing, product.dtype, cancel=callbacks.cancel)
    seconds = time.perf_counter() - start
    host = DeviceSpec()
    none = (NO_SLOTS,) * 5
    plan = Plan(
        product.row_major().problem(host),
        host,
        "initial",
        Overlap(),
        (0, 0, 0),
        *none,
        Layout(0, 0),
        0,
        0,
        in_place=True,
    )
    return build_report([plan], Timeline((), seconds), planned_bytes={}, peak_memory_bytes=0)
