"""Plans of one pass over the rows of a tall matrix: blocks of rows, memory, expected time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.linalg.planning.device_tiles import DeviceTile, gram_tiles
from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS
from hdgemm.matrices.transfer import ALIGNMENT, BOUNCE_BYTES, DISK_THREADS
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.plan_terms import expected_line, memory_line, moved_line, phase_lines, terms
from hdgemm.units import format_count, format_flops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Stage

#: Columns of a block of reflectors at most.
REFLECTORS: Final = 64
#: Part of BLAS's rate at which rows are reduced (measured: 0.43 to 0.56 with 500 columns and more).
_OF_GEMM: Final = 0.47
#: The same for rows that are summed where that is accurate: between the rates of Householder's
#: method and of sums, 0.9 to 1.15, since a plan does not know the elements.
_OF_GEMM_OR_SUMS: Final = 0.8
#: Time of one core for each element of a block besides the operations: the check for NaNs, norms,
#: copies between orders (measured: 4 to 8 ns with 20 to 1000 columns).
_ELEMENT_SECONDS: Final = 6e-9
#: Time to begin to read a block, and to read one short piece of it, where pieces of columns are
#: read; time of one core for a block besides its elements (measured with blocks of 1 to 256 rows of
#: 200 columns: 0.22 to 0.46 ms, 23 to 29 µs, 0.1 to 0.3 ms).
_BLOCK_SECONDS: Final = 2.5e-4
_PIECE_SECONDS: Final = 24e-6
_REDUCER_SECONDS: Final = 2e-4

#: Bytes of the rows that are reduced at once, at least: they stay in a core's cache.
_STRIP_BYTES: Final = 2 << 20
#: Rows that are reduced at once, at least: products with fewer are slower.
_STRIP_ROWS: Final = 512


def strip_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Return the rows of n columns that are reduced at once."""
    return max(_STRIP_ROWS, _STRIP_BYTES // (max(1, n) * dtype.itemsize))


class RowShape(NamedTuple):
    """The rows that a pass reads: m×n of A and m×p of B beside it, as they are in memory.

    The first `made` columns of A are made in memory: a column of ones. `orders` names the orders,
    ``"C"`` and ``"F"``, of an array A in which reducers can work: its rows are neither read nor
    copied. It is empty where blocks are copies. With `by_columns`, a file has the elements of each
    column of A, not of each row, one after the other. `chunk_bytes` are the bytes of the largest
    encoded chunk.
    """

    m: int
    n: int
    p: int
    dtype: str
    made: int = 0
    orders: str = ""
    by_columns: bool = False
    chunk_bytes: int = 0

    def __str__(self) -> str:
        return f"a {self.m}×{self.n - self.made} {self.dtype} matrix"

    @property
    def transformed(self) -> RowShape:
        """The shape of blocks that differ from the rows of A: they are copies."""
        return self._replace(orders="")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of A and B."""
        return (self.n + self.p) * np.dtype(self.dtype).itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes of a row that are read, where it is not reduced in its place."""
        return self.row_bytes - self.made * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work and memory of one reducer of a pass.

    Parameters
    ----------
    name
        The computation, for the text of a plan, such as ``"TSQR"``.
    result
        What each core holds, for errors, such as ``"R"``.
    flops
        Floating-point operations of the whole pass.
    core_bytes
        Bytes of the result and the workspace of one core.
    shared_bytes
        Bytes of what all cores read.
    row_bytes
        Bytes of workspace for each row of a block.
    stored
        Bytes that are stored for each row.
    of_gemm
        Part of BLAS's rate at which it computes.
    element_seconds
        Time of one core for each element besides.
    least_rows
        Rows of a block from which a further core is worth its memory.
    required_rows
        Rows that the first block of each core needs.
    column_major
        It needs blocks in column-major order; other blocks have the order of the stored matrix.
    overwrites
        It changes the elements of the blocks. Only the last reducer of a pass may.
    device_tiles
        What each core holds on a device that computes its products; () for work of the host alone.
    """

    name: str
    result: str
    flops: int
    core_bytes: int
    shared_bytes: int = 0
    row_bytes: int = 0
    stored: int = 0
    of_gemm: float = 1.0
    element_seconds: float = _ELEMENT_SECONDS
    least_rows: int = 1
    required_rows: int = 0
    column_major: bool = False
    overwrites: bool = False
    device_tiles: tuple[DeviceTile, ...] = ()


def triangle_work(shape: RowShape) -> RowWork:
    """Return the work of TSQR by LAPACK's count for Householder's R and Q^H·B."""
    m, n, p, dtype, *_ = shape
    k, width, itemsize = min(m, n), max(1, n + p), np.dtype(dtype).itemsize
    pairs = n * k * (m - k / 3) + 2 * p * k * (m - k / 2)
    return RowWork(
        name="TSQR",
        result="R",
        flops=int(flops_per_multiply_add(dtype) * pairs),
        # R and Q^H·B, T and the workspace.
        core_bytes=itemsize * (n * width + 2 * REFLECTORS * width),
        of_gemm=_OF_GEMM,
        least_rows=n // 4 + 1,
        column_major=True,
        overwrites=True,
    )


def triangle_flops(rows: int, shape: RowShape) -> int:
    """Return the operations of rows that are reduced with a triangle, by Householder's method."""
    pairs = shape.n * rows * (shape.n + 2 * shape.p)
    return int(flops_per_multiply_add(shape.dtype) * pairs)


def r_factor_work(shape: RowShape) -> RowWork:
    """Return the work of the R of [A | B], by strips of rows that are copied."""
    dtype, width = np.dtype(shape.dtype), shape.n + shape.p
    whole = triangle_work(shape._replace(n=width, p=0))
    # A strip, two of [A | B], panels of R while it takes up a sum, and R's further column.
    strip = min(shape.m, strip_rows(width, dtype))
    strips = strip * (2 if shape.p else 1)
    rows = strips + 3 * REFLECTORS + 1
    return replace(
        triangle_work(shape),
        core_bytes=whole.core_bytes + rows * width * dtype.itemsize,
        of_gemm=_OF_GEMM_OR_SUMS,
        column_major=False,
        overwrites=False,
        device_tiles=gram_tiles(width, strip, conjugates=dtype.kind == "c"),
    )


def centred_work(shape: RowShape) -> RowWork:
    """Return the work of the R of centred rows, of which a strip is held besides."""
    dtype, work = np.dtype(shape.dtype), r_factor_work(shape)
    strip = min(shape.m, strip_rows(shape.n, dtype)) * shape.n * dtype.itemsize
    return replace(work, core_bytes=work.core_bytes + strip)


def least_squares_work(shape: RowShape) -> RowWork:
    """Return the work of R and Q^H·B, by the reducer of `hdgemm.linalg.rows.r_factor.r_and_qb`."""
    return r_factor_work(shape) if takes_sums(shape.n, shape.p) else triangle_work(shape)


def takes_sums(n: int, p: int) -> bool:
    """Return whether R and Q^H·B come from the R of [A | B].

    It has p² operations more for each row, at most a twentieth of them for p = n/4, and about a
    third of the time where rows are summed.
    """
    return 4 * p <= n


def vectors_bytes(shape: RowShape) -> int:
    """Return the bytes of both sets of singular vectors of the triangle of a pass."""
    return 2 * shape.n**2 * np.dtype(shape.dtype).itemsize


class RowPlan(NamedTuple):
    """How the rows of an m×(n + p) matrix pass through memory: blocks of `rows`, on `cores`.

    Parameters
    ----------
    m, n, p, dtype, made, by_columns
        See `RowShape`.
    rows, cores
        Rows of a block, and blocks that are reduced at once.
    host_bytes, host_limit
        The memory that this takes, and what it was planned for.
    name
        The computations, such as ``"TSQR"``.
    flops, kernel_flops
        Floating-point operations, and as many of BLAS's that take the same time.
    element_seconds
        Time of one core for all elements besides.
    stored
        Bytes that are stored for each row.
    in_place
        A is an array in which the reducers work: its rows are neither read nor copied.
    devices
        The devices that compute the products, core by core in turn; () for the host alone.
    expected_phase_seconds
        By the phases of a report; empty before `priced`.
    """

    m: int
    n: int
    p: int
    dtype: str
    rows: int
    cores: int
    host_bytes: int
    host_limit: int = 0
    name: str = "TSQR"
    flops: int = 0
    kernel_flops: float = 0.0
    element_seconds: float = 0.0
    stored: int = 0
    made: int = 0
    in_place: bool = False
    by_columns: bool = False
    devices: tuple[str, ...] = ()
    expected_phase_seconds: Mapping[str, float] = {}

    @property
    def shape(self) -> RowShape:
        """The rows that the pass reads."""
        return RowShape(self.m, self.n, self.p, self.dtype, self.made, by_columns=self.by_columns)

    @property
    def read_bytes(self) -> int:
        """Bytes of a row that are read."""
        return 0 if self.in_place else self.shape.read_bytes

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves: A and B are read once."""
        read: dict[Stage, int] = {"load1": self.m * self.read_bytes}
        return read | ({"store2": self.m * self.stored} if self.stored else {})

    @property
    def expected_seconds(self) -> float:
        """Expected duration; rows are read and stored while others are reduced."""
        phases = self.expected_phase_seconds
        disk = phases.get("load", 0.0) + phases.get("store", 0.0)
        return max(disk, sum(phases.values()) - disk)

    @property
    def expected_limit(self) -> str:
        """What takes longest: ``"disk"`` or ``"kernel"``."""
        phases = self.expected_phase_seconds
        disk = phases.get("load", 0.0) + phases.get("store", 0.0)
        return "disk" if disk >= self.expected_seconds else "kernel"

    def priced(
        self, machine: Machine, *, in_file: bool, devices: Sequence[Machine] = ()
    ) -> RowPlan:
        """Return the plan with the time that it takes on a machine, or with products on devices."""
        moved = self.planned_bytes
        load = moved["load1"] / (machine.disk_read if in_file else machine.copy)
        blocks = -(-self.m // max(1, self.rows))
        if in_file and self.read_bytes:
            pieces = (self.n - self.made) * self.by_columns
            load += blocks * (_BLOCK_SECONDS + pieces * _PIECE_SECONDS)
        reduce = self.kernel_flops / machine.flop_rate(self.dtype)
        if devices:  # each takes as many rows
            slowest = min(each.flop_rate(self.dtype) for each in devices) * len(devices)
            link = sum(each.pcie_up for each in devices)
            reduce = max(self.flops / slowest, self.m * self.shape.row_bytes / link)
        reduce += (self.element_seconds + blocks * _REDUCER_SECONDS) / max(1, self.cores)
        first = min(1.0, self.cores * self.rows / self.m) if self.m else 1.0
        phases = {"load": load, "panel": first * reduce, "update": (1 - first) * reduce}
        if "store2" in moved:
            phases["store"] = moved["store2"] / (machine.disk_write if in_file else machine.copy)
        return self._replace(expected_phase_seconds=phases)

    def summary(self) -> dict[str, Any]:
        """Return shape, blocks, memory and expectations as plain values, for reports."""
        kind = "tsqr" if self.name == "TSQR" else "rows"
        return self._asdict() | {"kind": kind} | terms(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        return _text(self)

    def blocks(self, core: int) -> list[tuple[int, int]]:
        """Return the first row, and the one behind the last row, of each block of a core."""
        starts = range(0, self.m, max(1, self.rows))[core :: self.cores]
        return [(first, min(first + self.rows, self.m)) for first in starts]


def plan_pass(
    shape: RowShape,
    works: Sequence[RowWork],
    memory: int,
    cores: int,
    *,
    rows: int | None = None,
) -> RowPlan:
    """Return the blocks of rows of A and B that fit `memory` bytes beside what reducers hold.

    Parameters
    ----------
    works
        Of all reducers of the pass.
    cores
        Blocks that are reduced at once, at most.
    rows
        Force the rows of a block.

    Raises
    ------
    DoesNotFitError
        When the results and one row of each block do not fit: `requested`, `available` and
        `missing`.
    """
    m, row_bytes = shape.m, max(1, shape.row_bytes)
    core_bytes = sum(work.core_bytes for work in works)
    shared = BOUNCE_BYTES + sum(work.shared_bytes for work in works)
    worthwhile = max(work.least_rows for work in works)
    held = 0
    # Each core holds a result, and reduces a row at least.
    required = max(work.required_rows for work in works)
    most_cores = min(cores, m // max(1, required), memory // max(1, core_bytes))
    for workers in range(max(1, most_cores), 0, -1):
        # Chunks as stored and decoded, in the threads that read, beyond the buffers that no such
        # read takes; half of the memory at most.
        reads = max(DISK_THREADS, STREAM_BUFFERS * workers)
        decoding = max(0, 2 * reads * shape.chunk_bytes - BOUNCE_BYTES)
        free = memory - min(decoding, (memory + 1) // 2)
        fixed = shared + workers * (core_bytes + STREAM_BUFFERS * ALIGNMENT)
        # The blocks, the mask of the check for NaNs, and the workspace.
        each = STREAM_BUFFERS * row_bytes + 1 + sum(work.row_bytes for work in works)
        per_row = workers * each
        most = max(1, min(m, BLOCK_BYTES // row_bytes)) if rows is None else rows
        if required:  # and each core has a whole block
            most = max(required, min(most, m // workers))
        fitting = min(most, (free - fixed) // per_row)
        least = max(1, required, min(most, worthwhile if workers > 1 else 1))
        least = least if rows is None else most
        held = fixed + per_row * max(fitting, least)
        held += min(decoding, held)
        if fitting >= least:
            return _plan_of(shape, works, fitting, workers)._replace(
                host_bytes=held, host_limit=memory
            )
    results = " and ".join(dict.fromkeys(work.result for work in works))
    what = f"{_names(works)} of {shape}, with {results} and a block of rows in memory,"
    raise DoesNotFitError.within(what, held, memory)


def _plan_of(shape: RowShape, works: Sequence[RowWork], rows: int, cores: int) -> RowPlan:
    return RowPlan(
        *shape[:4],
        rows,
        cores,
        host_bytes=0,
        made=shape.made,
        in_place=in_place(shape.orders, works),
        by_columns=shape.by_columns,
        name=_names(works),
        flops=sum(work.flops for work in works),
        kernel_flops=sum(work.flops / work.of_gemm for work in works),
        element_seconds=shape.m * (shape.n + shape.p) * sum(work.element_seconds for work in works),
        stored=sum(work.stored for work in works),
    )


def in_place(orders: str, works: Sequence[RowWork]) -> bool:
    """Say whether reducers can work in an array with these orders, "" for none."""
    column_major = any(work.column_major for work in works)
    overwrites = any(work.overwrites for work in works)
    return ("F" in orders if column_major else bool(orders)) and not overwrites


def _names(works: Sequence[RowWork]) -> str:
    return " and ".join(dict.fromkeys(work.name for work in works))


def _text(plan: RowPlan) -> str:
    """Return what a plan of one pass over the rows does in a few lines."""
    shape = f"{plan.m} × {plan.n - plan.made} {plan.dtype}"
    beside = f", {format_count(plan.p, 'right-hand side')}" if plan.p else ""
    return "\n".join(
        [
            f"{plan.name} of a {shape} matrix{beside}: {format_flops(plan.flops)}",
            f"blocks of {format_count(plan.rows, 'row')} on {format_count(plan.cores, 'core')}"
            + (f", products on {' and '.join(plan.devices)}" if plan.devices else ""),
            f"{moved_line(plan)}, in one pass",
            memory_line(plan),
            *phase_lines(plan),
            expected_line(plan),
        ]
    )
