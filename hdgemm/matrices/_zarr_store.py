"""Local Zarr stores: their folders, and a store of zarr's that refuses files which cannot be read.

zarr takes a chunk that is a directory, a dangling link or below a file for one that was never
stored, and reads fill values. It also waits for FIFOs, and reads files of any size.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.files import check_regular

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_METADATA: Final = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
#: Names in a group of drafts, of replaced arrays, and of marks of an exchange.
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{8}\.(part|old|[0-9]+\.exchange)")


def local_root(store: Any) -> Path | None:
    """Return the folder of a store that lies in this machine's file system; None for all others.

    Besides zarr's own local store these are fsspec's and obstore's, as ``file://`` opens them.
    """
    root = getattr(store, "root", None)
    if isinstance(root, Path):
        return root
    if type(store).__name__ == "FsspecStore":
        system = getattr(store.fs, "sync_fs", store.fs)
        names = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        return Path(store.path) if "file" in names else None
    inner: Any = getattr(store, "store", None)
    if type(inner).__name__ == "LocalStore":  # obstore's, whose prefix is its folder
        return Path(inner.prefix or "/")
    return None


def open_store(
    root: Path, *, read_only: bool, array: str | None = None, chunk_bytes: int = 0
) -> Any:
    """Return zarr's store of a folder, which refuses what it cannot read.

    With the path of an `array` in it, chunks are looked for only while that folder is there, and
    a chunk of more than `chunk_bytes` bytes is refused before it is read.
    """
    store = _store_class()(root, read_only=read_only)
    store.array, store.chunk_bytes = array, chunk_bytes
    return store


def largest_chunk(array: Any) -> int:
    """Return the bytes of the longest file that a codec could make of one chunk, or one shard.

    Codecs store data that they cannot compress with some bytes of their own. Filters may store
    wider elements, and a shard has an index of its chunks.
    """
    extents = array.shards or array.chunks
    chunks = math.prod(extents) // max(1, math.prod(array.chunks))
    return int(4 * math.prod(extents) * array.dtype.itemsize + 128 * chunks + (1 << 16))


def is_stored(path: Path, folder: Path, most: int = 0) -> bool:
    """Return whether a chunk of the array in `folder` is stored, in a regular file.

    Where `most` is not 0, the file must have a byte at least, and `most` bytes at most.

    Raises
    ------
    MatrixIOError
        When the array is gone, or the chunk exists in any other form or size.
    """
    try:
        check_regular(path)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not _leads_nowhere(path):
            if folder.is_dir():
                return False
            error = InputError(f"{folder} is missing")
        raise MatrixIOError(str(error), path=str(path), offset=0, length=0) from error
    if most:
        _check_size(path, most)
    return True


def _leads_nowhere(path: Path) -> bool:
    """Return whether a missing path, or a folder on its way, is a link to nothing."""
    while not (path.is_symlink() or path.exists()):
        path = path.parent
    return not path.exists()


@cache
def _store_class() -> Any:
    """Return the class, made when zarr is first needed."""
    from zarr.storage import LocalStore

    class CheckedStore(LocalStore):
        """zarr's local store, with a look at each file before it is opened."""

        array: str | None = None
        chunk_bytes: int = 0

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            self._check(key)
            return await super().get(key, prototype, byte_range)

        def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
            self._check(key)
            return super().get_sync(key, prototype=prototype, byte_range=byte_range)

        async def get_partial_values(
            self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]
        ) -> Any:
            ranges = list(key_ranges)
            for key, _ in ranges:
                self._check(key)
            return await super().get_partial_values(prototype, ranges)

        async def list_dir(self, prefix: str) -> AsyncIterator[str]:
            # Consolidated metadata must not name arrays that are about to disappear.
            async for name in super().list_dir(prefix):
                if not _TEMPORARY.fullmatch(name):
                    yield name

        def _check(self, key: str) -> None:
            path, metadata = self.root / key, key.rpartition("/")[2] in _METADATA
            if metadata and path.parent.is_file():
                return  # a file in a group is no node; zarr finds no metadata in it
            folder = self.root if metadata or self.array is None else self.root / self.array
            is_stored(path, folder, 0 if metadata else self.chunk_bytes)

    return CheckedStore


def _check_size(path: Path, most: int) -> None:
    """Raise `MatrixIOError` for a chunk that is empty, or that has more bytes than it could."""
    size = path.stat().st_size
    if not size:  # zarr takes an empty shard for one without chunks, which reads as zeros
        raise MatrixIOError(
            f"{path} is empty, and a chunk that is stored is not: restore it, or store the array "
            "again",
            path=str(path),
            offset=0,
            length=0,
        )
    if size > most:
        raise MatrixIOError(
            f"{path} has {size} bytes, and no chunk of this array can have more than {most}: is it "
            "a chunk of another array?",
            path=str(path),
            offset=0,
            length=size,
        )
