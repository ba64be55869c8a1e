"""Factorisations of arrays on several devices, by tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.errors import CancelledRunError, InputError
from hdgemm.linalg.devices._native import PANEL, factor_native
from hdgemm.machine.limits import cores
from hdgemm.run.members import device_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.call.run import OpenRun
    from hdgemm.options import Options
    from hdgemm.tasks.algorithms import Factorised
    from hdgemm.tasks.machine import TaskMachine

    #: Overwrites an array by its factors.
    Strategy = Callable[[str, NDArray[Any], OpenRun, Recorder], Factorised]


def factor_on_devices(
    name: str, array: NDArray[Any], run: OpenRun, recorder: Recorder
) -> Factorised:
    """Overwrite a column-major array by its factors, on the host and the devices of the options.

    `Options.tile` = (mb, nb, kb) forces panels of nb columns.
    """
    from hdgemm.tasks.block_columns import even_widths
    from hdgemm.tasks.factorise import factor

    machine, tile = _machine(name, array, run), run.options.tile
    widths = None if tile is None else even_widths(array.shape[1], tile[1])
    try:
        return factor(
            machine, name, array, widths=widths, observer=recorder.record, cancel=recorder.cancel
        )
    except CancelledRunError:
        recorder.check_cancel()
        raise


def factor_on_device(
    name: str, array: NDArray[Any], run: OpenRun, recorder: Recorder
) -> Factorised:
    """Overwrite a column-major array by its factors, on the one device of the options.

    `Options.tile` = (mb, nb, kb) forces panels of nb columns.
    """
    if name == "calu":
        raise InputError(
            "pivoting='tournament' chooses pivots on the host: choose strategy='hybrid', or "
            "pivoting='partial'"
        )
    options = run.options
    (device,) = device_names(options)
    panel = PANEL if options.tile is None else options.tile[1]
    return factor_native(name, run.session.device(device, options), array, recorder, panel=panel)


def strategy_of(strategy: str, options: Options, *, in_memory: bool) -> Strategy | None:
    """Return the factorisation of an array on devices; None for the host, and for slabs.

    Raises
    ------
    InputError
        When ``"native"`` is asked for several devices, or for a result that is not `in_memory`.
    """
    strategies: dict[str, Strategy] = {"hybrid": factor_on_devices, "native": factor_on_device}
    if strategy not in strategies:
        raise InputError(f"strategy must be 'hybrid' or 'native', got {strategy!r}")
    names = device_names(options)
    if strategy == "native" and len(names) != 1:
        raise InputError(
            f"strategy='native' runs on one device, but devices is {options.devices!r}: choose "
            "one, such as devices='opencl:0'"
        )
    if strategy == "native" and not in_memory:
        raise InputError(
            "strategy='native' needs a result in RAM that LAPACK could overwrite, column-major "
            "(row-major for U): leave out `out`, or choose strategy='hybrid'"
        )
    return strategies[strategy] if names and in_memory else None


def _machine(name: str, array: NDArray[Any], run: OpenRun) -> TaskMachine:
    """Return the session's devices with rates that were measured in it, and kept."""
    from hdgemm.tasks.machine import TaskMachine
    from hdgemm.tasks.measured_rates import measured, probe_order

    options, session, _ = run
    devices: Any = {each: session.device(each, options) for each in device_names(options)}
    threads, order = options.threads or cores(), probe_order(min(array.shape))
    key = (name, array.dtype.name, tuple(devices), threads, order)
    if key not in session.task_machines:
        # The tasks of a panel that is factored by a tournament run on all cores at once.
        machine = TaskMachine.of(devices, threads=threads, lanes=name == "calu")
        session.task_machines[key] = measured(machine, name, array.dtype, order)
    return session.task_machines[key]
