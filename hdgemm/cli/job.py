"""`hdgemm job`: submits, lists, watches, cancels and fetches the jobs of a service."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hdgemm.cli.arguments import HostMemory, Json, NoClobber, TransA, TransB, complete_device
from hdgemm.cli.output import check_file, print_json, refuse_existing
from hdgemm.errors import HdgemmError, InputError
from hdgemm.routines.registry import array_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.client import Client, RemoteJob

_URL: Final = "http://127.0.0.1:8000"
_MOST_COMPLETED: Final = 100
#: Matrices of the processes that are no routines.
_MATRICES: Final[Mapping[str, Sequence[str]]] = {"gemm": "ab", "verify": "abc"}
#: Names under which a product is known elsewhere, and its process.
_OTHER_NAMES: Final = dict.fromkeys(("multiply", "matmul", "product"), "gemm")
_WITHOUT_MATRICES: Final = ("linpack", "profile")
#: Exit code of `job watch` where the job failed, for whatever reason.
_FAILED: Final = 1


def _complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of recent jobs that begin so, for the shell's completion."""
    from itertools import islice

    try:
        at = context.params.get("url") or _URL
        with _client(at, context.params.get("token"), 0.0) as client:
            ids = [job.id for job in islice(client.jobs(), _MOST_COMPLETED)]
    except (HdgemmError, ImportError):
        return []
    return [each for each in ids if each.startswith(incomplete)]


Url = Annotated[str, typer.Option(envvar="HDGEMM_URL", help="Address of the service.")]
Token = Annotated[
    str | None, typer.Option(envvar="HDGEMM_TOKEN", help="What 'hdgemm token create' printed.")
]
JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB", autocompletion=_complete_job, help="The job's id, or how it begins."
    ),
]
app = typer.Typer(
    name="job",
    help="Submit, list, watch, cancel and fetch jobs of a service.",
)


def _complete_process() -> list[str]:
    from hdgemm.routines.registry import commands

    return ["gemm", "verify", *commands(), *_WITHOUT_MATRICES]


@app.command()
def submit(  # noqa: PLR0917 - typer calls it by name
    operands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A [B]",
            help="The matrices: .npy files here, else on the server, or job:ID for that job's "
            "result.",
            show_default=False,
        ),
    ] = None,
    process: Annotated[
        str,
        typer.Option(
            autocompletion=_complete_process,
            help="What to compute: gemm is A·B; lu, solve, svd, pca and others compute what the "
            "commands of these names do; also verify, linpack, profile.",
        ),
    ] = "gemm",
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the process, such as k=3 or alphas=[1,10]; may be given several "
            "times.",
        ),
    ] = None,
    c: Annotated[
        str | None, typer.Option(help="The C that beta multiplies: a .npy file, or job:ID.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Factor of the product.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    trans_a: TransA = False,
    trans_b: TransB = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="File on the server for the result. Default: the server keeps it for download."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that has the name of --output.")
    ] = False,
    host_memory: HostMemory = None,
    device: Annotated[
        str | None, typer.Option(autocompletion=complete_device, help="host, opencl:0, cuda:0 …")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher runs first.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Check the product.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the service's plan as JSON; submit nothing.")
    ] = False,
    as_json: Json = False,
    url: Url = _URL,
    token: Token = None,
) -> None:
    """Submit a job and print its id.

    Without --process, C = alpha·op(A)·op(B) + beta·C. Files that the server cannot read itself are
    uploaded; an interrupted upload is continued.
    """
    assigned = _assigned(parameters or ())
    _check_operands(process, operands or (), {*assigned, *(() if c is None else "c")})
    if host_memory is not None:
        from hdgemm.options import built_in_options

        built_in_options(host_memory=host_memory)  # asks for a unit, as other commands do
    if overwrite and output is None:
        raise InputError("--overwrite replaces the file that --output names: give --output")
    options = {"verify": verify, "host_memory": host_memory, "devices": device and [device]}
    # What is not given has the default of the process, and some processes do not have it.
    inputs: dict[str, Any] = {
        key: value
        for key, value in {
            "alpha": alpha if alpha != 1 else None,
            "beta": beta or None,
            "trans_a": trans_a or None,
            "trans_b": trans_b or None,
            "name": name or None,
            "priority": priority or None,
            "options": {key: value for key, value in options.items() if value} or None,
            "output": None if output is None else {"path": output, "overwrite": overwrite},
        }.items()
        if value is not None
    }
    inputs |= assigned
    with _client(url, token) as client:
        matrices = [_operand(client, text) for text in operands or ()]
        if c is not None:
            inputs["c"] = _operand(client, c)
        if dry_run:
            print_json(client.plan(*matrices, process=process, **inputs))
            return
        with _bar("sending") as tell:
            job = client.compute(process, *matrices, transfer=tell, **inputs)
        if as_json:
            print_json(job.info)
        else:
            typer.echo(job.id)


