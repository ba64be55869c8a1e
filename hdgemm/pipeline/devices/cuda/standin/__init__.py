"""A stand-in for CuPy and the driver: records every call, and does the work on host memory.

It offers the names that `hdgemm.pipeline.devices.cuda.driver` uses of CuPy, with CuPy's
signatures, and is stricter than a GPU where that is safe: memory is checked, host memory that is
not page-locked is refused, and work runs as late, and in as unkind an order, as CUDA allows.
It has no speed worth measuring.
"""

from hdgemm.pipeline.devices.cuda.standin.standin import Call, Fault, StandIn

__all__ = ["Call", "Fault", "StandIn"]
