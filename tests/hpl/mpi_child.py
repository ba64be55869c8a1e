"""Run under mpiexec by test_mpi: every case on one grid; rank 0 prints what differs, then "ok"."""

import sys

import numpy as np

from hdgemm.hpl import Settings, linpack
from hdgemm.hpl.communicator import world
from hdgemm.hpl.sequence import RandomMatrix
from hdgemm.hpl.system import System

ORDERS = ((1, 4), (23, 4), (53, 64), (97, 16))
VARIANTS = (
    (0, "long", "1ring"),
    (0, "binary-exchange", "2ring-modified"),
    (1, "long", "1ring-modified"),
    (1, "binary-exchange", "2ring"),
)

processes = world()
p, q = int(sys.argv[1]), int(sys.argv[2])
assert processes.size == p * q
for n, nb in ORDERS:
    random = RandomMatrix(n, np.arange(n))
    columns = np.column_stack([random.column(col) for col in range(n + 1)])
    reference = np.linalg.solve(columns[:, :n], columns[:, n])
    bound = 8 * n * np.finfo(float).eps * np.linalg.cond(columns[:, :n])
    found = {}
    for depth, swap, topology in VARIANTS:
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
for n, nb in ORDERS:
    result = linpack(Settings(n, nb, (p, q)), processes, mixed=True)
    if processes.rank == 0 and not (result.passed and result.steps <= 5):
        print(f"N={n} NB={nb} mixed: {result.residual} after {result.steps} steps")
if processes.rank == 0:
    print("ok")
