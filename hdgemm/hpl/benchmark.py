"""LINPACK: HPL's benchmark on the processes that mpiexec started, or on this one alone."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.hpl.communicator import world as all_processes
from hdgemm.hpl.system import PHASES, System, host_update
from hdgemm.machine.limits import available_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.settings import Settings
    from hdgemm.hpl.system import Update, Vector


#: Steps of refinement of HPL-MxP, as in its reference.
MOST_STEPS: Final = 50


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of LINPACK measured.

    Parameters
    ----------
    seconds
        Factorisation and solution, of the slowest process.
    residual
        HPL's scaled residual.
    phases
        Seconds by phase, the mean of all processes.
    steps
        Steps of refinement, of HPL-MxP; None for HPL.
    """

    settings: Settings
    seconds: float
    residual: float
    phases: dict[str, float]
    steps: int | None = None

    @property
    def gflops(self) -> float:
        """HPL's rate: N²(2N/3 + 3/2) operations by the seconds."""
        return self.settings.flops / self.seconds / 1e9

    @property
    def passed(self) -> bool:
        """The residual is a number below the threshold."""
        return self.residual < self.settings.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **asdict(self.settings),
            "variant": self.settings.code,
            "seconds": self.seconds,
            "gflops": self.gflops,
            "residual": self.residual,
            "passed": self.passed,
            "phases": self.phases,
            "steps": self.steps,
        }


def linpack(
    settings: Settings,
    world: Communicator | None = None,
    *,
    update: Update = host_update,
    mixed: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Result | None:
    """Run HPL's benchmark once.

    A random system is generated, factored with partial pivoting and solved by a P×Q grid of
    processes; the residual is computed with the matrix generated anew (HPL 2.3; Jo et al.,
    "Accelerating LINPACK with MPI-OpenCL", section 2.1).

    Parameters
    ----------
    settings
        Order, block size, grid and variants.
    world
        The processes; None for those that mpiexec started. Every process makes the same call.
    update
        C := C - A·B of the trailing matrix.
    mixed
        HPL-MxP: a diagonally dominant matrix is factored in single precision, and the solution
        refined to double precision; the residual is HPL's.
    progress
        Called with the part that is done.

    Returns
    -------
    The result, the same on every process of the grid; None on processes outside it.

    Raises
    ------
    InputError
        When the grid has more processes than there are.
    DoesNotFitError
        When a machine lacks memory for its part: `missing` in bytes.

    Examples
    --------
    >>> hdgemm.cluster.linpack(hdgemm.cluster.LinpackSettings(n=2000)).passed
    True
    """
    world = world or all_processes()
    p, q = settings.grid
    if p * q > world.size:
        raise InputError(
            f"a grid of {p}×{q} needs {p * q} processes, there are {world.size}: "
            f"start it with mpiexec -n {p * q}"
        )
    inside = world.rank < p * q
    active = world.split(int(inside), world.rank)
    if not inside:
        return None
    _check_memory(settings, active)
    system = System(settings, active, update, progress, mixed=mixed)
    active.collect(None)  # all begin together
    start = time.perf_counter()
    system.factor()
    x, steps = _refined(system) if mixed else (system.solve(), None)
    seconds = active.largest(time.perf_counter() - start)
    residual = system.residual(x)
    phases = active.collect(system.seconds)
    mean = {name: sum(each[name] for each in phases) / len(phases) for name in PHASES}
    return Result(settings, seconds, residual, mean, steps)


def _refined(system: System) -> tuple[Vector, int]:
    """Return the solution refined until its residual is below 1 or falls no more, and the steps."""
    x, residual = system.solve(), float("inf")
    for step in range(MOST_STEPS):
        difference = system.difference(x)
        found = system.scaled(difference, x)
        if not 1.0 <= found < residual / 2:
            return x, step
        residual = found
        x = x + system.correction(difference)
    return x, MOST_STEPS


def needed_bytes(settings: Settings) -> int:
    """Return the bytes of one process: its part of the matrix, a panel, and the rows of U."""
    p, q = settings.grid
    n, nb = settings.n, settings.nb
    rows, cols = -(-n // (nb * p)) * nb, -(-(n + 1) // (nb * q)) * nb
    return 8 * (min(rows, n) * min(cols, n + 1) + 2 * nb * rows + 3 * nb * cols + 4 * n)


def _check_memory(settings: Settings, world: Communicator) -> None:
    """Refuse on every process where the processes of one machine need more than it has."""
    host = platform.node()
    found = world.collect((host, needed_bytes(settings), available_bytes()))
    for name in sorted({node for node, _, _ in found}):
        needs = [need for node, need, _ in found if node == name]
        available = min(free for node, _, free in found if node == name)
        if sum(needs) > available:
            raise DoesNotFitError(
                f"{name}: its {len(needs)} processes need {sum(needs):,} bytes for N = "
                f"{settings.n}, {available:,} are available, {sum(needs) - available:,} are "
                "missing; lower N",
                requested=sum(needs), available=available, missing=sum(needs) - available,
                limit="memory",
            )  # fmt: skip
