"""Results of distributed calls: one new file that all ranks write, published when complete."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.cluster.references import Reference
from hdgemm.durable.journal import locked_name
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import InputError
from hdgemm.linalg.storage import OpenOutput
from hdgemm.linalg.stored_factors import reserve_beside, save_factors
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.draft import real_path
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix
from hdgemm.mpi._block_cyclic import BlockCyclicArray
from hdgemm.mpi._redistribution import Place, gather
from hdgemm.mpi._strips import Strips
from hdgemm.mpi.processes import together
from hdgemm.product.target import check_no_operand, is_location, result_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Operand
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._run import Opened
    from hdgemm.mpi._strips import Rectangle
    from hdgemm.mpi.communicator import Communicator


def target_of(world: Communicator, out: Any, *operands: Any, factor: bool = False) -> Location:
    """Return the location of a new result, or of a `factor`, on all ranks; no operand's.

    Raises
    ------
    InputError
        Where ranks cannot write there together.
    """
    with together(world):
        if not is_location(out):
            raise InputError(
                f"out must be the location of a new file, got {type(out).__name__}: all ranks "
                "write it"
            )
        place = parse_location(out)
        place.check_suffix()
        if place.url:
            raise InputError(
                f"{place} is in an object store, which ranks do not write together: give out in "
                "storage that all ranks share"
            )
        if factor and not place.kind.whole_file:
            raise InputError(
                f"{place} cannot hold factors, beside which other files are stored: give out as a "
                ".npy or raw file"
            )
        if not place.kind.whole_file and not place.kind.item_folders and place.path.exists():
            raise InputError(
                f"{place.path} exists, and ranks write only new {place.format.upper()} files: "
                "remove it or give another out",
                path=str(place.path),
            )
        check_no_operand(place, *operands)
    return place


@dataclass
class Target:
    """A new file or store of a result, which all ranks have opened for writing.

    Parameters
    ----------
    place
        The name that it gets.
    world
        The ranks.
    operand
        The file, aside until it is complete.
    draft
        The `OpenOutput` on rank 0; None on the others.
    """

    place: Location
    world: Communicator
    operand: Operand
    draft: OpenOutput | None
    publish: Callable[[], None]
    error: Exception | None = field(default=None, init=False)

    def store(
        self,
        part: Part,
        first: int = 0,
        finish: Callable[[Rectangle, NDArray[Any]], None] | None = None,
        *,
        flipped: bool = False,
    ) -> None:
        """Write the columns of a part from `first` on; errors are raised on all ranks.

        `finish` is called with each strip of the file before it is written: rows of the stored
        matrix, which are whole columns of a column-major one. With `flipped`, the transpose is
        written.
        """
        matrix, trans = self.operand.matrix, self.operand.trans != flipped

        def write(strip: Rectangle, array: NDArray[Any]) -> None:
            if self.error is not None:
                return
            try:
                if finish is not None:
                    finish(strip, array)
                matrix.write(strip.row, strip.col, array)
            except Exception as error:  # noqa: BLE001 - raised by all ranks, below
                self.error = error

        strips = Strips.of(
            matrix.shape,
            part.a.itemsize,
            self.world.size,
            chunk=matrix.chunk,  # two ranks never write into one chunk
            whole=finish is not None,
        )
        gather(strips, Place(part, first, trans), write)
        with together(self.world):
            if self.error is not None:
                raise self.error
            matrix.flush()

    def save_beside(self, kind: str, arrays: Mapping[str, NDArray[Any]], **facts: Any) -> None:
        """Save what belongs to a factor beside it, on rank 0."""
        with together(self.world):
            if self.draft is not None:
                save_factors(self.draft, kind, arrays, **facts)

    def result(self) -> Any:
        """Return the published result as each rank reads it."""
        with together(self.world):
            return result_at(self.place)


@contextmanager
def new_target(
    world: Communicator,
    place: Location,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *,
    factor: tuple[str, StoredMatrix | BlockCyclicArray] | None = None,
) -> Iterator[Target]:
    """Yield a new file or array for a result; without `Target.publish` it is removed on leaving.

    Rank 0 makes it and the others open it. A file that a killed run has left is replaced.

    Parameters
    ----------
    factor
        The kind of a factorisation and its matrix: files for its arrays are reserved, too.
    """
    aside = ResultPlace.aside(place, shape, dtype)
    path = real_path(aside.path)
    part = path.with_name(f".{path.name}.mpi.part")
    with ExitStack() as stack:
        draft: Any = None
        with together(world):
            if world.rank == 0:
                busy = f"another run is writing {place}"
                stack.enter_context(locked_name(aside.journal(), busy))
                # Factors are finished by whole columns; X may be row-major in a raw file.
                order = "F" if factor is not None else place.kind.order(place, "F")
                draft = stack.enter_context(create_matrix(place, shape, dtype, part, order))
        target = None
        with together(world):
            if draft is not None:
                companions = stack.enter_context(CompanionFiles())
                companions.beside = place.path.resolve()
                stored = StoredMatrix(draft.operand, writable=True)
                target = OpenOutput(stored, None, place, new=True, companions=companions)
                if factor is not None:
                    kind, source = factor
                    reserve_beside(target, kind, source, np.dtype(np.int64).itemsize)
                draft.matrix.flush()
        made = None if draft is None else Reference.of(draft.operand, "out")
        reference = world.collect(made)[0]
        with together(world):
            operand = draft.operand if draft is not None else open_made(reference, stack)

        def publish() -> None:
            with together(world):
                if draft is not None:
                    draft.publish()

        yield Target(place, world, operand, target, publish)


def open_made(made: Reference, stack: ExitStack, *, writable: bool = True) -> Operand:
    """Open the file or array that rank 0 has made; `stack` closes it.

    Raises
    ------
    InputError
        Where this machine does not see it.
    """
    if not made.stored.home.exists():
        raise InputError(
            f"{made} is not there, which rank 0 has made for the result: out must lie in storage "
            "that all ranks share"
        )
    return made.open(stack, writable=writable)


def everywhere(part: Part, first: int, columns: int) -> NDArray[Any]:
    """Return the columns of a distributed matrix from `first` on, whole, on every rank."""
    found = np.zeros((part.rows.extent, columns), part.a.dtype, order="F")
    local = part.cols.positions()
    own = np.flatnonzero(local >= first)
    found[np.ix_(part.rows.positions(), local[own] - first)] = part.a[:, own]
    part.grid.join(found)
    return found


def stored_solution(opened: Opened, place: Location | None, part: Part) -> Any:
    """Return X, which lies in the place of B, as an array or in a new file; a vector for one.

    It is distributed as B is, where B is and no file is wanted.
    """
    run = opened.run
    n, columns = run.variant.n, run.columns
    if place is None:
        opened.check_unchanged()
        if isinstance(opened.b, BlockCyclicArray):
            return opened.b.like(part, n)
        found = everywhere(part, n, columns)
    else:
        with run.recorder.record("write", n):
            with new_target(run.world, place, (n, columns), run.dtype) as target:
                target.store(part, n)
                opened.check_unchanged()
                target.publish()
            found = target.result()
    if opened.vector and isinstance(found, np.ndarray):
        return found[:, 0]
    return found
