"""One product on several devices: a pipeline each, one pool of tiles that balances them."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hdgemm.errors import AllocationError, CancelledRunError, DeviceError, DoesNotFitError
from hdgemm.machine.rates import assumed
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.planning.case import checks_for
from hdgemm.run import balance
from hdgemm.run._accounting import describe_split, moved_bytes
from hdgemm.run._learned_rates import Learned, learn_alone
from hdgemm.run.regions import fixed_regions
from hdgemm.run.shared_pool import PoolFeed, SharedPool, StoringMatrix
from hdgemm.threads import StopFlag, Worker, run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hdgemm.options import Options
    from hdgemm.pipeline.abft import CheckedTiles
    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.slots import Operands
    from hdgemm.pipeline.tiles import Rect
    from hdgemm.pipeline.timeline import Event, Observer, Timeline
    from hdgemm.product.product import Product
    from hdgemm.progress import TileGrid
    from hdgemm.run._learned_rates import Rates
    from hdgemm.run.members import Member
    from hdgemm.run.session import Session
    from hdgemm.run.split_report import SplitReport

_LOG: Final = logging.getLogger(__name__)


class SharedRun:
    """The pipelines of several devices on one product, and the error that ends them.

    A device that fails is left out with a warning, and the others compute its tiles. C in
    `operands` is as it is to be written; the rectangles `done` were stored by an earlier run.
    `replan` plans again for a member whose device refused memory; None raises the refusal instead.
    """

    def __init__(
        self,
        product: Product,
        operands: Operands,
        members: Sequence[Member],
        rates: Rates,
        options: Options,
        *,
        session: Session,
        observer: Observer | None,
        cancel: threading.Event | None,
        done: Sequence[Rect] = (),
        replan: Callable[[Member, AllocationError, int], Member] | None = None,
    ) -> None:
        self._operands = operands
        self._members = {member.name: member for member in members}
        self._options = options
        self._session = session
        self._observer = observer
        self._caller = cancel
        self._replan = replan
        regions = fixed_regions(product.m, product.n, options.split, list(self._members))
        drawing = {member.name: _drawing(member, rates) for member in members}
        self._regions = regions
        self._pool = balance.Pool(product.m, product.n, drawing, regions, done)
        self._shared = SharedPool(self._pool)
        self._feeds = {member.name: self._feed(member) for member in members}
        all_checks = [checks_for(options, member.plan) for member in members]
        # One counter for all devices; the scratch of the one with the least room does for each.
        self._checks = min(
            (checks for checks in all_checks if checks),
            key=lambda checks: checks.scratch_bytes,
            default=None,
        )
        self._cancel = StopFlag()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._timelines: dict[str, Timeline] = {}

    @property
    def start(self) -> float:
        """Time zero of the run on `time.perf_counter`."""
        return self._shared.start

    def tiles(self) -> TileGrid:
        """Return the parts of C that each device has stored so far."""
        return self._shared.tiles()

    @property
    def members(self) -> list[Member]:
        """The devices with the plans that they executed."""
        return list(self._members.values())

    def go(self) -> tuple[Event, ...]:
        """Run all devices to the end; return the events of those that did not fail."""
        workers = [Worker(partial(self._one, name), f"hdgemm-{name}") for name in self._members]
        run_all(workers, look=self._pass_on_cancel, interval=0.05, stop=self._end)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and so the operands
        events = (event for timeline in self._timelines.values() for event in timeline.events)
        return tuple(sorted(events, key=lambda event: event.start))

    def _feed(self, member: Member) -> PoolFeed:
        return PoolFeed(self._shared, member.name, member.plan)

    def _pass_on_cancel(self) -> None:
        if self._caller is not None and self._caller.is_set():
            self._cancel.set()

    def _one(self, name: str) -> None:
        try:
            timeline = self._in_free_memory(name)
        except (DeviceError, DoesNotFitError) as error:
            self._give_up(name, error)
        except BaseException as error:  # noqa: BLE001  (raised by go)
            self._end(error)
        else:
            with self._lock:
                self._timelines[name] = timeline

    def _in_free_memory(self, name: str) -> Timeline:
        """Execute; where the device refuses the plan's memory, plan once more for what is free."""
        try:
            return self._execute(self._members[name])
        except AllocationError as error:
            if self._replan is None:
                raise
            member = self._replan(self._members[name], error, len(self._members))
            self._members[name] = member
            self._pool.resize(name, member.plan.tile[:2])
            self._feeds[name] = self._feed(member)
            return self._execute(member)

    def _execute(self, member: Member) -> Timeline:
        feed, operands = self._feeds[member.name], self._operands
        if member.plan.problem.c.path != "resident":
            c = StoringMatrix(operands.c, lambda rect: self._shared.stored(member.name, rect))
            operands = replace(operands, c=c)

        def observe(event: Event) -> None:
            feed.observe(event)
            if self._observer is not None:
                self._observer(event)

        return run_plan(
            member.plan,
            member.device,
            operands,
            feed=feed,
            observer=observe,
            cancel=self._cancel,
            start=self._shared.start,
            checks=self._checks,
            cache=self._session.slots(member.device),
        )

    def _give_up(self, name: str, error: Exception) -> None:
        """Leave the tiles of a failed device to the others; end the run where none is left."""
        left = self._shared.fail(name)
        if not left or self._spoiled(name):
            self._end(error)
            return
        _LOG.warning("%s failed (%s); its tiles go to %s", name, str(error), ", ".join(left))

    def _spoiled(self, name: str) -> bool:
        """Say whether a device that updated C in place may have overwritten an old C."""
        problem = self._members[name].plan.problem
        in_place = problem.c.path == "resident"
        return in_place and problem.reads_c and bool(self._feeds[name].units)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None or isinstance(self._error, CancelledRunError):
                self._error = error
        self._cancel.set()

    def planned_bytes(self) -> Mapping[Stage, int]:
        """Return the bytes that each stage was to move for the tiles that were drawn."""
        plans = {name: member.plan for name, member in self._members.items()}
        return moved_bytes(plans, {name: feed.elements for name, feed in self._feeds.items()})

    def checks(self) -> CheckedTiles | None:
        """Return the result of the tile checks; None where none were asked for."""
        return None if self._checks is None else self._checks.result()

    def split(self, seconds: float, alone: Mapping[str, float]) -> SplitReport:
        """Describe which device computed which part, and how evenly the run ended."""
        plans = {name: member.plan for name, member in self._members.items()}
        return describe_split(
            plans, self._shared, self._timelines, seconds, alone=alone, regions=self._regions
        )

    def learn(self, rates: Rates, split: SplitReport, seconds: float) -> None:
        """Keep each device's measured speed for the next run like this one."""
        if split.left_out:
            rates.learn(rates.rested(list(split.left_out)))
        else:
            measured = {
                name: Learned(share.flop_rate)
                for name, share in split.shares.items()
                if share.flop_rate > 0 and not share.failed
            }
            dropped = {name: share.dropped for name, share in split.shares.items()}
            slow = {n: Learned(why.flop_rate, known=False) for n, why in dropped.items() if why}
            rates.learn({**measured, **slow})
        if len(self._members) == 1:
            [member] = self._members.values()
            learn_alone(member.name, member.plan.problem, seconds, self._options.threads)


def _drawing(member: Member, rates: Rates) -> balance.PoolMember:
    """Return how a device draws: its largest tile, the speed expected of it, its granularity."""
    plan, spec = member.plan, member.device.spec
    learned = rates.found.get(spec.name)
    flops = learned.flop_rate if learned else assumed(spec).flop_rate(plan.problem.factor_dtype)
    per_element = plan.problem.k * flops_per_multiply_add(plan.problem.dtype)
    return balance.PoolMember(
        plan.tile[:2],
        flops / per_element,
        measured=learned is not None and learned.known,
        side="bottom" if spec.name == "host" else "top",
        granularity=_granularity(plan),
    )


def _granularity(plan: Plan) -> tuple[int, int]:
    """Return the rows and columns in multiples of which a device draws.

    A part of an encoded chunk of C would be encoded twice, by two devices at once.
    """
    rows, cols, _ = plan.device.granularity
    chunk = plan.problem.c.chunk if plan.problem.c.encoded else None
    if chunk is None:
        return rows, cols
    return math.lcm(rows, chunk[0]), math.lcm(cols, chunk[1])
