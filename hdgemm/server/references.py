"""The matrices that a job's references name: their shape at submit, their file when it runs."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.durable.earlier_run import KEPT
from hdgemm.errors import HdgemmError, InputError, MatrixIOError
from hdgemm.matrices.layout import check_read
from hdgemm.matrices.npy import read_header
from hdgemm.server import jobs, paths, uploads
from hdgemm.server.backend import Source
from hdgemm.server.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job
    from hdgemm.server.tokens import Account


def look_up(
    database: Database, reference: Mapping[str, str], account: Account, settings: Settings
) -> Source:
    """Find the matrix that a reference names. A path's file system may block.

    Raises `InputError` for a path outside the roots or a file that is no matrix; `ProblemError`
    404 for another's matrix or job, 409 for one that is incomplete or failed.
    """
    if "path" in reference:
        roots = account.readable(settings.roots)
        real = paths.resolve(reference["path"], roots)
        shape, dtype = describe_file(real, roots)
        return Source(shape, dtype, real, {"path": str(real)})
    with database.read() as conn:
        if "matrix" in reference:
            matrix = uploads.get(conn, reference["matrix"], account.id)
            uploads.refuse_incomplete(matrix)
            content = uploads.content_path(matrix.id, settings)
            reads = ("matrix", matrix.id)
            return Source((matrix.rows, matrix.cols), matrix.dtype, content, reference, reads)
        job = jobs.get(conn, reference["job"], account.id)
    output = _output_of(job)
    (rows, cols), dtype = output["shape"], output["dtype"]
    path = result_path(job.id, output, settings) if job.status == "successful" else None
    return Source((rows, cols), dtype, path, reference, ("job", job.id))


def describe_file(path: Path, roots: Sequence[Path]) -> tuple[tuple[int, int], str]:
    """Return shape and dtype of a .npy file inside the roots."""
    with paths.opened(path, roots) as fd:
        try:
            header = read_header(Path(f"/proc/self/fd/{fd}"))
            check_read(header.dtype, str(path))
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
    """Say whether an open file is still the one that a job published, unchanged.

    In the data folder nobody else replaces it, and a restored one has another inode.
    """
    found = os.fstat(fd)
    return (found.st_size, found.st_mtime_ns) == (output["size"], output["mtime_ns"]) and (
        output["path"] is None or found.st_ino == output["inode"]
    )


def result_path(job_id: str, output: Mapping[str, Any], settings: Settings) -> Path:
    """Return the path of a job's result."""
    return Path(output["path"]) if output["path"] else settings.job_dir(job_id) / "c.npy"


class OperandFiles:
    """Opens the matrices that a job refers to.

    Parameters
    ----------
    folder
        The job's own.
    shared
        Name files by their real paths, which processes on other machines can open; otherwise by
        links to the open files, which no change of a folder can exchange.
    """

    def __init__(
        self, settings: Settings, database: Database, folder: Path, *, shared: bool = False
    ) -> None:
        self._settings = settings
        self._database = database
        self._folder = folder
        self._shared = shared
        #: What the job's user calls the files, by the paths that the library gets.
        self._shown: dict[str, str] = {}
        self._inputs: set[str] = set()

    @contextmanager
    def named_for_user(self) -> Iterator[None]:
        """Name the files in errors of the block as the job's user does.

        An input that changed during the run becomes an `InputError`. A job that fails keeps no
        parts of its result, and has no command that goes on.
        """
        try:
            yield
        except HdgemmError as error:
            kind = type(error)
            changed = kind is MatrixIOError and error.numbers.get("path") in self._inputs
            if changed and error.__cause__ is None:  # the cause of others is the system's error
                kind = InputError
            numbers = {
                name: self._as_user(str(value)) if isinstance(value, str | Path) else value
                for name, value in error.numbers.items()
            }
            raise kind(self._as_user(str(error).removesuffix(KEPT)), **numbers) from error

    def _as_user(self, text: str) -> str:
        for path, shown in self._shown.items():
            text = text.replace(path, shown)
        return text

    def show_output(self, out: Path, target: Path, shown: str) -> None:
        """Call an unfinished result in the folder of `target`, and files beside it, by a name."""
        for path in (out, target.with_name(out.name)):
            self._shown[str(path.with_suffix(""))] = shown.removesuffix(".npy")

    def open(self, stack: ExitStack, name: str, reference: dict[str, str]) -> Path:
        """Open a reference's file, and return a name for the open file itself."""
        file = self._open(stack, name, reference)
        ((kind, value),) = reference.items()
        shown = {"path": "{}", "matrix": "matrix {}", "job": "the result of job {}"}
        self._shown[str(file)] = shown[kind].format(value)
        self._inputs.add(str(file))
        return file

    def _open(self, stack: ExitStack, name: str, reference: dict[str, str]) -> Path:
        roots = (*self._settings.roots, self._folder)
        if "path" in reference:
            path = Path(reference["path"])
        elif "matrix" in reference:
            path = uploads.content_path(reference["matrix"], self._settings)
            roots = (self._settings.matrices_dir,)
        else:
            return self.name(f"{name}.npy", self._result_of(stack, reference["job"]))
        fd = stack.enter_context(paths.opened(path, roots))
        return self.name(f"{name}.npy", fd)

    def _result_of(self, stack: ExitStack, job_id: str) -> int:
        with self._database.read() as conn:
            job = jobs.find(conn, job_id)
        if job is None or job.output is None:
            raise HdgemmError(f"its input, job {job_id}, was deleted")
        path = result_path(job_id, job.output, self._settings)
        roots = (*self._settings.roots, self._settings.job_dir(job_id))
        fd = stack.enter_context(paths.opened(path, roots))
        if not is_result(fd, job.output):
            raise InputError(f"{path} was changed since job {job_id} wrote it", path=str(path))
        return fd

    def name(self, name: str, fd: int) -> Path:
        """Give an open file a name in the job's folder, or return its real path."""
        if self._shared:
            return Path(f"/proc/self/fd/{fd}").readlink()
        link = self._folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/proc/self/fd/{fd}")
        return link
