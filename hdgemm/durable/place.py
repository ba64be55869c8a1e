"""Where a durable result grows: a draft that outlives the process, or an existing matrix."""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hdgemm.durable.journal import SUFFIX, Journal, locked_name, redo_path
from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.draft import real_path
from hdgemm.matrices.filelocks import overwriting_alone
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import sync
from hdgemm.matrices.fingerprint import file_of, home_of
from hdgemm.matrices.location import Location
from hdgemm.matrices.operands import Operand, open_operand
from hdgemm.matrices.stores import create_matrix, reopen_draft
from hdgemm.matrices.zarr_replacement import finish_exchange, old_name, remove_draft

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np

    from hdgemm.matrices.draft import Draft

#: False; True for a journal beside the result; or the journal's path.
Checkpointing: TypeAlias = "bool | str | os.PathLike[str]"


@dataclass(frozen=True)
class ResultPlace:
    """The place of a result: `where` it lies when it is finished, shape and dtype for its reader.

    `in_place` is the opened matrix that is written straight into; None where the result is made
    aside. `updates`: what is overwritten is read, so that no part can be computed twice. `order`
    and `sparse` describe a new file: element order, and no disk space before it is written.
    `beside` are items of the same file that the same run replaces.
    """

    where: Location
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    in_place: Operand | None = None
    updates: bool = False
    order: str = "C"
    sparse: bool = False
    beside: Collection[str] = ()

    @classmethod
    def aside(
        cls,
        where: Location,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        order: str = "C",
        *,
        sparse: bool = False,
        beside: Collection[str] = (),
    ) -> ResultPlace:
        """Take the name of a result that is made aside; `InputError` for an object store."""
        if where.url:
            raise InputError(
                f"a durable run needs a C on a local disk, and {where} is in an object store: "
                "leave checkpoint out, or write C to a file first"
            )
        return cls(where, shape, dtype, order=order, sparse=sparse, beside=beside)

    @classmethod
    def of_existing(cls, c: Operand, *, updates: bool) -> ResultPlace:
        """Take an opened matrix, or `InputError` where it does not lie in one file at places that
        do not change: then what a crash leaves of it cannot be told.
        """
        path = file_of(c.matrix)
        if path is None:
            raise InputError(
                "checkpoint needs a C on disk whose bytes keep their places: give out as a path "
                "(of a .npy or raw file, a new HDF5 file, a Zarr array), or as a memmap"
            )
        return cls(Location(path), c.shape, c.matrix.dtype, c, updates)

    @property
    def path(self) -> Path:
        """The file of the finished result; of a Zarr array, its folder."""
        return self.where.kind.own_path(self.where)

    def holds(self, operand: Operand) -> bool:
        """Return whether an operand lies in the file of the finished result."""
        there = home_of(operand.matrix)
        return there is not None and self.path.exists() and self.path.samefile(there)

    def target(self) -> dict[str, Any]:
        """Describe which elements of which file the result is, in plain values."""
        found: dict[str, Any] = {
            "name": self.path.name,
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "updates": self.updates,
        }
        found |= self.where.kind.identity(self.where)
        if self.in_place is not None and isinstance(matrix := self.in_place.matrix, FileMatrix):
            found |= {
                "in_place": True,
                "trans": self.in_place.trans,
                "offset": matrix.offset,
                "pitch": matrix.pitch,
            }
        return found

    def journal(self) -> Path:
        """Return the name of its journal beside it, or beside the store that it is in."""
        path = self.where.path
        item = self.where.item.replace("/", ".") if self.where.kind.item_folders else ""
        return path.with_name(f".{path.name}{'.' if item else ''}{item}{SUFFIX}")

    def journal_at(self, given: Checkpointing) -> Path:
        """Return where a call's journal is: beside the result for True, or at the path given."""
        if isinstance(given, bool):
            return self.journal()
        try:
            path = Path(given).absolute()
        except TypeError:
            raise InputTypeError(
                f"checkpoint must be True, False or the path of a journal, got {given!r}"
            ) from None
        if not self.where.url and path.resolve() == self.path.resolve():
            raise InputError(f"the checkpoint {path} is C itself: choose another name for it")
        return path

    def open_journal(self, path: Path) -> Journal:
        """Open the journal of a run that alone writes this result until the journal is closed.

        Raises
        ------
        InputError
            When it cannot be opened, or another run writes this result, with whichever journal.
        """
        with ExitStack() as stack:
            stack.enter_context(self.locked(path))
            journal = Journal(path)
            journal.held = stack.pop_all()
        return journal

    @contextmanager
    def locked(self, journal: Path) -> Iterator[None]:
        """Hold the lock of the result: of its file where it is overwritten, else of its default
        journal, which is locked already where the run writes it.
        """
        if self.in_place is not None and isinstance(matrix := self.in_place.matrix, FileMatrix):
            with overwriting_alone(matrix):
                yield
            return
        own = replace(self, where=replace(self.where, path=real_path(self.where.path))).journal()
        if own == journal.parent.resolve() / journal.name:
            yield
            return
        with locked_name(own, f"another run is writing {self.where}"):
            yield

    def part(self, journal: Path) -> Path:
        """Return the name of the draft that goes with a journal."""
        mark = zlib.crc32(os.fsencode(journal.name))
        path = real_path(self.path)
        return path.with_name(f".{path.name}.{mark:08x}.part")

    def create(self, journal: Path) -> Draft[Any]:
        """Begin the result under a name that a later run will find, its space durably reserved."""
        part = self.part(journal)
        draft = create_matrix(
            self.where,
            self.shape,
            self.dtype,
            part,
            self.order,
            sparse=self.sparse,
            beside=self.beside,
        )
        try:
            draft.matrix.flush()
            sync(part.parent)
        except BaseException:
            draft.discard()
            raise
        return draft

    def reopen(self, journal: Path) -> Draft[Any] | None:
        """Open the draft that an earlier run left; None when it is not there, or has its name."""
        part = self.part(journal)
        finish_exchange(part)
        return reopen_draft(self.where, part) if part.exists() else None

    def remove(self, journal: Path) -> None:
        """Remove the draft that an earlier run left."""
        part = self.part(journal)
        remove_draft(part)
        part.unlink(missing_ok=True)

    def clean(self, journal: Path) -> None:
        """Remove what a finished run does not need, and a crash may have kept: its redo log, and
        an array that the result has replaced.
        """
        shutil.rmtree(old_name(self.part(journal)), ignore_errors=True)
        redo_path(journal).unlink(missing_ok=True)

    def finished(self) -> Operand | None:
        """Open the result under its own name; None when it is not there."""
        return open_operand(self.where, what="c") if self.path.exists() else None

    def work(self, suffix: str) -> Path:
        """Return the name of a file beside the result for what leads to it, such as factors."""
        journal = self.journal()
        return journal.with_name(journal.name.removesuffix(SUFFIX) + f".work{suffix}")

    def remove_work(self) -> None:
        """Remove all such files, and what their own runs have left beside them."""
        for path in self.work_files():
            path.unlink(missing_ok=True)

    def work_files(self) -> list[Path]:
        """Return all such files that exist, and what their own runs have left beside them."""
        base = self.work("")
        names = (base.name, f".{base.name}")
        try:
            return [path for path in base.parent.iterdir() if path.name.startswith(names)]
        except FileNotFoundError:  # the folder was removed during the run
            return []
