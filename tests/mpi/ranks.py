"""Ranks of tests: how to start them, and how they end together."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

#: Grids of at most four ranks; two cores take long for four.
GRIDS = [
    ("2x1", "1x2"),
    pytest.param(("1x1", "3x1", "1x3", "2x2"), marks=pytest.mark.campaign),
]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def ranks_of(grids):
    """Return the ranks of the largest grid."""
    return max(int(rows) * int(cols) for rows, cols in (grid.split("x") for grid in grids))


def mpiexec(count, *arguments, **more):
    """Run Python under mpiexec."""
    # One BLAS thread for each process: several would wait for each other on a small machine.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [MPIEXEC, "-n", str(count), sys.executable, *arguments],
        capture_output=True, text=True, timeout=500, env=environment, check=False, **more,
    )  # fmt: skip


def finish(everyone):
    """Print "ok" on rank 0; the others sleep until then, where MPI would keep their cores busy."""
    end = np.zeros(1)
    if everyone.rank == 0:
        print("ok")
        for request in [everyone.send(end, rank) for rank in range(1, everyone.size)]:
            request.wait()
        return
    while not everyone.arrived(0):
        time.sleep(0.02)
    everyone.receive(end, 0)
