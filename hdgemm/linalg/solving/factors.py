"""Factors for the duration of one call: in scratch files beside A, in arrays, or over A."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg import get_lapack_funcs

from hdgemm.call.keywords import Call
from hdgemm.call.operands import in_memory, open_matrix
from hdgemm.call.run import folder_of
from hdgemm.fortran import SingularMatrixError
from hdgemm.linalg.cholesky import prepare as prepare_cholesky
from hdgemm.linalg.factored_solve import by_cholesky, by_lu, open_lu
from hdgemm.linalg.lu import prepare as prepare_lu
from hdgemm.linalg.solving.norms import ColumnSums
from hdgemm.linalg.storage import ScratchFile, scratch_folder, takes_result
from hdgemm.linalg.stored_factors import CholeskyFactor, Factorisation
from hdgemm.run.members import device_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.call.plans import LinearPlan
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.solving.columns import ColumnSolver
    from hdgemm.linalg.storage import Output
    from hdgemm.matrices.location import Location
    from hdgemm.matrices.stored import StoredMatrix

#: Order of the diagonal blocks in which a diagonal is read.
_BLOCK: Final = 64


class Factors(Protocol):
    """Factors of a square matrix."""

    @property
    def matrix(self) -> StoredMatrix:
        """The matrix that holds them."""

    def solver(self, code: str) -> ColumnSolver:
        """Return what solves with A (code N), its transpose (T) or conjugate transpose (C).

        Raises
        ------
        SingularMatrixError
            When a pivot is exactly zero.
        """

    def rcond(self, norm: float) -> float:
        """Return LAPACK's estimate of the reciprocal condition number of an A in this 1-norm; 1
        where the factors are in no array.
        """


class LU(NamedTuple):
    """LU factors, their pivots, and the 1-based index of the first zero pivot, 0 without one."""

    matrix: StoredMatrix
    pivots: NDArray[np.int64]
    zero: int = 0

    def solver(self, code: str) -> ColumnSolver:
        """Return what solves with A, see `Factors`."""
        if self.zero:
            raise SingularMatrixError.of_pivot(self.zero)
        return by_lu(self.matrix, self.pivots, code)

    def rcond(self, norm: float) -> float:
        """Return the estimate of LAPACK's gecon, see `Factors`."""
        return _estimate("gecon", self.matrix, norm, b"1")


class Cholesky(NamedTuple):
    """A Cholesky factor, L (`lower`) or U."""

    matrix: StoredMatrix
    lower: bool

    def solver(self, code: str) -> ColumnSolver:
        """Return what solves with A, which is its own (conjugate) transpose."""
        del code
        return by_cholesky(self.matrix, lower=self.lower)

    def rcond(self, norm: float) -> float:
        """Return the estimate of LAPACK's pocon, see `Factors`."""
        # The transpose of a row-major U is a column-major conj(L), of the same condition.
        matrix = self.matrix if self.matrix.order == "F" else self.matrix.T
        lower = self.lower == (matrix is self.matrix)
        return _estimate("pocon", matrix, norm, b"L" if lower else b"U")


def _estimate(routine: str, matrix: StoredMatrix, norm: float, code: bytes) -> float:
    dtype = matrix.dtype.newbyteorder("=")
    array = in_memory(matrix, dtype)
    if array is None or array.size == 0:
        return 1.0
    condition: Any = get_lapack_funcs(routine, dtype=dtype)
    return float(condition(array, norm, code)[0])


_F_co = TypeVar("_F_co", bound=Factors, covariant=True)


class PreparedFactors(Generic[_F_co]):
    """Factors that are planned, and computed by `run`; they end with their context.

    Parameters
    ----------
    plan
        Of the factorisation; None where the caller has given the factors.
    described
        The factors before they are computed: their matrix may be described only.
    compute
        Computes them.
    sums
        Column sums of A, which `compute` adds up where the factors stay in an array.
    host_bytes
        Memory that the factors take until they are no longer needed.
    """

    def __init__(
        self,
        plan: LinearPlan | None,
        described: _F_co,
        compute: Callable[[], _F_co],
        sums: ColumnSums | None = None,
        *,
        host_bytes: int = 0,
    ) -> None:
        self.plan, self.described, self.host_bytes = plan, described, host_bytes
        self._compute, self._sums = compute, sums
        self._found: _F_co | None = None

    def run(self) -> _F_co:
        """Compute the factors."""
        self._found = self._compute()
        return self._found

    def close(self) -> None:
        """Let the memory of the factors be freed."""
        self._found = None

    def rcond(self) -> float:
        """Return LAPACK's estimate of the reciprocal condition number; 1 for factors that are in no
        array of the host, which an estimate would read up to eleven times.
        """
        if self._found is None or self._sums is None:
            return 1.0
        return self._found.rcond(self._sums.norm)


