"""What a job's references stand for: their shape at submit, their file when it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError
from hdgemm.matrices.npy import read_header
from hdgemm.server import jobs, paths, uploads
from hdgemm.server.models import JobReference, MatrixReference, PathReference, Reference
from hdgemm.server.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from hdgemm.server.settings import Settings


@dataclass(frozen=True)
class Source:
    """A matrix as stored: its shape and dtype, and the reference as a job keeps it.

    `reads` names the uploaded matrix or the job it comes from.
    """

    shape: tuple[int, int]
    dtype: str
    stored: Mapping[str, str]
    reads: tuple[str, str] | None = None


def look_up(conn: sa.Connection, reference: Reference, owner: str, settings: Settings) -> Source:
    """Find what a reference stands for.

    Raises
    ------
    InputError
        A path outside the roots, or a file that is no matrix.
    ProblemError
        404 for another's matrix or job, 409 for one that is not whole or never will be.
    """
    match reference:
        case PathReference(path=path):
            real = paths.resolve(path, settings.roots)
            shape, dtype = describe_file(real, settings)
            return Source(shape, dtype, {"path": str(real)})
        case MatrixReference(matrix=matrix_id):
            matrix = uploads.get(conn, matrix_id, owner)
            uploads.refuse_incomplete(matrix)
            shape = (matrix.rows, matrix.cols)
            return Source(shape, matrix.dtype, {"matrix": matrix.id}, ("matrix", matrix.id))
        case JobReference(job=job_id):
            output = _promised(conn, job_id, owner)
            rows, cols = output["shape"]
            return Source((rows, cols), output["dtype"], {"job": job_id}, ("job", job_id))


def describe_file(path: Path, settings: Settings) -> tuple[tuple[int, int], str]:
    """Return shape and dtype of a .npy file inside the roots."""
    with paths.opened(path, settings.roots) as fd:
        try:
            header = read_header(Path(f"/proc/self/fd/{fd}"))
        except InputError as error:
            message = str(error).replace(f"/proc/self/fd/{fd}", str(path))
            raise type(error)(message, **{**error.numbers, "path": str(path)}) from None
    if len(header.shape) != 2:
        raise InputError(f"{path} must hold a matrix (2-D), it has shape {header.shape}")
    return (header.shape[0], header.shape[1]), header.dtype.name


def _promised(conn: sa.Connection, job_id: str, owner: str) -> dict[str, Any]:
    job = jobs.get(conn, job_id, owner)
    if job.output is None:
        raise ProblemError(
            409, "no-matrix", f"job {job_id} is a {job.process} job: it makes no matrix", job=job_id
        )
    if job.status in {"failed", "dismissed"}:
        raise ProblemError(409, "no-result", f"job {job_id} is {job.status}", job=job_id)
    return job.output


def is_result(fd: int, output: Mapping[str, Any]) -> bool:
    """Say whether an open file is still the one that a job published, as it was then."""
    found = os.fstat(fd)
    return (found.st_ino, found.st_size, found.st_mtime_ns) == (
        output["inode"], output["size"], output["mtime_ns"],
    )  # fmt: skip


def result_path(job_id: str, output: Mapping[str, Any], settings: Settings) -> Path:
    """Return where a job's result lies."""
    return Path(output["path"]) if output["path"] else settings.job_dir(job_id) / "c.npy"
