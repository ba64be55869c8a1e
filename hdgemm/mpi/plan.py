"""Plans of distributed calls: memory, messages and expected time by formulas; nothing is run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import cholesky_pairs, elimination_pairs
from hdgemm.linalg.planning.solve import SINGLE
from hdgemm.linalg.solve import check_refine
from hdgemm.machine.limits import cores, default_host_bytes
from hdgemm.matrices.conversion import computed_in
from hdgemm.matrices.layout import check_read
from hdgemm.mpi._run import (
    BLOCK,
    GROUP,
    buffer_bytes,
    check_assumed,
    check_pivoting,
    refinement_bytes,
)
from hdgemm.mpi.machine import needed_bytes, update_rates
from hdgemm.mpi.slabs.plan import Slabs, fitting, slab_bytes
from hdgemm.mpi.variant import Variant, parse_grid, squarest
from hdgemm.options import parse_size, whole_number
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.plan_terms import expected_line, memory_line, moved_line, phase_lines, terms
from hdgemm.product.arguments import result_dtype
from hdgemm.units import format_rate, format_size, format_speed
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Functions that have a plan, by the names of the command line too.
ROUTINES: Final[Mapping[str, str]] = {
    "solve": "solve",
    "lu": "lu_factor",
    "lu_factor": "lu_factor",
    "cholesky": "cholesky",
}
#: Bytes/s of a rank's link and of the storage where none are given, and seconds of a message.
LINK: Final = 10e9
STORAGE: Final = 2e9
_LATENCY: Final = 2e-6
#: Products of A and X that refinement is expected to take: substitution and residual of 3 steps.
_STEPS: Final = 6.0
#: Most ranks that are tried to find how many suffice.
_MOST_RANKS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MpiPlan:
    """What a distributed call holds, sends and is expected to take.

    Parameters
    ----------
    kind
        Name of the function.
    n, columns, dtype
        Order of the matrix, right-hand sides, type of the elements of the factors.
    nb, grid
        Rows and columns of a block, and of the grid of ranks.
    host_bytes, host_limit
        Memory of one rank, and the memory that it may take.
    words
        Elements that one rank receives during factorisation and solution: about 3n²/(2√P).
    messages
        Messages one after the other that a rank waits for: about n·log₂P for pivots, of a
        tournament (n/NB)·log₂P.
    bytes_read, bytes_written
        Of the storage, by all ranks.
    flops
        Of all ranks.
    rank_rate, link, storage
        Flop/s of one rank, bytes/s of its link, and of the storage for all.
    expected_phase_seconds
        With lookahead, panel, broadcast and swap run beneath the update.
    slab_width
        Columns of a slab, by which a matrix larger than the memory of all ranks is factored; n for
        a matrix in memory.
    refine
        "float32": the factors are in single precision, and X is refined; else None.
    pivoting
        "partial" or "tournament".
    assume_a
        "gen": LU; "pos": Cholesky.

    See Also
    --------
    plan : Returns it.
    Report : What the call did.

    Examples
    --------
    >>> plan = hdgemm.mpi.plan("solve", 100_000, ranks=16, host_memory="32GB")
    >>> print(plan.grid, plan.expected_limit)
    """

    kind: str
    n: int
    columns: int
    dtype: str
    nb: int
    grid: tuple[int, int]
    host_bytes: int
    host_limit: int
    words: float
    messages: float
    bytes_read: int
    bytes_written: int
    flops: int
    rank_rate: float
    link: float
    storage: float
    expected_phase_seconds: Mapping[str, float]
    slab_width: int
    refine: str | None = None
    pivoting: str = "partial"
    assume_a: str = "gen"

    @property
    def ranks(self) -> int:
        """Processes of the grid."""
        return math.prod(self.grid)

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of the storage: "load1" is read, "store2" written."""
        return {"load1": self.bytes_read, "store2": self.bytes_written}

    @property
    def expected_seconds(self) -> float:
        """Expected duration: what cannot be hidden beneath updates is added."""
        phases = self.expected_phase_seconds
        hideable = sum(phases[name] for name in ("panel", "broadcast", "swap"))
        outside = sum(phases[name] for name in ("read", "solve", "write"))
        return outside + max(phases["update"], hideable)

    @property
    def expected_limit(self) -> str:
        """The phase that takes longest."""
        return max(self.expected_phase_seconds.items(), key=lambda phase: phase[1])[0]

    @property
    def efficiency(self) -> float:
        """The arithmetic's time on all ranks, as a part of `expected_seconds`."""
        return self.flops / (self.ranks * self.rank_rate) / self.expected_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | terms(self) | {"efficiency": self.efficiency, "ranks": self.ranks}

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        p, q = self.grid
        item = np.dtype(self.dtype).itemsize
        rate, link = format_speed(self.rank_rate / 1e9), format_rate(self.link)
        received = format_size(self.words * item)
        how = ", positive definite" if self.assume_a == "pos" else ""
        how += f", refined from {self.refine}" if self.refine else ""
        how += ", tournament pivoting" if self.pivoting == "tournament" else ""
        slabs = Slabs(self.n, self.slab_width).spans
        by_slabs = f"{len(slabs)} slabs of {self.slab_width} columns, each durable"
        lines = (
            f"{self.kind}: n = {self.n}, {self.columns} right-hand sides, {self.dtype}{how}",
            *([by_slabs] if len(slabs) > 1 else ()),
            f"{p}×{q} ranks of {rate}, links {link}, NB = {self.nb}",
            f"of each rank: {memory_line(self)}",
            f"a rank receives {received} ({self.words:.3g} elements)",
            f"and waits for {self.messages:.3g} messages one after the other",
            f"{moved_line(self)}, storage of {format_rate(self.storage)}",
            *phase_lines(self),
            f"{expected_line(self)}, efficiency {self.efficiency:.1%}",
        )
        return "\n".join(lines)


