"""Products beside a process that burns half a core, against numpy.matmul in RAM, by turns.

python -m bench.neighbour [--sizes 2048 4096 6144] [--repeats 7] [--folder DIR]

Contenders: numpy.matmul; hdgemm.matmul on arrays; hdgemm.matmul from file to file, alone and in a
session, which keeps the memory of tiles as numpy.matmul keeps its arrays; and the host device
alone, which multiplies in steps of 768×n×512: its cores draw blocks of C, or share threaded BLAS.
A ratio is numpy's time divided by the contender's time in the same turn.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import hdgemm
from bench.harness import data_folder, environment, save, spread
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_TILE: Final = (768, 512)
#: A loop that is busy for 5 of every 10 milliseconds, wherever the system runs it.
_BURNER: Final = """
import time
while True:
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end: pass
    time.sleep(0.005)
"""


@contextlib.contextmanager
def neighbour(*, burning: bool) -> Iterator[None]:
    """Run a process that burns half a core, where asked to."""
    if not burning:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _BURNER]) as process:
        try:
            time.sleep(0.2)
            yield
        finally:
            process.kill()


def steps(device: HostDevice, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
    """C := A·B in steps, as the pipeline gives them to the device."""
    mb, kb = _TILE
    left, right, result = (Tile("C", x, len(x), x.shape[1], x.shape[1], x.dtype) for x in (a, b, c))
    n = c.shape[1]
    for row in range(0, c.shape[0], mb):
        rows = min(mb, c.shape[0] - row)
        for k in range(0, a.shape[1], kb):
            depth = min(kb, a.shape[1] - k)
            device.gemm(
                1.0, Block(left, row, k, rows, depth), Block(right, k, 0, depth, n),
                float(k > 0), Block(result, row, 0, rows, n), (),
            )  # fmt: skip
    device.synchronize()


def contenders(n: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Return the calls that multiply the same random n×n float64 matrices."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    c = np.empty((n, n))
    for name, x in (("A", a), ("B", b)):
        np.save(folder / f"{name}.npy", x)
    file_a, file_b, file_c = (folder / f"{name}.npy" for name in "ABC")
    options = hdgemm.Options(devices="host", host_memory=max(64 << 20, c.nbytes))
    session = hdgemm.Session(options)
    drawn, threaded = HostDevice(), HostDevice(draws=False)
    return {
        "numpy": lambda: np.matmul(a, b, out=c),
        "hdgemm in RAM": lambda: hdgemm.matmul(a, b, out=c),
        "hdgemm file to file": lambda: hdgemm.matmul(file_a, file_b, out=file_c, options=options),
        "hdgemm file to file, in a session": lambda: hdgemm.matmul(
            file_a, file_b, out=file_c, session=session
        ),
        "steps, drawn blocks": lambda: steps(drawn, a, b, c),
        "steps, threaded BLAS": lambda: steps(threaded, a, b, c),
    }


def compare(n: int, repeats: int, folder: Path, *, burning: bool) -> dict[str, Any]:
    """Time all contenders by turns, in an order that alternates."""
    turns = contenders(n, folder)
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for function in turns.values():
        function()
    with neighbour(burning=burning):
        for turn in range(repeats):
            for name in sorted(turns, reverse=bool(turn % 2)):
                time.sleep(0.1)  # OpenBLAS's threads wait in a loop for 26 ms after a product
                began = time.perf_counter()
                turns[name]()
                taken[name].append(time.perf_counter() - began)
    ratios = {
        name: [ours / each for ours, each in zip(taken["numpy"], times, strict=True)]
        for name, times in taken.items()
    }
    print(f"n = {n}, {'half a core burnt' if burning else 'quiet'}:", flush=True)
    for name, values in ratios.items():
        gflops = 2 * n**3 / statistics.median(taken[name]) / 1e9
        print(f"  {name}: {statistics.median(values):.3f} of numpy.matmul, {gflops:.0f} Gflop/s")
    return {
        name: {"ratio": spread(ratios[name]), "seconds": spread(times)}
        for name, times in taken.items()
    }


def main() -> None:
    """Measure and write bench/results/neighbour.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 6144])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    where = environment()
    with data_folder(args.folder) as folder:
        results = {
            str(n): {
                name: compare(n, args.repeats, folder, burning=burning)
                for name, burning in (("quiet", False), ("half a core burnt", True))
            }
            for n in args.sizes
        }
    save("neighbour", {"sizes": results}, where)


if __name__ == "__main__":
    main()
