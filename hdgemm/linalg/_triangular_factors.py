"""LU factorisation with separate factors: `lu`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import absolute, open_matrix
from hdgemm.call.plans import facts_of
from hdgemm.call.recorder import Recorder, report_done
from hdgemm.call.run import OpenRun, open_run
from hdgemm.call.run_sequence import RunSequence
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import laswp
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg.planning.slab import Columns, SlabPlan
from hdgemm.linalg.solving.factors import prepare_lu_factors
from hdgemm.linalg.storage import Output, check_apart
from hdgemm.machine.limits import host_bytes
from hdgemm.product.target import is_location, result_at
from hdgemm.run.members import update_devices

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Place, Source, Stored
    from hdgemm.linalg._checkpoint import SlabCheckpoint
    from hdgemm.linalg.solving.factors import LU
    from hdgemm.linalg.storage import OpenOutput
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.plan import Stage


@overload
def lu(
    a: Source,
    permute_l: Literal[False] = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...
@overload
def lu(
    a: Source,
    permute_l: Literal[False] = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: tuple[Place, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], Stored, Stored]: ...
@overload
def lu(
    a: Source,
    permute_l: Literal[True],
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def lu(
    a: Source,
    permute_l: Literal[True],
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: tuple[Place, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, Stored]: ...
@overload
def lu(
    a: Any,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: tuple[Any, Any] | None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, ...]: ...
@public_call(DurableKeywords, callers_arrays=True)
def lu(
    a: Any,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    p_indices: bool = False,
    *,
    out: tuple[Any, Any] | None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, ...]:
    """Return ``(p, l, u)``, the LU factorisation A = P·L·U of an m×n matrix of any size.

    `lu_factor` stores both factors in one matrix, which takes half the space. Raises what
    `lu_factor` raises.

    Parameters
    ----------
    a, overwrite_a, check_finite
        As in `lu_factor`. The factors of a matrix in a file go to a scratch file in its folder
        first.
    permute_l
        Return ``(L[p, :], U)``.
    p_indices
        False: p is the m×m matrix P, an array in memory, not larger than `host_memory`. True: p is
        a vector of indices, with A = L[p, :]·U.
    out
        Where L (m×k, k = min(m, n)) and U (k×n) go: two arrays, stored matrices or locations of
        files; None for new arrays.
    report
        Called with the report of the factorisation and of the copies of L and U.
    checkpoint
        As in `cholesky`; L and U must be files. The factors lie beside L until the end, also with
        `overwrite_a`.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    p : array
        m×m, or m numbers of int64 with `p_indices`.
    l, u : array
        As `lu_factor` returns its factors.

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
    lu_factor : Both factors in one matrix.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> p, l, u = hdgemm.linalg.lu("A.npy", p_indices=True, out=("L.npy", "U.npy"))
    """
    call = Call.of(**keywords)
    if out is not None and (not isinstance(out, tuple) or len(out) != 2):
        raise InputError(f"out must be two places, of L and of U, got {out!r}")
    places = [absolute(place) for place in out or (None, None)]
    if call.checkpoint is not False and not all(is_location(place) for place in places):
        raise InputError("checkpoint needs results in files: give locations of L and U in out")
    command = Command("lu", {"permute_l": bool(permute_l)}, call.checkpoint, call.restart)
    with open_matrix(a) as source, open_run(call) as run:
        if not permute_l and not p_indices:
            _check_permutation(source, run)
        factors = _Call(a, source, run, check_finite=check_finite, permuted=bool(permute_l))
        p, left, right = factors.run(places, command, overwrite_a=overwrite_a)
    if permute_l:
        return left, right
    if p_indices:
        return p, left, right
    real = np.empty(0, source.dtype.newbyteorder("=")).real.dtype
    return np.eye(len(p), dtype=real)[p], left, right


@dataclass(frozen=True, slots=True)
class _Call:
    """One factorisation with separate factors; `permuted` asks for L[p, :]."""

    a: Any
    source: StoredMatrix
    run_as: OpenRun
    check_finite: bool
    permuted: bool

    def run(
        self, places: list[Any], command: Command, *, overwrite_a: bool
    ) -> tuple[NDArray[np.int64], Any, Any]:
        """Return p, L and U.

        U has its name before a durable L is finished: a finished L says that all is.
        """
        m = self.source.shape[0]
        flops = SlabPlan.of_array("lu", *self.source.shape, self._dtype.name).flops
        portions = RunSequence(self.run_as.callbacks, flops)
        lower = self._output(places[0], self._shapes[0], command)
        upper = self._output(places[1], self._shapes[1])
        with (
            prepare_lu_factors(
                self.a,
                self.run_as._replace(callbacks=portions.next(flops)),
                overwrite_a=overwrite_a and not lower.durable,
                check_finite=self.check_finite,
                output=lower,
            ) as factors,
            lower.opened() as left,
        ):
            done = left.checkpoint
            if done is not None and done.finished:
                report_done(self.run_as.callbacks, done.plan, done.resumption)
                p = _permutation(_recorded(done), m)
                return p, left.result(), result_at(places[1])
            portions.start()
            found = factors.run()
            p = _permutation(found.pivots, m)
            plan, recorder = self._plan(done), Recorder(portions.next(0), 0)
            with upper.opened(run=done) as right:
                check_apart(left, right)
                self._store_upper(found.matrix, right.stored, plan, recorder)
                self._store_lower(found, left, plan, p, recorder)
        portions.finish(facts_of("lu", self.source.shape, self._dtype.name, self.run_as.options))
        return p, left.result(), right.result()

    @property
    def _shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        m, n = self.source.shape
        return (m, min(m, n)), (min(m, n), n)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self.source.dtype.newbyteorder("=")

    def _plan(self, checkpoint: SlabCheckpoint | None) -> SlabPlan:
        """Cut L into groups of columns that fit the memory, or as wide as a tile forces."""
        if checkpoint is not None and isinstance(checkpoint.plan, SlabPlan):
            return checkpoint.plan
        (m, k), options = self._shapes[0], self.run_as.options
        memory = host_bytes(options)
        width = block = max(1, memory // (8 * max(1, m * self._dtype.itemsize)))
        if options.tile is not None:
            _, width, block = options.tile
        return SlabPlan(
            "copy",
            m,
            k,
            self._dtype.name,
            _groups(k, width),
            block,
            1,
            memory // 4,
            memory,
            devices=update_devices(options),
        )

    def _bytes(self, plan: SlabPlan, start: int) -> dict[Stage, int]:
        """Return the bytes that each stage moves when `start` groups of L are stored already.

        Only rows of a triangle are read.
        """
        (m, k), itemsize = self._shapes[0], self._dtype.itemsize
        left, upper = plan.slabs[start:], self._upper_groups(plan)
        read = sum(part.width * (m - part.first) for part in left)
        read += sum(part.width * min(k, part.last) for part in upper)
        written = m * sum(part.width for part in left) + k * sum(part.width for part in upper)
        return {"load1": read * itemsize, "store2": written * itemsize}

    def _upper_groups(self, plan: SlabPlan) -> tuple[Columns, ...]:
        return _groups(self.source.shape[1], max((part.width for part in plan.slabs), default=1))

    def _output(self, out: Any, shape: tuple[int, int], command: Command | None = None) -> Output:
        return Output.of(
            out, self.a, self.source, order="F", overwrite_a=False, shape=shape, command=command
        )

    def _store_upper(
        self, factors: StoredMatrix, u: StoredMatrix, plan: SlabPlan, recorder: Recorder
    ) -> None:
        for number, (first, last, _) in enumerate(self._upper_groups(plan)):
            block = np.zeros((u.shape[0], last - first), self._dtype, "F")
            rows = block[:last]
            with recorder.operation("load1", number, nbytes=rows.nbytes):
                rows[...] = np.triu(factors[: len(rows), first:last].read(), -first)
            with recorder.operation("store2", number, nbytes=block.nbytes):
                u[:, first:last] = block

    def _store_lower(
        self,
        found: LU,
        left: OpenOutput,
        plan: SlabPlan,
        p: NDArray[np.int64],
        recorder: Recorder,
    ) -> None:
        done, start = left.checkpoint, 0
        if done is not None:
            done.begin(plan, self.run_as.options)
            start = done.done(0)
        for number, part in enumerate(plan.slabs[start:], start):
            block = self._lower(found.matrix, number, part, p, recorder)
            with recorder.operation("store2", number, nbytes=block.nbytes):
                if done is not None:
                    done.store(0, part, block, {"pivots": found.pivots})
                else:
                    left.stored[:, part.first : part.last] = block
        resumption = None if done is None else done.resumption
        recorder.finish(_Copies(plan, self._bytes(plan, start)), resumption=resumption)

    def _lower(
        self,
        factors: StoredMatrix,
        number: int,
        part: Columns,
        p: NDArray[np.int64],
        recorder: Recorder,
    ) -> NDArray[Any]:
        """Return some columns of L, or of L[p, :]."""
        first, last, _ = part
        block = np.zeros((factors.shape[0], part.width), self._dtype, "F")
        rows = block[first:]
        with recorder.operation("load1", number, nbytes=rows.nbytes):
            rows[...] = np.tril(factors[first:, first:last].read(), -1)
        np.fill_diagonal(rows, 1)
        return block[p] if self.permuted else block


class _Copies(NamedTuple):
    """The plan of the copies of L and U, as their report has it."""

    plan: SlabPlan
    planned_bytes: dict[Stage, int]

    def summary(self) -> dict[str, Any]:
        """Return shape and memory as plain values, for reports."""
        plan = self.plan
        return {
            "kind": "copies of L and U",
            "m": plan.m,
            "n": plan.n,
            "dtype": plan.dtype,
            "host_bytes": plan.host_bytes,
            "host_limit": plan.host_limit,
        }


def _check_permutation(source: StoredMatrix, run: OpenRun) -> None:
    """Raise `DoesNotFitError` where P, an array of real numbers, is larger than the memory."""
    m, memory = source.shape[0], host_bytes(run.options)
    requested = m * m * np.empty(0, source.dtype).real.itemsize
    if requested > memory:
        raise DoesNotFitError.within(
            f"the {m}×{m} matrix P, which p_indices=True makes a vector,", requested, memory
        )


def _groups(columns: int, width: int) -> tuple[Columns, ...]:
    return tuple(Columns(at, min(at + width, columns), 0) for at in range(0, columns, width))


def _permutation(pivots: NDArray[np.int64], m: int) -> NDArray[np.int64]:
    """Return p of interchanges: row i of A is row p[i] of L·U."""
    order = np.asfortranarray(np.arange(m, dtype=np.float64)[:, np.newaxis])
    laswp(order, pivots)
    found: NDArray[np.int64] = np.argsort(order[:, 0].astype(np.int64))
    return found


def _recorded(checkpoint: SlabCheckpoint) -> NDArray[np.int64]:
    """Return the pivots of a run that is finished."""
    notes = checkpoint.notes()
    return notes[0]["pivots"] if notes else np.empty(0, np.int64)
