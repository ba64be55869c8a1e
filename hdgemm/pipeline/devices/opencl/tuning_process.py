"""One candidate built, checked against BLAS and timed; also the process in which that is done.

A compiler may abort the process it is called from, so trials run in one that can be lost.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyopencl as cl

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.driver import driver_errors
from hdgemm.pipeline.devices.opencl.find import locate
from hdgemm.pipeline.devices.opencl.generator import gemm_source
from hdgemm.pipeline.devices.opencl.launch import Product, Source, Target, enqueue_gemm
from hdgemm.pipeline.devices.opencl.programs import build
from hdgemm.pipeline.devices.opencl.shape import Shape, reals
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl.shape_classes import Extents

#: C's rows and columns beyond its block of A and B: the check must meet both kinds of edges.
_SHORT: Final = 3
#: Seconds of multiplying after which a slow device need not repeat.
_LONG_ENOUGH: Final = 2.0
#: Largest error in units of k·eps for operands in (-1, 1); a sound product stays below 1.
_WORST: Final = {1: 2.0, 2: 6.0}


class Trials:
    """Tries shapes on one device with one dtype; operands of a size are made once."""

    def __init__(self, device: str, dtype: np.dtype[Any]) -> None:
        _, handle = locate(device)
        with driver_errors(f"opening {device}"):
            self._context = cl.Context([handle])
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            self._queue = cl.CommandQueue(self._context, handle, properties=profiling)
        self._dtype = dtype
        self._made: dict[Extents, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = {}

    def run(self, shape: Shape, extents: Extents, repeats: int) -> dict[str, Any]:
        """Return ``gflops`` (of the median time) and ``error`` in units of k·eps.

        `extents` are m, n and k, of which m and n are cut a little shorter to have edges.

        Raises
        ------
        DeviceError
            When the kernel cannot be built or launched.
        """
        a, b, exact = self._operands(extents)
        kernel = cl.Kernel(build(self._context, gemm_source(shape, self._dtype)), "gemm")
        with driver_errors("trying a kernel"):
            product, memory = self._product(shape, a, b)
            seconds = []
            for _ in range(repeats + 1):
                event = enqueue_gemm(self._queue, kernel, shape, self._dtype, product)
                event.wait()
                seconds.append((event.profile.end - event.profile.start) * 1e-9)
                if len(seconds) > 1 and sum(seconds) > _LONG_ENOUGH:
                    break
            c = np.empty_like(exact)
            cl.enqueue_copy(self._queue, c, memory)
        m, n = exact.shape
        k = extents[2]
        eps = np.finfo(self._dtype).eps
        flops = m * n * k * flops_per_multiply_add(self._dtype.name)
        return {
            "gflops": flops / float(np.median(seconds[1:])) / 1e9,
            "error": float(np.max(np.abs(c - exact)) / (k * eps)),
        }

    def _operands(self, extents: Extents) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        if extents not in self._made:
            m, n, k = extents
            rng = np.random.default_rng(m + n + k)
            shapes = ((max(1, m - _SHORT), k), (k, max(1, n - 1)))
            a, b = (random_matrix(rng, shape, self._dtype) for shape in shapes)
            self._made[extents] = a, b, a @ b
        return self._made[extents]

    def _product(self, shape: Shape, a: NDArray[Any], b: NDArray[Any]) -> tuple[Product, cl.Buffer]:
        (m, k), n = a.shape, b.shape[1]
        if shape.packed:
            width_a, width_b = shape.block_m(), shape.block_n(self._dtype)
            sources = (
                Source(self._hold(_panels(a, width_a)), 0, (k * width_a,)),
                Source(self._hold(_panels(b.T, width_b)), 0, (k * width_b,)),
            )
        else:
            sources = Source(self._hold(a), 0, (k, 1)), Source(self._hold(b), 0, (n, 1))
        # beta = 0 must not read this.
        memory = self._hold(np.full((m, n), np.nan, self._dtype))
        return Product((m, n, k), 1.0, sources[0], sources[1], 0.0, Target(memory, 0, n)), memory

    def _hold(self, values: NDArray[Any]) -> cl.Buffer:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=np.ascontiguousarray(values))


def random_matrix(
    rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return a matrix of elements whose reals are uniform in (-1, 1)."""
    values = rng.uniform(-1, 1, (*shape, reals(dtype)))
    if dtype.kind == "c":
        return (values[..., 0] + 1j * values[..., 1]).astype(dtype)
    return values[..., 0].astype(dtype)


def _panels(rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Pack as the device does, with NumPy: neighbours along the first axis side by side."""
    count = -(-rows.shape[0] // width)
    padded = np.zeros((count * width, rows.shape[1]), rows.dtype)
    padded[: rows.shape[0]] = rows
    return padded.reshape(count, width, -1).transpose(0, 2, 1)


def is_wrong(error: float, dtype: np.dtype[Any]) -> bool:
    """Judge an error in units of k·eps; NaN is wrong."""
    return not error <= _WORST[reals(dtype)]


def main() -> None:
    """Answer requests, a JSON object a line, until standard input ends."""
    device, dtype = sys.argv[1], np.dtype(sys.argv[2])
    # Compilers print to standard output; answers go where they cannot.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    trials = Trials(device, dtype)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            shape = Shape.from_json(request["shape"])
            answer = trials.run(shape, tuple(request["extents"]), request["repeats"])
        except DeviceError as error:
            answer = {"failed": str(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
