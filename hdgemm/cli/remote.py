"""`hdgemm submit`, `jobs`, `watch`, `cancel` and `fetch`: a service from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.client import Client, RemoteJob

Url = Annotated[str, typer.Option(envvar="HDGEMM_URL", help="Where the service is.")]
Token = Annotated[
    str | None, typer.Option(envvar="HDGEMM_TOKEN", help="What 'hdgemm token create' printed.")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or how it begins.")]
_URL = "http://127.0.0.1:8000"


def submit(  # noqa: PLR0917 - typer calls it by name
    a: Annotated[str, typer.Argument(help="A: a .npy file, or job:ID for that job's result.")],
    b: Annotated[str, typer.Argument(help="B, likewise.")],
    c: Annotated[str | None, typer.Option(help="C for beta, likewise.")] = None,
    alpha: Annotated[float, typer.Option(help="Factor of the product.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="Transpose A.")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="Transpose B.")] = False,
    output: Annotated[
        str | None, typer.Option(help="The result's path on the server; default: kept there.")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(help="Memory of the run.")] = None,
    device: Annotated[str | None, typer.Option(help="host, opencl:0, cuda:0 …")] = None,
    name: Annotated[str, typer.Option(help="What the job is called.")] = "",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher runs first.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Check the product.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan alone.")] = False,
    url: Url = _URL,
    token: Token = None,
) -> None:
    """Submit C = alpha·op(A)·op(B) + beta·C and print the job's id.

    Files that the server does not reach are uploaded; an upload that broke off is resumed.
    """
    import json

    options: dict[str, Any] = {"verify": verify}
    if host_memory is not None:
        options["host_memory"] = host_memory
    if device is not None:
        options["devices"] = [device]
    with _client(url, token) as client:
        operands = [_operand(client, text) for text in (a, b)]
        inputs: dict[str, Any] = {
            "alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b, "name": name,
            "priority": priority, "options": options, "output": output,
            "c": None if c is None else _operand(client, c),
        }  # fmt: skip
        if dry_run:
            typer.echo(json.dumps(client.plan(operands[0], operands[1], **inputs), indent=2))
            return
        with _bar("sending") as tell:
            job = client.submit(operands[0], operands[1], transfer=tell, **inputs)
        typer.echo(job.id)


def jobs(
    status: Annotated[list[str] | None, typer.Option(help="Only jobs that are so.")] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs called so.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    url: Url = _URL,
    token: Token = None,
) -> None:
    """List jobs, newest first."""
    from itertools import islice

    filters: dict[str, Any] = {"status": status, "name": name}
    with _client(url, token) as client:
        chosen = {key: value for key, value in filters.items() if value}
        for job in islice(client.jobs(**chosen), limit):
            info = job.info
            typer.echo(
                f"{job.id}  {job.status:<10}  {info['progress']:>3} %  {info['processID']:<7}  "
                f"{info['created'][:19]}  {info['name']}"
            )


def watch(job: JobId, url: Url = _URL, token: Token = None) -> None:
    """Follow a job to its end; exits with 1 when it fails."""
    with _client(url, token) as client:
        found = _find(client, job)
        with _bar("multiplying") as tell:

            def show(info: Mapping[str, Any]) -> None:
                tell(round(10 * (info["detail"] or {}).get("percent", 0.0)), 1000)

            found.wait(show)
        found.check()
        report = found.info["report"] or {}
        speed = f", {report['gflops']:.1f} GFLOP/s" if report.get("gflops") else ""
        took = f" in {report['seconds']:.1f} s" if report.get("seconds") else ""
        typer.echo(f"{found.id} successful{took}{speed}")
        if found.info.get("verification"):
            typer.echo(found.info["verification"]["summary"])


def cancel(job: JobId, url: Url = _URL, token: Token = None) -> None:
    """Stop a job; its record is kept."""
    with _client(url, token) as client:
        typer.echo(f"{job} {_find(client, job).cancel().info['message']}")


def fetch(
    job: JobId,
    out: Annotated[Path, typer.Argument(help="The .npy file to write.")],
    url: Url = _URL,
    token: Token = None,
) -> None:
    """Download a job's result."""
    with _client(url, token) as client, _bar("receiving") as tell:
        _find(client, job).result(out, tell)
    typer.echo(str(out))


def _client(url: str, token: str | None) -> Client:
    from hdgemm.client import Client

    return Client(url, token)


def _operand(client: Client, text: str) -> Any:
    return _find(client, text[4:]) if text.startswith("job:") else Path(text)


def _find(client: Client, text: str) -> RemoteJob:
    """Return the one job whose id begins so."""
    from hdgemm.errors import InputError

    if len(text) == 32:
        return client.job(text)
    found = [job for job in client.jobs() if job.id.startswith(text)]
    if len(found) != 1 or not text:
        raise InputError(f"{len(found)} jobs begin with {text!r}; see 'hdgemm jobs'")
    return found[0]


class _bar:  # noqa: N801 - reads as what it does
    """A progress bar on a terminal's standard error; nothing elsewhere."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()

        def tell(done: int, total: int) -> None:
            self._progress.update(self._task, completed=done, total=total)

        return tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
