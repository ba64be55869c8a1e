"""Products that are computed block by block: rectangles of operands, one session, one progress."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdgemm.call.plans import facts_of
from hdgemm.durable.run import check_whole
from hdgemm.errors import InputError
from hdgemm.machine.limits import thread_limit
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.stores import create_matrix
from hdgemm.run.engine import run_product
from hdgemm.run.session import session_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.call.run_sequence import RunSequence
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.product.product import Product
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


def run_blocks(
    blocks: list[Product], options: Options, session: Session, portions: RunSequence
) -> None:
    """Compute products one after the other."""
    for block in blocks:
        portions.add(run_product(block, options, session, portions.next(block.flops)))


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


def product_summary(kind: str, product: Product, options: Options) -> dict[str, Any]:
    """Return shape and dtype of a product as plain values, for reports."""
    return facts_of(kind, product.shape, product.dtype.name, options) | {"k": product.k}