@contextmanager
def prepare_lu_factors(
    a: Any,
    run: OpenRun,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    output: Output | None = None,
    name: str = "lu",
    resident: SlabPlan | None = None,
) -> Iterator[PreparedFactors[LU]]:
    """Yield the LU factors of a matrix, planned, or the pair that the caller has.

    Parameters
    ----------
    output
        The result that they lead to: a durable run keeps them beside it until it has ended.
    name
        Tells factors of one run from each other.
    resident
        The plan of factors of a file that stay in memory; None chooses a place and a plan.
    """
    if isinstance(a, tuple):
        yield PreparedFactors(None, found := _given_lu(a), lambda: found)
        return
    with ExitStack() as stack:
        source = stack.enter_context(open_matrix(a))
        place = _Place.of(a, source, run, output, name, overwrite_a, resident is not None)
        sums = ColumnSums(source.shape[1]) if place.summed else None
        prepared = stack.enter_context(
            prepare_lu(
                a,
                stack.enter_context(place.out),
                _call(run, output),
                overwrite_a=place.over_a,
                check_finite=check_finite,
                resident=resident,
                inspect=None if sums is None else sums.add,
            )
        )

        def compute() -> LU:
            lu, pivots, zero = prepared.run()
            return LU(stack.enter_context(open_matrix(lu)), pivots, zero)

        described = LU(prepared.result, np.empty(0, np.int64))
        held = 0 if resident is None else resident.host_bytes
        with closing(
            PreparedFactors(prepared.plan, described, compute, sums, host_bytes=held)
        ) as factors:
            yield factors


@contextmanager
def prepare_cholesky_factor(
    a: Any,
    run: OpenRun,
    *,
    lower: bool,
    overwrite_a: bool = False,
    check_finite: bool = True,
    output: Output | None = None,
    name: str = "cholesky",
) -> Iterator[PreparedFactors[Cholesky]]:
    """Yield the Cholesky factor of a matrix, planned; parameters as in `prepare_lu_factors`."""
    with ExitStack() as stack:
        source = stack.enter_context(open_matrix(a))
        place = _Place.of(a, source, run, output, name, overwrite_a, False)
        sums = ColumnSums(source.shape[1], triangle=True) if place.summed else None
        prepared = stack.enter_context(
            prepare_cholesky(
                a,
                stack.enter_context(place.out),
                _call(run, output),
                lower=lower,
                overwrite_a=place.over_a,
                check_finite=check_finite,
                clean=False,
                inspect=None if sums is None else sums.add,
            )
        )

        def compute() -> Cholesky:
            return Cholesky(stack.enter_context(open_matrix(prepared.run())), lower)

        described = Cholesky(prepared.result, lower)
        with closing(PreparedFactors(prepared.plan, described, compute, sums)) as factors:
            yield factors


def is_cholesky(pair: tuple[Any, ...]) -> bool:
    """Say whether a pair is a Cholesky factor and its triangle, also SciPy's."""
    if isinstance(pair, Factorisation):
        return isinstance(pair, CholeskyFactor)
    return len(pair) == 2 and isinstance(pair[1], bool | int | np.bool_ | np.integer)


def _given_lu(pair: tuple[Any, ...]) -> LU:
    matrix, pivots = open_lu(pair)
    zeros = np.flatnonzero(diagonal(matrix) == 0)
    return LU(matrix, pivots, int(zeros[0]) + 1 if zeros.size else 0)


def diagonal(matrix: StoredMatrix) -> NDArray[Any]:
    """Read the diagonal of a square matrix, by small blocks."""
    n = matrix.shape[0]
    found: NDArray[Any] = np.empty(n, matrix.dtype.newbyteorder("="))
    for first in range(0, n, _BLOCK):
        part = slice(first, first + _BLOCK)
        found[part] = np.diagonal(matrix[part, part].read())
    return found


class _Place(NamedTuple):
    """The place of factors.

    Parameters
    ----------
    out
        A context of the file that they go to; of None for memory, or in place of A.
    over_a
        They may be stored over A.
    summed
        They are computed in an array of the host, and A's columns are summed.
    """

    out: AbstractContextManager[ScratchFile | Location | None]
    over_a: bool
    summed: bool

    @classmethod
    def of(
        cls,
        a: Any,
        source: StoredMatrix,
        run: OpenRun,
        output: Output | None,
        name: str,
        overwrite_a: bool,
        resident: bool,
    ) -> _Place:
        """Choose it: in memory where they are `resident`, over A where that is allowed, beside the
        result of a durable run, else in a file without a name: beside A, or else in the folder of
        the result or the temporary folder.
        """
        folder, over_a = folder_of(source), overwrite_a and takes_result(a)
        on_host = not device_names(run.options)
        if resident or (over_a and folder is not None):
            return cls(nullcontext(), over_a and not resident, resident and on_host)
        if output is not None and (work := output.work_file(f".{name}.npy")) is not None:
            return cls(nullcontext(work), False, False)
        if folder is None:
            return cls(nullcontext(), over_a, on_host)
        place = scratch_folder(folder, None if output is None else folder_of(output.matrix))
        return cls(ScratchFile(place), False, False)


def _call(run: OpenRun, output: Output | None) -> Call:
    """Return the call of a factorisation that leads to a result; durable where that is."""
    command = None if output is None else output.command
    return Call(
        run.options,
        run.session,
        run.callbacks,
        checkpoint=command is not None,
        restart=command is not None and command.restart,
    )