def _check_operands(process: str, operands: Sequence[str], named: Collection[str]) -> None:
    """Refuse a process without all its matrices; `named` are inputs that are given by name."""
    from hdgemm.routines.registry import commands, planned

    routine = commands().get(process)
    if routine is None and (other := _OTHER_NAMES.get(process) or planned().get(process)):
        raise InputError(f"there is no process {process!r}: use {getattr(other, 'name', other)}")
    needed = [each.name for each in routine.operands] if routine else _MATRICES.get(process, ())
    if needed and len(operands) > len(needed):
        raise InputError(f"{process} takes {len(needed)} matrices, got {len(operands)}")
    if missing := [name.upper() for name in needed[len(operands) :] if name not in named]:
        raise typer.BadParameter(
            f"{process} takes {len(needed)} matrices, {', '.join(needed).upper()}, got "
            f"{len(operands)}: give {', '.join(missing)}, each a .npy file or job:ID"
        )


def _assigned(parameters: Iterable[str]) -> dict[str, Any]:
    """Return parameters by name; values are JSON where they can be read as such, else texts.

    Raises
    ------
    InputError
        For a text that is not of the form NAME=VALUE.
    """
    import json

    found: dict[str, Any] = {}
    for text in parameters:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise InputError(f"--set {text!r}: write NAME=VALUE, such as k=3")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@app.command("list")
def jobs(
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            autocompletion=lambda: ["accepted", "running", "successful", "failed", "dismissed"],
            help="Only jobs that are accepted, running, successful, failed or dismissed; may be "
            "given several times.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: Json = False,
    url: Url = _URL,
    token: Token = None,
) -> None:
    """List jobs, newest first."""
    from itertools import islice

    from hdgemm.tables import Table

    filters: dict[str, Any] = {"status": status, "name": name}
    chosen = {key: value for key, value in filters.items() if value}
    with _client(url, token) as client:
        found = [job.info for job in islice(client.jobs(**chosen), limit)]
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no jobs", err=True)
    else:
        rows = [
            (
                info["jobID"],
                info["status"],
                f"{info['progress']} %",
                info["processID"],
                info["created"][:19],
                info["name"],
            )
            for info in found
        ]
        heads = ("job", "status", "done", "process", "created", "name")
        typer.echo("\n".join(Table(heads, rows, text=True).lines()))


@app.command()
def watch(job: JobId, as_json: Json = False, url: Url = _URL, token: Token = None) -> None:
    """Follow a job to its end, and print its values.

    These are small results such as a norm. Exits with 1 when the job failed, with 130 when it was
    cancelled.
    """
    from hdgemm.report import value_lines

    with _client(url, token) as client:
        found = _find(client, job)
        with _bar("waiting") as tell:

            def show(info: Mapping[str, Any]) -> None:
                tell(round(10 * (info["detail"] or {}).get("percent", 0.0)), 1000)

            found.wait(show)
        if as_json:
            print_json(found.info)
        elif found.status == "successful":
            typer.echo("\n".join([_ending(found.info), *value_lines(found.values())]))
            for warning in found.report().get("warnings", ()):
                typer.echo(f"hdgemm: warning: {warning}", err=True)
            if found.info.get("verification"):
                typer.echo(found.info["verification"]["summary"])
        if found.status == "failed":
            error = found.info.get("error") or {}
            reason = error.get("detail") or found.info["message"]
            typer.echo(f"hdgemm: error: job {found.id} failed: {reason}", err=True)
            raise typer.Exit(_FAILED)
        found.check()


