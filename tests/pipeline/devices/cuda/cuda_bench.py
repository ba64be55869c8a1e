"""A CUDA device on a stand-in for the driver, and tiles made by hand."""

from contextlib import contextmanager

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hdgemm.pipeline.devices.cuda import driven_by, open_device
from hdgemm.pipeline.devices.protocol import Block, Tile
from tests.pipeline.devices.cuda.standin import StandIn


class Bench:
    """A device on a stand-in, with tiles made and filled by hand; faults begin once it is open."""

    def __init__(self, *, device="cuda:0", memory_bytes=None, faults=(), **machine):
        self.standin = StandIn(**machine)
        with driven_by(self.standin.api()):
            self.device = open_device(device, memory_bytes)
        self.standin.calls.clear()
        self.standin.inject(*faults)

    def tile(self, operand, rows, cols, dtype="float64", *, trans=False, ld=None):
        ld = cols if ld is None else ld
        nbytes = rows * ld * np.dtype(dtype).itemsize
        return Tile(operand, self.device.allocate(nbytes), rows, cols, ld, np.dtype(dtype), trans)

    def staged(self, array):
        buffer = self.device.allocate_staging(array.nbytes)
        staged = np.ndarray(array.shape, array.dtype, buffer.array)
        staged[...] = array
        return staged

    def names(self):
        return [call.name for call in self.standin.calls]

    def args(self, name):
        return [call.args for call in self.standin.calls if call.name == name]


def whole(tile):
    return Block(tile, 0, 0, tile.rows, tile.cols)


def random(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def own_pages(array):
    """Copy an array into whole pages of its own, as large arrays have them."""
    raw = np.zeros(array.nbytes + 2 * 4096, np.uint8)
    first = -raw.ctypes.data % 4096
    copy = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@contextmanager
def page_locked(standin, *arrays):
    """Page-lock arrays of the application, as a user of the driver does."""
    runtime = standin.api().runtime
    for array in arrays:
        runtime.hostRegister(*_span(array), 3)
    try:
        yield
    finally:
        for array in arrays:
            runtime.hostUnregister(_span(array)[0])


def _span(array):
    low, high = byte_bounds(array)
    return low, high - low
