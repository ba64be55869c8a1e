"""Plans of one pass over the rows of a tall matrix: blocks of rows, memory, expected time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.call.plans import expected_line, phase_lines
from hdgemm.call.run import machine_of
from hdgemm.errors import DoesNotFitError
from hdgemm.machine.limits import cores, host_bytes
from hdgemm.matrices.read_ahead import BLOCK_BYTES, STREAM_BUFFERS
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.units import format_count, format_flops, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hdgemm.call.run import OpenRun
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Stage

#: Columns of a block of reflectors at most.
REFLECTORS: Final = 64
#: Part of BLAS's rate at which rows are reduced (measured: 47 of 100 GFLOP/s with 500 columns).
_OF_GEMM: Final = 0.47


class RowPlan(NamedTuple):
    """How the rows of an m×(n + p) matrix pass through memory: `rows` of a block, `cores`.

    `bytes_held` is the memory that this takes, `host_limit` what it was planned for.
    `expected_phase_seconds` has the phases of a report; it is empty before `priced`.
    """

    m: int
    n: int
    p: int
    dtype: str
    rows: int
    cores: int
    bytes_held: int
    host_limit: int = 0
    expected_phase_seconds: Mapping[str, float] = {}

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count for Householder's R and Q^H·B."""
        k = min(self.m, self.n)
        pairs = self.n * k * (self.m - k / 3) + 2 * self.p * k * (self.m - k / 2)
        return int(flops_per_multiply_add(self.dtype) * pairs)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves: A and B are read once."""
        return {"load1": self.m * (self.n + self.p) * np.dtype(self.dtype).itemsize}

    @property
    def expected_seconds(self) -> float:
        """Expected duration; rows are read while others are reduced."""
        load = self.expected_phase_seconds.get("load", 0.0)
        return max(load, sum(self.expected_phase_seconds.values()) - load)

    @property
    def expected_limit(self) -> str:
        """What takes longest: ``"disk"`` or ``"kernel"``."""
        reads = self.expected_phase_seconds.get("load", 0.0) >= self.expected_seconds
        return "disk" if reads else "kernel"

    def priced(self, machine: Machine, *, in_file: bool) -> RowPlan:
        """Return the plan with the time that it takes on a machine."""
        load = self.planned_bytes["load1"] / (machine.disk_read if in_file else machine.copy)
        reduce = self.flops / (_OF_GEMM * machine.flop_rate(self.dtype))
        first = min(1.0, self.cores * self.rows / self.m) if self.m else 1.0
        phases = {"load": load, "panel": first * reduce, "update": (1 - first) * reduce}
        return self._replace(expected_phase_seconds=phases)

    def summary(self) -> dict[str, Any]:
        """Return shape, blocks, memory and expectations as plain values, for reports."""
        return self._asdict() | {
            "kind": "tsqr",
            "flops": self.flops,
            "host_bytes": self.bytes_held,
            "read_bytes": self.planned_bytes["load1"],
            "write_bytes": 0,
            "expected_seconds": self.expected_seconds,
            "expected_limit": self.expected_limit,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        return _text(self)

    def blocks(self, core: int) -> list[tuple[int, int]]:
        """Return the first row, and the one behind the last row, of each block of a core."""
        starts = range(0, self.m, max(1, self.rows))[core :: self.cores]
        return [(first, min(first + self.rows, self.m)) for first in starts]


def plan_rows(
    shape: tuple[int, int], p: int, dtype: str, memory: int, cores: int, *, rows: int | None = None
) -> RowPlan:
    """Return the blocks of rows of A (m×n) and B (m×p) that fit `memory` bytes.

    Parameters
    ----------
    cores
        Blocks that are reduced at once, at most.
    rows
        Force the rows of a block.

    Raises
    ------
    DoesNotFitError
        When R and one row of each block do not fit: `requested`, `available` and `missing`.
    """
    m, n = shape
    itemsize = np.dtype(dtype).itemsize
    width = max(1, n + p)
    row_bytes = width * itemsize
    held = 0
    # Each core holds a triangle, and reduces a row at least.
    most_cores = min(cores, m, memory // (itemsize * max(1, n) * width))
    for workers in range(max(1, most_cores), 0, -1):
        # R and Q^H·B, T and the workspace, and the mask of the check for NaNs.
        fixed = workers * itemsize * (n * width + 2 * REFLECTORS * width) + BOUNCE_BYTES
        per_row = workers * (STREAM_BUFFERS * row_bytes + 1)
        most = max(1, min(m, BLOCK_BYTES // row_bytes)) if rows is None else rows
        fitting = min(most, (memory - fixed) // per_row)
        least = most if rows is not None else min(most, n // 4 + 1 if workers > 1 else 1)
        held = fixed + per_row * max(fitting, least)
        if fitting >= least:
            return RowPlan(m, n, p, dtype, fitting, workers, held, memory)
    what = f"TSQR of a {m}×{n} {dtype} matrix, with R and a block of rows in memory,"
    raise DoesNotFitError.within(what, held, memory)


def rows_for(
    shape: tuple[int, int], p: int, dtype: np.dtype[Any], folder: Path | None, run: OpenRun
) -> RowPlan:
    """Return the plan of A (m×n), in a folder or in memory, and B (m×p) on this machine."""
    options = run.options
    plan = plan_rows(
        shape,
        p,
        dtype.name,
        host_bytes(options),
        options.threads or cores(),
        rows=options.tile and options.tile[0],
    )
    machine = machine_of(shape, dtype, folder, run, depth=plan.n)
    return plan.priced(machine, in_file=folder is not None)


def _text(plan: RowPlan) -> str:
    """Return what a plan of one pass over the rows does in a few lines."""
    shape, sides = f"{plan.m} × {plan.n} {plan.dtype}", format_count(plan.p, "right-hand side")
    return "\n".join(
        [
            f"TSQR of a {shape} matrix, {sides}: {format_flops(plan.flops)}",
            f"blocks of {format_count(plan.rows, 'row')} on {format_count(plan.cores, 'core')}",
            f"bytes read {format_size(plan.planned_bytes['load1'])}, in one pass",
            f"memory held {format_size(plan.bytes_held)} of {format_size(plan.host_limit)}",
            *phase_lines(plan.expected_phase_seconds),
            expected_line(plan.flops, plan.expected_seconds, plan.expected_limit),
        ]
    )
