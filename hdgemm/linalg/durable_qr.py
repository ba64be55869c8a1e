"""Durable QR factorisations with R, and with Q, in files of their own.

The reflectors are factored durably into a file beside the result, R is copied from it in one pass,
and Q is formed in its own file, slab by slab. The file of reflectors is removed at the end.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.joint_plan import facts_of
from hdgemm.linalg.operands import open_matrix
from hdgemm.linalg.portions import Portions
from hdgemm.linalg.q_product import QProduct
from hdgemm.linalg.recorder import Recorder, report_done
from hdgemm.linalg.slab_journal import Command
from hdgemm.linalg.slab_plan import SlabPlan
from hdgemm.linalg.stored_factors import QRFactors, reserve_beside, save_factors
from hdgemm.matrices.draft import require_space
from hdgemm.matrices.location import parse_location
from hdgemm.product.target import is_location, result_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.linalg.checkpoint import SlabCheckpoint
    from hdgemm.linalg.householder import Reflectors
    from hdgemm.linalg.qr_run import QrRun
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix


class DurableQr:
    """One durable factorisation with R.

    Parameters
    ----------
    command
        The checkpoint that the call asks for.
    """

    def __init__(self, run: QrRun, command: Command) -> None:
        self._run, self._command, self._watch = run, command, run.how.watch

    def run(self, q_out: Any, r_out: Any, mode: str) -> tuple[Any, ...]:
        """Return what `qr` returns in a mode."""
        if not is_location(r_out) or (mode != "r" and not is_location(q_out)):
            raise InputError("checkpoint needs results in files: give locations of Q and R in out")
        if mode == "r":
            return (self._r(r_out),)
        if mode == "raw":
            return self._raw_and_r(q_out, r_out)
        return self._q_and_r(q_out, r_out, full=mode == "full")

    def _named(self, mode: str) -> Command:
        given = self._command
        return Command("qr", {"mode": mode}, given.checkpoint, given.restart)

    def _raw_and_r(self, q_out: Any, r_out: Any) -> tuple[QRFactors, Any]:
        """Store the reflectors durably, and then R, which is copied again after a crash."""
        run = self._run
        with ExitStack() as stack:
            target = run.place(stack, q_out, run.source.shape, command=self._named("raw"))
            reserve_beside(target, "tau", run.source, run.dtype.itemsize)
            self._require_space(r_out, run.k)
            reflectors = run.factor_alone(target)
            r = run.place_r(stack, r_out, run.k, target)
            copy_r(run, target.stored, r.stored, reflectors.plan)
            save_factors(target, "qr", {"tau": reflectors.tau})
        return QRFactors(target.result(), reflectors.tau), r.result()

    def _r(self, r_out: Any) -> Any:
        run = self._run
        with ExitStack() as stack:
            shape = (run.k, run.source.shape[1])
            r = run.place(stack, r_out, shape, command=self._named("r"))
            done = checkpoint_of(r)
            if done.finished:
                report_done(self._watch, done)
            else:
                reflectors, recorder = self.reflectors(done), Recorder(self._watch, 0)
                plan = done.plan
                if not isinstance(plan, SlabPlan):
                    plan = SlabPlan("copy", run.k, run.source.shape[1], run.dtype.name,
                                    reflectors.plan.slabs, reflectors.plan.block, 1,
                                    reflectors.plan.bytes_held,
                                    devices=reflectors.plan.devices)  # fmt: skip
                done.begin(plan, run.how.options)
                for number in range(done.done(0), len(plan.slabs)):
                    place = plan.slabs[number]
                    recorder.check_cancel()
                    part = _upper(reflectors.stored, plan.m, place.first, place.last)
                    done.store(0, number, place, part, {})
        return r.result()

    def _q_and_r(self, q_out: Any, r_out: Any, *, full: bool) -> tuple[Any, Any]:
        run, m = self._run, self._run.source.shape[0]
        columns = m if full else run.k
        with ExitStack() as stack:
            q = run.place(stack, q_out, (m, columns), command=self._named("full" if full else "q"))
            r = self.multiply(QProduct(q), r_out, columns)
        return q.result(), r

    def multiply(self, product: QProduct, r_out: Any, rows: int) -> Any:
        """Factor, store R, and compute the slabs of a product that are left; return R.

        R has its name before the product is finished: a finished product says that all is.
        """
        run, done = self._run, checkpoint_of(product.target)
        if done.finished:
            report_done(self._watch, done)
            return result_at(r_out)
        factoring = SlabPlan.of_array("qr", *run.source.shape, run.dtype.name).flops
        multiplying = product.flops(run)
        portions = Portions(self._watch, factoring + multiplying)
        run.how = run.how._replace(watch=portions.next(factoring))
        reflectors = self.reflectors(done, partial(self._require_space, r_out, rows))
        with ExitStack() as stack:
            r = run.place_r(stack, r_out, rows, product.target)
            product.check_overlaps(r)
            copy_r(run, reflectors.stored, r.stored, reflectors.plan)
        plan = done.plan if isinstance(done.plan, SlabPlan) else product.plan(run, reflectors)
        done.begin(plan, run.how.options)
        start = done.done(0)
        recorder = Recorder(portions.next(multiplying), plan.flops, devices=plan.devices)
        product.apply(run, reflectors, plan, recorder)
        recorder.finish(plan, product.moved(plan, start), done.resumption)
        kind = "qr" if product.c is None else "qr multiply"
        portions.finish(facts_of(kind, run.source.shape, run.dtype.name, run.how.options))
        return r.result()

    def _require_space(self, r_out: Any, rows: int) -> None:
        """Raise where R, which is stored after the factorisation, will not fit its disk."""
        place = parse_location(r_out)
        if not place.url:
            row_bytes = self._run.source.shape[1] * self._run.dtype.itemsize
            require_space(place.path, rows * row_bytes)

    def reflectors(
        self, done: SlabCheckpoint, check: Callable[[], None] | None = None
    ) -> Reflectors:
        """Return the reflectors, which lie in a file beside the result until its end.

        `check` is called when their space is reserved, before they are computed.
        """
        run = self._run
        path = done.destination.work(".qr.npy")
        with ExitStack() as stack:
            target = run.place(stack, path, run.source.shape, command=Command("qr", {}, True))
            if check is not None:
                check()
            reflectors = run.factor_alone(target)
        reflectors.stored = open_matrix(path)
        return reflectors


def checkpoint_of(target: Destination) -> SlabCheckpoint:
    """Return the durable run that stores a result."""
    if target.checkpoint is None:
        raise InputError("the result is not durable")
    return target.checkpoint


def copy_r(run: QrRun, v: StoredMatrix, r: StoredMatrix, plan: SlabPlan) -> None:
    """Store R, which lies on and above the diagonal of the reflectors, slab by slab."""
    recorder = Recorder(run.how.watch, 0)
    for first, last, _ in plan.slabs:
        recorder.check_cancel()
        r[:, first:last] = _upper(v, r.shape[0], first, last)


def _upper(v: StoredMatrix, rows: int, first: int, last: int) -> Any:
    """Return some columns of R from the matrix that has the reflectors below it."""
    part = np.zeros((rows, last - first), v.dtype.newbyteorder("="), "F")
    top = min(rows, last, v.shape[0])
    v[:top, first:last].read(part[:top])
    for column in range(last - first):
        part[first + column + 1 :, column] = 0
    return part
