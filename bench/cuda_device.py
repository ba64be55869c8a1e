"""What the GPU and its link do by themselves: kernels on resident data, copies up and down."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from bench.harness import spread
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.device import CudaDevice
    from hdgemm.pipeline.devices.protocol import Completion
    from hdgemm.pipeline.plan import Operand

#: Flags of `cudaHostRegister`: portable and mapped.
_PORTABLE_MAPPED: Final = 3


def kernel(
    device: CudaDevice, extents: tuple[int, int, int], dtype: str, repeats: int
) -> dict[str, Any]:
    """Time cuBLAS on matrices that lie in device memory: the ceiling of every pipeline."""
    m, n, k = extents
    with Held(device) as held:
        a, b, c = (
            held.block(operand, rows, cols, dtype)
            for operand, rows, cols in (("A", m, k), ("B", k, n), ("C", m, n))
        )
        for block in (a, b):
            held.fill(block)
        seconds = []
        for turn in range(repeats + 1):
            done = device.gemm(1.0, a, b, 0.0, c, ())
            done.wait()
            start, end = done.interval() or (0.0, 0.0)
            if turn:  # the first loads the kernel
                seconds.append(end - start)
    flops = m * n * k * flops_per_multiply_add(dtype)
    times = spread(seconds)
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype,
        "seconds": times,
        "tflops": flops / max(times["median"], 1e-9) / 1e12,
    }


def link(device: CudaDevice, nbytes: int, repeats: int) -> dict[str, Any]:
    """Time copies of `nbytes` up, down and both at once, locked and pageable; GB/s each way."""
    found: dict[str, Any] = {"nbytes": nbytes}
    with Held(device) as held:
        rows = max(1, nbytes // (8 * 1024))
        up, down = (held.block(operand, rows, 1024, "float64") for operand in ("A", "C"))
        for kind, host in (("pinned", held.staging), ("pageable", _touched)):
            source, target = host((rows, 1024)), host((rows, 1024))

            def send(source: NDArray[Any] = source) -> list[Completion]:
                return [device.upload(source, up, ())]

            def fetch(target: NDArray[Any] = target) -> list[Completion]:
                return [device.download(down, target, ())]

            for name, start in (("up", send), ("down", fetch), ("both", lambda: send() + fetch())):
                seconds = [_seconds(start) for _ in range(repeats + 1)][1:]
                found[f"{kind}_{name}_gbs"] = source.nbytes / np.median(seconds) / 1e9
    return found


@contextmanager
def page_locked(device: CudaDevice, *arrays: NDArray[Any]) -> Iterator[None]:
    """Page-lock contiguous arrays for the length of a ``with`` block."""
    runtime = device.driver.api.runtime
    with ExitStack() as stack:
        for array in arrays:
            with device.driver.current():
                runtime.hostRegister(array.ctypes.data, array.nbytes, _PORTABLE_MAPPED)
            stack.callback(runtime.hostUnregister, array.ctypes.data)
        yield


def locking_cost(device: CudaDevice, nbytes: int) -> dict[str, float]:
    """Time the locking and unlocking of `nbytes` of touched memory; seconds per 10⁹ bytes."""
    array = np.ones(nbytes, np.uint8)
    began = time.perf_counter()
    with page_locked(device, array):
        locked = time.perf_counter()
    unlocked = time.perf_counter()
    scale = 1e9 / nbytes
    return {"lock": (locked - began) * scale, "unlock": (unlocked - locked) * scale}


class Held:
    """Memory of a device for the length of a ``with`` block."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._buffers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._device.synchronize()
        for buffer in self._buffers:
            self._device.free(buffer)

    def block(self, operand: Operand, rows: int, cols: int, dtype: str) -> Block:
        """Take a whole tile."""
        kind = np.dtype(dtype)
        self._buffers.append(self._device.allocate(rows * cols * kind.itemsize))
        tile = Tile(operand, self._buffers[-1], rows, cols, cols, kind)
        return Block(tile, 0, 0, rows, cols)

    def staging(self, shape: tuple[int, int]) -> NDArray[Any]:
        """Take page-locked memory for doubles, all of it touched."""
        self._buffers.append(self._device.allocate_staging(8 * shape[0] * shape[1]))
        array = np.ndarray(shape, np.float64, self._buffers[-1].array)
        array[...] = 1.0
        return array

    def fill(self, block: Block) -> None:
        """Upload random numbers, a piece of one row of 2²⁰ at most being repeated."""
        tile = block.tile
        rng = np.random.default_rng(3)
        rows = max(1, min(block.rows, (1 << 22) // max(1, block.cols)))
        noise = rng.standard_normal((rows, block.cols, 2)).astype(tile.dtype.char.lower())
        piece = self.piece((rows, block.cols), tile.dtype)
        piece[...] = noise[..., 0] + 1j * noise[..., 1] if tile.dtype.kind == "c" else noise[..., 0]
        for top in range(0, block.rows, rows):
            part = min(rows, block.rows - top)
            target = Block(tile, top, 0, part, block.cols)
            self._device.upload(piece[:part], target, ()).wait()

    def piece(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Take page-locked memory of any dtype."""
        self._buffers.append(self._device.allocate_staging(dtype.itemsize * shape[0] * shape[1]))
        return np.ndarray(shape, dtype, self._buffers[-1].array)


def _touched(shape: tuple[int, int]) -> NDArray[Any]:
    return np.ones(shape)


def _seconds(start: Callable[[], list[Completion]]) -> float:
    began = time.perf_counter()
    for completion in start():
        completion.wait()
    return time.perf_counter() - began
