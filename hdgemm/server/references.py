"""The matrices that a job's references name: their shape at submit, their file when it runs."""

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
    from collections.abc import Mapping, Sequence

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job
    from hdgemm.server.tokens import Account


@dataclass(frozen=True)
class Source:
    """A matrix as stored: its shape and dtype, and the reference as a job keeps it.

    `reads` names the uploaded matrix or the job it comes from; `path` is None for the result of a
    job that has not run yet.
    """

    shape: tuple[int, int]
    dtype: str
    stored: Mapping[str, str]
    path: Path | None
    reads: tuple[str, str] | None = None


def look_up(
    database: Database, reference: Reference, account: Account, settings: Settings
) -> Source:
    """Find the matrix that a reference names. A path's file system may block.

    Raises
    ------
    InputError
        A path outside the roots, or a file that is no matrix.
    ProblemError
        404 for another's matrix or job, 409 for one that is incomplete or failed.
    """
    if isinstance(reference, PathReference):
        roots = account.readable(settings.roots)
        real = paths.resolve(reference.path, roots)
        shape, dtype = describe_file(real, roots)
        return Source(shape, dtype, {"path": str(real)}, real)
    with database.read() as conn:
        match reference:
            case MatrixReference(matrix=matrix_id):
                matrix = uploads.get(conn, matrix_id, account.id)
                uploads.refuse_incomplete(matrix)
                shape = (matrix.rows, matrix.cols)
                content = uploads.content_path(matrix.id, settings)
                reads = ("matrix", matrix.id)
                return Source(shape, matrix.dtype, {"matrix": matrix.id}, content, reads)
            case JobReference(job=job_id):
                job = jobs.get(conn, job_id, account.id)
                output = _output_of(job)
                (rows, cols), dtype = output["shape"], output["dtype"]
                done = job.status == "successful"
                path = result_path(job_id, output, settings) if done else None
                return Source((rows, cols), dtype, {"job": job_id}, path, ("job", job_id))


def describe_file(path: Path, roots: Sequence[Path]) -> tuple[tuple[int, int], str]:
    """Return shape and dtype of a .npy file inside the roots."""
    with paths.opened(path, roots) as fd:
        try:
            header = read_header(Path(f"/proc/self/fd/{fd}"))
        except InputError as error:
            message = str(error).replace(f"/proc/self/fd/{fd}", str(path))
            raise type(error)(message, **{**error.numbers, "path": str(path)}) from None
    if len(header.shape) != 2:
        raise InputError(f"{path} must hold a matrix (2-D), it has shape {header.shape}")
    return (header.shape[0], header.shape[1]), header.dtype.name


def _output_of(job: Job) -> dict[str, Any]:
    if job.output is None:
        raise ProblemError(
            409, "no-matrix", f"job {job.id} is a {job.process} job: it makes no matrix", job=job.id
        )
    if job.status in {"failed", "dismissed"}:
        raise ProblemError(409, "no-result", f"job {job.id} is {job.status}", job=job.id)
    return job.output


def is_result(fd: int, output: Mapping[str, Any]) -> bool:
    """Say whether an open file is still the one that a job published, unchanged."""
    found = os.fstat(fd)
    return (found.st_ino, found.st_size, found.st_mtime_ns) == (
        output["inode"], output["size"], output["mtime_ns"],
    )  # fmt: skip


def result_path(job_id: str, output: Mapping[str, Any], settings: Settings) -> Path:
    """Return the path of a job's result."""
    return Path(output["path"]) if output["path"] else settings.job_dir(job_id) / "c.npy"
