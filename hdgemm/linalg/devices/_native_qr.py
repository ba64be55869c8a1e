"""QR of a matrix on one device: reflectors in compact WY form (Schreiber and Van Loan).

A panel is halved recursively down to the columns that the device factors by itself. The reflectors
of a panel are kept beside the matrix with their unit diagonal and zeros above it, so that every
update is three products. The host computes T of the narrowest panels from V^H·V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.linalg.devices._native_matrix import NativeMatrix
from hdgemm.pipeline.devices.protocol import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Tile

    #: First column, and the one behind the last.
    Columns = tuple[int, int]


class ReflectorMatrix(NativeMatrix):
    """A matrix that becomes R, and the reflectors below it."""

    _first = 0
    _v: Tile
    _t: Tile

    def factor(self) -> list[NDArray[Any]]:
        """Factor by right-looking panels; return T of each panel."""
        (m, n), triangles = self.array.shape, []
        width = min(self.width, m, n)
        self._v, self._t = self._zeros("V", m, width), self._zeros("T", width, width)
        for number, (first, last) in enumerate(self.panels(min(m, n))):
            pairs = 2 * (m - first) * (last - first) * (n - first)
            with self.step(number, pairs):
                self._first = first
                self._factor_columns(first, last)
                self._apply((first, last), (last, n))
                triangles.append(self._fetched(self._of_t((first, last), (first, last))))
        return triangles

    def _factor_columns(self, first: int, last: int) -> None:
        """Factor columns from their diagonal on: halves recursively, narrow ones by a kernel."""
        if last - first <= self.device.panel_columns:
            self._factor_narrow(first, last)
            return
        middle = self.middle(first, last)
        left, right = (first, middle), (middle, last)
        self._factor_columns(first, middle)
        self._apply(left, right)
        self._factor_columns(middle, last)
        # T of both halves together: -T1·(V1^H·V2)·T2 beside their triangles.
        dtype = self.array.dtype
        product = self.work.scratch("VV", middle - first, last - middle, dtype)
        scaled = self.work.scratch("TVV", middle - first, last - middle, dtype)
        v1, v2 = self._of_v(first, left), self._of_v(first, right)
        self.work.multiply(1.0, v1, v2, product, beta=0.0, trans_a="C")
        self.work.multiply(1.0, self._of_t(left, left), product, scaled, beta=0.0)
        beside = self._of_t(left, right)
        self.work.multiply(-1.0, scaled, self._of_t(right, right), beside, beta=0.0)

    def _factor_narrow(self, first: int, last: int) -> None:
        """Factor narrow columns by the device's kernel; store V and T beside the matrix."""
        m, width, cols = len(self.array), last - first, (first, last)
        self.finish()
        tau = self.device.geqrf(self.block((first, m), cols), ())
        top = np.tril(self._fetched(self.block(cols, cols)), -1)
        np.fill_diagonal(top, 1)
        v = self._of_v(first, cols)
        self._put(top, v._replace(rows=width))
        if last < m:
            below = v._replace(row=v.row + width, rows=m - last)
            self.done(self.device.copy(self.block((last, m), cols), below, ()))
        gram = self.work.scratch("VV", width, width, self.array.dtype)
        self.work.multiply(1.0, v, v, gram, beta=0.0, trans_a="C")
        self._put(_triangle(self._fetched(gram), tau), self._of_t(cols, cols))

    def _apply(self, panel: Columns, cols: Columns) -> None:
        """Overwrite columns C right of a panel by (I - V·T^H·V^H)·C."""
        if cols[0] == cols[1]:
            return
        first, width, count = panel[0], panel[1] - panel[0], cols[1] - cols[0]
        target = self.block((first, len(self.array)), cols)
        v, t = self._of_v(first, panel), self._of_t(panel, panel)
        product = self.work.scratch("W", width, count, self.array.dtype)
        scaled = self.work.scratch("TW", width, count, self.array.dtype)
        self.work.multiply(1.0, v, target, product, beta=0.0, trans_a="C")
        self.work.multiply(1.0, t, product, scaled, beta=0.0, trans_a="C")
        self.work.multiply(-1.0, v, scaled, target)

    def _of_v(self, row: int, cols: Columns) -> Block:
        """Return the reflectors of some columns of the panel, from a row of the matrix on."""
        at = self._first
        return Block(self._v, row - at, cols[0] - at, len(self.array) - row, cols[1] - cols[0])

    def _of_t(self, rows: Columns, cols: Columns) -> Block:
        at = self._first
        return Block(self._t, rows[0] - at, cols[0] - at, rows[1] - rows[0], cols[1] - cols[0])

    def _zeros(self, name: str, rows: int, cols: int) -> Tile:
        """Return workspace of which the square at the top is zero: nothing else needs to be."""
        block = self.work.scratch(name, rows, cols, self.array.dtype)
        self._put(np.zeros((cols, cols), self.array.dtype), block._replace(rows=cols))
        return block.tile

    def _put(self, values: NDArray[Any], block: Block) -> None:
        """Copy a few values to the device, behind all operations before."""
        self.finish()
        staged = self.staged(values.shape)
        staged[...] = values
        self.device.upload(staged, block, ()).wait()

    def _fetched(self, block: Block) -> NDArray[Any]:
        """Copy a few values from the device, behind all operations before."""
        self.finish()
        staged = self.staged((block.rows, block.cols))
        self.device.download(block, staged, ()).wait()
        return staged.copy("F")


def _triangle(gram: NDArray[Any], tau: NDArray[Any]) -> NDArray[Any]:
    """Return T of I - V·T·V^H from V^H·V and tau, as LAPACK's larft."""
    t: NDArray[Any] = np.diag(tau).astype(gram.dtype)
    for col in range(1, len(tau)):
        t[:col, col] = -tau[col] * (t[:col, :col] @ gram[:col, col])
    return t
