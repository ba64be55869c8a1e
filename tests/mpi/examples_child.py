"""Run under mpiexec on two ranks by test_mpi: the examples of `hdgemm.mpi`, in a folder."""

import contextlib
import doctest
import inspect
import io
import os
import sys

import numpy as np
from mpi4py import MPI

import hdgemm
from hdgemm.mpi import BlockCyclicArray
from hdgemm.mpi.communicator import world
from tests.mpi.ranks import finish, without_syncs

comm = MPI.COMM_WORLD
without_syncs()
os.chdir(sys.argv[1])


def part(path):
    """Return this rank's part of a stored matrix."""
    matrix = np.load(path)
    held = BlockCyclicArray.empty(matrix.shape, float, nb=64, grid=(1, 2), rank=comm.rank)
    rows, cols = held.axes(comm.rank)
    held.local[:] = matrix[np.ix_(rows.positions(), cols.positions())]
    return held


given = {"hdgemm": hdgemm, "comm": comm, "n": len(np.load("A.npy"))}
given |= {"local": part("A.npy").local, "b": part("B.npy")}
# Factors come before the calls that take them: cho_solve is the first name.
for name in sorted(hdgemm.mpi.__all__, key=lambda name: name.endswith("_solve")):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(hdgemm.mpi, name)))
    assert examples, name
    with contextlib.redirect_stdout(io.StringIO()):
        names = dict(given)
        for example in examples:
            exec(compile(example.source, name, "single"), names)
finish(world())
