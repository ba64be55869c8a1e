"""Atomic publication of a result, which a crash cannot repeat or lose.

The finished file lies aside under a temporary name. First the database is told its inode and the
report; then it is renamed; then the job is successful. A job found between the two commits is
finished by renaming, never by computing again: with C as input and output the input is gone by
then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from hdgemm.errors import InputError
from hdgemm.matrices.factor_files import remove_described
from hdgemm.server import jobs, paths, quotas, references
from hdgemm.server.backend import GANTT, TRACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

log = logging.getLogger(__name__)
#: A result is hashed in pieces of this size, in bytes.
CHUNK: Final = 1 << 22
#: Name of a durable job's journal in the job's folder.
JOURNAL: Final = "journal"


@dataclass(frozen=True)
class Publication:
    """A finished file that is to be renamed; plain values, kept in the job's row.

    `beside` has the files of a factorisation: the temporary path of each, and as it is published
    `path`, `inode` and `size` and `mtime_ns`.
    """

    temporary: str
    path: str
    inode: int
    size: int
    mtime_ns: int
    sha256: str
    overwrite: bool
    beside: Sequence[Mapping[str, Any]] = ()

    @property
    def files(self) -> list[_File]:
        """The result, and the files beside it."""
        result = _File(self.temporary, self.path, self.inode, self.size, self.mtime_ns)
        return [result, *(_File(**each) for each in self.beside)]


class _File(NamedTuple):
    """A file and the path that it gets."""

    temporary: str
    path: str
    inode: int
    size: int
    mtime_ns: int

    def at(self, path: str, folder: int) -> bool:
        """Say whether it is the file of that name in an open folder."""
        try:
            found = os.stat(Path(path).name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (found.st_ino, found.st_size) == (self.inode, self.size)


def described(stream: BinaryIO, temporary: Path, path: Path) -> dict[str, Any]:
    """Describe an open finished file for a `Publication`, and make its content durable."""
    os.fsync(stream.fileno())
    found = os.fstat(stream.fileno())
    return {
        "temporary": str(path.parent / temporary.name), "path": str(path),
        "inode": found.st_ino, "size": found.st_size, "mtime_ns": found.st_mtime_ns,
    }  # fmt: skip


def open_finished(path: Path) -> BinaryIO:
    """Open a finished file, and no link to another one."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def digest(fd: int) -> Iterator[str | None]:
    """Yield None per chunk that was hashed, so that the caller can stop; then the SHA-256."""
    hashed, offset = hashlib.sha256(), 0
    while chunk := os.pread(fd, CHUNK, offset):
        hashed.update(chunk)
        offset += len(chunk)
        yield None
    yield hashed.hexdigest()


def publish(publication: Publication, roots: Sequence[Path]) -> bool:
    """Give the files their names, durably, or see that they have them; say whether they do.

    Files of an earlier factorisation that the result replaces are removed.

    Raises `InputError` when another file took a name and may not be replaced.
    """
    path = Path(publication.path)
    with paths.opened(path.parent, roots, os.O_RDONLY | os.O_DIRECTORY) as folder:
        result, *beside = publication.files
        if not (result.at(result.temporary, folder) or result.at(result.path, folder)):
            return False
        if not publication.overwrite:
            _refuse_others(publication.files, folder)
        names = {Path(each.path).name for each in beside}
        here = Path(f"/proc/self/fd/{folder}")
        _rename(result, folder, overwrite=publication.overwrite)
        if publication.overwrite:
            remove_described(here / path.name, keep=frozenset(here / name for name in names))
        for each in beside:
            _rename(each, folder, overwrite=publication.overwrite)
        os.fsync(folder)
    return True


def _refuse_others(files: Sequence[_File], folder: int) -> None:
    """Refuse names that other files took, before the first file gets its name."""
    taken = set(os.listdir(folder))
    for each in files:
        if Path(each.path).name in taken and not each.at(each.path, folder):
            raise _taken(each)


def _taken(file: _File) -> InputError:
    return InputError(
        f"{file.path} appeared while the job ran, and output.overwrite is false", path=file.path
    )


