"""Dense linear algebra for matrices larger than memory: products, factorisations and solves."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
from hdgemm.options import Options, set_options
from hdgemm.verify import verify

if TYPE_CHECKING:
    from hdgemm import cluster, decomposition, linalg, mpi
    from hdgemm.blas.products import dgemm, matmul, multiply
    from hdgemm.blas.rank_2k_update import her2k, syr2k
    from hdgemm.blas.rank_update import herk, syrk
    from hdgemm.blas.stream import stream
    from hdgemm.blas.symmetric_product import hemm, symm
    from hdgemm.blas.topk import TopK, topk
    from hdgemm.blas.triangular_product import trmm, trsm
    from hdgemm.client import Client as Client
    from hdgemm.device_check import CheckedGroup, DeviceCheck, check_device
    from hdgemm.matrices.generated import generated
    from hdgemm.matrices.operands import create, open  # noqa: A004 - `hdgemm.open`
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.devices.registry import DeviceInfo, list_devices as devices
    from hdgemm.pipeline.timeline import Event
    from hdgemm.preflight import execute, plan, plan_gemm
    from hdgemm.progress import Progress
    from hdgemm.report import Report, Resumption, StageReport
    from hdgemm.run.session import Session
    from hdgemm.verify.check import Verification

__version__ = "0.2.0"

__all__ = [
    "CancelledRunError",
    "CheckedGroup",
    "DeviceCheck",
    "DeviceError",
    "DeviceInfo",
    "DeviceUnavailableError",
    "DoesNotFitError",
    "Event",
    "HdgemmError",
    "InputError",
    "InputTypeError",
    "MatrixIOError",
    "Options",
    "Progress",
    "Report",
    "Resumption",
    "Session",
    "StageReport",
    "StoredMatrix",
    "TopK",
    "Verification",
    "check_device",
    "cluster",
    "create",
    "decomposition",
    "devices",
    "dgemm",
    "execute",
    "generated",
    "hemm",
    "her2k",
    "herk",
    "linalg",
    "matmul",
    "mpi",
    "multiply",
    "open",
    "plan",
    "plan_gemm",
    "set_options",
    "stream",
    "symm",
    "syr2k",
    "syrk",
    "topk",
    "trmm",
    "trsm",
    "verify",
]


#: Module and name of what is imported at first use: NumPy takes time, `Client` needs an extra.
_LAZY = {
    "CheckedGroup": ("hdgemm.device_check", "CheckedGroup"),
    "Client": ("hdgemm.client", "Client"),
    "DeviceCheck": ("hdgemm.device_check", "DeviceCheck"),
    "DeviceInfo": ("hdgemm.pipeline.devices.registry", "DeviceInfo"),
    "Event": ("hdgemm.pipeline.timeline", "Event"),
    "Progress": ("hdgemm.progress", "Progress"),
    "Report": ("hdgemm.report", "Report"),
    "Resumption": ("hdgemm.report", "Resumption"),
    "Session": ("hdgemm.run.session", "Session"),
    "StageReport": ("hdgemm.report", "StageReport"),
    "StoredMatrix": ("hdgemm.matrices.stored", "StoredMatrix"),
    "TopK": ("hdgemm.blas.topk", "TopK"),
    "Verification": ("hdgemm.verify.check", "Verification"),
    "check_device": ("hdgemm.device_check", "check_device"),
    "create": ("hdgemm.matrices.operands", "create"),
    "devices": ("hdgemm.pipeline.devices.registry", "list_devices"),
    "dgemm": ("hdgemm.blas.products", "dgemm"),
    "execute": ("hdgemm.preflight", "execute"),
    "generated": ("hdgemm.matrices.generated", "generated"),
    "hemm": ("hdgemm.blas.symmetric_product", "hemm"),
    "her2k": ("hdgemm.blas.rank_2k_update", "her2k"),
    "herk": ("hdgemm.blas.rank_update", "herk"),
    "matmul": ("hdgemm.blas.products", "matmul"),
    "multiply": ("hdgemm.blas.products", "multiply"),
    "open": ("hdgemm.matrices.operands", "open"),
    "plan": ("hdgemm.preflight", "plan"),
    "plan_gemm": ("hdgemm.preflight", "plan_gemm"),
    "stream": ("hdgemm.blas.stream", "stream"),
    "symm": ("hdgemm.blas.symmetric_product", "symm"),
    "syr2k": ("hdgemm.blas.rank_2k_update", "syr2k"),
    "syrk": ("hdgemm.blas.rank_update", "syrk"),
    "topk": ("hdgemm.blas.topk", "topk"),
    "trmm": ("hdgemm.blas.triangular_product", "trmm"),
    "trsm": ("hdgemm.blas.triangular_product", "trsm"),
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in ("client", "cluster", "decomposition", "linalg", "mpi"):
        return import_module(f"hdgemm.{name}")
    if name not in _LAZY:
        # `from hdgemm import module` asks for the module here before it imports it.
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise import_module("hdgemm.linalg.absent_names").missing(__name__, name)
    module, attribute = _LAZY[name]
    found = globals()[name] = getattr(import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    """List the public names only."""
    return __all__
