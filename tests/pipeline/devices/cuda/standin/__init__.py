"""A stand-in for CuPy and the driver: records every call, and does the work on host memory.

It offers the functions that `hdgemm.pipeline.devices.cuda._driver` uses, with CuPy's signatures. It
is as strict as the driver, or stricter: every address is checked, host memory that is not
page-locked is refused, each GPU has its own context, memory and streams, device memory is handed
out in whole pieces of 2 MiB, and work runs as late, and in as unfavourable an order, as CUDA
allows. Its speed means nothing.
"""

from tests.pipeline.devices.cuda.standin.standin import Call, Fault, Properties, StandIn

__all__ = ["Call", "Fault", "Properties", "StandIn"]
