"""`hdgemm serve` and `hdgemm worker`: the job service over HTTP, and runners of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdgemm.errors import DeviceError, InputError, check_extra
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.server.settings import Settings

DataDir = Annotated[
    Path | None, typer.Option(help="Where matrices, results, logs and the database lie.")
]
Root = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="A folder whose files jobs may read and write; may be given several times.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that the jobs of a worker may hold together; workers on one machine share it. "
        "Default: 60 % of what is free.",
    ),
]
Device = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="A device of the worker; may be given several times. Default: host.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="SQLAlchemy URL, as HDGEMM_DATABASE_URL; default: SQLite in the data folder."
    ),
]
ClusterOfJobs = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Dask cluster that computes products, as HDGEMM_CLUSTER: tcp://HOST:PORT, the "
        "scheduler's file, or local:N.",
    ),
]
Retention = Annotated[
    float | None,
    typer.Option(min=0, help="Days after which finished jobs are deleted; default: never."),
]


def command(
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 8000,
    *,
    data_dir: DataDir = None,
    root: Root = None,
    memory: Memory = None,
    device: Device = None,
    database_url: DatabaseUrl = None,
    worker: Annotated[bool, typer.Option(help="Run a worker beside the server.")] = True,
    public_url: Annotated[
        str | None,
        typer.Option(help="Address under which a proxy publishes it: https://HOST/PATH."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Serve HTTPS with this PEM certificate chain.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's private key, if in a file of its own.")
    ] = None,
    retention: Retention = None,
    cluster: ClusterOfJobs = None,
) -> None:
    """Run products, factorisations and checks as jobs, over HTTP and on a web page."""
    from hdgemm.server.http_server import Listener, serve

    settings = make_settings(
        data_dir=data_dir,
        roots=root,
        memory=memory,
        devices=device,
        database_url=database_url,
        public_url=public_url,
        retention=retention,
        cluster=cluster,
    )
    if worker:
        check_worker(settings)
    serve(settings, Listener(host, port, tls_certificate, tls_key), with_worker=worker)


def worker(
    data_dir: DataDir = None,
    root: Root = None,
    memory: Memory = None,
    device: Device = None,
    database_url: DatabaseUrl = None,
    retention: Retention = None,
    cluster: ClusterOfJobs = None,
) -> None:
    """Run the jobs of a service until told to stop.

    Give it the server's data folder and roots. Several workers on several machines share a
    PostgreSQL database and a file system.
    """
    from hdgemm.server.worker import run_worker

    settings = make_settings(
        data_dir=data_dir,
        roots=root,
        memory=memory,
        devices=device,
        database_url=database_url,
        retention=retention,
        cluster=cluster,
    )
    check_worker(settings)
    run_worker(settings)


def make_settings(**given: Any) -> Settings:
    """Make settings of the options given; the environment and defaults fill in the rest."""
    from pydantic import ValidationError

    from hdgemm.options import parse_size
    from hdgemm.server.settings import Settings

    roots, retention = given.get("roots"), given.pop("retention", None)
    check_folders(roots or [], "--root takes")
    if given.get("memory") is not None:
        given["memory"] = parse_size(given["memory"], "--memory")
    given["retention_seconds"] = None if retention is None else 86400 * retention
    try:
        return Settings(**{key: value for key, value in given.items() if value not in (None, [])})
    except ValidationError as error:
        wrong = "; ".join(map(_sentence, error.errors()))
        raise InputError(f"wrong settings (options or HDGEMM_ variables): {wrong}") from error


def _sentence(wrong: Any) -> str:
    """Return which setting pydantic refuses, its value and why."""
    # The message of a validator has the value; a validator of all settings has no name.
    name, value = next(iter(wrong["loc"]), ""), wrong["input"]
    message = wrong["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if wrong["type"] == "value_error":
        return f"{name}: {message}" if name else message
    return f"{name} is {value!r}: {message}"


def check_folders(folders: Sequence[Path], taken: str) -> None:
    """Refuse folders that do not exist; `taken` says which option takes them."""
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise InputError(f"{taken} folders that exist: {', '.join(missing)} is not one")


def check_worker(settings: Settings) -> None:
    """Raise `InputError` where a worker could not run its jobs here."""
    from hdgemm.machine.limits import total_bytes

    check_devices(settings.devices)
    if settings.memory > (total := total_bytes()):
        raise InputError(
            f"--memory (HDGEMM_MEMORY) is {format_size(settings.memory)}, and this machine has "
            f"{format_size(total)}: give less, or leave it out",
            memory=settings.memory,
            total=total,
        )
    if settings.cluster:
        check_extra("distributed", "--cluster needs distributed", "dask")


def check_devices(names: Sequence[str]) -> None:
    """Raise `InputError`, which says why, for devices that this machine cannot use."""
    from hdgemm.pipeline.devices.registry import list_devices, open_device

    others = [name for name in names if name != "host"]
    usable = {info.name for info in list_devices() if info.usable} if others else set()
    for name in others:
        # A device that is listed is not opened: its driver would hold memory for this process.
        if name.partition("/")[0] in usable:
            continue
        try:
            open_device(name).close()
        except DeviceError as error:
            raise InputError(f"--device {name}: {error}") from error
