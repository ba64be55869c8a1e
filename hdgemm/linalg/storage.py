"""Results of the calls: overwritten matrices, and files published when they are complete."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hdgemm.call.operands import computes_in_place
from hdgemm.call.run import folder_of
from hdgemm.dtypes import SUPPORTED
from hdgemm.durable.place import ResultPlace
from hdgemm.durable.run import check_whole
from hdgemm.errors import InputError, InputTypeError
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg._checkpoint import SlabCheckpoint, recorded_plan
from hdgemm.linalg.planning.factors import plan_for as plan_slabs_of
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.draft import real_path
from hdgemm.matrices.filelocks import overwriting_alone
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.fingerprint import keeps_name
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open as open_stored, open_operand
from hdgemm.matrices.planned import planned_matrix
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix, create_scratch, is_stored
from hdgemm.product.aliasing import overlaps, same_elements
from hdgemm.product.arguments import check_shape
from hdgemm.product.target import (
    check_location,
    check_no_operand,
    is_location,
    result_at,
    single,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from contextlib import AbstractContextManager

    from hdgemm.call.run import OpenRun
    from hdgemm.durable.run import JournaledRun
    from hdgemm.linalg._checkpoint import AnyPlan, Command
    from hdgemm.linalg.planning.slab import Kind
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """The matrix that a result is stored in.

    Parameters
    ----------
    stored
        Opened for writing.
    given
        The array or matrix that the caller gets; None for a location.
    location
        The location that the caller gave; None without one.
    new
        It was made for this call: elements that are not stored are zero.
    checkpoint
        The durable run that stores it; None without one.
    companions
        Files beside it, which get their names after it.
    """

    stored: StoredMatrix
    given: Any = None
    location: Location | None = None
    new: bool = False
    checkpoint: SlabCheckpoint | None = None
    companions: CompanionFiles = field(default_factory=CompanionFiles)

    def result(self) -> Any:
        """Return what the caller gets: a .npy file as a read-only memmap, as `hdgemm.matmul`."""
        return self.given if self.location is None else result_at(self.location)


class _Form(NamedTuple):
    """Shape, dtype and order of a result."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    order: str


def scratch_folder(*folders: Path | None) -> Path:
    """Return the first folder that can be written to, or else the temporary one (TMPDIR)."""
    for folder in folders:
        if folder is not None and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.gettempdir())


