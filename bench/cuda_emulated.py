"""cuBLAS's emulated double and single precision against the native ones, on resident data.

    python -m bench.cuda_emulated [--n 8192 16384] [--repeats 5]

The math mode of a cuBLAS handle chooses emulation where cuBLAS expects it to be faster, and falls
back to native arithmetic elsewhere: a ratio of 1 and equal bits say that it fell back. The error
is the largest of |C - C_native| / (|A|·|B|), in units of n·eps: Demmel's grade A is below 1.
`error, spread` is the same for elements whose exponents are drawn from 2^±60.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, Final, NamedTuple

from bench.harness import environment, save


class Mode(NamedTuple):
    """One of cuBLAS's math modes (`cublasMath_t`), and the routine that it changes."""

    name: str
    number: int
    routine: str
    dtype: str


#: `CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH` and `CUBLAS_FP32_EMULATED_BF16X9_MATH`.
MODES: Final = (
    Mode("fixed point", 8, "dgemm", "float64"),
    Mode("bf16x9", 4, "sgemm", "float32"),
)


def main() -> int:
    """Measure each mode, print a line and write bench/results/cuda_emulated.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--n", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    import cupy

    where = environment()
    with cupy.cuda.Device(int(arguments.device.partition(":")[2] or 0)):
        found = [_measure(cupy, mode, n, arguments.repeats) for mode in MODES for n in arguments.n]
    for one in found:
        print(one, flush=True)
    save("cuda_emulated", {"modes": found}, where)
    return 0


def _measure(cupy: Any, mode: Mode, n: int, repeats: int) -> dict[str, Any]:
    """Return the speeds of native and emulated products by turns, and the errors."""
    result: dict[str, Any] = {"mode": mode.name, "n": n}
    rng = cupy.random.default_rng(0)
    a, b = (rng.random((n, n), mode.dtype) - 0.5 for _ in range(2))
    try:
        seconds: dict[int, list[float]] = {0: [], mode.number: []}
        for _ in range(repeats + 1):
            for number, times in seconds.items():
                times.append(_product(cupy, mode, number, a, b)[1])
        native, emulated = (statistics.median(times[1:]) for times in seconds.values())
        result["tflops native"] = 2 * n**3 / native / 1e12
        result["ratio"] = native / emulated
        result["error"] = _error(cupy, mode, a, b)
        scales = (cupy.ldexp(cupy.ones((n, n)), rng.integers(-60, 61, (n, n))) for _ in range(2))
        a, b = ((x * scale).astype(mode.dtype) for x, scale in zip((a, b), scales, strict=True))
        result["error, spread"] = _error(cupy, mode, a, b)
    except cupy.cuda.cublas.CUBLASError as error:
        result["refused"] = str(error)
    return result


def _product(cupy: Any, mode: Mode, number: int, a: Any, b: Any) -> tuple[Any, float]:
    """Return A·B in one math mode, and its seconds by events of the stream.

    The row-major operands are passed in exchanged order, as column-major transposes.
    """
    import numpy as np

    cublas, n = cupy.cuda.cublas, len(a)
    handle = cupy.cuda.device.get_cublas_handle()
    c = cupy.empty_like(a)
    one, zero = np.ones(1, mode.dtype), np.zeros(1, mode.dtype)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    before = cublas.getMathMode(handle)
    cublas.setMathMode(handle, number)
    try:
        start.record()
        getattr(cublas, mode.routine)(
            handle, 0, 0, n, n, n, one.ctypes.data, b.data.ptr, n, a.data.ptr, n,
            zero.ctypes.data, c.data.ptr, n,
        )  # fmt: skip
        end.record()
        end.synchronize()
    finally:
        cublas.setMathMode(handle, before)
    return c, cupy.cuda.get_elapsed_time(start, end) / 1e3


def _error(cupy: Any, mode: Mode, a: Any, b: Any) -> float:
    """Return the largest componentwise difference from the native product, in units of n·eps."""
    native, _ = _product(cupy, mode, 0, a, b)
    emulated, _ = _product(cupy, mode, mode.number, a, b)
    bound, _ = _product(cupy, mode, 0, abs(a), abs(b))
    unit = len(a) * float(cupy.finfo(mode.dtype).eps)
    return float(cupy.max(abs(emulated - native) / bound)) / unit


if __name__ == "__main__":
    sys.exit(main())
