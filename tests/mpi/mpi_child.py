"""Run under mpiexec by test_mpi: every case on grids; rank 0 prints what differs, then "ok"."""

import sys

import numpy as np

from hdgemm.mpi import _interchange as interchange
from hdgemm.mpi._window import host_update
from hdgemm.mpi.communicator import world
from hdgemm.mpi.devices import Devices
from hdgemm.mpi.linpack import Settings, linpack
from hdgemm.mpi.linpack._sequence import RandomMatrix
from hdgemm.mpi.linpack._system import System
from hdgemm.mpi.variant import OVERLAPS
from tests.mpi.ranks import finish

ORDERS = ((1, 4), (23, 4), (53, 64))
#: Depth, broadcast, swap, mapping, overlap, threads.
VARIANTS = (
    (0, "1ring", "long", "row", (), 1),
    (1, "2ring-modified", "binary-exchange", "row", ("window",), 2),
    (1, "long", "long", "row", ("window", "panel-swap"), 2),
    (2, "long-modified", "long", "column", ("window", "split-swap"), 1),
    (0, "2ring", "long", "row", ("shared-panel",), 1),
    (1, "1ring-modified", "binary-exchange", "column", OVERLAPS, 2),
)

everyone = world()
interchange._PIECE = 5  # several pieces of a strip


def solution(settings, processes, threads):
    """Factor and solve; return x and its residual."""
    system = System(settings, processes)
    window = Devices([host_update] * threads, rows=16).window(system.recorder)
    try:
        system.factor(window)
    finally:
        window.close()
    x = system.solve()
    return x, system.residual(x)


def check(processes, p, q):
    """Run every case on one grid."""
    for n, nb in ORDERS:
        random = RandomMatrix(n, np.arange(n))
        columns = np.column_stack([random.column(col) for col in range(n + 1)])
        reference = np.linalg.solve(columns[:, :n], columns[:, n])
        bound = 8 * n * np.finfo(float).eps * np.linalg.cond(columns[:, :n])
        # One panel is the same in most variants.
        for depth, topology, swap, mapping, overlap, threads in VARIANTS[:: 1 if nb < n else 5]:
            settings = Settings(
                n, nb, (p, q), depth, topology, swap, overlap, strip=8, mapping=mapping
            )
            x, residual = solution(settings, processes, threads)
            error = np.max(np.abs(x - reference)) / np.max(np.abs(reference))
            if processes.rank == 0 and not (error <= bound and residual < 16):
                print(f"{settings}: {error} {residual}")
            if n == 23 and threads > 1:
                again, _ = solution(settings, processes, threads)
                if processes.rank == 0 and x.tobytes() != again.tobytes():
                    print(f"{settings}: the second run gives other bits")
        result = linpack(Settings(n, nb, (p, q)), processes, mixed=True)
        if processes.rank == 0 and not (result.passed and result.steps <= 5):
            print(f"N={n} NB={nb} mixed: {result.residual} after {result.steps} steps")
    # Both exchanges, and one message or two at a time, give the same bits.
    exchanged = {
        solution(Settings(37, 5, (p, q), 1, "1ring", swap, overlap, strip=7), processes, 1)[
            0
        ].tobytes()
        for swap in ("long", "binary-exchange")
        for overlap in ((), ("split-swap",))
    }
    if processes.rank == 0 and len(exchanged) > 1:
        print("the exchanges of rows give different bits")


grids = sorted((tuple(map(int, grid.split("x"))) for grid in sys.argv[1:]), key=np.prod)
groups = [everyone.split(int(everyone.rank < p * q), everyone.rank) for p, q in grids]
for (p, q), group in reversed(list(zip(grids, groups, strict=True))):
    if everyone.rank < p * q:
        check(group, p, q)
finish(everyone)