class ScratchFile:
    """A file without a name for a result that one call reads and then discards; a context manager.

    It is made when the result is stored, and removed on leaving.

    Parameters
    ----------
    folder
        Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.where = Location(folder / "hdgemm-scratch.npy")
        self._drafts = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drafts.close()

    def create(self, form: _Form, *, sparse: bool) -> StoredMatrix:
        """Return a new matrix in the file, opened for writing."""
        shape, dtype, order = form
        draft = create_scratch(self.where.path.parent, shape, dtype, order, sparse=sparse)
        self._drafts.enter_context(draft)
        return StoredMatrix(draft.operand, writable=True)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a result will go, known before anything is made or overwritten.

    Parameters
    ----------
    out
        As the caller gave it; None for a new array, or for `a` where it is overwritten.
    a, source
        The operand as the caller gave it, and opened.
    form
        Shape, dtype and order of the result.
    over_a
        The result overwrites A.
    matrix
        For plans: A, the matrix that exists, or the description of a new one.
    new
        It is made for this call: elements that are not stored are zero.
    command
        The durable run that stores it, if any.
    """

    out: Any
    a: Any
    source: StoredMatrix
    form: _Form
    over_a: bool
    matrix: StoredMatrix
    new: bool
    command: Command | None = None

    @classmethod
    def of(
        cls,
        out: Any,
        a: Any,
        source: StoredMatrix,
        *,
        order: str,
        overwrite_a: bool,
        dtype: np.dtype[Any] | None = None,
        shape: tuple[int, int] | None = None,
        command: Command | None = None,
    ) -> Output:
        """Describe a result; nothing is made.

        Parameters
        ----------
        out
            As the caller gave it; None for a new array, or for `a` where `overwrite_a` allows that;
            a scratch file for a result that only this call reads.
        order
            ``"F"`` or ``"C"``, for new arrays and .npy files.
        dtype, shape
            Shape or dtype of the result; None for the operand's.

        Raises
        ------
        InputError
            When the result cannot go there: an operand that is still read, another shape or
            dtype, no file for a durable run.
        """
        out, shape = single(out), source.shape if shape is None else shape
        dtype = (source.dtype if dtype is None else dtype).newbyteorder("=")
        form, over_a = _Form(shape, dtype, order), False
        if out is None and overwrite_a and takes_result(a):
            over_a, matrix = True, source
        elif out is None:
            matrix = _as_described(None, form)
        elif isinstance(out, ScratchFile):
            matrix = _as_described(out.where, form)
        elif is_location(out):
            out = parse_location(out)
            check_location(out, a, None)
            check_no_operand(out, source)
            if not out.kind.takes_order:
                form = form._replace(order="C")
            matrix = _as_described(out, form)
        else:
            matrix = StoredMatrix(open_operand(out, what="out", writable=True), writable=False)
            _check_out(matrix, source, shape, dtype)
        durable = command is not None and command.checkpoint is not False
        if durable and out is None and not over_a:
            raise InputError(
                "checkpoint needs a result in a file: give out as a path; factorisations also take "
                "overwrite_a=True with a file as a"
            )
        new = isinstance(out, ScratchFile | Location) or (out is None and not over_a)
        if durable and not new:
            ResultPlace.of_existing(matrix.operand, updates=over_a)
        return cls(out, a, source, form, over_a, matrix, new, command if durable else None)

    @property
    def durable(self) -> bool:
        """Whether a journal is kept."""
        return self.command is not None

    @property
    def new_array(self) -> bool:
        """Whether it is an array that is made for this call."""
        return self.out is None and self.new

    @property
    def in_array(self) -> bool:
        """Whether LAPACK can compute in it: a column-major array in the dtype of the result."""
        return computes_in_place(self.matrix, self.form.dtype)

    @property
    def folder(self) -> Path | None:
        """The folder of the file that the result will be; None for arrays and object stores."""
        return folder_of(self.matrix, self.source)

    def recorded_plan(self) -> AnyPlan | None:
        """Return the plan of the earlier run that the same command goes on with; None without one.

        Raises
        ------
        InputError
            When the journal is no journal of a factorisation.
        """
        if self.command is None or self.command.restart:
            return None
        return recorded_plan(self._durable_place().journal_at(self.command.checkpoint))

    def work_file(self, suffix: str) -> Location | None:
        """Return the place of a file beside the result for factors that lead to it, which a durable
        run keeps until the result is complete; None for another run.
        """
        return Location(self._durable_place().work(suffix)) if self.durable else None

    def _durable_place(self) -> ResultPlace:
        (shape, dtype, _), given = self.form, self.a if self.over_a else self.out
        if isinstance(given, Location):
            return ResultPlace.aside(given, shape, dtype)
        existing = self.source if self.over_a else self.matrix
        return ResultPlace.of_existing(existing.operand, updates=self.over_a)

    @contextmanager
    def opened(
        self,
        *,
        sparse: bool = False,
        rows: RowCheckpoint | None = None,
        run: JournaledRun | None = None,
        beside: Collection[str] = (),
    ) -> Iterator[OpenOutput]:
        """Yield the result for writing; a new file gets its name on leaving without an error.

        With `sparse`, a new file has no disk space before it is written. A durable run of passes
        over `rows` keeps a new file on the local disk when it is interrupted. A durable `run` that
        does not keep this result makes its draft again under one name. `beside` are items of the
        same file that the same call replaces.
        """
        # The companions are left last: the result has its name by then.
        with CompanionFiles() as companions, self._opened(sparse, rows, run, beside) as target:
            if target.location is not None and target.location.kind.whole_file:
                companions.beside = target.location.path.resolve()
            yield replace(target, companions=companions)

    def _opened(
        self,
        sparse: bool,
        rows: RowCheckpoint | None,
        run: JournaledRun | None,
        beside: Collection[str],
    ) -> AbstractContextManager[OpenOutput]:
        if self.command is not None:
            return _durable(self, self.command)
        if self.over_a:
            return _overwritten(self.a)
        if self.out is None or isinstance(self.out, ScratchFile):
            return nullcontext(self._anonymous(sparse))
        if isinstance(self.out, Location):
            if rows is None or self.out.url:
                part = None if run is None else run.draft_of(self.out)
                return _created(self.out, self.form, part, sparse=sparse)
            return _growing(self.out, self.form, rows, beside)
        return _existing(self)

    def _anonymous(self, sparse: bool) -> OpenOutput:
        """Return a new array, or a scratch file."""
        if isinstance(self.out, ScratchFile):
            stored = self.out.create(self.form, sparse=sparse)
            return OpenOutput(stored, stored, new=True)
        array = np.zeros(*self.form)  # type: ignore[call-overload]
        return OpenOutput(open_stored(array, "r+"), array, new=True)


def plan_for(
    kind: Kind,
    a: StoredMatrix,
    output: Output,
    run: OpenRun,
    *,
    transposed: bool = False,
) -> SlabPlan:
    """Return the slabs of one factorisation: the slabs of the run that goes on, or the best ones by
    the rates of this machine.

    With `transposed`, `a` is the transpose of the operand, and the output's is factored.
    """
    recorded = output.recorded_plan()
    if isinstance(recorded, SlabPlan):
        return recorded
    out = output.matrix.T if transposed else output.matrix
    return plan_slabs_of(
        kind, a, out, run, new=output.new, durable=output.durable, dtype=output.form.dtype
    )


def open_output(
    out: Any, a: Any, source: StoredMatrix, **how: Any
) -> AbstractContextManager[OpenOutput]:
    """Yield where a result goes; takes the parameters of `Output.of`."""
    output = Output.of(out, a, source, **how)
    command = how.get("command")
    return output.opened(sparse=command is not None and command.triangle)


