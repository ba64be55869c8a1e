"""The product that a profile multiplies: the paper's shapes, scaled to this machine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.blas import execute, multiply
from hdgemm.machine.limits import available_bytes
from hdgemm.matrices.npy import create_npy
from hdgemm.options import Options
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.planning.planner import plan_problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Place, Plan
    from hdgemm.pipeline.plan import Path as Path_
    from hdgemm.report import Report

#: The paper's detailed figures take k = m / 8; Table 4 has 1.5, 2 and 4 times 1024 for 16384 to
#: 32768 rows.
DEPTHS: Final = {"k = 3m/32": 3 / 32, "k = m/8": 1 / 8, "k = m/4": 1 / 4}
_ROUND: Final = 128
#: The device may hold so much of the three matrices, as in the paper's largest cases.
_DEVICE_PART: Final = 8
_ITEMSIZE: Final = 8
#: beta: store2 adds the old C on the way, as in the paper.
_BETA: Final = 0.5


@dataclass(frozen=True, slots=True)
class Extents:
    """m, n and k of a product."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Bytes of A, B and C."""
        return _ITEMSIZE * (self.m * self.k + self.k * self.n + self.m * self.n)


def extents_for(flop_rate: float, seconds: float, *, depth: float = 1 / 8) -> Extents:
    """Return the square C with k = depth·m whose product takes so many seconds at this rate.

    Extents are multiples of 128, C at least 1024 square, and all matrices take at most a
    quarter of the memory that is free.
    """
    side = (flop_rate * seconds / 2 / depth) ** (1 / 3)
    most = (available_bytes() / 4 / _ITEMSIZE / (1 + 2 * depth)) ** 0.5
    m = max(1024, _round(min(side, most)))
    return Extents(m, m, max(_ROUND, _round(depth * m)))


def scaled(largest: Extents, part: float, depth: float) -> Extents:
    """Return a smaller product of the sweep: a part of the side, another depth."""
    m = min(largest.m, max(512, _round(largest.m * part)))
    return Extents(m, m, max(_ROUND, _round(depth * m)))


def _round(extent: float) -> int:
    return max(_ROUND, int(extent) // _ROUND * _ROUND)


class Workload:
    """Matrices that strategies take turns in; a context that removes them again.

    Parameters
    ----------
    extents
        The largest product.
    files
        Keep the matrices in files under `folder`, as for a device that works in place.
    """

    def __init__(self, extents: Extents, folder: Path, *, files: bool) -> None:
        self.extents = extents
        self.files = files
        self._folder = folder
        self._stack = ExitStack()
        self._matrices: dict[str, Any] = {}

    def __enter__(self) -> Self:
        largest = self.extents
        # The sweep's deepest products need more of k than the ladder's.
        k = max(largest.k, _round(max(DEPTHS.values()) * largest.m))
        shapes = {"A": (largest.m, k), "B": (k, largest.n), "C": (largest.m, largest.n)}
        rng = np.random.default_rng(7)
        with self._stack:
            for name, shape in shapes.items():
                self._matrices[name] = self._make(name, shape, rng)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._matrices.clear()
        self._stack.close()

    def _make(self, name: str, shape: tuple[int, int], rng: np.random.Generator) -> Any:
        values = rng.random(shape)
        if not self.files:
            return values
        path = self._folder / f"hdgemm-profile-{name}.npy"
        self._stack.callback(path.unlink, missing_ok=True)
        with create_npy(path, shape, values.dtype) as draft:
            draft.operand.matrix.write(0, 0, values)
            draft.publish()
        return np.load(path, mmap_mode="r+")

    def operands(self, extents: Extents) -> tuple[Any, Any, Any]:
        """Return A, B and C of a product, as corners of the largest."""
        m, n, k = extents.m, extents.n, extents.k
        return (
            self._matrices["A"][:m, :k],
            self._matrices["B"][:k, :n],
            self._matrices["C"][:m, :n],
        )

    def problem(self, extents: Extents, path: Path_ = "staged") -> Problem:
        """Describe a product of this workload, with A and B on another path if asked."""
        place: Place = "file" if self.files else "memory"
        inputs, c = OperandSpec(False, place, path), OperandSpec(False, place, "staged")
        return Problem(extents.m, extents.n, extents.k, "float64", inputs, inputs, c, reads_c=True)

    def plan(self, extents: Extents, strategy: str, device: DeviceSpec, machine: Machine) -> Plan:
        """Plan a product of this workload."""
        return plan_problem(
            self.problem(extents),
            self.options(strategy, extents),
            device,
            machine,
            host_limit=self.host_limit(extents),
        )

    def host_limit(self, extents: Extents) -> int:
        """Bytes of host memory: for files as little as for a device, for arrays plenty."""
        if self.files:
            return max(96 << 20, extents.nbytes // 2)
        return 2 * extents.nbytes + (64 << 20)

    def options(self, strategy: str, extents: Extents) -> Options:
        """Return the options of a run: the device holds an eighth of the matrices."""
        least = max(24 << 20, extents.nbytes // _DEVICE_PART)
        return Options(
            strategy=strategy,
            device_memory=least,
            host_memory=self.host_limit(extents),
        )

    def run(self, plan: Plan, extents: Extents) -> Report:
        """Run a plan: C := A·B + beta·C."""
        a, b, c = self.operands(extents)
        return execute(plan, a, b, c, 1.0, _BETA)

    def run_on(self, devices: Sequence[str], strategy: str, extents: Extents) -> Report:
        """Multiply on several devices at once, planned and split by the library."""
        a, b, c = self.operands(extents)
        options = replace(self.options(strategy, extents), devices=tuple(devices))
        return multiply(a, b, beta=_BETA, c=c, out=c, options=options)
