"""Probes: the operation of each stage, on memory of its own, ready to be repeated.

A probe uses the same device protocol and the same matrix reads and writes as a run.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.linalg.blas import dgemm

from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.npy import create_npy, open_npy
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.planning.byte_counts import round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Operand

#: Probes in the order of the contention matrix.
NAMES: Final = ("load1", "load2", "mult1", "store1", "store2", "disk", "cores")
_DTYPE: Final = np.dtype(np.float64)
#: Rows and columns of a staging piece (8 MB).
_PIECE: Final = (512, 2048)
#: Extents of the tiles that mult1 multiplies, and of the product that stays in the caches.
_TILE: Final = 1024
_SMALL: Final = 256
#: Staging pieces used in turn. In a run the kernel evicts a piece from the caches between two
#: uses; together these exceed the caches.
_RING: Final = 6
#: Rows of the matrices in RAM and on disk (64 MB, more than the caches hold).
_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """An operation that can be repeated, of a stage, of ``"disk"`` or of ``"cores"``.

    `step` performs it once; it returns the bytes moved or the flops done.
    """

    name: str
    step: Callable[[], int]


@contextmanager
def open_probes(device: Device, folder: Path) -> Iterator[Mapping[str, Probe]]:
    """Yield the probes of an open device by name; free their memory at the end.

    A unified device has no link, and so neither load2 nor store1. The disk probe writes 64 MB into
    `folder`.
    """
    with ExitStack() as stack:
        probes = _Probes(device, folder, stack)
        probes.add_all()
        try:
            yield {name: probes.found[name] for name in NAMES if name in probes.found}
        finally:
            device.synchronize()


class _Probes:
    """Allocates the memory of the probes; `stack` frees it."""

    def __init__(self, device: Device, folder: Path, stack: ExitStack) -> None:
        self._device = device
        self._folder = folder
        self._stack = stack
        self.found: dict[str, Probe] = {}

    def add_all(self) -> None:
        self._add_host()
        if not self._device.spec.unified:
            self._add_link()
        self._add_disk()
        self._add_kernel()
        self._add_cores()

    def _add(self, name: str, step: Callable[[], int]) -> None:
        self.found[name] = Probe(name, step)

    def _staging(self, rows: int = _PIECE[0], cols: int = _PIECE[1]) -> NDArray[np.float64]:
        buffer = self._device.allocate_staging(rows * cols * _DTYPE.itemsize)
        self._stack.callback(self._device.free, buffer)
        piece: NDArray[np.float64] = np.ndarray((rows, cols), _DTYPE, buffer.array)
        piece[...] = 1.5
        return piece

    def _tile(self, operand: Operand, rows: int, cols: int) -> Block:
        buffer = self._device.allocate(self._device.slot_bytes(operand, rows, cols, _DTYPE))
        self._stack.callback(self._device.free, buffer)
        return Block(Tile(operand, buffer, rows, cols, cols, _DTYPE), 0, 0, rows, cols)

    def _add_host(self) -> None:
        """load1 copies a matrix in RAM into staging; store2 adds beta·C and writes it back."""
        source, target = (
            ArrayMatrix(np.full((_ROWS, _PIECE[1]), 1.0 + number)) for number in range(2)
        )
        up, down = (cycle([self._staging() for _ in range(_RING)]) for _ in range(2))
        add = self._staging()

        def load1(row: int) -> int:
            piece = next(up)
            source.read(row, 0, piece)
            return piece.nbytes

        def store2(row: int) -> int:
            piece = next(down)
            target.read(row, 0, add)
            np.multiply(add, 0.5, out=add)
            np.add(add, piece, out=add)
            target.write(row, 0, add)
            return 2 * piece.nbytes

        self._add("load1", _by_pieces(load1))
        self._add("store2", _by_pieces(store2))

    def _add_link(self) -> None:
        up, down = self._staging(), self._staging()
        target, source = self._tile("A", *_PIECE), self._tile("C", *_PIECE)

        def load2() -> int:
            self._device.upload(up, target, ()).wait()
            return up.nbytes

        def store1() -> int:
            self._device.download(source, down, ()).wait()
            return down.nbytes

        for name, step in (("load2", load2), ("store1", store1)):
            step()
            self._add(name, step)

    def _add_disk(self) -> None:
        """Read the whole file, then write it, by turns."""
        folder = Path(tempfile.mkdtemp(prefix="hdgemm-profile-", dir=self._folder))
        self._stack.callback(folder.rmdir)
        path = folder / "probe.npy"
        piece = np.random.default_rng(0).random(_PIECE)
        with create_npy(path, (_ROWS, _PIECE[1]), _DTYPE) as draft:
            for row in range(0, _ROWS, len(piece)):
                draft.operand.matrix.write(row, 0, piece)
            draft.publish()
        self._stack.callback(path.unlink)
        matrix = open_npy(path, writable=True)[0]
        self._stack.callback(matrix.close)
        pieces = _ROWS // len(piece)
        writes = cycle([False] * pieces + [True] * pieces)

        def disk(row: int) -> int:
            if next(writes):
                matrix.write(row, 0, piece)
            else:
                matrix.read(row, 0, piece)
            return piece.nbytes

        self._add("disk", _by_pieces(disk))

    def _add_kernel(self) -> None:
        gm, gn, gk = self._device.spec.granularity
        m, n, k = (int(round_up(_TILE, quantum)) for quantum in (gm, gn, gk))
        a, b, c = self._tile("A", m, k), self._tile("B", k, n), self._tile("C", m, n)
        for block in (a, b):
            # Random numbers: zeros take less power, so that clocks are higher.
            staged = self._staging(block.rows, block.cols)
            staged[...] = np.random.default_rng(1).random(staged.shape)
            self._device.upload(staged, block, ()).wait()

        def mult1() -> int:
            self._device.gemm(1.0, a, b, 0.0, c, ()).wait()
            return 2 * m * n * k

        mult1()
        self._add("mult1", mult1)

    def _add_cores(self) -> None:
        """Multiply matrices that stay in the caches: it needs cores and nothing else."""
        rng = np.random.default_rng(2)
        a, b, c = (np.asfortranarray(rng.random((_SMALL, _SMALL))) for _ in range(3))
        multiply = partial(dgemm, 1.0, a, b, 0.0, c, overwrite_c=1)

        def cores() -> int:
            multiply()
            return 2 * _SMALL**3

        self._add("cores", cores)


def _by_pieces(move: Callable[[int], int]) -> Callable[[], int]:
    """Call `move` with the first row of each piece of a matrix, again and again."""
    rows = cycle(range(0, _ROWS, _PIECE[0]))
    return lambda: move(next(rows))
