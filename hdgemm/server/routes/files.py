"""`/v1/files` and `/v1/folders`: the files that jobs may name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from hdgemm.errors import InputError
from hdgemm.matrices.npy import read_header
from hdgemm.server import paths, references
from hdgemm.server.documents import FileInfo
from hdgemm.server.problems import responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from collections.abc import Sequence

router = APIRouter(prefix="/v1", tags=["files"])
PathQuery = Annotated[str, Query(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
#: The most entries of a folder that are listed.
_MOST_LISTED: Final = 1000


class ListedFile(BaseModel):
    """A .npy file of a folder; shape and dtype are null where it holds no matrix."""

    name: str
    path: str
    size: int
    shape: tuple[int, int] | None
    dtype: str | None


class Folder(BaseModel):
    """A folder that jobs may read: its folders and .npy files, by name."""

    path: str | None = Field(description="Null for the list of the roots.")
    parent: str | None = Field(description="Null for a root and for the list of the roots.")
    folders: list[str]
    files: list[ListedFile]
    complete: bool = Field(description=f"False where there are more than {_MOST_LISTED} entries.")


@router.get("/files", responses=responses(model=FileInfo))
async def describe_file(service: TheService, account: TheAccount, path: PathQuery) -> JSONResponse:
    """Describe a .npy file inside the server's roots, so that it need not be uploaded."""
    roots = account.readable(service.settings.roots)
    return JSONResponse(await service.files.run(_describe, path, roots))


def _describe(path: str, roots: Sequence[Path]) -> dict[str, Any]:
    real = paths.resolve(path, roots)
    shape, dtype = references.describe_file(real, roots)
    found = real.stat()
    return {
        "path": str(real), "shape": list(shape), "dtype": dtype, "size": found.st_size,
        "mtime_ns": found.st_mtime_ns, "inode": found.st_ino,
    }  # fmt: skip


@router.get("/folders", responses=responses(model=Folder))
async def list_folder(
    service: TheService, account: TheAccount, path: PathQuery | None = None
) -> JSONResponse:
    """List a folder inside the server's roots; without `path`, the roots that may be read."""
    roots = account.readable(service.settings.roots)
    if path is None:
        folder = Folder(
            path=None, parent=None, folders=[str(root) for root in roots], files=[], complete=True
        )
    else:
        folder = await service.files.run(_list, path, roots)
    return JSONResponse(folder.model_dump(mode="json"))


def _list(path: str, roots: Sequence[Path]) -> Folder:
    real = paths.resolve(path, roots)
    folders: list[str] = []
    files: list[ListedFile] = []
    with paths.opened(real, roots, os.O_RDONLY | os.O_DIRECTORY) as fd:
        with os.scandir(fd) as entries:
            found = sorted(
                (entry for entry in entries if _can_be_named(entry.name)),
                key=lambda entry: entry.name,
            )
        for entry in found[:_MOST_LISTED]:
            if entry.is_dir(follow_symlinks=False):
                folders.append(str(real / entry.name))
            elif entry.name.endswith(".npy") and entry.is_file(follow_symlinks=False):
                files += _listed(fd, real, entry.name)
    parent = None if real in roots else str(real.parent)
    return Folder(
        path=str(real), parent=parent, folders=folders, files=files,
        complete=len(found) <= _MOST_LISTED,
    )  # fmt: skip


def _can_be_named(name: str) -> bool:
    """Leave out hidden entries, and names that are not UTF-8: JSON cannot hold these."""
    return not name.startswith(".") and name.encode("utf-8", "replace") == os.fsencode(name)


def _listed(folder: int, path: Path, name: str) -> list[ListedFile]:
    """Describe one file of an open folder; nothing where it is gone or may not be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return []
        header = read_header(Path(f"/proc/self/fd/{fd}"))
        shape = (header.shape[0], header.shape[1]) if len(header.shape) == 2 else None
        dtype = header.dtype.name
    except InputError:
        shape = dtype = None
    finally:
        os.close(fd)
    full = str(path / name)
    return [ListedFile(name=name, path=full, size=status.st_size, shape=shape, dtype=dtype)]
