"""Run under mpiexec by test_mpi: every case on one grid; rank 0 prints what differs, then "ok"."""

import itertools
import sys

import numpy as np

from hdgemm.hpl import Settings
from hdgemm.hpl.communicator import world
from hdgemm.hpl.sequence import RandomMatrix
from hdgemm.hpl.system import System

ORDERS = ((1, 4), (7, 3), (53, 8), (97, 200), (130, 16))

processes = world()
p, q = int(sys.argv[1]), int(sys.argv[2])
assert processes.size == p * q
for n, nb in ORDERS:
    random = RandomMatrix(n, np.arange(n))
    columns = np.column_stack([random.column(col) for col in range(n + 1)])
    reference = np.linalg.solve(columns[:, :n], columns[:, n])
    bound = 8 * n * np.finfo(float).eps * np.linalg.cond(columns[:, :n])
    found = {}
    for depth, swap, topology in itertools.product(
        (0, 1), ("long", "binary-exchange"), ("1ring", "2ring-modified")
    ):
        system = System(Settings(n, nb, (p, q), depth, topology, swap), processes)
        system.factor()
        x = system.solve()
        residual = system.residual(x)
        found.setdefault(depth, set()).add(x.tobytes())
        error = np.max(np.abs(x - reference)) / np.max(np.abs(reference))
        if processes.rank == 0 and not (error <= bound and residual < 16):
            print(f"N={n} NB={nb} depth={depth} {swap} {topology}: {error} {residual}")
    if processes.rank == 0 and any(len(bits) > 1 for bits in found.values()):
        print(f"N={n} NB={nb}: the swaps or the broadcasts give different bits")
if processes.rank == 0:
    print("ok")
