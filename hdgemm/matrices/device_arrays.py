"""Arrays in a GPU's memory, of CuPy, PyTorch, or any other library.

An array with ``__cuda_array_interface__`` or ``__dlpack__`` is accepted. No GPU library is imported
to describe it; reading and writing it from the host needs CuPy.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DeviceError, DeviceUnavailableError, InputError
from hdgemm.matrices._dlpack import KDL_CUDA, LEGACY_STREAM, Exported, from_dlpack
from hdgemm.matrices.base import Matrix, Operand
from hdgemm.matrices.cuda_driver import DriverLibrary
from hdgemm.matrices.layout import check_dtype, row_pitch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_CUDA_INTERFACE: Final = "__cuda_array_interface__"
#: The producer names no stream: its work may be on any stream of the GPU.
UNKNOWN_STREAM: Final = -1


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Rows and columns in device memory, row-major: what a resident tile is made of.

    Parameters
    ----------
    pointer
        Device address of the first element.
    strides
        Bytes from row to row, and from column to column (the itemsize).
    device
        The GPU it lies on; None where its producer does not say, and the driver must be asked.
    stream
        The stream on which its producer may still be writing; `UNKNOWN_STREAM` where the producer
        does not say; None where nothing is pending.
    owner
        Keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: np.dtype[Any]
    device: int | None
    stream: int | None
    owner: object

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize


class DeviceArrayMatrix(Matrix):
    """A matrix in device memory; a plan uses it in place ("resident")."""

    name = "device array"

    def __init__(self, device_array: DeviceArray) -> None:
        self.device_array = device_array
        self.shape = device_array.shape
        self.dtype = device_array.dtype

    def read(self, row: int, col: int, out: NDArray[Any]) -> None:
        """Copy the rectangle at ``[row, col]`` to host memory; needs CuPy."""
        rows, cols = out.shape
        with self._current() as view:
            part = view[row : row + rows, col : col + cols].get()
        np.copyto(out, part, casting="same_kind")

    def write(self, row: int, col: int, tile: NDArray[Any]) -> None:
        """Copy `tile` from host memory to ``[row, col]``; needs CuPy."""
        rows, cols = tile.shape
        with self._current() as view:
            import cupy

            view[row : row + rows, col : col + cols] = cupy.asarray(tile)
            cupy.cuda.get_current_stream().synchronize()

    @contextmanager
    def _current(self) -> Iterator[Any]:
        """Make the array's GPU current; yield the array as CuPy's, its producer's work done."""
        try:
            import cupy

            driver = DriverLibrary.loaded()
        except (ImportError, OSError) as error:
            raise DeviceUnavailableError(f"cannot copy an array of a GPU: {error}") from error
        array, runtime = self.device_array, cupy.cuda.runtime
        try:
            index = driver.device_of(array.pointer) if array.device is None else array.device
            driver.push(index)
            try:
                if array.stream == UNKNOWN_STREAM:
                    runtime.deviceSynchronize()
                elif array.stream is not None:
                    runtime.streamSynchronize(array.stream)
                nbytes = array.strides[0] * self.shape[0]
                memory = cupy.cuda.UnownedMemory(array.pointer, nbytes, array.owner, index)
                pointer = cupy.cuda.MemoryPointer(memory, 0)
                yield cupy.ndarray(self.shape, self.dtype, pointer, array.strides)
            finally:
                driver.pop()
        except RuntimeError as error:
            if not hasattr(error, "status"):  # no error of CUDA
                raise
            raise DeviceError(
                f"an array of a GPU cannot be copied: {error}", call="copy", status=error.status
            ) from error

    def part(self, row: int, col: int, shape: tuple[int, int]) -> DeviceArrayMatrix:
        """Return a rectangle in the same memory."""
        pitch, itemsize = self.device_array.strides
        pointer = self.device_array.pointer + row * pitch + col * itemsize
        return DeviceArrayMatrix(replace(self.device_array, pointer=pointer, shape=shape))


def is_device_array(x: object) -> bool:
    """Say whether `x` describes itself as CUDA device memory."""
    if hasattr(type(x), _CUDA_INTERFACE):
        # PyTorch's CPU tensors have the attribute too; reading it raises AttributeError. Those of
        # a GPU that require a gradient raise RuntimeError: `from_device_array` says why.
        try:
            return hasattr(x, _CUDA_INTERFACE)
        except RuntimeError:
            return True
    ask = getattr(x, "__dlpack_device__", None)
    return ask is not None and not isinstance(x, np.ndarray) and int(ask()[0]) == KDL_CUDA


def from_device_array(x: Any, what: str, *, writable: bool = False) -> Operand:
    """Take a 2-D array in device memory as a row-major matrix and a `trans` flag.

    Raises `InputError` or `InputTypeError`, in which `what` is its name, for what cuBLAS does not
    take: another dimension, dtype or layout, a mask, or read-only memory that is to be written.
    """
    exported = _export(x, what)
    if len(exported.shape) != 2:
        raise InputError(f"{what} must be a matrix (2-D), it has shape {exported.shape}")
    check_dtype(exported.dtype, what)
    if not exported.dtype.isnative:
        raise InputError(f"{what} has byte order {exported.dtype}; a GPU takes its own only")
    if writable and exported.read_only:
        raise InputError(f"{what} is to be overwritten, but the array is read-only: pass a copy")
    rows, cols = exported.shape
    itemsize = exported.dtype.itemsize
    strides = exported.strides or (cols * itemsize, itemsize)
    trans = row_pitch((rows, cols), strides, itemsize) is None
    shape = (cols, rows) if trans else (rows, cols)
    pitch = row_pitch(shape, strides[::-1] if trans else strides, itemsize)
    if pitch is None or pitch % itemsize:
        raise InputError(
            f"{what} has strides {strides} bytes for shape {exported.shape}; cuBLAS needs "
            "contiguous rows or columns: pass a contiguous copy"
        )
    array = DeviceArray(
        exported.pointer,
        shape,
        (pitch, itemsize),
        exported.dtype,
        exported.device,
        exported.stream,
        exported.owner,
    )
    return Operand(DeviceArrayMatrix(array), trans)


def _export(x: Any, what: str) -> Exported:
    """Describe an array; its producer's pending work is ordered before one stream if it can be."""
    try:
        if not hasattr(x, _CUDA_INTERFACE):
            return from_dlpack(x)
        described = getattr(x, _CUDA_INTERFACE)
    except (RuntimeError, BufferError) as error:
        raise InputError(f"{what} does not give access to its memory: {error}") from error
    if described.get("mask") is not None:
        raise InputError(f"{what} has a mask; fill it first")
    stream, owner = described.get("stream"), x
    if "stream" not in described:  # version 2 of the interface, as PyTorch exports
        stream, owner = _order_by_dlpack(x)
    pointer, read_only = described["data"]
    ask = getattr(x, "__dlpack_device__", None)
    strides = described.get("strides")
    return Exported(
        pointer or 0,
        tuple(described["shape"]),
        None if strides is None else tuple(strides),
        np.dtype(described["typestr"]),
        None if ask is None else int(ask()[1]),
        stream,
        bool(read_only),
        owner,
    )


def _order_by_dlpack(x: Any) -> tuple[int, object]:
    """Let the legacy default stream wait for an array's producer; return a stream and an owner.

    Producers without DLPack name no stream. PyTorch refuses to export an array of a GPU that is
    not the current one.
    """
    try:
        return LEGACY_STREAM, (x, x.__dlpack__(stream=LEGACY_STREAM))
    except (AttributeError, BufferError):
        return UNKNOWN_STREAM, x