def _as_described(where: Location | None, form: _Form) -> StoredMatrix:
    shape, dtype, order = form
    return StoredMatrix(planned_matrix(where, shape, dtype, order), writable=False)


@contextmanager
def _overwritten(a: Any) -> Iterator[OpenOutput]:
    with (
        _open_writable(a, "a") as stored,
        _only_run(a, stored),
        keeps_name(stored.operand.matrix),
    ):
        check_whole(stored.operand)
        yield OpenOutput(stored, a, parse_location(a) if is_location(a) else None)


@contextmanager
def _created(
    place: Location, form: _Form, part: Path | None, *, sparse: bool
) -> Iterator[OpenOutput]:
    shape, dtype, order = form
    with create_matrix(place, shape, dtype, part, order, sparse=sparse) as draft:
        yield OpenOutput(StoredMatrix(draft.operand, writable=True), location=place, new=True)
        draft.publish()


@contextmanager
def _growing(
    place: Location, form: _Form, rows: RowCheckpoint, beside: Collection[str]
) -> Iterator[OpenOutput]:
    with rows.growing(ResultPlace.aside(place, *form, beside=beside)) as stored:
        yield OpenOutput(stored, location=place, new=True)


@contextmanager
def _existing(output: Output) -> Iterator[OpenOutput]:
    with (
        _open_writable(output.out, "out") as stored,
        keeps_name(stored.operand.matrix),
    ):
        yield OpenOutput(stored, output.out)


@contextmanager
def _durable(output: Output, command: Command) -> Iterator[OpenOutput]:
    """Yield where a durable run stores its result; it is published on leaving without an error."""
    source, (shape, dtype, order) = output.source, output.form
    if isinstance(output.out, Location):
        place = output.out
        aside = ResultPlace.aside(place, shape, dtype, order, sparse=command.triangle)
        with _run(command, source, aside) as checkpoint:
            yield OpenOutput(checkpoint.stored, None, place, new=True, checkpoint=checkpoint)
        return
    given = output.a if output.over_a else output.out
    with _open_writable(given, "a" if output.over_a else "out") as stored:
        _check_out(stored, source, shape, dtype)
        matrix = stored.operand.matrix
        updates = overlaps(matrix, source.operand.matrix)
        existing = ResultPlace.of_existing(stored.operand, updates=updates)
        with _run(command, source, existing) as checkpoint, keeps_name(matrix):
            location = parse_location(given) if is_location(given) else None
            yield OpenOutput(stored, given, location, checkpoint=checkpoint)


@contextmanager
def _run(command: Command, source: StoredMatrix, place: ResultPlace) -> Iterator[SlabCheckpoint]:
    with SlabCheckpoint(command, source, place) as checkpoint:
        try:
            yield checkpoint
        except SingularMatrixError:
            if not checkpoint.place.updates:
                checkpoint.discard()  # to go on would fail again
            raise
        checkpoint.finish()


def _only_run(given: Any, stored: StoredMatrix) -> AbstractContextManager[None]:
    """Lock a .npy or raw file that is overwritten: two runs would factor each other's columns.

    Views of a file are not locked: runs may overwrite several at once.
    """
    matrix = stored.operand.matrix
    whole = is_location(given) and parse_location(given).kind.whole_file
    return overwriting_alone(matrix) if whole and isinstance(matrix, FileMatrix) else nullcontext()


def _open_writable(x: Any, what: str) -> StoredMatrix:
    return StoredMatrix(open_operand(x, what=what, writable=True), writable=True)


def takes_result(a: Any) -> bool:
    """Say whether an operand that may be overwritten can hold the result."""
    if isinstance(a, np.ndarray):
        return a.flags.writeable and a.dtype.newbyteorder("=").name in SUPPORTED
    return is_location(a) or is_stored(a)


def _check_out(
    stored: StoredMatrix, source: StoredMatrix, shape: tuple[int, int], dtype: np.dtype[Any]
) -> None:
    check_shape(stored.shape, shape, "out")
    if not np.can_cast(dtype, stored.dtype, "safe"):
        raise InputTypeError(
            f"out has dtype {stored.dtype}, which cannot hold a result in {dtype}: pass an out of "
            f"{dtype}, or convert the operands first",
            found=str(stored.dtype),
            computed=str(dtype),
        )
    mine, other = stored.operand, source.operand
    if overlaps(mine.matrix, other.matrix) and not same_elements(mine, other):
        raise InputError(
            "out overlaps an operand without being the same matrix: choose another one"
        )


def check_apart(one: OpenOutput, other: OpenOutput) -> None:
    """Refuse two results in one place, or in one file that each replaces."""
    if _same_place(one.location, other.location) or overlaps(
        one.stored.operand.matrix, other.stored.operand.matrix
    ):
        raise InputError("two results overlap: choose different places for out")


def _same_place(one: Location | None, other: Location | None) -> bool:
    """Say whether two new results would take one name, through links, too."""
    if one is None or other is None:
        return False
    if one.url or other.url:
        return one == other
    if real_path(one.path) != real_path(other.path):
        return False
    return one.kind.whole_file or one.item == other.item
