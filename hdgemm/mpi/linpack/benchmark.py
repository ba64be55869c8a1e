"""LINPACK: HPL's benchmark on the processes that mpiexec started, or on this one alone."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hdgemm.energy import Energy, EnergyMeter
from hdgemm.machine.limits import memory_limit, thread_limit
from hdgemm.mpi._timeline import (
    HIDEABLE,
    PHASES,
    hidden_seconds,
    seconds_by_phase,
    seconds_by_thread,
)
from hdgemm.mpi.communicator import world as all_processes
from hdgemm.mpi.devices import Devices, open_devices
from hdgemm.mpi.linpack._system import System
from hdgemm.mpi.machine import check
from hdgemm.mpi.processes import end_all, ending_all, threads_of
from hdgemm.options import Options
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hdgemm.mpi._timeline import Event
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.linpack._system import Vector
    from hdgemm.mpi.linpack.settings import Settings

    T = TypeVar("T")


#: Steps of refinement of HPL-MxP, as in its reference.
MOST_STEPS: Final = 50


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of LINPACK measured.

    Parameters
    ----------
    settings
        How it was run.
    seconds
        Factorisation and solution, of the slowest process.
    residual
        HPL's scaled residual.
    phases
        Seconds by phase in which at least one thread was in it, the mean of all processes.
    hidden
        Seconds of panels, broadcasts and swaps during which another thread of the same process
        updated, the mean of all processes.
    energy
        Joules of the factorisation and the solution, of all machines.
    events
        The phases of this process.
    steps
        Steps of refinement, of HPL-MxP; None for HPL.

    See Also
    --------
    linpack : Returns it.

    Examples
    --------
    >>> found = hdgemm.cluster.linpack(hdgemm.cluster.LinpackSettings(n=200, nb=32))
    >>> found.passed
    True
    """

    settings: Settings
    seconds: float
    residual: float
    phases: dict[str, float]
    hidden: dict[str, float]
    energy: Energy = field(default_factory=Energy)
    events: Sequence[Event] = field(default=(), repr=False)
    steps: int | None = None

    @property
    def gflops(self) -> float:
        """HPL's rate: N²(2N/3 + 3/2) operations by the seconds."""
        return self.settings.flops / self.seconds / 1e9

    @property
    def hidden_part(self) -> float | None:
        """The part of panels, broadcasts and swaps that ran beneath updates; None without any."""
        seconds = sum(self.phases[phase] for phase in HIDEABLE)
        return sum(self.hidden.values()) / seconds if seconds > 0 else None

    @property
    def passed(self) -> bool:
        """The residual is a number below the threshold."""
        return self.residual < self.settings.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a residual that is not a number is null."""
        return {
            **asdict(self.settings),
            "variant": self.settings.code,
            "seconds": self.seconds,
            "gflops": self.gflops,
            "residual": self.residual if math.isfinite(self.residual) else None,
            "passed": self.passed,
            "phases": self.phases,
            "hidden": self.hidden,
            "hidden_part": self.hidden_part,
            "busy": seconds_by_thread(self.events),
            "energy": self.energy.to_dict(self.gflops),
            "steps": self.steps,
        }


@refuses_unknown
def linpack(
    settings: Settings,
    world: Communicator | None = None,
    *,
    options: Options | None = None,
    devices: Devices | None = None,
    mixed: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Result | None:
    """Run HPL's benchmark once.

    A random system is generated, factored with partial pivoting and solved by a P×Q grid of
    processes; the residual is computed with the matrix generated anew (HPL 2.3).

    Parameters
    ----------
    settings
        Order, block size, grid and variants.
    world
        The processes; None for those that mpiexec started. Every process makes the same call. An
        error on one of several processes ends all of them.
    options
        Devices that update, and threads of the host; by default one for each core, shared among
        the processes of a machine.
    devices
        Devices that are open already.
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
        When the grid has more processes than there are, processes have different parameters or
        versions of hdgemm, or MPI lacks what the overlap needs.
    DoesNotFitError
        When a machine lacks memory for its part: `missing` in bytes.

    See Also
    --------
    hdgemm.mpi.solve : Systems over MPI.

    References
    ----------
    G. Jo et al.: Accelerating LINPACK with MPI-OpenCL on clusters of multi-GPU nodes, 2015,
    section 2.1.

    Examples
    --------
    >>> hdgemm.cluster.linpack(hdgemm.cluster.LinpackSettings(n=2000)).passed
    True
    """
    world = world or all_processes()
    world.compare({**asdict(settings), "mixed": mixed, "devices is None": devices is None})
    check(settings, world, itemsize=4 if mixed else 8)
    p, q = settings.grid
    inside = world.rank < p * q
    active = world.split(int(inside), world.rank)
    result = _run(settings, active, devices, options, progress, mixed=mixed) if inside else None
    active.free()
    return result


def _run(
    settings: Settings,
    active: Communicator,
    devices: Devices | None,
    options: Options | None,
    progress: Callable[[float], None] | None,
    *,
    mixed: bool,
) -> Result:
    """Run on the processes of the grid, with the caller's devices or the devices of the options."""
    if devices is not None:
        return _measure(settings, active, devices, progress, mixed=mixed)
    if options is None:
        options = Options()
    else:
        from hdgemm.run.session import check_options

        options = check_options(options)
    with open_devices(options, threads_of(options, active)) as opened:
        return _measure(settings, active, opened, progress, mixed=mixed)


def _measure(
    settings: Settings,
    world: Communicator,
    devices: Devices,
    progress: Callable[[float], None] | None,
    *,
    mixed: bool,
) -> Result:
    """Run once on a grid that fits, with devices that are open."""
    # Processes of a column exchange rows strip by strip: the same strips.
    updates = int(world.largest(len(devices.updates)))
    settings = replace(settings, strip=settings.widest_strip(updates, settings.n + 1))
    # Each thread calls BLAS for itself.
    with blas_threads(1), ending_all(world), memory_limit(), thread_limit():
        system = System(settings, world, mixed=mixed)
        window = devices.window(system.recorder, lambda error: end_all(world, error))
        try:
            world.collect(None)  # all begin together
            with EnergyMeter(devices.names) as meter:
                start = time.perf_counter()
                system.factor(window, progress)
                x, steps = _refined(system) if mixed else (system.solve(), None)
                seconds = world.largest(time.perf_counter() - start)
        finally:
            window.close()
        residual = system.residual(x)
    events = system.recorder.events
    each = world.collect((seconds_by_phase(events), hidden_seconds(events)))
    phases, hidden = (
        {name: sum(one[place][name] for one in each) / len(each) for name in names}
        for place, names in enumerate((PHASES, HIDEABLE))
    )
    energy = _energy_of_all(world, meter.result)
    return Result(settings, seconds, residual, phases, hidden, energy, events, steps)


def _energy_of_all(world: Communicator, own: Energy) -> Energy:
    """Return the joules of all machines: the counters of a machine are read by each process."""
    by_host = dict(world.collect((platform.node(), own)))
    if len(by_host) == 1:
        return own
    joules = _by_host_and_name({host: found.joules for host, found in by_host.items()})
    missing = _by_host_and_name({host: found.missing for host, found in by_host.items()})
    return Energy(joules, own.seconds, missing)


def _by_host_and_name(found: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    return {f"{host} {name}": value for host, own in found.items() for name, value in own.items()}


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
