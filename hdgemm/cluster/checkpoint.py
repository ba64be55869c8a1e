"""The durable run of a cluster: C, and the journal to which the client appends receipts.

The draft of C is made before any worker starts, and published by the client when every block of it
is durable; see `hdgemm.durable.checkpoint` for the order of what becomes durable.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.cluster.references import Reference, StoreReference
from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.destination import Destination
from hdgemm.durable.identity import Identity
from hdgemm.durable.pieces import damaged, overlap
from hdgemm.errors import InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stores import create_matrix
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from hdgemm.cluster.receipts import Receipt
    from hdgemm.durable.run import Checkpointing
    from hdgemm.matrices.base import Operand
    from hdgemm.matrices.draft import Draft
    from hdgemm.matrices.location import Location
    from hdgemm.pipeline.plan import Rect
    from hdgemm.product.product import Product


class ClusterCheckpoint(Checkpoint):
    """A durable run whose pieces of C are computed by the workers of a cluster.

    Attributes
    ----------
    triangle
        ``"lower"`` or ``"upper"`` where one triangle of C is computed; else None.
    """

    def __init__(
        self,
        identity: Identity,
        destination: Destination,
        journal: Path,
        *,
        restart: bool = False,
        triangle: str | None = None,
    ) -> None:
        self.triangle = triangle
        self._restarted = restart
        super().__init__(identity, destination, journal, restart=restart)

    def begin_blocks(self) -> list[Rect]:
        """Prepare the journal; return the pieces of C that an earlier run has finished."""
        self._start(())
        self._note_undone(self.changed)
        self._kept = self._tiles = len(self._done)
        return sorted(self._done)

    def record(self, receipts: Sequence[Receipt]) -> None:
        """Append receipts to the journal; return when they are durable."""
        self._journal.append([record for receipt in receipts for record in receipt.records()])
        self._done |= {rect: crc for receipt in receipts for rect, crc in receipt.pieces}
        self._tiles += sum(len(receipt.pieces) for receipt in receipts)

    def take_damaged(self, blocks: Sequence[Rect]) -> list[Rect]:
        """Read the pieces in these blocks again; return those that have changed since they were
        recorded, which are no longer finished.
        """
        pieces = {
            rect: crc
            for rect, crc in self._done.items()
            if any(overlap(rect, block) for block in blocks)
        }
        with ExitStack() as stack:
            # Opened anew: NFS then shows all that other machines have stored.
            found = damaged(self.reference(self.c).open(stack).matrix, pieces)
        self.undo(found)
        return found

    def undo(self, pieces: Sequence[Rect]) -> None:
        """Note that pieces must be computed again: their checksums no longer hold."""
        self._note_undone(pieces)
        for rect in pieces:
            del self._done[rect]
        self._tiles -= len(pieces)
        self._kept = min(self._kept, self._tiles)

    def _note_undone(self, pieces: Sequence[Rect]) -> None:
        self._journal.append([{"undone": [list(rect) for rect in pieces]}] if pieces else [])

    @property
    def changed(self) -> list[Rect]:
        """Pieces that an earlier run had finished and that have changed since."""
        return (
            [] if self._earlier is None else sorted(self._earlier.done.keys() - self._done.keys())
        )

    @property
    def resumption(self) -> Resumption:
        """How much of an earlier run this run found finished."""
        if self._earlier is None or self._earlier.finished is None:
            return super().resumption
        pieces = len(self._earlier.done)
        return Resumption(str(self.path), pieces, pieces, finished=True)

    @property
    def run(self) -> str:
        """The run's name, in the journal's first record."""
        return str(self._journal.records[0]["begin"]["run"])

    @property
    def stored_lower(self) -> bool | None:
        """The triangle that is computed, in C as it is stored, row-major; None for all of C."""
        if self.triangle is None:
            return None
        return (self.triangle == "lower") != self.c.trans

    def reference(self, c: Operand) -> Reference:
        """Refer to C, or to its transpose; it may be an array that readers do not find yet."""
        where = self._destination.where
        if not where.url or self._destination.in_place is not None:
            return Reference.of(c, "out")
        return Reference(StoreReference(where, (0, 0), c.matrix.shape, c.matrix.dtype.str), c.trans)

    @property
    def resumed(self) -> bool:
        """Whether another client began the run, or may have begun the one that is forgotten."""
        return self._earlier is not None or self._restarted

    @property
    def path(self) -> Path:
        """The journal's path."""
        return self._journal.path


class ObjectDestination(Destination):
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

    def create(self, journal: Path, order: str = "C", *, sparse: bool = False) -> Draft[Any]:  # noqa: ARG002
        """Begin the array; it has no metadata yet."""
        return create_matrix(self.where, self.shape, self.dtype, journal, order)

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
    journal: Checkpointing,
    *,
    restart: bool = False,
    triangle: str | None = None,
) -> ClusterCheckpoint:
    """Open the durable run of a product, or the one that an earlier client left.

    Parameters
    ----------
    journal
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
        destination = Destination.of_existing(product.c, updates=False)
    else:
        destination = _new(product.target, product.shape, product.dtype, product.old)
    target = destination.target() | ({} if triangle is None else {"triangle": triangle})
    identity = Identity.of(
        product.alpha, product.beta, product.dtype.name, product.inputs(), target
    )
    return _opened(identity, destination, journal, restart=restart, triangle=triangle)


def open_factor(
    a: Operand,
    out: Location,
    dtype: np.dtype[Any],
    call: Mapping[str, Any],
    journal: Checkpointing,
    *,
    restart: bool,
) -> ClusterCheckpoint:
    """Open the durable run of a Cholesky factorisation, or the one that an earlier client left.

    `call` has the routine and its arguments, as plain values.
    """
    destination = _new(out, a.shape, dtype, None)
    identity = Identity.of(
        1.0, 0.0, dtype.name, {"A": a}, destination.target() | {"routine": dict(call)}
    )
    triangle = "lower" if call["lower"] else "upper"
    return _opened(identity, destination, journal, restart=restart, triangle=triangle)


def _new(
    where: Location, shape: tuple[int, int], dtype: np.dtype[Any], old: Operand | None
) -> Destination:
    if where.url:
        return ObjectDestination(where, shape, dtype)
    return Destination.aside(where, shape, dtype, old)


def _opened(
    identity: Identity,
    destination: Destination,
    journal: Checkpointing,
    *,
    restart: bool,
    triangle: str | None,
) -> ClusterCheckpoint:
    if journal is False:
        raise InputError("a run on a cluster always keeps a journal: leave checkpoint out")
    path = destination.journal_at(journal)
    return ClusterCheckpoint(identity, destination, path, restart=restart, triangle=triangle)
