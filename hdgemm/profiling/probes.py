"""The operations of the stages one by one, each on memory of its own, ready to be repeated.

They go the stages' own ways: through the device protocol, and through the matrices' reads and
writes. A probe's `step` does one operation and returns the bytes moved, or the flop.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.linalg.blas import dgemm

from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.npy import create_npy
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.planning.memory import round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Operand

#: What each probe occupies (HDGEMM, tables 1 and 2; disk and cores added).
RESOURCE_OF: Final = {
    "load1": "host_memory",
    "load2": "pcie_up",
    "mult1": "device",
    "store1": "pcie_down",
    "store2": "host_memory",
    "disk": "disk",
    "cores": "cores",
}
_DTYPE: Final = np.dtype(np.float64)
#: Rows × columns of a staging piece: 8 MB, of a tile that is multiplied, and of the small
#: product that stays in the caches.
_PIECE: Final = (512, 2048)
_TILE: Final = 1024
_SMALL: Final = 256
#: Staging pieces of a copy, together more than caches hold: in a run the kernel works between two
#: uses of a piece, and nothing is left of it in them.
_RING: Final = 6
#: Rows of the matrices in RAM and on disk: 64 MB, more than caches hold.
_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """One operation that can be repeated.

    Parameters
    ----------
    name
        A stage, ``"disk"`` or ``"cores"``.
    step
        Does it once, and returns the bytes moved or the flop done.
    unit
        ``"GB/s"`` or ``"GFLOP/s"``: of which `step`'s results are 10⁹ths.
    """

    name: str
    step: Callable[[], int]
    unit: str


class ProbeSet:
    """All probes that a device has, with their memory; a context that gives it all back.

    Parameters
    ----------
    device
        Open; where it is unified there is no link to probe.
    folder
        Where the disk probe writes 64 MB.
    """

    def __init__(self, device: Device, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._stack = ExitStack()
        self.probes: dict[str, Probe] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self._host()
            if not self._device.spec.unified:
                self._link()
            self._disk()
            self._kernels()
            self._stack = self._stack.pop_all()
        self.probes = {name: self.probes[name] for name in RESOURCE_OF if name in self.probes}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._device.synchronize()
        self._stack.close()

    def _add(self, name: str, step: Callable[[], int], unit: str = "GB/s") -> None:
        self.probes[name] = Probe(name, step, unit)

    def _staging(self) -> NDArray[np.float64]:
        rows, cols = _PIECE
        buffer = self._device.allocate_staging(rows * cols * _DTYPE.itemsize)
        self._stack.callback(self._device.free, buffer)
        piece: NDArray[np.float64] = np.ndarray(_PIECE, _DTYPE, buffer.array)
        piece[...] = 1.5
        return piece

    def _host(self) -> None:
        """load1 reads a matrix in RAM into staging; store2 adds beta·C and writes it back."""
        source, target = (
            ArrayMatrix(np.full((_ROWS, _PIECE[1]), 1.0 + number)) for number in range(2)
        )
        up, down = ([self._staging() for _ in range(_RING)] for _ in range(2))
        self._add("load1", _Walk(source, up, write=False).step)
        self._add("store2", _Walk(target, down, write=True, add=self._staging()).step)

    def _tile(self, operand: Operand, rows: int, cols: int) -> Tile:
        buffer = self._device.allocate(self._device.slot_bytes(operand, rows, cols, _DTYPE))
        self._stack.callback(self._device.free, buffer)
        return Tile(operand, buffer, rows, cols, cols, _DTYPE)

    def _link(self) -> None:
        rows, cols = _PIECE
        up, down = self._staging(), self._staging()
        target = Block(self._tile("A", rows, cols), 0, 0, rows, cols)
        source = Block(self._tile("C", rows, cols), 0, 0, rows, cols)

        def load2() -> int:
            self._device.upload(up, target, ()).wait()
            return up.nbytes

        def store1() -> int:
            self._device.download(source, down, ()).wait()
            return down.nbytes

        load2()
        store1()
        self._add("load2", load2)
        self._add("store1", store1)

    def _disk(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="hdgemm-profile-", dir=self._folder))
        self._stack.callback(folder.rmdir)
        path = folder / "probe.npy"
        with create_npy(path, (_ROWS, _PIECE[1]), _DTYPE) as draft:
            filled = np.random.default_rng(0).random(_PIECE)
            for row in range(0, _ROWS, len(filled)):
                draft.operand.matrix.write(row, 0, filled)
            draft.publish()
        self._stack.callback(path.unlink)
        matrix = _open(path)
        self._stack.callback(matrix.close)
        self._add("disk", _Walk(matrix, [filled], write=False, turn=True).step)

    def _kernels(self) -> None:
        gm, gn, gk = self._device.spec.granularity
        m, n, k = (int(round_up(_TILE, quantum)) for quantum in (gm, gn, gk))
        a, b, c = (self._filled("A", m, k), self._filled("B", k, n), self._tile("C", m, n))
        blocks = [Block(tile, 0, 0, tile.rows, tile.cols) for tile in (a, b, c)]

        def mult1() -> int:
            self._device.gemm(1.0, blocks[0], blocks[1], 0.0, blocks[2], ()).wait()
            return 2 * m * n * k

        mult1()
        self._add("mult1", mult1, "GFLOP/s")
        self._add("cores", _small_product(), "GFLOP/s")

    def _filled(self, operand: Operand, rows: int, cols: int) -> Tile:
        """Return a tile of random numbers: zeros would take less power, and run faster."""
        tile = self._tile(operand, rows, cols)
        buffer = self._device.allocate_staging(rows * cols * _DTYPE.itemsize)
        staged: NDArray[np.float64] = np.ndarray((rows, cols), _DTYPE, buffer.array)
        staged[...] = np.random.default_rng(1).random((rows, cols))
        self._device.upload(staged, Block(tile, 0, 0, rows, cols), ()).wait()
        self._device.free(buffer)
        return tile


def _open(path: Path) -> Matrix:
    from hdgemm.matrices.npy import open_npy

    return open_npy(path, writable=True)[0]


def _small_product() -> Callable[[], int]:
    """Return a product that stays in the caches: it needs cores and nothing else."""
    rng = np.random.default_rng(2)
    a, b, c = (np.asfortranarray(rng.random((_SMALL, _SMALL))) for _ in range(3))
    multiply = partial(dgemm, 1.0, a, b, 0.0, c, overwrite_c=1)

    def step() -> int:
        multiply()
        return 2 * _SMALL**3

    return step


class _Walk:
    """Goes through a matrix piece by piece, again and again."""

    def __init__(
        self,
        matrix: Matrix,
        ring: Sequence[NDArray[np.float64]],
        *,
        write: bool,
        add: NDArray[np.float64] | None = None,
        turn: bool = False,
    ) -> None:
        self._matrix = matrix
        self._ring = cycle(ring)
        self._write = write
        self._add = add
        self._turn = turn
        self._row = 0

    def step(self) -> int:
        """Move the next piece; with `turn`, one round reads and the next one writes."""
        matrix, piece, row = self._matrix, next(self._ring), self._row
        moved = piece.nbytes
        if self._add is not None:
            matrix.read(row, 0, self._add)
            self._add *= 0.5
            self._add += piece
            matrix.write(row, 0, self._add)
            moved *= 2
        elif self._write:
            matrix.write(row, 0, piece)
        else:
            matrix.read(row, 0, piece)
        self._row = (row + len(piece)) % matrix.shape[0]
        if self._turn and self._row == 0:
            self._write = not self._write
        return moved
