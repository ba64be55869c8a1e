"""The durable run of a cluster: C, and the journal to which the client appends receipts.

The draft of C is made before any worker starts, and published by the client when every block of it
is durable; see `hdgemm.durable.checkpoint` for the order of what becomes durable.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.cluster.references import Reference, StoreReference
from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.identity import Identity
from hdgemm.durable.pieces import damaged, overlap
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stores import create_matrix
from hdgemm.run.checkpoint import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from hdgemm.cluster.receipts import Receipt
    from hdgemm.durable.place import Checkpointing
    from hdgemm.matrices.base import Operand
    from hdgemm.matrices.draft import Draft
    from hdgemm.matrices.location import Location
    from hdgemm.pipeline.tiles import Rect
    from hdgemm.product.product import Product


class ClusterCheckpoint(Checkpoint):
    """A durable run whose pieces of C are computed by the workers of a cluster.

    Attributes
    ----------
    triangle
        ``"lower"`` or ``"upper"`` where one triangle of C is computed; else None.
    resumed
        Another client began the run, or may have begun the one that is forgotten.
    """

    def __init__(
        self,
        identity: Identity,
        place: ResultPlace,
        checkpoint: Checkpointing,
        *,
        restart: bool = False,
        triangle: str | None = None,
    ) -> None:
        if checkpoint is False:
            raise InputError("a run on a cluster always keeps a journal: leave checkpoint out")
        self.triangle = triangle
        super().__init__(identity, place, checkpoint, restart=restart)
        self.resumed = restart or self.earlier is not None
        self._kept = self._parts = len(self.pieces.standing())

    def begin_blocks(self) -> list[Rect]:
        """Prepare the journal; return the pieces of C that an earlier run has finished."""
        self._begin(None)
        return sorted(self.pieces.standing())

    def record_blocks(self, receipts: Sequence[Receipt]) -> None:
        """Append receipts to the journal; return when they are durable."""
        self.record([receipt.entry() for receipt in receipts])
        self._parts += sum(len(receipt.pieces) for receipt in receipts)

    def take_damaged(self, blocks: Sequence[Rect]) -> list[Rect]:
        """Read the pieces in these blocks again; return those that have changed since they were
        recorded, which are no longer finished.
        """
        pieces = {
            rect: crc
            for rect, crc in self.pieces.standing().items()
            if any(overlap(rect, block) for block in blocks)
        }
        with ExitStack() as stack:
            # Opened anew: NFS then shows all that other machines have stored.
            found = damaged(self.reference(self.output).open(stack).matrix, pieces)
        self.forget(found)
        return found

    def forget(self, pieces: Sequence[Rect]) -> None:
        """Note that pieces must be computed again: they have changed, or depend on changed ones."""
        self.undo(pieces)
        self._parts -= len(pieces)
        self._kept = min(self._kept, self._parts)

    @property
    def stored_lower(self) -> bool | None:
        """The triangle that is computed, in C as it is stored, row-major; None for all of C."""
        if self.triangle is None:
            return None
        return (self.triangle == "lower") != self.output.trans

    def reference(self, c: Operand) -> Reference:
        """Refer to C, or to its transpose; it may be an array that readers do not find yet."""
        where = self.place.where
        if not where.url or self.place.in_place is not None:
            return Reference.of(c, "out")
        return Reference(StoreReference(where, (0, 0), c.matrix.shape, c.matrix.dtype.str), c.trans)


class ObjectPlace(ResultPlace):
    """A new array in an object store: its chunks in their places, its metadata written last.

    A chunk that the store has taken is durable. The journal lies in the client's working directory.
    """

    def journal(self) -> Path:
        """Return the name of its journal: the array's name with its bucket."""
        name = re.sub(r"\W+", ".", str(self.where)).strip(".")[-200:]
        return Path.cwd() / f".{name}.hdgemm-journal"

    @contextmanager
    def locked(self, journal: Path) -> Iterator[None]:  # noqa: ARG002 - a store has no locks
        """Hold no lock."""
        yield

    def part(self, journal: Path) -> Path:  # noqa: ARG002 - there is none aside
        """Return its own name: nothing is written aside."""
        return self.path

    def create(self, journal: Path) -> Draft[Any]:
        """Begin the array; it has no metadata yet."""
        return create_matrix(self.where, self.shape, self.dtype, journal, self.order)

    def reopen(self, journal: Path) -> Draft[Any] | None:
        """Go on with the chunks that are there; None where the array was published."""
        return None if self.finished() is not None else self.create(journal)

    def remove(self, journal: Path) -> None:
        """Remove the chunks of an array that was not published."""
        if self.finished() is None:
            self.create(journal).discard()

    def clean(self, journal: Path) -> None:
        """Do nothing: nothing was replaced."""

    def finished(self) -> Operand | None:
        """Open the array; None when it was not published."""
        try:
            return open_operand(self.where, what="c")
        except InputError:
            return None


def open_checkpoint(
    product: Product,
    checkpoint: Checkpointing,
    *,
    restart: bool = False,
    triangle: str | None = None,
) -> ClusterCheckpoint:
    """Open the durable run of a product, or the one that an earlier client left.

    Parameters
    ----------
    checkpoint
        True for a journal beside C, or its path.
    triangle
        ``"lower"`` or ``"upper"`` where one triangle of C is computed; None for all of C.

    Raises
    ------
    InputError
        When C cannot be made durable, is read and overwritten in place, or another client holds
        the journal.
    """
    if product.updates:
        raise InputError(
            "a cluster cannot update C in place: a block whose worker dies is computed again, and "
            "its old values would be gone. Give out as a path; it may be the path of c"
        )
    if product.c is not None:
        place = ResultPlace.of_existing(product.c, updates=False)
    else:
        place = _new(product.target, product.shape, product.c_dtype)
    identity = identity_of(product, place)
    if triangle is not None:
        arguments = {**identity.arguments, "triangle": triangle}
        identity = replace(identity, routine="syrk", arguments=arguments)
    return ClusterCheckpoint(identity, place, checkpoint, restart=restart, triangle=triangle)


def open_factor(
    a: Operand,
    out: Location,
    dtype: np.dtype[Any],
    arguments: Mapping[str, Any],
    checkpoint: Checkpointing,
    *,
    restart: bool,
) -> ClusterCheckpoint:
    """Open the durable run of a Cholesky factorisation, or the one that an earlier client left.

    `arguments` are those that decide the result, as plain values.
    """
    place = _new(out, a.shape, dtype)
    identity = Identity.of("cluster.cholesky", arguments, {"A": a}, place)
    triangle = "lower" if arguments["lower"] else "upper"
    return ClusterCheckpoint(identity, place, checkpoint, restart=restart, triangle=triangle)


def _new(where: Location, shape: tuple[int, int], dtype: np.dtype[Any]) -> ResultPlace:
    if where.url:
        return ObjectPlace(where, shape, dtype)
    return ResultPlace.aside(where, shape, dtype)
