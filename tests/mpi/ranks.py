"""Ranks of tests: how to start them, and how they end together."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SMALL, LARGE = ("2x1", "1x2"), ("4x4", "2x3", "4x1", "1x4")
#: An MPI library and grids; two cores take long for four ranks and more.
CASES = [
    pytest.param("mpich", ("2x1",), id="mpich 2x1"),
    pytest.param("mpich", ("1x2",), id="mpich 1x2", marks=pytest.mark.ci),
    *(
        pytest.param(mpi, grids, id=f"{mpi} {' '.join(grids)}", marks=pytest.mark.campaign)
        for mpi, grids in (
            ("mpich", ("1x1", "3x1", "1x3", "2x2")),
            ("mpich", LARGE),
            ("openmpi", (*SMALL, "2x2")),
            ("openmpi", LARGE),
        )
    ),
]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def ranks_of(grids):
    """Return the ranks of the largest grid."""
    return max(int(rows) * int(cols) for rows, cols in (grid.split("x") for grid in grids))


def mpiexec(count, *arguments, mpi="mpich", **more):
    """Run Python under the mpiexec of the environment, or under Debian's of Open MPI."""
    # One BLAS thread for each process: several would wait for each other on a small machine.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    launcher = [MPIEXEC]
    if mpi == "openmpi":
        launcher = [shutil.which("mpiexec.openmpi"), "--oversubscribe"]
        if launcher[0] is None:
            pytest.skip("Open MPI is missing: apt-get install openmpi-bin")
        environment |= {
            "MPI4PY_MPIABI": "openmpi",  # the environment may have MPICH, too
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
    return subprocess.run(
        [*launcher, "-n", str(count), sys.executable, *arguments],
        capture_output=True, text=True, timeout=500, env=environment, check=False, **more,
    )  # fmt: skip


def without_syncs():
    """Leave out waits for the disk: no power fails, and the other ranks would poll meanwhile."""
    os.fsync = os.fdatasync = lambda _file: None


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


def ratio(a, x, b):
    """HPL's ratio, in units of the dtype's precision."""
    unit = np.finfo(a.dtype).eps / 2
    size = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return np.abs(a @ x - b).max() / (unit * size * len(a))


def factor_ratio(a, lu, piv):
    """LAPACK's ratio of P·A - L·U."""
    lower, upper = np.tril(lu, -1) + np.eye(len(lu)), np.triu(lu)
    permuted = a.copy()
    for row, other in enumerate(piv):
        permuted[[row, other]] = permuted[[other, row]]
    error = np.abs(lower @ upper - permuted).sum(axis=0).max()
    return error / (np.abs(a).sum(axis=0).max() * len(a) * np.finfo(a.dtype).eps)


def stored_pair(group, folder, dtype, n, columns, order):
    """Return A and B, which rank 0 stores."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, max(columns, 1)))
    if dtype.startswith("c"):
        a = a + 1j * rng.standard_normal((n, n))
    a = np.array(a, dtype, order=order)
    b = (b if columns else b[:, 0]).astype(dtype)
    if group.rank == 0:
        np.save(folder / "A.npy", a)
        np.save(folder / "B.npy", b)
    group.collect(None)
    return a, b
