"""Out-of-core matrix multiplication: C = alpha·op(A)·op(B) + beta·C for what does not fit."""

from hdgemm.blas import dgemm, execute, matmul, multiply
from hdgemm.engine import plan_gemm
from hdgemm.errors import (
    CancelledRunError,
    DeviceError,
    DeviceUnavailableError,
    DoesNotFitError,
    HdgemmError,
    InputError,
    InputTypeError,
    MatrixIOError,
)
from hdgemm.options import Options
from hdgemm.pipeline.devices.registry import list_devices as devices
from hdgemm.verify import Verification, verify

__all__ = [
    "CancelledRunError",
    "DeviceError",
    "DeviceUnavailableError",
    "DoesNotFitError",
    "HdgemmError",
    "InputError",
    "InputTypeError",
    "MatrixIOError",
    "Options",
    "Verification",
    "devices",
    "dgemm",
    "execute",
    "matmul",
    "multiply",
    "plan_gemm",
    "verify",
]
