"""Commands over MPI: the option `--mpi` of `hdgemm solve`, `lu` and `cholesky`."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any, Final

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import print_json, refuse_existing, refuse_existing_beside
from hdgemm.cli.supervisor import SignalDeadline, ending_at_once, supervise
from hdgemm.errors import HdgemmError, InputError
from hdgemm.routines.description import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.report import Report
    from hdgemm.routines.description import Routine

#: Options without an effect over MPI, where the function has no argument of the name.
_ALONE: Final = ("in_place", "tile", "checkpoint", "restart", "trace", "gantt")


def run_over_mpi(routine: Routine, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Run a routine on all processes of mpiexec; rank 0 prints.

    An error that all ranks find is printed by rank 0 alone.
    """
    supervise()  # before there are threads, and before MPI begins
    from hdgemm.mpi.communicator import world as all_processes
    from hdgemm.mpi.processes import ending_all, on_all

    with SignalDeadline() as deadline:
        with ending_at_once():  # MPI's initialisation waits for the other processes
            deadline.world = world = all_processes()
        try:
            with ending_all(world):
                _run(routine, parameters, given, world)
        except HdgemmError as error:
            if on_all(error) and world.rank:
                raise typer.Exit(error.exit_code) from None
            raise


def _run(
    routine: Routine, parameters: Mapping[str, Any], given: Mapping[str, Any], world: Communicator
) -> None:
    from hdgemm.mpi.processes import together

    function = load(routine.mpi)
    with together(world):
        arguments = _arguments(routine, parameters, given, inspect.signature(function).parameters)
    if given["dry_run"]:
        _print_plan(routine, arguments, given, world)
        return
    reports: list[Report] = []
    operands = [given[operand.name] for operand in routine.operands]
    with warnings.catch_warnings():
        if world.rank:
            warnings.simplefilter("ignore")  # rank 0 shows the same warnings
        function(*operands, **arguments, comm=world, report=reports.append)
    if world.rank == 0:
        _print(reports[0], given)


def _arguments(
    routine: Routine,
    parameters: Mapping[str, Any],
    given: Mapping[str, Any],
    accepted: Mapping[str, object],
) -> dict[str, Any]:
    """Return the keywords of the function; `InputError` for options without an effect."""
    for name in _ALONE:
        if name not in accepted and given.get(name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --mpi")
    for name, value in parameters.items():
        if name not in accepted and value != routine.defaults.get(name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --mpi")
    if given["out"] is None:
        raise InputError("give --out: the result over MPI is a new file")
    if given["no_clobber"]:
        refuse_existing(given["out"])
        first = routine.first(parameters)
        if first is not None and first.factors:
            refuse_existing_beside(given["out"], first.factors)
    options = args.make_options(
        host_memory=given["host_memory"],
        device=given.get("device") or ["host"],
        device_memory=given.get("device_memory"),
        threads=given["threads"],
    )
    own = {name: value for name, value in parameters.items() if name in accepted}
    shared = {"out": given["out"], "options": options, "grid": given["grid"], "nb": given["nb"]}
    if "restart" in accepted:
        shared["restart"] = bool(given.get("restart"))
    return own | shared


def _print(report: Report, given: Mapping[str, Any]) -> None:
    if given["report"] is not None:
        report.save(given["report"])
    if given["as_json"]:
        print_json(report.to_dict())
    elif not given["quiet"]:
        typer.echo(str(report))


def _print_plan(
    routine: Routine,
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
    world: Communicator,
) -> None:
    from hdgemm.call.operands import open_columns, open_square, stored_dtype
    from hdgemm.cli.output import print_result
    from hdgemm.mpi.plan import plan
    from hdgemm.mpi.processes import together

    with together(world):
        with open_square(given["a"]) as a:
            n, dtype, columns, b_dtype = a.shape[0], stored_dtype(a).name, 1, None
        if "b" in given:
            b, _ = open_columns(given["b"])
            with b:
                columns, b_dtype = b.shape[1], stored_dtype(b).name
        found = plan(
            routine.name,
            n,
            columns,
            ranks=world.size,
            dtype=dtype,
            b_dtype=b_dtype,
            assume_a=arguments.get("assume_a", "gen"),
            grid=given["grid"],
            nb=given["nb"],
            host_memory=given["host_memory"],
            refine=arguments.get("refine"),
            pivoting=arguments.get("pivoting", "partial"),
        )
    if world.rank == 0:
        print_result(found, as_json=given["as_json"])
