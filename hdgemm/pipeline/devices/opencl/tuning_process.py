"""Trials of kernel shapes in a process of their own, because a compiler may crash its process.

`TuningProcess` starts `main` in a child, sends one JSON request a line and restarts the
process when it dies or does not answer. `Trials`, in that process, builds a kernel, compares its
result with BLAS and times it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyopencl as cl

from hdgemm.child_process import child_command
from hdgemm.errors import HdgemmError
from hdgemm.pipeline.devices.opencl._driver import driver_errors
from hdgemm.pipeline.devices.opencl._programs import (
    GemmCall,
    Rows,
    Source,
    build,
    gemm_arguments,
    gemm_source,
)
from hdgemm.pipeline.devices.opencl.kernel_shapes import SQUARE, KernelShape, class_extents, reals
from hdgemm.pipeline.devices.opencl.names import locate
from hdgemm.pipeline.devices.opencl.tuning_cache import Outcome, Trial
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl.kernel_shapes import Extents

#: Rows by which C is shorter than its tuning product, so that both kinds of edges occur.
_SHORT: Final = 3
#: Seconds of multiplying after which a slow device repeats no more.
_LONG_ENOUGH: Final = 2.0
#: Largest error in units of k·eps for operands in (-1, 1), by reals of an element; a correct
#: product stays below 1.
_LARGEST_ERROR: Final = {1: 2.0, 2: 6.0}


class TuningProcess:
    """The process that tries candidates; a context manager."""

    def __init__(self, device: str, dtype: np.dtype[Any], seconds_each: float) -> None:
        self._command = child_command(__name__, device, dtype.name)
        self._dtype = dtype
        self._seconds = seconds_each
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def try_shape(self, shape: KernelShape, n: int, repeats: int, of: str = SQUARE) -> Trial:
        """Try one candidate on the product of a class at the tuning extent `n`."""
        request = {"shape": shape.to_json(), "extents": class_extents(of, n), "repeats": repeats}
        process = self._running()
        assert process.stdin is not None  # noqa: S101 - Popen was given pipes
        assert process.stdout is not None  # noqa: S101
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self._seconds)
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            ready, line = [process.stdout], ""
        if not ready:
            self._stop()
            return Trial(shape, n, "slow", note=f"no answer in {self._seconds:.0f} s", of=of)
        if not line:
            self._stop()
            return Trial(shape, n, "crashed", note="the compiler ended its process", of=of)
        answer = json.loads(line)
        if "failed" in answer:
            return Trial(shape, n, "failed", note=answer["failed"], of=of)
        outcome: Outcome = "wrong" if is_wrong(answer["error"], self._dtype) else "timed"
        return Trial(shape, n, outcome, answer["gflops"], answer["error"], of=of)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Trials:
    """Tries shapes on one device with one dtype; the operands of each extent are made once."""

    def __init__(self, device: str, dtype: np.dtype[Any]) -> None:
        handle = locate(device).handle
        with driver_errors(f"opening {device}"):
            self._context = cl.Context([handle])
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            self._queue = cl.CommandQueue(self._context, handle, properties=profiling)
        self._dtype = dtype
        self._made: dict[Extents, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = {}

    def run(self, shape: KernelShape, extents: Extents, repeats: int) -> dict[str, Any]:
        """Return ``gflops`` (of the median time) and ``error`` in units of k·eps.

        `extents` are m, n and k, of which m and n are reduced a little to have edges. Raises
        `DeviceError` where the kernel cannot be built or launched.
        """
        a, b, exact = self._operands(extents)
        kernel = cl.Kernel(build(self._context, gemm_source(shape, self._dtype)), "gemm")
        kernel.set_scalar_arg_dtypes(gemm_arguments(self._dtype, shape))
        with driver_errors("trying a kernel"):
            call = self._call(shape, a, b)
            seconds: list[float] = []
            while len(seconds) <= repeats and (len(seconds) < 2 or sum(seconds) <= _LONG_ENOUGH):
                event = call.enqueue(self._queue, kernel, shape, self._dtype)
                event.wait()
                seconds.append((event.profile.end - event.profile.start) * 1e-9)
            c = np.empty_like(exact)
            cl.enqueue_copy(self._queue, c, call.c.memory)
        (m, n), k = exact.shape, extents[2]
        flops = m * n * k * flops_per_multiply_add(self._dtype.name)
        return {
            "gflops": flops / float(np.median(seconds[1:])) / 1e9,
            "error": float(np.max(np.abs(c - exact)) / (k * np.finfo(self._dtype).eps)),
        }

    def _operands(self, extents: Extents) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        if extents not in self._made:
            m, n, k = extents
            rng = np.random.default_rng(m + n + k)
            shapes = ((max(1, m - _SHORT), k), (k, max(1, n - 1)))
            a, b = (random_matrix(rng, shape, self._dtype) for shape in shapes)
            self._made[extents] = a, b, a @ b
        return self._made[extents]

    def _call(self, shape: KernelShape, a: NDArray[Any], b: NDArray[Any]) -> GemmCall:
        (m, k), n = a.shape, b.shape[1]
        if shape.packed:
            width_a, width_b = shape.block_m(), shape.block_n(self._dtype)
            sources = (
                Source(self._hold(_panels(a, width_a)), 0, (k * width_a,)),
                Source(self._hold(_panels(b.T, width_b)), 0, (k * width_b,)),
            )
        else:
            sources = Source(self._hold(a), 0, (k, 1)), Source(self._hold(b), 0, (n, 1))
        # With beta = 0 the kernel must not read these NaNs.
        target = Rows(self._hold(np.full((m, n), np.nan, self._dtype)), 0, n)
        return GemmCall((m, n, k), 1.0, sources[0], sources[1], 0.0, target)

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
    """Pack as the device does, with NumPy: `width` neighbours along the first axis per panel."""
    count = -(-rows.shape[0] // width)
    padded = np.zeros((count * width, rows.shape[1]), rows.dtype)
    padded[: rows.shape[0]] = rows
    return padded.reshape(count, width, -1).transpose(0, 2, 1)


def is_wrong(error: float, dtype: np.dtype[Any]) -> bool:
    """Judge an error in units of k·eps; NaN is wrong."""
    return not error <= _LARGEST_ERROR[reals(dtype)]


def main() -> None:
    """Answer requests, one JSON object a line, until standard input ends."""
    device, dtype = sys.argv[1], np.dtype(sys.argv[2])
    # Compilers print to standard output, so answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    trials = Trials(device, dtype)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            shape = KernelShape.from_json(request["shape"])
            answer = trials.run(shape, tuple(request["extents"]), request["repeats"])
        except HdgemmError as error:
            answer = {"failed": str(error)}
        answers.write(json.dumps(answer) + "\n")
