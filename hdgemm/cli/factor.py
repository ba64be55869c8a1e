"""Commands of linear algebra, file to file, made from the descriptions of the routines."""

from __future__ import annotations

import inspect
import math
from inspect import Parameter as Argument
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import (
    Outputs,
    confirm_size,
    print_result,
    refuse_existing,
    refuse_existing_beside,
)
from hdgemm.errors import InputError
from hdgemm.routines.description import OUT, always

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hdgemm.report import Report
    from hdgemm.routines.description import Output, Parameter, Routine

#: Name of the argument of `--in-place`.
_IN_PLACE: Final = "in_place"
_DEVICES: Final = ("device", "device_memory")
_DURABLE: Final = ("checkpoint", "restart")


def _shared(
    *,
    host_memory: args.HostMemory = None,
    device: args.HostOrDevice = None,
    device_memory: args.DeviceMemory = None,
    threads: args.Threads = None,
    tile: args.Tile = None,
    cluster: args.Cluster = None,
    checkpoint: args.Checkpoint = False,
    restart: args.Restart = False,
    no_clobber: args.NoClobber = False,
    yes: args.Yes = False,
    dry_run: args.DryRun = False,
    trace: args.TraceFile = None,
    gantt: args.GanttFile = None,
    report: args.ReportFile = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Options that routines share."""


def command_of(routine: Routine) -> Callable[..., None]:
    """Return the function from which typer makes the command of a routine."""

    def command(**given: Any) -> None:
        _run(routine, given)

    command.__name__, command.__doc__ = routine.name, routine.summary
    command.__signature__ = inspect.Signature(list(_arguments(routine)))  # type: ignore[attr-defined]
    return command


def _arguments(routine: Routine) -> Iterator[Argument]:
    """Yield the arguments of a command: operands, outputs, parameters, shared options."""
    for operand in routine.operands:
        name = operand.name.upper()
        shown = typer.Argument(metavar=name, help=f"{name}: a file, or FILE::NAME.")
        yield Argument(
            operand.name, Argument.POSITIONAL_OR_KEYWORD, annotation=Annotated[Path, shown]
        )
    for name, outputs in routine.options.items():
        always_stored = any(each.when is always and not each.optional for each in outputs)
        yield _place(name, outputs, required=always_stored and not routine.in_place)
    for parameter in routine.shown:
        yield _option(parameter)
    if routine.in_place:
        flag = typer.Option("--in-place", help="Store the result over A, instead of --out.")
        yield _keyword(_IN_PLACE, Annotated[bool, flag], default=False)
    for parameter in routine.mpi_parameters:
        yield _option(parameter)
    if routine.mpi:
        yield _keyword("mpi", args.Mpi, default=False)
        yield _keyword("grid", args.Grid, default=None)
        yield _keyword("nb", args.BlockSize, default=None)
    absent = (() if routine.devices else _DEVICES) + (() if routine.durable else _DURABLE)
    shared = inspect.signature(_shared, eval_str=True).parameters
    yield from (each for name, each in shared.items() if name not in absent)


def _place(name: str, outputs: tuple[Output, ...], *, required: bool) -> Argument:
    """Return the option with the location of an output."""
    text = next(each.help for each in outputs if each.help)
    if required:
        return _keyword(name, Annotated[Path, typer.Option(help=text)], default=Argument.empty)
    return _keyword(name, Annotated[Path | None, typer.Option(help=text)], default=None)


def _option(parameter: Parameter) -> Argument:
    """Return the option of a parameter."""
    option = f"--{parameter.name.replace('_', '-')}"
    if parameter.is_flag:
        flag = typer.Option(option, help=parameter.help)
        return _keyword(parameter.name, Annotated[bool, flag], default=False)
    shown = typer.Option(
        parameter.default, option, help=parameter.help, min=parameter.least, max=parameter.most
    )
    return _keyword(parameter.name, parameter.annotation, default=shown)


def _keyword(name: str, annotation: Any, *, default: Any) -> Argument:
    return Argument(name, Argument.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameters(routine: Routine, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the routine's keywords for the options of its command."""
    found = {
        each.name: each.of_flag(given=given[each.name]) if each.is_flag else given[each.name]
        for each in routine.shown
    }
    if given.get(_IN_PLACE):
        found["overwrite_a"] = True
    for name, outputs in routine.options.items():
        implied = {} if given[name] is None else outputs[0].implies
        found |= {key: text for key, text in implied.items() if found[key] == routine.defaults[key]}
    return found


def _outs(
    routine: Routine, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the location of each output that is stored."""
    if routine.stores and (given[OUT] is None) != given.get(_IN_PLACE, False):
        if given[OUT] is not None:
            raise InputError(f"--out names {given[OUT]}, --in-place overwrites A: leave one out")
        raise InputError("give --out, or --in-place to overwrite A")
    present = routine.present(parameters, "matrix")
    places = {each.name: given[each.option or each.name] for each in present}
    used = {each.option or each.name for each in present}
    if extra := [name for name in routine.options if name not in used and given[name] is not None]:
        raise InputError(f"{routine.name} with these options stores nothing in --{extra[0]}")
    return {name: place for name, place in places.items() if place is not None}


def _refuse_existing(
    routine: Routine,
    given: Mapping[str, Any],
    outs: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> None:
    """Refuse to replace a file, for `--no-clobber`."""
    for place in outs.values():
        refuse_existing(place)
    first = routine.first(parameters)
    if first is not None and first.factors:
        refuse_existing_beside(outs.get(first.name, given["a"]), first.factors)


def _ask_about_size(
    routine: Routine, operands: Mapping[str, Path], parameters: Mapping[str, Any]
) -> None:
    """Ask whether a result that dwarfs the operands is meant: A·A^T instead of A^T·A, perhaps."""
    import hdgemm

    shapes, read, itemsize = {}, 0, 0
    for name, place in operands.items():
        with hdgemm.open(place) as matrix:
            shapes[name] = matrix.shape
            itemsize = max(itemsize, matrix.dtype.itemsize)
            read += math.prod(matrix.shape) * matrix.dtype.itemsize
    sizes = routine.extents(shapes, parameters)
    outputs = routine.present(parameters, "matrix")
    stored = sum(math.prod(each.shape(sizes, parameters)) for each in outputs) * itemsize
    confirm_size(stored, read, routine.name)


def _check_cluster(
    routine: Routine, parameters: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Refuse `--cluster` where no pass runs on workers, and with what describes this machine."""
    if given["cluster"] is None:
        return
    if not routine.row_passes(parameters):
        from hdgemm.routines.registry import commands

        able = (name for name, each in commands().items() if each.row_passes(each.defaults))
        raise InputError(
            f"{routine.name} with these options does not run on a cluster; by default "
            f"{', '.join(able)} take --cluster"
        )
    if given["dry_run"]:
        raise InputError("--dry-run plans a run on this machine: leave it out with --cluster")


def _refuse_mpi_alone(routine: Routine, given: Mapping[str, Any]) -> None:
    """Refuse options that only `--mpi` uses."""
    args.refuse_grid_alone(given.get("grid"), given.get("nb"))
    for each in routine.mpi_parameters:
        if given[each.name] != each.default:
            raise InputError(
                f"--{each.name} {given[each.name]} of {routine.name} is for --mpi: give it, too"
            )


def _run(routine: Routine, given: Mapping[str, Any]) -> None:
    """Run a routine, or print its plan; `given` are the arguments of its command."""
    parameters = _parameters(routine, given)
    _check_cluster(routine, parameters, given)
    if given.get("mpi"):
        from hdgemm.cli.mpi import run_over_mpi

        for each in routine.mpi_parameters:
            parameters[each.name] = given[each.name]
        run_over_mpi(routine, parameters, given)
        return
    from hdgemm.call.keywords import Call
    from hdgemm.linalg.routines import plan_routine, run_routine
    from hdgemm.progress import Callbacks

    _refuse_mpi_alone(routine, given)
    outs = _outs(routine, given, parameters)
    if given["no_clobber"]:
        _refuse_existing(routine, given, outs, parameters)
    operands = {each.name: given[each.name] for each in routine.operands}
    options = args.make_options(
        host_memory=given["host_memory"],
        device=given.get("device") or ["host"],
        device_memory=given.get("device_memory"),
        threads=given["threads"],
        tile=given["tile"],
    )
    journal, restart = given.get("checkpoint", False), given.get("restart", False)

    def call(progress: Any) -> Report:
        how = Call(options, None, Callbacks(progress), journal, restart)
        return run_routine(routine, operands, outs, parameters, how)

    if given["dry_run"]:
        how = Call(options, checkpoint=journal)
        found = plan_routine(routine, operands, outs, parameters, how)
        print_result(found, as_json=given["as_json"])
        return
    if not given["yes"] and outs:
        _ask_about_size(routine, operands, parameters)
    outputs = Outputs(
        trace=given["trace"],
        gantt=given["gantt"],
        report=given["report"],
        quiet=given["quiet"],
        as_json=given["as_json"],
    )
    label = (given.get(OUT) or given["a"]).name
    if given["cluster"] is None:
        shown = outputs.show(label, call)
    else:
        from hdgemm.cli.cluster import rows_on_cluster

        outputs.check()
        with rows_on_cluster(given["cluster"], options):
            shown = outputs.show(label, call)
    if outputs.quiet and not (outputs.as_json or routine.stores):
        for value in shown.values.values():  # the only result
            typer.echo(" ".join(map(str, value)) if isinstance(value, list) else value)
