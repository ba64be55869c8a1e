"""The residual of a QR factorisation, and least squares of tall matrices, for `bench.linalg`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import drop_cached

if TYPE_CHECKING:
    from pathlib import Path


def qr_ratio(folder: Path, x: Any) -> float:
    """Return ||A·x - Q·(R·x)|| in units of eps·||A||·||x||·n, in infinity norms."""
    import hdgemm

    n, width = len(x), 256
    tau = np.load(folder / "F.tau.npy")
    y = np.zeros_like(x)
    with hdgemm.open(folder / "F.npy") as factors:
        for first in range(0, n, width):
            columns = factors[: first + width, first : first + width].read()
            y[: len(columns)] += np.triu(columns, -first) @ x[first : first + width]
        for first in reversed(range(0, n, width)):
            columns = factors[:, first : first + width].read()
            for column in reversed(range(columns.shape[1])):
                v = columns[first + column :, column]
                v[0] = 1.0
                y[first + column :, 0] -= tau[first + column] * (v @ y[first + column :, 0]) * v
    norm = error = 0.0
    with hdgemm.open(folder / "A.npy") as a:
        for first in range(0, n, 512):
            rows = a[first : first + 512, :].read()
            norm = max(norm, float(np.abs(rows).sum(axis=1).max()))
            error = max(error, float(np.abs(rows @ x - y[first : first + 512]).max()))
    return error / (2.0**-53 * norm * float(np.abs(x).max()) * n)


def tall_matrix(folder: Path, rows: int, columns: int) -> None:
    """Write A.npy, by blocks of rows, and b.npy."""
    rng = np.random.default_rng(columns)
    out = np.lib.format.open_memmap(
        folder / "A.npy", mode="w+", dtype=np.float64, shape=(rows, columns)
    )
    for first in range(0, rows, 1 << 16):
        out[first : first + (1 << 16)] = rng.random((min(1 << 16, rows - first), columns))
    out.flush()
    np.save(folder / "b.npy", rng.random((rows, 1)))


def tall_in_ram(rows: int, columns: int) -> dict[str, float]:
    """Return seconds of hdgemm's `lstsq`, and of SciPy's, on arrays in RAM."""
    import scipy.linalg

    import hdgemm.linalg

    rng = np.random.default_rng(0)
    a, b = np.asfortranarray(rng.random((rows, columns))), rng.random((rows, 1))
    hdgemm.linalg.lstsq(a[: rows // 4], b[: rows // 4])
    began = time.perf_counter()
    hdgemm.linalg.lstsq(a, b)
    middle = time.perf_counter()
    scipy.linalg.lstsq(a, b, overwrite_a=True, check_finite=False)
    return {"kernel": middle - began, "scipy": time.perf_counter() - middle}


def tall_from_file(folder: Path, memory: int) -> dict[str, float]:
    """Return seconds of `lstsq` from a file, of reading the file only, and the gradient's size."""
    import hdgemm.linalg

    options = hdgemm.Options(host_memory=memory, devices="host")
    began = time.perf_counter()
    x, *_ = hdgemm.linalg.lstsq(folder / "A.npy", folder / "b.npy", options=options)
    seconds = time.perf_counter() - began
    drop_cached([folder / "A.npy"])
    with hdgemm.open(folder / "A.npy") as a, hdgemm.open(folder / "b.npy") as b:
        began = time.perf_counter()
        step = max(1, (32 << 20) // (a.shape[1] * 8))
        buffer = np.empty((step, a.shape[1]))
        for first in range(0, a.shape[0], step):
            part = a[first : first + step, :]
            part.read(buffer[: part.shape[0]])
        reading = time.perf_counter() - began
        gradient, norm = np.zeros_like(x), 0.0
        for first in range(0, a.shape[0], step):
            rows = a[first : first + step, :].read()
            gradient += rows.T @ (b[first : first + step, :].read() - rows @ x)
            norm += float((rows**2).sum())
        unit = 2.0**-53 * norm * float(np.linalg.norm(x)) * a.shape[1]
    ratio = float(np.linalg.norm(gradient)) / unit
    return {"seconds": seconds, "read_seconds": reading, "hpl_ratio": ratio}
