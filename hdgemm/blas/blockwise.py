"""Products that are computed block by block: rectangles of operands, one session, one progress."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdgemm.call.plans import facts_of
from hdgemm.call.run import OpenRun
from hdgemm.durable.run import check_whole
from hdgemm.errors import InputError
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.stores import create_matrix
from hdgemm.run.engine import run_product
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hdgemm.call.keywords import Call
    from hdgemm.call.run_sequence import RunSequence
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.pipeline.plans import Plans
    from hdgemm.product.product import Product


@contextmanager
def opened(product: Product, call: Call, name: str) -> Iterator[tuple[Product, OpenRun]]:
    """Yield a product with C open, and its call; publish a new C on leaving.

    Raises
    ------
    InputError
        When the options ask for a check of the result, which the routine `name` does not have.
    """
    with opened_session(call, name) as run, opened_result(product, run) as stored:
        yield stored, run


@contextmanager
def opened_session(call: Call, name: str) -> Iterator[OpenRun]:
    """Yield a call with its session open; raises what `opened` raises."""
    with session_for(call.session, call.options) as (session, options):
        if options.verify:
            raise InputError(
                f"{name} has no check of its result, but verify is {options.verify!r}: choose "
                "verify=False"
            )
        yield OpenRun(options, session, call.callbacks)


@contextmanager
def opened_result(product: Product, run: OpenRun) -> Iterator[Product]:
    """Yield a product with C open; publish a new C on leaving."""
    if product.c is not None:
        check_whole(product.c)
        with run.session.running(run.options), unchanged(product.inputs(), product.c.matrix):
            yield product
        return
    with create_matrix(product.target, product.shape, product.dtype) as draft:
        stored = product.stored_in(draft.operand)
        with run.session.running(run.options), unchanged(stored.inputs(), draft.operand.matrix):
            yield stored
        draft.publish()


def run_blocks(
    blocks: Iterable[Product], run: OpenRun, portions: RunSequence, plans: Plans | None = None
) -> None:
    """Compute products one after the other.

    Parameters
    ----------
    plans
        Plans of every one that were made before; plans for several devices are made again.
    """
    plan = plans[0] if plans is not None and len(plans) == 1 else None
    for block in blocks:
        callbacks = portions.next(block.flops)
        portions.add(run_product(block, run.options, run.session, callbacks, plan=plan))


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
    return replace(
        product,
        a=rectangle(product.a, rows, every),
        b=rectangle(product.b, every, cols),
        c=c,
        old=old,
    )


def product_summary(kind: str, product: Product, options: Options) -> dict[str, Any]:
    """Return shape and dtype of a product as plain values, for reports."""
    return facts_of(kind, product.shape, product.dtype.name, options) | {"k": product.k}
