"""Arrays that other libraries describe by DLPack, in device memory and in host memory.

Of an array in device memory the capsule is read without being consumed. The structures are DLPack's
own (``dlpack.h``, the unversioned tensor).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import InputTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KDL_CUDA: Final = 2
#: Host memory: pageable, and page-locked by CUDA.
_KDL_HOST: Final = (1, 3)
#: `cudaStreamLegacy`: a producer makes it wait for the work that writes the array.
LEGACY_STREAM: Final = 1
_KINDS: Final = {0: "i", 1: "u", 2: "f", 5: "c"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Exported(NamedTuple):
    """An array as its producer describes it; strides in bytes, None where it is C-contiguous.

    `owner` keeps the memory alive; a DLPack capsule's destructor gives it back.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device: int | None
    stream: int | None
    read_only: bool
    owner: object


def from_dlpack(x: Any) -> Exported:
    """Describe an array that lies in CUDA device memory."""
    capsule = x.__dlpack__(stream=LEGACY_STREAM)
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, b"dltensor")
    tensor = ctypes.cast(address, ctypes.POINTER(_Tensor)).contents
    if tensor.code not in _KINDS or tensor.lanes != 1:
        raise InputTypeError(
            f"an array of DLPack type {tensor.code} with {tensor.lanes} lanes cannot be multiplied"
        )
    dtype = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    return Exported(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[i] for i in range(tensor.ndim)),
        strides,
        dtype,
        tensor.device_id,
        LEGACY_STREAM,
        False,
        capsule,
    )


def host_view(x: Any, what: str) -> NDArray[Any] | None:
    """Return another library's array in host memory, such as a tensor of PyTorch, as NumPy's.

    Nothing is copied. Returns None for NumPy's arrays, and where `x` offers no DLPack or lies
    elsewhere; raises `InputTypeError` where NumPy cannot read it: dtypes that NumPy lacks, tensors
    that require a gradient.
    """
    ask = getattr(x, "__dlpack_device__", None)
    if ask is None or isinstance(x, np.ndarray) or int(ask()[0]) not in _KDL_HOST:
        return None
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputTypeError(
            f"{what} is of type {type(x).__name__}, which NumPy cannot read: {error}"
        ) from error
