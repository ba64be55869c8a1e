"""Durable computation of a product: started, resumed, or found finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.destination import Destination
from hdgemm.durable.fingerprint import sampled
from hdgemm.durable.identity import Identity
from hdgemm.durable.journal import read_journal
from hdgemm.durable.previous_run import BEGIN_AGAIN, Earlier
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.fingerprint import file_of, home_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from hdgemm.matrices.base import Operand
    from hdgemm.product.product import Product
    from hdgemm.report import Report

#: False; True for a journal beside C; or the journal's path.
Checkpointing: TypeAlias = "bool | str | os.PathLike[str]"


def run_durably(
    product: Product,
    compute: Callable[[Product, Checkpoint], Report],
    *,
    journal: Checkpointing,
    restart: bool = False,
) -> Report:
    """Compute C, or the rest of it, and publish it when it is complete.

    `compute` computes C, which is open, within a checkpoint. `journal` is True for a journal beside
    C, or its path. `restart` discards an earlier run's journal and its unfinished C.

    Raises `InputError` when an earlier run's journal belongs to another command, or is in use;
    `DamagedError` when a C that is updated in place was damaged; `MatrixIOError` when a disk is
    full or fails: finished tiles stay, and the same command resumes.
    """
    if not product.reads_product:
        raise InputError(
            "checkpoint is for products, and alpha = 0 or k = 0 leaves beta*C alone: "
            "leave checkpoint out"
        )
    if product.c is not None:
        destination = Destination.of_existing(product.c, updates=product.updates)
    else:
        destination = Destination.aside(product.target, product.shape, product.c_dtype, product.old)
    path = destination.journal_at(journal)
    if path.resolve() == destination.path.resolve():
        raise InputError(f"the checkpoint {path} is C itself: choose another name for it")
    identity = Identity.of(
        product.alpha, product.beta, product.dtype.name, product.inputs(), destination.target()
    )
    with Checkpoint(identity, destination, path, restart=restart) as checkpoint:
        if checkpoint.finished:
            return checkpoint.report()
        report = compute(product.stored_in(checkpoint.c), checkpoint)
        _check_samples(identity, product)
        checkpoint.finish()
    return report


def _check_samples(identity: Identity, product: Product) -> None:
    """Compare samples of the inputs in files with those taken at the start.

    Content may have changed (`MatrixIOError`) where size and time of modification have not.
    """
    for letter, operand in product.inputs().items():
        home = home_of(operand.matrix)
        if home is None or sampled(operand)["content"] == identity.inputs[letter]["content"]:
            continue
        raise MatrixIOError(
            f"{letter} ({home}) has another content than at the start of the run, so that C may "
            f"mix elements of both versions: {BEGIN_AGAIN}",
            path=str(home),
            offset=0,
            length=0,
        )


def check_whole(c: Operand) -> None:
    """Refuse to overwrite a matrix that a durable run has updated in part: `InputError`."""
    path = file_of(c.matrix)
    if path is None:
        return
    journal = Destination.of_existing(c, updates=True).journal()
    if not journal.exists():
        return
    records, _ = read_journal(journal)
    if not records or any(record.get("finished") for record in records):
        return
    factor = records[0].get("factor")
    if factor is None:
        earlier = Earlier.read(journal, records)
        updates = earlier is not None and earlier.updates
    else:
        updates = factor["identity"]["target"]["updates"]
    if updates:
        raise InputError(
            f"{path} is half updated by the run of {journal}: finish it with the same command "
            "and checkpoint, or restore the file and remove the journal"
        )
