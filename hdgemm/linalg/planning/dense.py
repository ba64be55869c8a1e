"""Plans of small dense problems between passes: decompositions of an n×n triangle by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.call.plans import expected_line
from hdgemm.call.run import machine_of
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import LARGEST
from hdgemm.machine.limits import host_bytes
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.units import format_flops, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from hdgemm.call.run import OpenRun
    from hdgemm.pipeline.plan import Stage

#: Part of BLAS's rate: half of the operations are products of a matrix and a vector.
_OF_GEMM: Final = 0.1


class DensePlan(NamedTuple):
    """A decomposition of an n×n matrix in memory.

    Parameters
    ----------
    name
        Such as ``"SVD of R"``.
    n, dtype
        Order and dtype of the matrix.
    flops
        Floating-point operations.
    bytes_held, host_limit
        Memory of matrix, results and workspace, and the limit.
    expected_phase_seconds
        Of the phase ``"svd"``.
    """

    name: str
    n: int
    dtype: str
    flops: int
    bytes_held: int
    host_limit: int
    expected_phase_seconds: Mapping[str, float]

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Nothing is read or stored."""
        return {}

    @property
    def expected_seconds(self) -> float:
        """Expected duration."""
        return sum(self.expected_phase_seconds.values())

    def summary(self) -> dict[str, Any]:
        """Return order, memory and expectations as plain values, for reports."""
        return self._asdict() | {
            "kind": "dense",
            "m": self.n,
            "host_bytes": self.bytes_held,
            "read_bytes": 0,
            "write_bytes": 0,
            "expected_seconds": self.expected_seconds,
            "expected_limit": "kernel",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        held, limit = format_size(self.bytes_held), format_size(self.host_limit)
        return "\n".join(
            [
                f"{self.name}, {self.n} × {self.n} {self.dtype}: {format_flops(self.flops)}",
                f"memory held {held} of {limit}",
                expected_line(self.flops, self.expected_seconds, "kernel"),
            ]
        )


def plan_dense(
    name: str, n: int, dtype: np.dtype[Any], run: OpenRun, *, vectors: bool
) -> DensePlan:
    """Return the plan of singular values or eigenvalues, with `vectors` of vectors, too.

    Raises
    ------
    DoesNotFitError
        When matrix, vectors and workspace do not fit the memory.
    InputError
        When the matrix has more elements than LAPACK's integers count.
    """
    if n * n > LARGEST:
        raise InputError(
            f"LAPACK takes matrices of up to {LARGEST:,} elements, and R has {n}×{n}: at most "
            f"{int(LARGEST**0.5):,} columns"
        )
    # The matrix, and with vectors both sets of them and a workspace of three matrices.
    held = n * n * dtype.itemsize * (6 if vectors else 2)
    flops = int(flops_per_multiply_add(dtype.name) * n**3 * (4.5 if vectors else 4 / 3))
    limit = host_bytes(run.options)
    if held > limit:
        what = (
            f"{name}, {n}×{n} {dtype.name}, with its vectors and workspace,"
            if vectors
            else (f"{name}, {n}×{n} {dtype.name},")
        )
        raise DoesNotFitError.within(what, held, limit)
    machine = machine_of((n, n), dtype, None, run)
    seconds = flops / (_OF_GEMM * machine.flop_rate(dtype.name))
    return DensePlan(name, n, dtype.name, flops, held, limit, {"svd": seconds})
