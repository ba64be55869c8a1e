"""Cholesky factorisation out of core: `cholesky`, `cho_factor`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import in_memory, open_square
from hdgemm.call.prepared import PreparedMatrix
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import folder_of, open_run
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.devices.run import strategy_of
from hdgemm.linalg.planning.factors import plan_in_array
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs.cholesky import TrapezoidElimination, factor_panel
from hdgemm.linalg.slabs.elimination import queue_slab
from hdgemm.linalg.slabs.run import say_state, slab_run
from hdgemm.linalg.slabs.slab import Slab, both, check_finite_slab
from hdgemm.linalg.storage import Output, plan_for
from hdgemm.linalg.stored_factors import CholeskyFactor, save_factors
from hdgemm.product.arguments import flag
from hdgemm.run.members import device_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Element, Out, Source, Stored, Where
    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.devices.run import Strategy
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.storage import OpenOutput
    from hdgemm.matrices.stored import StoredMatrix

#: Columns that are read at a time, so that one triangle of A is read.
_STRIP: Final = 512


@overload
def cholesky(
    a: NDArray[Element],
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Element]: ...
@overload
def cholesky(
    a: Source,
    lower: bool = False,
    overwrite_a: Literal[False] = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> NDArray[Any]: ...
@overload
def cholesky(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> Any: ...
@overload
def cholesky(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> Out: ...
@overload
def cholesky(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Where,
    **keywords: Unpack[DurableKeywords],
) -> Stored: ...
@public_call(DurableKeywords, callers_arrays=True)
def cholesky(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    strategy: str = "hybrid",
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> Any:
    """Return the Cholesky factor of a Hermitian positive definite matrix of any size.

    A = L·L^H for ``lower=True``, A = U^H·U otherwise. One triangle of A is read and multiplied,
    never both. Files pass through memory in slabs of columns (of rows for U) that fit
    `Options.host_memory`.

    Parameters
    ----------
    a
        A square matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the
        location of a file. Only the triangle that `lower` names is read.
    lower
        Read the lower triangle and compute L; otherwise the upper one and U.
    overwrite_a
        Without `out`, the factor may be stored in place of `a`, also where `a` is a file. A
        factorisation that fails then leaves `a` half overwritten.
    check_finite
        Raise `InputError` at the first NaN or Inf of the triangle.
    strategy
        With devices: ``"hybrid"`` factors diagonal blocks on the host; ``"native"`` runs every
        operation on the one device that `options` names, which holds the whole matrix.
    out
        An array, a stored matrix or view, or the location of a file, which appears when it is
        complete; None for a new array. New .npy files are column-major for L, row-major for U,
        so that slabs are contiguous.
    options
        `host_memory`, `threads`; ``tile=(mb, nb, kb)`` forces slabs of nb columns and stream
        blocks of kb columns. An array in RAM may be factored on several devices
        (``devices=("host", "opencl:0")``): by tasks, with panels of nb columns.
        For files, devices hold and update slabs.
    observer
        Called with each event. Events have stage load1 (reads), mult1 (updates and panels) and
        store2; `unit` is the slab, `step` the block of earlier columns, 0 for the slab itself.
    report
        Called with the run's `Report` when the factor is complete; ``report=reports.append``
        collects it. `phases` has the seconds of load, update, panel, store and interchange, and
        ``plan["expected_phase_seconds"]`` what was expected of each.
    checkpoint
        Keep a journal beside the factor (or at this path), so that the same call goes on after a
        crash; at most one slab is computed again, and the result has the same bits. The factor
        must be a file.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    array
        The factor, zero in the other triangle; `out` where that is an array or a matrix, a
        read-only memmap for the location of a .npy file.

    Raises
    ------
    LinAlgError
        When A is not positive definite: `order` of the leading minor. It is a
        `SingularMatrixError`; nothing is published.
    InputError
        When A is not square, or not finite: `row` and `col`.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    cho_factor : For `cho_solve`.
    slogdet : Logarithm of the determinant from the factor.
    hdgemm.cluster.cholesky : On several machines.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> hdgemm.linalg.cholesky("S.npy", lower=True, out="L.npy")
    """
    with prepare(
        a,
        out,
        Call.of(**keywords),
        lower=lower,
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        strategy=strategy,
    ) as prepared:
        return prepared.run()


@overload
def cho_factor(
    a: NDArray[Element],
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> CholeskyFactor[NDArray[Element]]: ...
@overload
def cho_factor(
    a: Any,
    lower: bool = False,
    overwrite_a: Literal[False] = False,
    check_finite: bool = True,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> CholeskyFactor[NDArray[Any]]: ...
@overload
def cho_factor(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Out,
    **keywords: Unpack[DurableKeywords],
) -> CholeskyFactor[Out]: ...
@overload
def cho_factor(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Where | None = None,
    **keywords: Unpack[DurableKeywords],
) -> CholeskyFactor[Stored]: ...
@public_call(DurableKeywords, callers_arrays=True)
def cho_factor(
    a: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> CholeskyFactor:
    """Return ``(c, lower)`` for `cho_solve`, with the Cholesky factor of `a` in one triangle of c.

    The elements of the other triangle are undefined where `c` is an `out` that exists already, or
    `a` itself.

    Parameters
    ----------
    a, lower, overwrite_a, check_finite, out
        As in `cholesky`.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    c : array
        The factor; see above for the other triangle.
    lower : bool
        Which triangle it is.

    Raises
    ------
    LinAlgError
        When A is not positive definite; a `SingularMatrixError`.
    InputError
        When A is not square, or not finite.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    cho_solve : Solve with this factor.
    cholesky : Zeros in the other triangle.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> c, lower = hdgemm.linalg.cho_factor("S.npy", lower=True, out="L.npy")
    """
    with prepare(
        a,
        out,
        Call.of(**keywords),
        lower=lower,
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        clean=False,
    ) as prepared:
        return CholeskyFactor(prepared.run(), flag(lower, "lower"))


@contextmanager
def prepare(
    a: Any,
    out: Any,
    call: Call,
    *,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    strategy: str = "hybrid",
    clean: bool = True,
    inspect: Callable[[Slab], None] | None = None,
) -> Iterator[PreparedMatrix[Any]]:
    """Yield one Cholesky factorisation, planned.

    Parameters
    ----------
    clean
        Make the other triangle zero.
    inspect
        Called with each slab that is loaded, after `check_finite`.
    """
    lower = flag(lower, "lower")
    command = Command(
        "cholesky" if clean else "cho_factor",
        {"lower": lower},
        call.checkpoint,
        call.restart,
        transposed=not lower,
        triangle=True,
    )
    with open_square(a) as source, open_run(call) as run:
        order = "F" if lower else "C"
        output = Output.of(out, a, source, order=order, overwrite_a=overwrite_a, command=command)
        factor = output.matrix if lower else output.matrix.T
        in_array = output.new_array or in_memory(factor, output.form.dtype) is not None
        on_devices = strategy_of(strategy, run.options, in_memory=in_array)
        if in_array:
            folder = folder_of(source)
            plan = plan_in_array("cholesky", source, output.form.dtype, folder, run.options)
        else:
            matrix = source if lower else source.T
            plan = plan_for("cholesky", matrix, output, run, transposed=not lower)
        check = partial(check_finite_slab, triangle=True, transposed=not lower)
        check_slab = both(check if check_finite else None, inspect)
        factorisation = _Factorisation(
            source, output, plan, run, lower, on_devices, check_slab, clean
        )
        yield PreparedMatrix(plan, factorisation.run, run.session, output.matrix)


def _strips(n: int) -> list[Columns]:
    """Return the columns of a lower triangle that are read at a time."""
    return [Columns(first, min(first + _STRIP, n), first) for first in range(0, n, _STRIP)]


@dataclass(frozen=True, slots=True)
class _Factorisation:
    """One planned Cholesky factorisation; U is the transpose of the L of the transposed matrix.

    Parameters
    ----------
    on_devices
        Factors an array on devices; None for the host.
    check
        Called with each slab that is loaded.
    clean
        The other triangle of the result is made zero.
    """

    source: StoredMatrix
    output: Output
    plan: SlabPlan
    how: OpenRun
    lower: bool
    on_devices: Strategy | None
    check: Callable[[Slab], None] | None
    clean: bool

    def run(self) -> Any:
        """Factor and store the factor; return what `cholesky` returns."""
        source, how = self.source, self.how
        with (
            self.output.opened(sparse=True) as target,
            input_unchanged(source, target.stored),
        ):
            matrix, factor = self._turned(source), self._turned(target.stored)
            array = None if self.plan.stores else in_memory(factor, self.output.form.dtype)
            if array is not None:
                self._factor_array(matrix, array, new=target.new)
            elif (done := target.checkpoint) is not None and done.finished:
                report_done(how.callbacks, done.plan, done.resumption)
            else:
                with slab_run(matrix, factor, target, how, self.check, self.plan) as pipeline:
                    method = TrapezoidElimination(pipeline)
                    for slab in pipeline.slabs():
                        queue_slab(pipeline, slab, method)
                    self._clear(target, factor, pipeline.plan.slabs)
            save_factors(target, "cholesky", {}, lower=self.lower)
        return target.result()

    def _turned(self, matrix: StoredMatrix) -> StoredMatrix:
        return matrix if self.lower else matrix.T

    def _factor_array(self, matrix: StoredMatrix, array: NDArray[Any], *, new: bool) -> None:
        """Factor in a column-major array, which the result is; on the host without devices."""
        plan, how = self.plan, self.how
        recorder = Recorder(how.callbacks, plan.flops, devices=device_names(how.options))
        n = len(array)
        for place in _strips(n):
            first, last, _ = place
            slab = Slab(0, place, array[first:, first:last])
            with recorder.operation("load1", 0, nbytes=slab.array.nbytes):
                matrix[first:, first:last].read(slab.array)
            if self.check is not None:
                self.check(slab)
        try:
            if self.on_devices is None:
                factor_panel(array, 0, 0, recorder)
            else:
                self.on_devices("cholesky", array, how, recorder)
        except BaseException as error:
            if not new:
                say_state(error, "the array that holds the factor is overwritten in part")
            raise
        for column in range(1, n if self.clean else 0):
            array[:column, column] = 0
        recorder.finish(plan, {"load1": sum(map(plan.nbytes, _strips(plan.n)))})

    def _clear(self, target: OpenOutput, factor: StoredMatrix, slabs: tuple[Columns, ...]) -> None:
        """Store zeros above the diagonal of a matrix that existed before."""
        if self.clean and not target.new:
            for slab in slabs:
                factor[: slab.first, slab.first : slab.last] = np.zeros((), factor.dtype)
