"""Several pipelines on one product: started together, balanced by the pool, ended together."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from hdgemm.errors import CancelledRunError, DeviceError, DoesNotFitError
from hdgemm.machine.peak_memory import PeakMemory
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.pipeline.executor import run_feed
from hdgemm.pipeline.worker import Worker, run_all
from hdgemm.planning.abft_memory import tally_for
from hdgemm.planning.drawn_units import Increment
from hdgemm.report import build_report
from hdgemm.run.accounting import describe_split, merge_timelines, moved_bytes
from hdgemm.run.balance import Pool
from hdgemm.run.fixed_split import fixed_regions
from hdgemm.run.learned_rates import Learned, learn_alone, load_rates
from hdgemm.run.members import seat_devices
from hdgemm.run.shared_pool import PoolFeed, SharedPool, StoringMatrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Event, Observer, Timeline
    from hdgemm.product.product import Multiplication
    from hdgemm.report import Report
    from hdgemm.run.learned_rates import Rates
    from hdgemm.run.members import Seat
    from hdgemm.run.split_report import SplitReport


def run_on_devices(
    product: Multiplication,
    names: Sequence[str],
    options: Options,
    *,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Report:
    """Compute a product on several devices at once; C must be row-major.

    A device that fails in the middle is left out with a warning, and the others take its tiles.

    Parameters
    ----------
    names
        Devices by name, each once.
    observer
        Called with the events of all devices.

    Raises
    ------
    DeviceError
        When the last device has failed.
    HdgemmError
        The first error that is not a device's own: a matrix that cannot be read, a cancel.
    """
    with ExitStack() as stack:
        if options.threads is not None:
            stack.enter_context(threadpool_limits(options.threads, user_api="blas"))
        devices = []
        for name in names:
            devices.append(open_device(name, options.device_bytes))
            stack.callback(devices[-1].close)
        spelled = [device.spec.name for device in devices]
        rates = load_rates(spelled, product.problem(devices[0].spec), options.threads)
        left_out = rates.left_out(spelled) if options.split is None else {}
        devices = [device for device in devices if device.spec.name not in left_out]
        seats = seat_devices(product, devices, options, rates)
        peak = stack.enter_context(PeakMemory())
        run = _Run(product, seats, options, observer, cancel)
        timelines = run.go()
        product.c.matrix.flush()
        seconds = time.perf_counter() - run.shared.start
    split = describe_split(
        seats, run.shared, timelines, seconds, alone=rates.alone, regions=run.regions
    )
    split = replace(split, left_out=left_out)
    if options.split is None:
        _learn(rates, split, seats, seconds, options)
    report = build_report(
        seats[0].plan,
        merge_timelines(timelines, seconds),
        planned_bytes=moved_bytes(seats, {name: feed.batches for name, feed in run.feeds.items()}),
        peak_memory_bytes=peak.nbytes,
        devices=tuple(seat.name for seat in seats),
    )
    # Each device has its part of the limit; the report is about the whole run.
    allowed = {"host_limit": sum(seat.plan.host_limit for seat in seats)}
    checks = None if run.tally is None else run.tally.result()
    return replace(report, plan={**report.plan, **allowed}, split=split, checks=checks)


def _learn(
    rates: Rates, split: SplitReport, seats: Sequence[Seat], seconds: float, options: Options
) -> None:
    """Keep each device's speed for the next run like this one."""
    if split.left_out:
        rates.learn(rates.rested(list(split.left_out)))
    else:
        measured = {
            name: Learned(share.flop_rate)
            for name, share in split.shares.items()
            if share.flop_rate > 0 and not share.failed
        }
        dropped = {name: share.dropped for name, share in split.shares.items()}
        slow = {name: Learned(why.flop_rate, known=False) for name, why in dropped.items() if why}
        rates.learn({**measured, **slow})
    if len(seats) == 1:
        learn_alone(seats[0].name, seats[0].plan.problem, seconds, options.threads)


class _Run:
    """The threads of one run, and the error that ends it."""

    def __init__(
        self,
        product: Multiplication,
        seats: list[Seat],
        options: Options,
        observer: Observer | None,
        cancel: threading.Event | None,
    ) -> None:
        m, n, _ = product.extents
        self.regions = fixed_regions(m, n, options.split, seats)
        self.shared = SharedPool(
            Pool(m, n, {seat.name: seat.member for seat in seats}, self.regions)
        )
        self.feeds = {
            seat.name: PoolFeed(
                self.shared, seat.name, Increment(seat.plan),
                in_place=seat.plan.problem.c.path == "resident",
            )
            for seat in seats
        }  # fmt: skip
        tallies = [tally_for(options, seat.plan) for seat in seats]
        #: Of all devices; the scratch of the one with the least room does for each.
        self.tally = min(
            (tally for tally in tallies if tally),
            key=lambda tally: tally.scratch_bytes,
            default=None,
        )
        self._product = product
        self._seats = seats
        self._observer = observer
        self._caller = cancel
        self._cancel = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._timelines: dict[str, Timeline] = {}

    def go(self) -> dict[str, Timeline]:
        """Run all devices to the end; return the timelines of those that lasted."""
        workers = [Worker(partial(self._one, seat), f"hdgemm-{seat.name}") for seat in self._seats]
        run_all(workers, look=self._pass_on_cancel, interval=0.05, stop=self._end)
        if self._error is not None:
            raise self._error
        return self._timelines

    def _pass_on_cancel(self) -> None:
        if self._caller is not None and self._caller.is_set():
            self._cancel.set()

    def _one(self, seat: Seat) -> None:
        try:
            timeline = self._execute(seat)
        except (DeviceError, DoesNotFitError) as error:
            self._give_up(seat, error)
        except BaseException as error:  # noqa: BLE001  (reaches the caller from go)
            self._end(error)
        else:
            with self._lock:
                self._timelines[seat.name] = timeline

    def _execute(self, seat: Seat) -> Timeline:
        feed, product = self.feeds[seat.name], self._product
        operands = product.operands()
        if seat.plan.problem.c.path != "resident":
            c = StoringMatrix(operands.c, lambda rect: self.shared.stored(seat.name, rect))
            operands = replace(operands, c=c)

        def observe(event: Event) -> None:
            feed.observe(event)
            if self._observer is not None:
                self._observer(event)

        return run_feed(
            seat.plan, feed, seat.device, operands,
            alpha=product.alpha, beta=product.beta, observer=observe, cancel=self._cancel,
            start=self.shared.start, tally=self.tally,
        )  # fmt: skip

    def _give_up(self, seat: Seat, error: Exception) -> None:
        """Let the others take over, if there are any left."""
        left = self.shared.fail(seat.name)
        if not left or self._spoiled(seat):
            self._end(error)
            return
        warnings.warn(
            f"{seat.name} failed ({error}); its tiles go to {', '.join(left)}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _spoiled(self, seat: Seat) -> bool:
        """Say whether a device that used C in place may have lost the old C that beta needs."""
        in_place = seat.plan.problem.c.path == "resident"
        return in_place and seat.plan.problem.reads_c and bool(self.feeds[seat.name].batches)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None or isinstance(self._error, CancelledRunError):
                self._error = error
        self._cancel.set()
        self.shared.wake()
