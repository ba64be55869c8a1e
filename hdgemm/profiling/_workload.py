"""The product that a profile computes: the paper's shapes, scaled to this machine."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.blas.products import multiply
from hdgemm.machine.limits import available_bytes
from hdgemm.options import Options, built_in_options
from hdgemm.preflight import plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hdgemm.pipeline.plan import Plan
    from hdgemm.report import Report
    from hdgemm.run.session import Session

#: k relative to m: m/8 in the paper's detailed figures, the others in its Table 4.
DEPTHS: Final = {"k = 3m/32": 3 / 32, "k = m/8": 1 / 8, "k = m/4": 1 / 4}
_DEPTH: Final = DEPTHS["k = m/8"]
#: Extents are multiples of this.
_ROUND: Final = 128
#: The device holds at most this fraction of A, B and C, as in the paper's largest cases.
_DEVICE_FRACTION: Final = 8
_ITEMSIZE: Final = 8
#: beta: store2 adds the old C, as in the paper.
_BETA: Final = 0.5
#: Largest extent of the CPU's own product, and seconds for which it is repeated.
_CPU_EXTENT: Final = 1024
_CPU_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Extents:
    """m, n and k of a product."""

    m: int
    n: int
    k: int

    @property
    def nbytes(self) -> int:
        """Bytes of A, B and C."""
        return _ITEMSIZE * (self.m * self.k + self.k * self.n + self.m * self.n)


def extents_for(flop_rate: float, seconds: float) -> Extents:
    """Return the square C with k = m/8 that takes so many seconds at a flop rate.

    C is at least 1024×1024, and all matrices take at most a quarter of the free memory.
    """
    side = (flop_rate * seconds / 2 / _DEPTH) ** (1 / 3)
    most = (available_bytes() / 4 / _ITEMSIZE / (1 + 2 * _DEPTH)) ** 0.5
    m = max(1024, _rounded(min(side, most)))
    return Extents(m, m, _rounded(_DEPTH * m))


def scaled(largest: Extents, part: float, depth: float) -> Extents:
    """Return a product of the sweep: a part of the largest side, and another depth."""
    m = min(largest.m, max(512, _rounded(largest.m * part)))
    return Extents(m, m, _rounded(depth * m))


def _rounded(extent: float) -> int:
    return max(_ROUND, int(extent) // _ROUND * _ROUND)


def cpu_gflops(extents: Extents) -> float:
    """Return the 10⁹ flop/s of BLAS in RAM, on a part of the product."""
    n = max(256, min(_CPU_EXTENT, extents.m // 2))
    k = max(256, min(_CPU_EXTENT, extents.k))
    rng = np.random.default_rng(3)
    a, b = rng.random((n, k)), rng.random((k, n))
    out = a @ b
    flops, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < _CPU_SECONDS:
        np.matmul(a, b, out=out)
        flops += 2 * n * n * k
    return flops / seconds / 1e9


@contextmanager
def open_workload(extents: Extents, folder: Path, *, files: bool) -> Iterator[Workload]:
    """Yield a workload with random matrices of the largest product; remove them at the end.

    With `files` they lie in files under `folder`: for a device that works on them in place.
    """
    # The deepest products of the sweep need more of k than the ladder does.
    k = max(extents.k, _rounded(max(DEPTHS.values()) * extents.m))
    shapes = {"A": (extents.m, k), "B": (k, extents.n), "C": (extents.m, extents.n)}
    rng = np.random.default_rng(7)
    with ExitStack() as stack:
        matrices: dict[str, Any] = {}
        for name, shape in shapes.items():
            matrices[name] = rng.random(shape)
            if files:
                path = folder / f"hdgemm-profile-{name}.npy"
                stack.callback(path.unlink, missing_ok=True)
                np.save(path, matrices[name])
                matrices[name] = np.load(path, mmap_mode="r+")
        # Unmapped before the files are removed.
        stack.callback(matrices.clear)
        yield Workload(extents, matrices, files=files)


class Workload:
    """The matrices that all runs of a profile use."""

    def __init__(self, extents: Extents, matrices: Mapping[str, Any], *, files: bool) -> None:
        self.extents = extents
        self._matrices = matrices
        self._files = files

    def _operands(self, extents: Extents) -> tuple[Any, Any, Any]:
        """Return A, B and C of a product: leading submatrices of the largest."""
        m, n, k = extents.m, extents.n, extents.k
        a, b, c = (self._matrices[name] for name in "ABC")
        return a[:m, :k], b[:k, :n], c[:m, :n]

    def options(self, strategy: str, devices: Sequence[str], extents: Extents) -> Options:
        """Return the options of a run: each device holds an eighth of the matrices."""
        return built_in_options(
            devices=tuple(devices),
            strategy=strategy,
            device_memory=max(24 << 20, extents.nbytes // _DEVICE_FRACTION),
            host_memory=self._host_limit(extents),
        )

    def _host_limit(self, extents: Extents) -> int:
        """Bytes of host memory: half of the matrices for files, plenty for arrays in RAM."""
        if self._files:
            return max(96 << 20, extents.nbytes // 2)
        return 2 * extents.nbytes + (64 << 20)

    def plan(self, session: Session, options: Options) -> Plan:
        """Return the plan of the first device for the largest product."""
        a, b, c = self._operands(self.extents)
        return plan(a, b, beta=_BETA, c=c, out=c, options=options, session=session)[0]

    def run(self, session: Session | None, options: Options, extents: Extents) -> Report:
        """Compute C := A·B + beta·C."""
        a, b, c = self._operands(extents)
        return multiply(a, b, beta=_BETA, c=c, out=c, options=options, session=session)
