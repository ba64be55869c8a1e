"""Atomic publication of a result, which a crash cannot repeat or lose.

The finished file lies aside under a temporary name. First the database is told its inode and the
report; then it is renamed; then the job is successful. A job found between the two commits is
finished by renaming, never by computing again: with C as input and output the input is gone by
then.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.server import paths, references

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

log = logging.getLogger(__name__)
#: A result is hashed in pieces of this size, in bytes.
CHUNK: Final = 1 << 22
#: Files that a factorisation stores beside its result, by the end of their names.
COMPANIONS: Final = (".piv.npy", ".tau.npy", ".factor.json")
#: Name of a durable job's journal in the job's folder.
JOURNAL: Final = "journal"


@dataclass(frozen=True)
class Publication:
    """A finished file that is to be renamed; plain values, kept in the job's row."""

    temporary: str
    path: str
    inode: int
    size: int
    mtime_ns: int
    sha256: str
    overwrite: bool


def digest(fd: int) -> Iterator[str | None]:
    """Yield None per chunk that was hashed, so that the caller can stop; then the SHA-256."""
    hashed, offset = hashlib.sha256(), 0
    while chunk := os.pread(fd, CHUNK, offset):
        hashed.update(chunk)
        offset += len(chunk)
        yield None
    yield hashed.hexdigest()


def publish(publication: Publication, roots: Sequence[Path]) -> bool:
    """Give the file its name, durably, or see that it has it; say whether it does.

    Raises `InputError` when another file took the name and may not be replaced.
    """
    path = Path(publication.path)
    with paths.opened(path.parent, roots, os.O_RDONLY | os.O_DIRECTORY) as folder:
        temporary = Path(publication.temporary).name
        done = _rename(publication, temporary, path.name, folder)
        for suffix in COMPANIONS:
            with suppress(FileNotFoundError):
                os.rename(
                    Path(temporary).with_suffix(suffix), path.with_suffix(suffix).name,
                    src_dir_fd=folder, dst_dir_fd=folder,
                )  # fmt: skip
        os.fsync(folder)
    return done


def _rename(publication: Publication, temporary: str, name: str, folder: int) -> bool:
    if not _is_it(publication, temporary, folder):
        return _is_it(publication, name, folder)
    if publication.overwrite:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        if not _is_it(publication, name, folder):
            raise InputError(
                f"{publication.path} appeared while the job ran, and output.overwrite is false",
                path=publication.path,
            ) from None
    except (PermissionError, OSError):
        # A file system without hard links.
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    os.unlink(temporary, dir_fd=folder)
    return True


def _is_it(publication: Publication, name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_ino, found.st_size) == (publication.inode, publication.size)


def remove_leftovers(job_id: str, folder: int, *, keep_journaled: bool = False) -> None:
    """Remove the files that a job's attempts left beside its result.

    `keep_journaled` spares those that a journal of the job refers to.
    """
    for name in os.listdir(folder):
        of_job = name.startswith(".") and f".hdgemm-{job_id}-" in name
        if of_job and not (keep_journaled and f".hdgemm-{job_id}-{JOURNAL}" in name):
            os.unlink(name, dir_fd=folder)


def sweep_up(job: Job, settings: Settings) -> None:
    """Remove the files that the attempts of a job that ended without a result left."""
    own = settings.job_dir(job.id)
    shutil.rmtree(own / "profiling", ignore_errors=True)
    (own / JOURNAL).unlink(missing_ok=True)
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
