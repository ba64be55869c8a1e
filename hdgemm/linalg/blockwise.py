"""Products that are computed block by block: rectangles of operands, one session, one progress."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hdgemm.durable.run import check_whole
from hdgemm.errors import InputError
from hdgemm.machine.limits import thread_limit
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.stores import create_matrix
from hdgemm.progress import Watch
from hdgemm.run.engine import run_product
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Event, Observer
    from hdgemm.product.product import Product
    from hdgemm.progress import Progress, ProgressCallback
    from hdgemm.run.session import Session


@contextmanager
def opened(
    product: Product, options: Any, session: Session | None, name: str
) -> Iterator[tuple[Product, Session, Options]]:
    """Yield a product with C open, a session and its options; publish a new C on leaving.

    Raises
    ------
    InputError
        When the options ask for a check of the result, which the routine `name` does not have.
    """
    with thread_limit(), session_for(session, options) as (held, chosen):
        if chosen.verify:
            raise InputError(
                f"{name} has no check of its result, but verify is {chosen.verify!r}: choose "
                "verify=False"
            )
        if product.c is not None:
            check_whole(product.c)
            with held.running(chosen), unchanged(product.inputs(), product.c.matrix):
                yield product, held, chosen
            return
        with create_matrix(product.target, product.shape, product.dtype) as draft:
            stored = product.stored_in(draft.operand)
            with held.running(chosen), unchanged(stored.inputs(), draft.operand.matrix):
                yield stored, held, chosen
            draft.publish()


def run_blocks(blocks: list[Product], options: Options, session: Session, watch: Watch) -> None:
    """Compute products one after the other, with the progress of one run."""
    parts = Portions(watch, sum(block.flops for block in blocks))
    for block in blocks:
        run_product(block, options, session, parts.next(block.flops))


def rectangle(operand: Operand, rows: slice, cols: slice) -> Operand:
    """Return a rectangle of op(X) as an operand; no data is copied."""
    height, width = operand.shape
    (top, bottom, _), (left, right, _) = rows.indices(height), cols.indices(width)
    if operand.trans:
        part = operand.matrix.part(left, top, (right - left, bottom - top))
    else:
        part = operand.matrix.part(top, left, (bottom - top, right - left))
    return replace(operand, matrix=part)


def block_of(product: Product, rows: slice, cols: slice) -> Product:
    """Return the product that computes a rectangle of C."""
    c = rectangle(product.destination, rows, cols)
    old = product.old
    if old is not None:
        old = c if product.updates else rectangle(old, rows, cols)
    every = slice(None)
    return replace(product, a=rectangle(product.a, rows, every),
                   b=rectangle(product.b, every, cols), c=c, old=old)  # fmt: skip


class Portions:
    """Progress and events of several runs in turn, as those of one run.

    Parameters
    ----------
    watch
        Told of the whole.
    flops
        Floating-point operations of all runs together.
    """

    def __init__(self, watch: Watch, flops: int) -> None:
        self._watch = watch
        self._flops = max(1, flops)
        self._done = 0
        self._began = time.perf_counter()

    def next(self, flops: int) -> Watch:
        """Return what the next run, of so many operations, reports to."""
        progress, observer, cancel = self._watch.progress, self._watch.observer, self._watch.cancel
        first, share = self._done / self._flops, flops / self._flops
        self._done += flops
        return Watch(
            None if progress is None else partial(self._show, progress, first, share),
            None if observer is None else partial(_shift, observer, self._elapsed()),
            cancel,
        )

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _show(self, show: ProgressCallback, first: float, share: float, found: Progress) -> None:
        part, elapsed = min(1.0, first + share * found.percent / 100), self._elapsed()
        eta = elapsed * (1 - part) / part if part > 0 else None
        show(replace(found, percent=100 * part, elapsed=elapsed, eta=eta))


def _shift(observer: Observer, seconds: float, event: Event) -> None:
    observer(event._replace(start=event.start + seconds, end=event.end + seconds))
