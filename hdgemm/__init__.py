"""Out-of-core matrix multiplication: C = alpha·op(A)·op(B) + beta·C for what does not fit."""

from typing import TYPE_CHECKING

from hdgemm.blas import dgemm, matmul, multiply
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
from hdgemm.matrices.operands import create, open  # noqa: A004 - `hdgemm.open`
from hdgemm.options import Options
from hdgemm.pipeline.devices.registry import list_devices as devices
from hdgemm.preflight import execute, plan, plan_gemm
from hdgemm.run.session import Session
from hdgemm.verify import Verification, verify

if TYPE_CHECKING:
    from hdgemm.client import Client as Client

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
    "Session",
    "Verification",
    "create",
    "devices",
    "dgemm",
    "execute",
    "matmul",
    "multiply",
    "open",
    "plan",
    "plan_gemm",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import the service's client at first use: it needs the extra `server`."""
    if name == "Client":
        from hdgemm.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
