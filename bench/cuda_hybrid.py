"""One product on a GPU and the host together, against the GPU alone, by turns.

    python -m bench.cuda_hybrid [--n 16384] [--repeats 3]

The matrices are plain arrays. Every product is checked by Freivalds' method. A ratio above 1 says
that both together are faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, Final

from bench.cuda_data import Data, residual, spoil
from bench.harness import environment, save, spread
from hdgemm.blas.products import multiply
from hdgemm.options import Options

#: (m = n, k) besides the square of --n: few operations for each byte, where the host helps most.
SHALLOW: Final = 1024


def main() -> int:
    """Measure, print and write bench/results/cuda_hybrid.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    where, data, n = environment(), Data(arguments.n), arguments.n
    found = [
        _compare(data, (n, n, k), arguments.device, arguments.repeats) for k in (n, min(n, SHALLOW))
    ]
    for one in found:
        print(one, flush=True)
    save("cuda_hybrid", {"cases": found}, where)
    return 0


def _compare(
    data: Data, extents: tuple[int, int, int], device: str, repeats: int
) -> dict[str, Any]:
    """Return the seconds of both ways and their ratio."""
    a, b, c = data.product(*extents)
    ways = {"gpu": (device,), "both": ("host", device)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):  # the first turn measures rates and loads kernels
        for way, devices in ways.items():
            spoil(c)
            report = multiply(a, b, out=c, options=Options(devices=devices))
            assert residual(a, b, c) < 1, way
            if turn:
                seconds[way].append(report.seconds)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    return {
        "extents": extents,
        "seconds": {way: spread(times) for way, times in seconds.items()},
        "ratio": medians["gpu"] / medians["both"],
    }


if __name__ == "__main__":
    sys.exit(main())