def _ending(info: Mapping[str, Any]) -> str:
    """Return time and speed of a job that succeeded."""
    from hdgemm.units import format_duration, format_speed

    report = info["report"] or {}
    took = f" in {format_duration(report['seconds'])}" if report.get("seconds") else ""
    speed = f", {format_speed(report['gflops'])}" if report.get("gflops") else ""
    return f"{info['jobID']} successful{took}{speed}"


@app.command()
def cancel(job: JobId, as_json: Json = False, url: Url = _URL, token: Token = None) -> None:
    """Stop a job; its record is kept."""
    with _client(url, token) as client:
        info = _find(client, job).cancel().info
    if as_json:
        print_json(info)
    else:
        typer.echo(f"{info['jobID']} {info['message']}")


def _with_arrays(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each array that jobs store beside a result, such as `--vh`."""
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    arrays = (
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None, typer.Option(f"--{name}", help=f"Where {name} goes.")
            ],
        )
        for name in array_names()
    )
    function.__signature__ = signature.replace(parameters=[*own, *arrays])  # type: ignore[attr-defined]
    return function


@app.command()
@_with_arrays
def fetch(
    job: JobId,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The .npy file to write.")
    ] = None,
    *,
    every: Annotated[
        bool,
        typer.Option("--all", help="Store every further array, too, beside OUT: OUT.s.npy."),
    ] = False,
    no_clobber: NoClobber = False,
    as_json: Json = False,
    url: Url = _URL,
    token: Token = None,
    **arrays: Path | None,
) -> None:
    """Download the arrays of a job.

    OUT receives the result; further ones are, for example, the s and Vh of svd.
    """
    places = {name: place for name, place in arrays.items() if place is not None}
    _check_places(out, places, no_clobber=no_clobber)
    if out is None and (every or not places):
        raise InputError("give OUT, the .npy file for the result; --all names the others after it")
    with _client(url, token) as client:
        found = _find(client, job).check()
        if out is not None and found.info["output"] is None:
            raise InputError(
                f"job {found.id} stored no matrix; its values: hdgemm job watch {found.id[:8]}"
            )
        if out is not None and every:
            places = _beside(out, found.arrays) | places
            _check_places(out, places, no_clobber=no_clobber)
        files = [str(place) for place in (out, *places.values()) if place is not None]
        with _bar("receiving") as tell:
            stored: dict[str, Any] = {"job": found.id}
            stored["arrays"] = {
                name: _described(path, found.array(name, path, tell))
                for name, path in places.items()
            }
            if out is not None:
                stored |= _described(out, found.result(out, tell))
    if as_json:
        print_json(stored)
        return
    typer.echo("\n".join(files))
    if left := [name for name in found.arrays if name not in places]:
        options = ", ".join(f"--{name} FILE" for name in left)
        typer.echo(f"the job also stored {' and '.join(left)}: give {options} or --all", err=True)


def _check_places(out: Path | None, places: Mapping[str, Path], *, no_clobber: bool) -> None:
    """Refuse files that could not be written, that exist, or that are named twice."""
    written: set[Path] = set()
    for option, path in (("fetch", out), *((f"--{name}", path) for name, path in places.items())):
        check_file(path, option, ".npy")
        if no_clobber:
            refuse_existing(path)
        if path is None:
            continue
        if path.resolve() in written:
            raise InputError(f"two arrays cannot go to one file, {path}: name another for {option}")
        written.add(path.resolve())


def _beside(out: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the file of each array beside a result, as factorisations name them."""
    from hdgemm.matrices.factor_files import FactorFiles

    files = FactorFiles.of(out)
    return {name: files.array(name) for name in names}


def _described(path: Path, matrix: NDArray[Any]) -> dict[str, Any]:
    return {"path": str(path), "shape": matrix.shape, "dtype": matrix.dtype.name}


def _client(url: str, token: str | None, first_contact: float | None = None) -> Client:
    from hdgemm.client import Client

    return Client(url, token, first_contact=first_contact)


def _operand(client: Client, text: str) -> Any:
    return _find(client, text[4:]) if text.startswith("job:") else Path(text)


def _find(client: Client, text: str) -> RemoteJob:
    """Return the one job with an id that begins so."""
    if len(text) == 32:
        return client.job(text)
    found = [job for job in client.jobs() if job.id.startswith(text)]
    if len(found) != 1 or not text:
        raise InputError(f"{len(found)} jobs begin with {text!r}; see 'hdgemm job list'")
    return found[0]


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
