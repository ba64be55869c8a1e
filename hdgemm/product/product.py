"""One product as the caller asked for it, turned the way the pipeline takes it."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.transposed import Transposed
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.pipeline.slots import Operands

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.matrices.base import Matrix, Operand
    from hdgemm.pipeline.plan import DeviceSpec, Path


@dataclass(frozen=True, slots=True)
class Multiplication:
    """C := alpha·op(A)·op(B) + beta·old C, its operands opened and checked.

    Parameters
    ----------
    a, b, c
        In op-space: m×k, k×n, m×n.
    old
        The C that beta multiplies; None when beta is zero, `c` when C is updated in place.
    """

    a: Operand
    b: Operand
    c: Operand
    old: Operand | None
    alpha: complex
    beta: complex
    dtype: np.dtype[np.inexact]

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        (m, k), (_, n) = self.a.shape, self.b.shape
        return m, n, k

    @property
    def folder(self) -> pathlib.Path | None:
        """Where its files lie; of several folders, C's. None when all operands are in memory."""
        stores = (self.c.matrix, self.a.matrix, self.b.matrix)
        files = (pathlib.Path(store.name).absolute() for store in stores if store.array is None)
        return next((file.parent for file in files if file.parent.is_dir()), None)

    def row_major(self) -> Multiplication:
        """Return the same product with a row-major C: of a column-major one, the transpose."""
        if not self.c.trans:
            return self
        return replace(
            self,
            a=_transposed(self.b),
            b=_transposed(self.a),
            c=_transposed(self.c),
            old=None if self.old is None else _transposed(self.old),
        )

    def problem(self, device: DeviceSpec) -> Problem:
        """Describe it to the planner; C must be row-major."""
        m, n, k = self.extents
        return Problem(
            m,
            n,
            k,
            self.dtype.name,
            self._spec(self.a, device),
            self._spec(self.b, device),
            self._spec(self.c, device),
            reads_c=self.beta != 0,
        )

    def _spec(self, operand: Operand, device: DeviceSpec) -> OperandSpec:
        matrix = operand.matrix
        return OperandSpec(
            operand.trans,
            "memory" if matrix.array is not None or _on_gpu(matrix) else "file",
            self._path(operand, device),
            matrix.dtype.itemsize,
            matrix.chunk,
            getattr(matrix, "encoded", False),
        )

    def _path(self, operand: Operand, device: DeviceSpec) -> Path:
        if operand.conj or not self._in_reach(operand.matrix, device):
            return "staged"
        in_place = operand is not self.c or self.old is None or self.old.matrix is self.c.matrix
        return "resident" if in_place else "staged"

    def _in_reach(self, matrix: Matrix, device: DeviceSpec) -> bool:
        """Say whether the kernel can take a store where it lies."""
        if isinstance(matrix, DeviceArrayMatrix):
            lies_on = matrix.device_array.device
            at_home = device.name == f"cuda:{lies_on or 0}"
            return at_home and matrix.dtype == self.dtype
        return device.unified and self._usable(matrix)

    def _usable(self, matrix: Matrix) -> bool:
        """Say whether BLAS can take a store as it lies."""
        array = matrix.array
        if array is None or array.dtype != self.dtype or not array.flags.aligned:
            return False
        rows, cols = array.shape
        return (cols <= 1 or array.strides[1] == array.itemsize) and (
            rows <= 1
            or (
                array.strides[0] >= cols * array.itemsize and array.strides[0] % array.itemsize == 0
            )
        )

    def operands(self) -> Operands:
        """Return the stores as the pipeline takes them; C must be row-major."""
        old = self.old or self.c
        return Operands(
            self.a.matrix,
            self.b.matrix,
            self.c.matrix,
            Transposed(old.matrix) if old.trans else old.matrix,
            conj_a=self.a.conj,
            conj_b=self.b.conj,
        )


def _on_gpu(matrix: Matrix) -> bool:
    return isinstance(matrix, DeviceArrayMatrix)


def _transposed(operand: Operand) -> Operand:
    return replace(operand, trans=not operand.trans)
