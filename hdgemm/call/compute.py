"""Computes a checked product and publishes C when it is complete."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hdgemm.call.run import OpenRun
from hdgemm.durable.run import check_whole
from hdgemm.errors import CancelledRunError, HdgemmError, InputError
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.stores import create_matrix
from hdgemm.matrices.tile_function import is_tile_function
from hdgemm.progress import Progress
from hdgemm.run.checkpoint import run_durably
from hdgemm.run.engine import run_product
from hdgemm.run.session import session_for
from hdgemm.verify import MEMORY
from hdgemm.verify.check import conclude
from hdgemm.verify.freivalds import Check, CheckSettings

if TYPE_CHECKING:
    import threading

    from hdgemm.call.keywords import Call
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Plan
    from hdgemm.product.product import Product
    from hdgemm.progress import Callbacks
    from hdgemm.report import Report
    from hdgemm.run.checkpoint import ProductCheckpoint


def compute(product: Product, call: Call, *, plan: Plan | None = None) -> Report:
    """Compute C; a file appears under its name only when it is complete (and verified).

    `plan` is as in `hdgemm.execute`. A product that fails the check of `Options.verify` raises
    `HdgemmError`.
    """
    if call.callbacks.cancelled:
        raise CancelledRunError("the run was cancelled before it began; nothing was written")
    with session_for(call.session, call.options) as (session, options):
        if options.checks_product and call.checkpoint and product.updates:
            raise InputError(
                "verify needs the old C, which a run that goes on later finds overwritten: write "
                "the result elsewhere (out=...), or choose verify='tiles' or False"
            )
        if is_tile_function(product.target) and (options.checks_product or call.checkpoint):
            raise InputError(
                "out is a function, which keeps no C: a checkpoint needs a file, and "
                "verify='tiles' checks each tile before the function gets it"
            )
        run = partial(_verified, run=OpenRun(options, session, call.callbacks), plan=plan)
        if call.checkpoint:
            return run_durably(product, run, checkpoint=call.checkpoint, restart=call.restart)
        if product.c is not None:
            check_whole(product.c)
            return run(product)
        with create_matrix(product.target, product.shape, product.c_dtype) as draft:
            report = run(product.stored_in(draft.operand))
            draft.publish()
        return report


def _verified(
    product: Product,
    checkpoint: ProductCheckpoint | None = None,
    *,
    run: OpenRun,
    plan: Plan | None,
) -> Report:
    """Compute C, then check it where the options ask for that."""
    options, session, callbacks = run
    check = _prepare_check(product, options, callbacks.cancel) if options.checks_product else None
    with unchanged(product.inputs(), product.destination.matrix):
        report = run_product(product, options, session, callbacks, plan=plan, checkpoint=checkpoint)
    return report if check is None else with_verification(report, check, callbacks)


def with_verification(report: Report, check: Check, callbacks: Callbacks) -> Report:
    """Check the product; return the report with the outcome, or raise where it failed."""
    if callbacks.progress is not None:
        multiplied = report.stages.get("mult1")
        steps = 0 if multiplied is None else multiplied.operations
        callbacks.progress(
            Progress(
                100.0,
                report.gflops,
                report.seconds,
                None,
                report.limit,
                steps,
                steps,
                phase="verifying",
            )
        )
    began = time.perf_counter()
    verified = conclude(check)
    if not verified.passed:
        raise HdgemmError(f"the product failed its check: {verified}", check=verified)
    phases = {**report.phases, "verifying": time.perf_counter() - began}
    return replace(report, verification=verified.to_dict(), phases=phases)


def _prepare_check(product: Product, options: Options, cancel: threading.Event | None) -> Check:
    """Prepare the check of a product; one that is updated in place is read now, before the run."""
    settings = CheckSettings(memory=min(options.host_bytes or MEMORY, MEMORY), cancel=cancel)
    check = Check(product, product.destination, settings)
    if product.updates:
        check.remember_old()
    return check
