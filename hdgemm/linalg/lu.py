"""LU factorisation out of core with partial pivoting: `lu_factor`."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
from scipy.linalg import LinAlgWarning

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import in_memory, open_matrix
from hdgemm.call.prepared import PreparedMatrix
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.fortran import getrf
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.devices.run import strategy_of
from hdgemm.linalg.planning.factors import mirrored, plan_in_array
from hdgemm.linalg.planning.slab import Columns, SlabPlan
from hdgemm.linalg.slabs.lu import factor_panel, factor_slabs, interchange_stored, recorded
from hdgemm.linalg.slabs.run import slab_run
from hdgemm.linalg.slabs.slab import Slab, both, check_finite_slab
from hdgemm.linalg.storage import Output, plan_for
from hdgemm.linalg.stored_factors import LUFactors, reserve_beside, save_factors
from hdgemm.run.members import device_names
from hdgemm.tasks.tournament import LEAF, PANEL, factor_tournament

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.slabs.lu import Elimination
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.tasks.algorithms import Factorised


@overload
def lu_factor(
    a: NDArray[Element],
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> LUFactors[NDArray[Element]]: ...
@overload
def lu_factor(
    a: Any,
    overwrite_a: Literal[False] = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> LUFactors[NDArray[Any]]: ...
@overload
def lu_factor(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> LUFactors[Out]: ...
@overload
def lu_factor(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    out: Where | None = None,
    **keywords: Unpack[DurableKeywords],
) -> LUFactors[Stored]: ...
@public_call(DurableKeywords, callers_arrays=True)
def lu_factor(
    a: Any,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> LUFactors:
    """Return ``(lu, piv)``, the LU factorisation P·A = L·U of an m×n matrix of any size.

    With partial pivoting, the pivot of each column is its largest element over all remaining rows,
    as in LAPACK, whatever the slabs.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the
        location of a file.
    overwrite_a
        Without `out`, the factors may be stored in place of `a`, also where `a` is a file. A
        factorisation that fails then leaves `a` half overwritten.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    pivoting
        ``"partial"``, or ``"tournament"``: the pivots of a panel are chosen by a binary tree of row
        blocks (CALU), with devices by tasks on all cores of the host. Elements of L may then be
        larger than 1.
    strategy
        With devices: ``"hybrid"`` factors panels on the host; ``"native"`` runs every operation on
        the one device that `options` names, which holds the whole matrix.
    out
        An array, a stored matrix or view, or the location of a file, which appears when it is
        complete; None for a new array. New .npy files are column-major. For a .npy or raw file
        the pivots are saved beside it, as ``LU.piv.npy`` for ``LU.npy`` and ``LU.bin-piv.npy`` for
        ``LU.bin``; `hdgemm.linalg.open` opens both again.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    lu : array
        U in the upper triangle and the unit lower triangular L, without its diagonal, below; as
        `cholesky` returns its factor.
    piv : array of int64
        Row i was interchanged with row ``piv[i]``. `scipy.linalg.lu_solve` takes both.

    Warns
    -----
    LinAlgWarning
        When a pivot is exactly zero; the factorisation goes on, as SciPy's.

    Raises
    ------
    InputError
        When A is not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    lu_solve : Solve with these factors.
    lu : L and U apart.
    hdgemm.mpi.lu_factor : In the memory of several machines.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> lu, piv = hdgemm.linalg.lu_factor("A.npy", out="LU.npy")
    """
    with prepare(
        a,
        out,
        Call.of(**keywords),
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        pivoting=pivoting,
        strategy=strategy,
    ) as prepared:
        lu, pivots, zero = prepared.run()
    if zero:
        warnings.warn(
            f"Diagonal number {zero} is exactly zero. Singular matrix.", LinAlgWarning, stacklevel=4
        )
    return LUFactors(lu, pivots)


class Pivoted(NamedTuple):
    """Factors, their pivots, and the 1-based index of the first zero pivot, 0 without one."""

    lu: Any
    pivots: NDArray[np.int64]
    zero: int


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    pivoting: str = "partial",
    strategy: str = "hybrid",
    resident: SlabPlan | None = None,
    inspect: Callable[[Slab], None] | None = None,
) -> Iterator[PreparedMatrix[Pivoted]]:
    """Yield one LU factorisation, planned.

    Parameters
    ----------
    resident
        The plan of factors of a file that stay in a new array; None chooses a plan.
    inspect
        Called with each slab that is loaded, after `check_finite`.
    """
    if pivoting not in ("partial", "tournament"):
        raise InputError(f"pivoting must be 'partial' or 'tournament', got {pivoting!r}")
    arguments = {} if pivoting == "partial" else {"pivoting": pivoting}
    command = Command("lu_factor", arguments, call.checkpoint, call.restart)
    with open_matrix(a) as source, open_run(call) as run:
        output = Output.of(out, a, source, order="F", overwrite_a=overwrite_a, command=command)
        on_devices = strategy_of(strategy, run.options, in_memory=output.in_array)
        plan = resident
        if plan is None and output.in_array:
            folder = folder_of(source)
            plan = plan_in_array("lu", source, output.form.dtype, folder, run.options)
        elif plan is None:
            plan = plan_for("lu", source, output, run)
        mirror = mirrored(source)
        # Of the two places of an element, the first one that is found is in the lower triangle.
        upper = mirror is not None and mirror.lower == source.operand.trans
        factorisation = _Factorisation(
            source,
            output,
            plan,
            run,
            _elimination(pivoting, run.options.tile),
            on_devices and partial(on_devices, "lu" if pivoting == "partial" else "calu"),
            both(partial(check_finite_slab, transposed=upper) if check_finite else None, inspect),
            whole=resident is None and output.in_array,
        )
        yield PreparedMatrix(plan, factorisation.run, run.session, output.matrix)


@dataclass(frozen=True, slots=True)
class _Factorisation:
    """One planned LU factorisation.

    Parameters
    ----------
    eliminate
        Factors a panel.
    on_devices
        Factors an array on devices; None for the host.
    check
        Called with each slab that is loaded.
    whole
        A is copied to the array that the result is, and factored there at once.
    """

    source: StoredMatrix
    output: Output
    plan: SlabPlan
    how: OpenRun
    eliminate: Elimination
    on_devices: Callable[..., Factorised] | None
    check: Callable[[Slab], None] | None
    whole: bool

    def run(self) -> Pivoted:
        """Factor, store the factors, and save the pivots beside them."""
        source = self.source
        with (
            self.output.opened() as target,
            input_unchanged(source, target.stored),
        ):
            reserve_beside(target, "lu", source, np.dtype(np.int64).itemsize)
            array = in_memory(target.stored, self.output.form.dtype) if self.whole else None
            if array is not None:
                pivots, zero = self._factor_array(array)
            elif (done := target.checkpoint) is not None and done.finished:
                pivots, zero = recorded(done)
                report_done(self.how.callbacks, done.plan, done.resumption)
            else:
                with slab_run(
                    source, target.stored, target, self.how, self.check, self.plan
                ) as pipeline:
                    pivots, zero = factor_slabs(pipeline, self.eliminate)
                    interchange_stored(pipeline, pivots)
            save_factors(target, "lu", {"piv": pivots})
        return Pivoted(target.result(), pivots, zero)

    def _factor_array(self, array: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
        """Factor in a column-major array, which the result is."""
        plan, run = self.plan, self.how
        recorder = Recorder(run.callbacks, plan.flops, devices=device_names(run.options))
        with recorder.operation("load1", 0, nbytes=array.nbytes):
            self.source.read(array)
        if self.check is not None:
            self.check(Slab(0, Columns(0, plan.n, 0), array))
        if self.on_devices is None:
            found = factor_panel(array, 0, recorder, self.eliminate)
        else:
            factors = self.on_devices(array, run, recorder)
            found = factors.pivots, next(iter(factors.zeros), 0)
        recorder.finish(plan)
        return found


def _elimination(pivoting: str, tile: tuple[int, int, int] | None) -> Elimination:
    """Return the factorisation of a panel; a tile (mb, nb, kb) forces leaves of mb rows, kb
    columns.
    """
    if pivoting == "partial":
        return getrf
    leaf, _, panel = tile or (LEAF, 0, PANEL)
    return partial(factor_tournament, panel=panel, leaf=leaf)
