"""Files of a job's operands, opened for its attempt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.errors import HdgemmError, InputError
from hdgemm.server import jobs, paths, references, uploads

if TYPE_CHECKING:
    from contextlib import ExitStack

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings


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

    def open(self, stack: ExitStack, name: str, reference: dict[str, str]) -> Path:
        """Open a reference's file, and return a name for the open file itself."""
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
        path = references.result_path(job_id, job.output, self._settings)
        roots = (*self._settings.roots, self._settings.job_dir(job_id))
        fd = stack.enter_context(paths.opened(path, roots))
        if not references.is_result(fd, job.output):
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