def _rename(file: _File, folder: int, *, overwrite: bool) -> None:
    if not file.at(file.temporary, folder):
        return
    temporary, name = Path(file.temporary).name, Path(file.path).name
    if overwrite:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        if not file.at(file.path, folder):
            raise _taken(file) from None
    except (PermissionError, OSError):
        # A file system without hard links.
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    os.unlink(temporary, dir_fd=folder)


def remove_leftovers(job_id: str, folder: int, *, keep_journaled: bool = False) -> None:
    """Remove the files that a job's attempts left beside its result.

    `keep_journaled` spares those that a journal of the job refers to.
    """
    for name in os.listdir(folder):
        of_job = name.startswith(".") and f".hdgemm-{job_id}-" in name
        if of_job and not (keep_journaled and f".hdgemm-{job_id}-{JOURNAL}" in name):
            os.unlink(name, dir_fd=folder)


def kept_bytes(conn: sa.Connection, job: Job, settings: Settings) -> int:
    """Return the bytes that a finished job keeps in its folder, and of its map of work units."""
    total, own = len(json.dumps(jobs.units(conn, job.id))), settings.job_dir(job.id)
    with suppress(FileNotFoundError), os.scandir(own) as entries:
        for entry in entries:
            # Drafts, which have hidden names, and journals do not outlive the job.
            kept = not entry.name.startswith(".") and entry.name != JOURNAL
            if kept and entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def result_bytes(job: Job) -> int:
    """Return the bytes of a published result, and of the files beside it, that lie elsewhere."""
    if job.output is None or job.output["path"] is None:
        return 0
    total = 0
    for path in (job.output["path"], *(each["path"] for each in job.output.get("beside", ()))):
        with suppress(OSError):
            total += Path(path).lstat().st_size
    return total


def kept_within_quota(conn: sa.Connection, job: Job, settings: Settings) -> int:
    """Return the bytes that a job keeps; remove its pictures where the quota has no room.

    Its trace and pictures were not known when it was admitted, only its result.
    """
    result = result_bytes(job)
    kept = result + kept_bytes(conn, job, settings)
    free = quotas.free_bytes(conn, job.owner)
    if free is None or kept - jobs.counted_bytes(conn, job.id) <= free:
        return kept
    log.warning("no trace or picture: the token's quota has no room for them")
    remove_pictures(job.id, settings)
    return result + kept_bytes(conn, job, settings)


def remove_pictures(job_id: str, settings: Settings) -> None:
    """Remove a job's trace and Gantt chart."""
    for name in (TRACE, GANTT):
        (settings.job_dir(job_id) / name).unlink(missing_ok=True)


def count_pictures(database: Database, job_id: str, settings: Settings) -> None:
    """Count the pictures of a finished job once; remove the pictures of a deleted job.

    A process that died left its drafts, which have hidden names.
    """
    with database.queue() as conn:
        job = jobs.find(conn, job_id)
        if job is not None and job.is_drawing:
            for draft in settings.job_dir(job_id).glob(".*"):
                draft.unlink()
            jobs.recount(conn, job_id, kept_within_quota(conn, job, settings))
    if job is None:
        shutil.rmtree(settings.job_dir(job_id), ignore_errors=True)


def remove_links(job_id: str, settings: Settings) -> None:
    """Remove the names in a job's folder of files that its process had open."""
    with suppress(FileNotFoundError):
        for path in settings.job_dir(job_id).iterdir():
            if path.is_symlink():
                path.unlink()


def sweep_up(job: Job, settings: Settings) -> None:
    """Remove the files that the attempts of a job that ended without a result left."""
    own = settings.job_dir(job.id)
    shutil.rmtree(own / "profiling", ignore_errors=True)
    (own / JOURNAL).unlink(missing_ok=True)
    remove_links(job.id, settings)
    if job.output is None:
        return
    folder = references.result_path(job.id, job.output, settings).parent
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY
        with paths.opened(folder, (*settings.roots, own), flags) as fd:
            remove_leftovers(job.id, fd)
    except (InputError, OSError) as error:
        log.warning("job %s: cannot remove its files: %s", job.id, error)


def temporary_name(path: Path, job_id: str, fence: int | None) -> str:
    """Return the name of an attempt's result until it is published.

    Attempts that share a journal share the name; their `fence` is None.
    """
    return f".{path.stem[:100]}.hdgemm-{job_id}-{JOURNAL if fence is None else fence}.npy"
