"""Plans of small dense problems between passes: decompositions of an n×n triangle by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.call.run import machine_of
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import LARGEST
from hdgemm.machine.limits import host_bytes
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.plan_terms import expected_line, memory_line, terms
from hdgemm.units import format_flops

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
    host_bytes, host_limit
        Memory of matrix, results and workspace, and the limit.
    expected_phase_seconds
        Of the phase ``"svd"``.
    """

    name: str
    n: int
    dtype: str
    flops: int
    host_bytes: int
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

    @property
    def expected_limit(self) -> str:
        """Only the kernel takes time."""
        return "kernel"

    def summary(self) -> dict[str, Any]:
        """Return order, memory and expectations as plain values, for reports."""
        return self._asdict() | {"kind": "dense", "m": self.n} | terms(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        what = f"{self.name}, {self.n} × {self.n} {self.dtype}: {format_flops(self.flops)}"
        return "\n".join([what, memory_line(self), expected_line(self)])


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
