"""A product in small tiles whose sums are checked, on the host or the recording device."""

import numpy as np

from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.pipeline.abft import TileChecks
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.pipeline.executor import run_plan
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.pipeline.slots import Operands
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case as PlanCase, Limits
from hdgemm.planning.shapes import Shape
from tests.reference import assert_close_in_eps

LADDER = ("initial", "double-buffering", "data-reuse", "data-placement")


class Case:
    """A product with its operands as stored, and a plan for it."""

    def __init__(
        self, extents, tile, *, dtype="float64", strategy="data-placement", trans=(False, False),
        alpha=1.25, beta=0.0, slots=(2, 2, 2), depths=(1, 1), unified=False, seed=0,
    ):  # fmt: skip
        m, n, k = extents
        rng = np.random.default_rng(seed)
        self.a, self.b, self.c = (draw(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        if not beta:
            self.c[...] = np.nan
        self.alpha, self.beta, self.trans, self.unified = alpha, beta, trans, unified
        size = np.dtype(dtype).itemsize
        problem = Problem(
            m, n, k, dtype, OperandSpec(trans[0], itemsize=size),
            OperandSpec(trans[1], itemsize=size), OperandSpec(itemsize=size), reads_c=beta != 0,
        )  # fmt: skip
        device = HostDevice() if unified else RecordingDevice()
        shape = Shape(tile, min(k, depths[0] * tile[2]), min(k, depths[1] * tile[2]), slots)
        limits = Limits(1 << 30, 1 << 30)
        self.plan = build_plan(PlanCase(problem, device.spec, strategy, limits), shape)
        device.close()

    def run(self, device=None, scratch=1 << 20):
        """Return what the checks found."""
        device = device or (HostDevice() if self.unified else RecordingDevice())
        stored = [
            np.ascontiguousarray(x.T if trans else x)
            for x, trans in zip((self.a, self.b), self.trans, strict=True)
        ]
        self.out = self.c.copy()
        a, b, out = (ArrayMatrix(x) for x in (*stored, self.out))
        checks = TileChecks(scratch_bytes=scratch)
        try:
            run_plan(
                self.plan, device, Operands(a, b, out, out, alpha=self.alpha, beta=self.beta),
                checks=checks,
            )  # fmt: skip
        finally:
            device.close()
        if not self.unified:
            assert device.buffers == 0
        return checks.result()

    def check(self):
        assert_close_in_eps(
            self.out, self.a, self.b, alpha=self.alpha, beta=self.beta,
            c=self.c if self.beta else None,
        )  # fmt: skip


def draw(rng, shape, dtype):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)