@refuses_unknown
def plan(
    routine: str,
    n: int,
    columns: int = 1,
    *,
    ranks: int,
    dtype: str = "float64",
    grid: tuple[int, int] | str | None = None,
    nb: int | None = None,
    host_memory: float | str | None = None,
    rate: float | None = None,
    link: float | str | None = None,
    storage: float | str | None = None,
    refine: str | None = None,
    pivoting: str = "partial",
    b_dtype: str | None = None,
    assume_a: str = "gen",
) -> MpiPlan:
    """Return the plan of a distributed call; nothing is read, and no process is started.

    The words of a rank are counted for right-looking elimination on a P×Q grid (HPL 2.3;
    ScaLAPACK Users' Guide, section 5.2).

    Parameters
    ----------
    routine
        "solve", "lu_factor" (or "lu") or "cholesky".
    n, columns
        Order of the matrix, and right-hand sides of "solve".
    ranks
        Processes.
    dtype, b_dtype
        Of the stored elements of A, and of B: None for A's. Low precision and integers are
        converted when they are read.
    grid, nb
        As in `solve`.
    host_memory
        Memory of one rank in bytes, or a text such as ``"400GB"``; None for the default of this
        machine.
    rate
        Flop/s of one rank; None measures updates on all cores of this machine.
    link, storage
        Bytes/s of one rank's link, 10 GB/s by default, and of the storage for all ranks, 2 GB/s.
    refine, pivoting, assume_a
        As in `solve`.

    Returns
    -------
    MpiPlan
        Memory of a rank, words sent, expected seconds; `print` shows a table.

    Raises
    ------
    DoesNotFitError
        When a rank needs more memory: `missing` in bytes, and how many ranks suffice. Without
        `refine`, factorisations go by slabs of columns instead, while one fits.

    See Also
    --------
    solve, lu_factor, cholesky : The calls.
    hdgemm.linalg.plan : On one machine.

    Examples
    --------
    >>> print(hdgemm.mpi.plan("lu", 500_000, ranks=64, host_memory="400GB"))
    """
    kind = ROUTINES.get(routine)
    if kind is None:
        raise InputError(f"no plan over MPI for {routine!r}: {', '.join(ROUTINES)} have one")
    check_assumed(assume_a)
    stored = check_read(dtype, "the matrix")
    stored_b = stored if b_dtype is None else check_read(b_dtype, "b")
    computed = result_dtype(computed_in(stored), computed_in(stored_b)).name
    count = whole_number(ranks, "ranks")
    columns = whole_number(columns, "columns") if kind == "solve" else 0
    shape = parse_grid(grid) if isinstance(grid, str) else grid or squarest(count)
    if math.prod(shape) > count:
        raise InputError(
            f"a grid of {shape[0]}×{shape[1]} has {math.prod(shape)} ranks, there are {count}"
        )
    check_refine(refine)
    if refine is not None and kind != "solve":
        raise InputError(f"refine goes with solve, got {kind}")
    check_pivoting(pivoting)
    assumed = "pos" if kind == "cholesky" else assume_a
    if assumed == "pos" and kind == "lu_factor":
        raise InputError("assume_a goes with solve, got lu_factor")
    if pivoting != "partial" and assumed == "pos":
        raise InputError("Cholesky takes no pivots: leave pivoting out")
    variant = Variant(whole_number(n, "n"), BLOCK if nb is None else nb, shape)
    available = default_host_bytes() if host_memory is None else int(parse_size(host_memory))
    refine = refine if computed in SINGLE else None
    sizes = stored.itemsize, stored_b.itemsize
    case = _Case(kind, columns, computed, sizes, refine, pivoting, assumed)
    return _priced(
        case,
        variant,
        case.slabs(variant, available),
        available,
        rate or _measured_rate(),
        LINK if link is None else float(parse_size(link)),
        STORAGE if storage is None else float(parse_size(storage)),
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """A function with right-hand sides, type of the elements, bytes of a stored element of A and
    of B, refinement, pivoting, and "gen" for LU or "pos" for Cholesky.
    """

    kind: str
    columns: int
    dtype: str
    stored: tuple[int, int]
    refine: str | None
    pivoting: str
    assume_a: str

    @property
    def symmetric(self) -> bool:
        """Whether one triangle is read and factored."""
        return self.assume_a == "pos"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def factor_itemsize(self) -> int:
        """Bytes of an element of the factors."""
        return self.itemsize // 2 if self.refine else self.itemsize

    @property
    def products(self) -> float:
        """Products of A and X that the solution takes after the factorisation."""
        if self.refine:
            return _STEPS
        return 1.0 if self.symmetric else 0.5

    def rank_bytes(self, variant: Variant) -> int:
        """Return the bytes of a rank that holds its part of the whole matrix."""
        columns, item = self.columns, self.itemsize
        need = needed_bytes(variant, columns=columns, itemsize=item)
        need += buffer_bytes(variant, columns, item)
        return need + (refinement_bytes(variant, columns, item) if self.refine else 0)

    def slabs(self, variant: Variant, available: int) -> Slabs:
        """Return the slabs by which so many bytes of a rank suffice; one where all fits.

        Raises
        ------
        DoesNotFitError
            With the missing bytes, and the ranks that suffice.
        """
        need = self.rank_bytes(variant)
        if need <= available:
            return Slabs(variant.n, variant.n)
        if not self.refine:
            return fitting(variant, self.itemsize, available)
        raise self._too_large(variant, need, available)

    def _too_large(self, variant: Variant, need: int, available: int) -> DoesNotFitError:
        """Return the error with the missing bytes, and the ranks that suffice."""
        error = DoesNotFitError.within(f"each rank for n = {variant.n}", need, available)
        ranks = math.prod(variant.grid)
        while ranks < _MOST_RANKS:
            ranks *= 2
            if self.rank_bytes(replace(variant, grid=squarest(ranks))) > available:
                continue
            error.args = (f"{error}, or take {ranks} ranks",)
            error.numbers["ranks"] = ranks
            break
        return error


def _measured_rate() -> float:
    """Return flop/s of updates on all cores of this machine, each with a thread of its own."""
    with blas_threads(1):
        return max(update_rates().values()) * cores()


def _priced(
    case: _Case,
    variant: Variant,
    slabs: Slabs,
    limit: int,
    rate: float,
    link: float,
    storage: float,
) -> MpiPlan:
    """Return the plan with the formulas for each phase."""
    (p, q), n, nb = variant.grid, variant.n, min(variant.nb, variant.n)
    kind, columns, dtype = case.kind, case.columns, case.dtype
    item, flop = case.itemsize, ELEMENT_TYPES[dtype].flops
    # Bytes of an element of the factors, and time of an operation on two of them.
    narrow = case.factor_itemsize
    each = flop * narrow / item
    ranks, symmetric = p * q, case.symmetric
    steps, groups = -(-n // nb), -(-columns // GROUP)
    pairs = cholesky_pairs(n, n) if symmetric else elimination_pairs(n, n)
    # Panels pass along rows of the grid. Along columns: rows of U and those that they replace, or
    # the panel's rows for the local columns; and candidates for pivots.
    streamed = slabs.streamed_below if symmetric else slabs.streamed
    panels = (n * n / 2 + streamed) / p * (q > 1)
    swapped = n * n / (2 * q if symmetric else q) * (p > 1)
    pivots, waits, eliminated = _panels(case, variant)
    solved = columns * n * (q / p + 1 / q) * (ranks > 1)
    down, along = math.ceil(math.log2(p)), math.ceil(math.log2(q))
    solving = groups * steps * (down + along)
    square, rhs = n * n * item, n * columns * item
    elements = n * n / (2 if symmetric else 1), n * columns
    # Elements are converted by the rank that reads them, before they are dealt.
    given = elements[0] * case.stored[0] + elements[1] * case.stored[1]
    passed = sum(elements) * item
    taken = float(rhs if kind == "solve" else square)
    by_slabs = slabs.width < n
    if by_slabs:
        again, more = _of_slabs(case, slabs, square)
        again += streamed * item
        given, passed, taken = given + again, passed + again, taken + more
    dealt = 1 / ranks / link * (ranks > 1)
    phases = {
        "read": max(given / storage, passed * dealt),
        "panel": pivots * narrow / link + waits * _LATENCY + each * eliminated / rate,
        "broadcast": panels * narrow / link + steps * along * _LATENCY,
        "swap": swapped * narrow / link + steps * (p - 1) * _LATENCY,
        # Elimination by LU applies L⁻¹ to B.
        "update": each * (pairs + (not symmetric) * n * n * columns / 2) / (ranks * rate),
        "solve": flop * n * n * columns * case.products / (ranks * rate)
        + solved * item / link
        + solving * _LATENCY,
        "write": max(taken / storage, taken * dealt),
    }
    return MpiPlan(
        kind,
        n,
        columns,
        dtype,
        variant.nb,
        variant.grid,
        slab_bytes(variant, slabs.width, item) if by_slabs else case.rank_bytes(variant),
        limit,
        panels + swapped + pivots + solved,
        waits + solving,
        int(given),
        int(taken),
        int(flop * (pairs + n * n * columns)),
        rate,
        link,
        storage,
        phases,
        slabs.width,
        case.refine,
        case.pivoting,
        assume_a=case.assume_a,
    )


def _of_slabs(case: _Case, slabs: Slabs, square: float) -> tuple[float, float]:
    """Return the bytes that are read and written beside A, B, X and the streams of slabs.

    A solution stores the factors, and reads both triangles, or one of them twice, for each group of
    right-hand sides. Factors of LU are read once more and overwritten by way of a log.
    """
    if case.kind == "solve":
        return square * max(1, -(-case.columns // slabs.width)), square
    return (0.0, 0.0) if case.symmetric else (square, 2 * square)


def _panels(case: _Case, variant: Variant) -> tuple[float, float, float]:
    """Return what a rank receives, waits for and computes in all panels.

    Partial pivoting: for each pivot a candidate of every process of a column of the grid, and the
    row of the diagonal. A tournament: for each panel the proposals of every process, which all
    play, and an interchange of rows; the rows of a panel are eliminated once to propose some of
    them, and once more (Grigori, Demmel and Xiang, 2011).

    Returns
    -------
    words, messages, pairs
        Elements; messages one after the other; pairs of a multiplication and an addition.
    """
    p, n, nb = variant.grid[0], variant.n, min(variant.nb, variant.n)
    steps, down = -(-n // nb), math.ceil(math.log2(p))
    own = n * n * nb / (4 * p)  # m·NB²/2 for a panel of m rows
    if case.symmetric:
        return 0.0, steps * down, own
    if case.pivoting == "partial":
        return n * (p - 1) * (2.0 + 2.0 * nb), n * down, own
    played = n * (p - 1) * nb * nb * 5 / 6  # for each of p - 1 pairs, 2·NB rows of NB columns
    words = n * ((p - 1) * (1.0 + nb) + 2.0 * nb * (p > 1))
    return words, steps * (down + p - 1), (1 + (p > 1)) * own + played
