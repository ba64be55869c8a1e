"""How one service is set up: folders, database, limits and clocks."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated, Self, TypeAlias
from urllib.parse import urlsplit

import platformdirs
from pydantic import Field, field_serializer, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hdgemm.machine.limits import default_host_bytes
from hdgemm.options import parse_size
from hdgemm.server.permissions import current_umask, make_private

#: Seconds that cannot be 0, seconds that can, and a limit of a number.
_Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Duration: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count: TypeAlias = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Settings of server, workers and job processes; ``HDGEMM_*`` variables give the defaults.

    Parameters
    ----------
    data_dir
        Where matrices, results, logs and, by default, the database lie.
    database_url
        A SQLAlchemy URL; empty means SQLite under `data_dir`.
    roots
        Folders with the files that jobs may read and write; ``HDGEMM_ROOTS`` separates them by
        colons.
    memory
        Bytes of host memory that the jobs of one worker may hold together; the workers of one
        machine share the memory of the largest.
    devices
        Devices of one worker; each runs one job at a time.
    cluster
        The Dask cluster that computes products: a scheduler's address, its file, or ``"local:4"``;
        empty where the worker computes them itself.
    library
        ``module:Class`` of the `Library` that plans and multiplies.
    lease_seconds, beat_seconds
        Age at which a lease that was not renewed expires, so that the job starts again; time
        between two renewals.
    max_crashes, max_attempts
        Deaths of its process, and starts, after which a job fails.
    max_queue, max_queue_per_token
        Unfinished jobs that there may be of all tokens, and of one that has no limit of its own.
    min_free_disk
        Bytes of disk that admission leaves free.
    journal_seconds
        A job that is expected to take at least so long keeps a journal, and continues from it
        when its process has died.
    job_niceness
        Priority of the jobs' processes, as in nice(1): 0 is the server's own, 19 the lowest.
    sample_seconds
        Time between two samples of a worker's load, which are kept for an hour.
    max_streams, max_streams_per_token
        Event streams that may be open at a time.
    retention_seconds
        Finished jobs are deleted with their kept results so long after their end; None keeps them.
    umask
        Permissions that results in `roots` lack, as umask(2); default: the process's own. All
        other files are the service's alone.
    public_url
        The address under which a proxy publishes the server, like
        ``"https://example.org/hdgemm"``.
    """

    model_config = SettingsConfigDict(env_prefix="HDGEMM_", frozen=True, extra="ignore")

    data_dir: Path = Field(default_factory=lambda: platformdirs.user_data_path("hdgemm") / "server")
    database_url: str = ""
    roots: Annotated[tuple[Path, ...], NoDecode] = ()
    memory: int = Field(default_factory=default_host_bytes, ge=1 << 20)
    devices: Annotated[tuple[str, ...], NoDecode] = ("host",)
    cluster: str = ""
    library: str = "hdgemm.server.hdgemm_backend:HdgemmLibrary"
    lease_seconds: _Positive = 20.0
    beat_seconds: _Positive = 2.0
    poll_seconds: _Positive = 0.5
    grace_seconds: _Duration = 10.0
    max_crashes: _Count = 5
    max_attempts: _Count = 50
    max_queue: _Count = 10_000
    max_queue_per_token: _Count = 1000
    journal_seconds: _Duration = 60.0
    job_niceness: Annotated[int, Field(ge=0, le=19)] = 10
    sample_seconds: _Positive = 15.0
    max_streams: _Count = 256
    max_streams_per_token: _Count = 32
    umask: Annotated[int, Field(ge=0, le=0o777)] = Field(default_factory=current_umask)
    public_url: str = ""
    retention_seconds: _Positive | None = None
    min_free_disk: Annotated[int, Field(ge=0)] = 64 << 20
    header_seconds: _Positive = 10.0
    body_seconds: _Positive = 20.0
    #: A body is parsed on the event loop, 1 ms for so many bytes; no request needs a tenth of them.
    max_json_bytes: _Count = 128 << 10
    max_matrix_bytes: _Count = 1 << 50

    @field_validator("roots", mode="before")
    @classmethod
    def _split_roots(cls, value: object) -> object:
        return (
            [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value
        )

    @field_validator("devices", mode="before")
    @classmethod
    def _split_devices(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @field_validator("memory", mode="before")
    @classmethod
    def _read_memory(cls, value: object) -> object:
        return parse_size(value, "HDGEMM_MEMORY") if isinstance(value, str) else value

    @field_validator("umask", mode="before")
    @classmethod
    def _read_octal(cls, value: object) -> object:
        return int(value, 8) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        if self.lease_seconds <= self.beat_seconds:
            raise ValueError(
                f"lease_seconds is {self.lease_seconds:g}, and it is renewed every "
                f"{self.beat_seconds:g} s (beat_seconds): give more"
            )
        return self

    @field_serializer("umask", when_used="json")
    def _write_octal(self, value: int) -> str:
        return f"{value:03o}"

    @field_validator("public_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in {"http", "https"} or not parts.netloc):
            raise ValueError("must look like https://example.org/path")
        return value

    @field_validator("roots")
    @classmethod
    def _real_roots(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(root.resolve() for root in value)

    @property
    def url(self) -> str:
        """The database's URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'service.db'}"

    @property
    def matrices_dir(self) -> Path:
        """Uploaded matrices, one file each."""
        return self.data_dir.resolve() / "matrices"

    def job_dir(self, job_id: str) -> Path:
        """One job's log, trace, picture and, unless it goes elsewhere, its result."""
        return self.data_dir.resolve() / "jobs" / job_id

    def make_folders(self) -> None:
        """Create the data folder, and the folders above it, for this user alone."""
        make_private(self.data_dir)
        for folder in (self.matrices_dir, self.data_dir / "jobs"):
            make_private(folder)


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
