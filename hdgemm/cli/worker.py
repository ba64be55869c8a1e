"""`hdgemm worker`: runs the jobs of a service, alone or with workers on other machines."""

from __future__ import annotations

# Typer reads the annotations when the command is built.
from hdgemm.cli.serve import (
    ClusterOfJobs,
    DatabaseUrl,
    DataDir,
    Device,
    Memory,
    Retention,
    Root,
    check_devices,
    make_settings,
)


def command(
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
        data_dir=data_dir, roots=root, memory=memory, devices=device, database_url=database_url,
        retention=retention, cluster=cluster,
    )  # fmt: skip
    check_devices(settings.devices)
    run_worker(settings)
