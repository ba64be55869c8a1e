"""`hdgemm cholesky`, `lu`, `qr`, `solve`, `lstsq`, `syrk`: linear algebra, file to file."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import Outputs, print_result, refuse_existing, refuse_existing_beside
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.report import Report

A = Annotated[Path, typer.Argument(metavar="A", help="A: a file, or FILE::NAME.")]
B = Annotated[Path, typer.Argument(metavar="B", help="B: a file, or FILE::NAME.")]
Lower = Annotated[bool, typer.Option("--lower", help="The lower triangle instead of the upper.")]
Assume = Literal["gen", "sym", "her", "pos", "upper triangular", "lower triangular"]
#: Arguments of the commands that are no parameters of the routines.
_FILES: Final = frozenset({"a", "b", "out", "in_place"})


def _shared(
    *,
    host_memory: args.HostMemory = None,
    device: args.HostOrDevice = None,
    device_memory: args.DeviceMemory = None,
    threads: args.Threads = None,
    tile: args.Tile = None,
    checkpoint: args.Checkpoint = False,
    restart: args.Restart = False,
    no_clobber: args.NoClobber = False,
    dry_run: args.DryRun = False,
    trace: args.TraceFile = None,
    gantt: args.GanttFile = None,
    report: args.ReportFile = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Options that routines share."""


def _routine(*absent: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that declares a routine's operands and own options.

    `absent` are the shared options that the routine does not have.
    """

    def make(declared: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(declared, eval_str=True)
        shared = dict(inspect.signature(_shared, eval_str=True).parameters)
        for name in absent:
            del shared[name]

        @functools.wraps(declared)
        def command(**given: Any) -> None:
            parameters = {name: given[name] for name in own.parameters if name not in _FILES}
            _run(declared.__name__, given, parameters)

        command.__signature__ = own.replace(  # type: ignore[attr-defined] # typer reads it
            parameters=[*own.parameters.values(), *shared.values()]
        )
        return command

    return make


@_routine()
def cholesky(
    a: A,
    out: Annotated[Path | None, typer.Option(help="Where the factor goes.")] = None,
    *,
    lower: Lower = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Store the factor over A, instead of --out.")
    ] = False,
) -> None:
    """Factor a Hermitian positive definite matrix: A = U^H·U, or L·L^H."""


@_routine()
def lu(
    a: A,
    out: Annotated[
        Path | None, typer.Option(help="Where the factors go; the pivots go to OUT.piv.npy.")
    ] = None,
    *,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Store the factors over A, instead of --out.")
    ] = False,
) -> None:
    """Factor a matrix with partial pivoting: P·A = L·U."""


@_routine()
def qr(
    a: A,
    out: Annotated[Path, typer.Option(help="Where R goes; for raw, the reflectors.")],
    *,
    mode: Annotated[
        Literal["r", "raw"], typer.Option(help="R, or the reflectors with OUT.tau.npy.")
    ] = "r",
) -> None:
    """Factor a matrix by Householder reflectors: A = Q·R."""


@_routine()
def solve(
    a: A,
    b: B,
    out: Annotated[Path, typer.Option(help="Where X goes.")],
    *,
    assume_a: Annotated[Assume, typer.Option(help="What is known of A.")] = "gen",
    lower: Lower = False,
    transposed: Annotated[
        bool, typer.Option("--transposed", help="Solve with the transpose of A.")
    ] = False,
    refine: Annotated[
        bool, typer.Option("--refine", help="Factor in single precision, refine to double.")
    ] = False,
) -> None:
    """Solve A·X = B for a square matrix A."""


@_routine("device", "device_memory")
def lstsq(a: A, b: B, out: Annotated[Path, typer.Option(help="Where X goes.")]) -> None:
    """Minimise the 2-norm of A·X − B for a tall A, in one pass."""


@_routine("device", "device_memory", "checkpoint", "restart")
def syrk(
    a: A,
    out: Annotated[Path, typer.Option(help="Where C goes.")],
    *,
    lower: Lower = False,
    trans: Annotated[bool, typer.Option("--trans", help="A^T·A instead of A·A^T.")] = False,
) -> None:
    """Compute one triangle of A·A^T or A^T·A: half of the work."""


def _run(name: str, given: Mapping[str, Any], parameters: dict[str, Any]) -> None:
    """Run a routine, or print its plan; `given` are the arguments of its command."""
    from hdgemm.linalg.routines import plan_routine, run_routine
    from hdgemm.progress import Watch

    out, in_place = given["out"], given.get("in_place", False)
    if (out is None) != in_place:
        raise InputError("give --out, or --in-place to overwrite A")
    if in_place:
        parameters["overwrite_a"] = True
    if "refine" in parameters:
        parameters["refine"] = "float32" if parameters["refine"] else None
    if given["no_clobber"]:
        refuse_existing(out)
        if name != "qr" or parameters["mode"] == "raw":
            refuse_existing_beside(given["a"] if in_place else out, name)
    operands = (given["a"], given["b"]) if "b" in given else (given["a"],)
    options = args.make_options(
        host_memory=given["host_memory"], device=given.get("device") or ["host"],
        device_memory=given.get("device_memory"), threads=given["threads"], tile=given["tile"],
    )  # fmt: skip
    durable = given.get("checkpoint", False)
    if given["dry_run"]:
        found = plan_routine(
            name, operands, out, options=options, parameters=parameters, checkpoint=durable
        )
        print_result(found, as_json=given["as_json"])
        return

    def call(progress: Any) -> Report:
        return run_routine(
            name, operands, out, parameters=parameters, options=options, watch=Watch(progress),
            checkpoint=durable, restart=given.get("restart", False),
        )  # fmt: skip

    outputs = Outputs(
        trace=given["trace"], gantt=given["gantt"], report=given["report"],
        quiet=given["quiet"], as_json=given["as_json"],
    )  # fmt: skip
    outputs.show((out or given["a"]).name, call)
