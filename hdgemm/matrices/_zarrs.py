"""Zarr arrays of either format: plain chunks of a local store as files, all others by zarr."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, load_extra
from hdgemm.matrices._chunk_decoders import decoder
from hdgemm.matrices._chunkfiles import ChunkFiles
from hdgemm.matrices._compressed_chunks import CompressedChunks, StoredChunk
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices._zarr_store import is_stored, largest_chunk, local_root, open_store
from hdgemm.matrices.draft import aside, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular, sync, sync_tree
from hdgemm.matrices.layout import check_read
from hdgemm.matrices.zarr_replacement import finish_replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from hdgemm.matrices._chunk_decoders import Decode
    from hdgemm.matrices.base import Matrix

#: Codecs of Zarr format 3 that have the names of codecs of numcodecs, and their bytes.
_CODECS: Final = frozenset({"blosc", "gzip", "zstd"})


def load_zarr() -> Any:
    """Import zarr, or say how to get it."""
    return load_extra("zarr", "Zarr stores need zarr", "zarr")


def open_zarr(path: Path, item: str, *, writable: bool = False) -> Matrix:
    """Open one array of a local store, ``""`` for a store that is one array; errors as
    `open_location`.
    """
    zarr = load_zarr()
    name = f"{path}::{item}" if item else str(path)
    if not (path / item).exists():
        with suppress(OSError):
            finish_replacements(path, item)
    if not path.exists():
        raise InputError(f"there is no Zarr store {path}", path=str(path))
    for metadata in ("zarr.json", ".zarray", ".zattrs"):
        if (path / item / metadata).exists():
            check_regular(path / item / metadata)
    try:
        store = open_store(path, read_only=not writable)
        array = zarr.open_array(store=store, path=item, mode="r+" if writable else "r")
    except Exception as error:
        if not item and not writable and (only := _only_array(path)):
            return open_zarr(path, only)
        raise InputError(f"cannot open {name} as a Zarr array: {error}", path=name) from error
    return from_zarr(array, name, writable=writable)


def _only_array(path: Path) -> str:
    """Return the name of the only array of a group, "" where there is none or several."""
    named = [
        folder.name
        for folder in path.iterdir()
        if (folder / "zarr.json").is_file() or (folder / ".zarray").is_file()
    ]
    return named[0] if len(named) == 1 else ""


def from_zarr(array: Any, name: str, *, writable: bool = False, source: Hashable = None) -> Matrix:
    """Take a `zarr.Array`, of whatever store; `source` names it where its store does not.

    Raises `InputError` when it is no matrix, or read-only though `writable`.
    """
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix (2-D), it has shape {array.shape}")
    check_read(np.dtype(array.dtype), name)
    if writable and array.read_only:
        raise InputError(f"{name} is to be overwritten, but its store is open for reading only")
    root = local_root(array.store)
    if root is not None and not root.is_absolute():
        # The store would follow a change of the working directory, and read fill values there.
        return open_zarr(root.absolute(), array.path, writable=writable)
    if root is None:
        source, folder = source or (str(array.store), array.path), None
    else:
        source, folder = _source(root / array.path), root / array.path
        array = _checked(array, root)
    parameters: dict[str, Any] = {
        "name": name,
        # A shard is written as a whole, and read chunk by chunk.
        "chunk": tuple((writable and array.shards) or array.chunks),
        "keeps": not writable,
        "source": source,
        "home": folder,
        "flush": None if folder is None else lambda: sync_tree(folder),
    }
    dtype = _stored_dtype(array)
    if dtype is not None and folder is not None and min(array.chunks) > 0:
        if not array.compressors:
            return _chunk_files(array, name, folder, dtype)
        if (decode := _decoder(array)) is not None:
            fill = 0 if array.fill_value is None else array.fill_value
            find = _finder(array, folder)
            return CompressedChunks(array, dtype, fill, find, decode, **parameters)
    return RectangleMatrix(array, **parameters)


def _checked(array: Any, root: Path) -> Any:
    """Return an array of a local store, read and written by a store that checks its files."""
    zarr = load_zarr()
    store = open_store(
        root, read_only=array.read_only, array=array.path, chunk_bytes=largest_chunk(array)
    )
    place = zarr.storage.StorePath(store, array.path)
    return zarr.Array(zarr.AsyncArray(array.metadata, place, config=array.async_array.config))


def _stored_dtype(array: Any) -> np.dtype[Any] | None:
    """Return how elements lie in chunks, once they are decompressed; None where they are encoded
    somehow.
    """
    metadata = array.metadata
    dtype: np.dtype[Any] = np.dtype(array.dtype)
    if array.shards is not None or array.filters:
        return None
    if metadata.zarr_format == 2:
        return dtype if metadata.order == "C" else None
    first, *others = [codec.to_dict() for codec in metadata.codecs]
    if len(others) != len(array.compressors) or first.get("name") != "bytes":
        return None
    endian = first.get("configuration", {}).get("endian", "little")
    return dtype.newbyteorder(">" if endian == "big" else "<")


def _decoder(array: Any) -> Decode | None:
    """Return the function that decompresses a chunk; None where only zarr can."""
    if len(array.compressors) != 1:
        return None
    (codec,) = array.compressors
    if array.metadata.zarr_format == 3:
        import numcodecs

        # Codecs of numcodecs under its own names have its configuration.
        name = codec.to_dict()["name"]
        found = getattr(codec, "codec_config", {"id": name} if name in _CODECS else None)
        codec = None if found is None else numcodecs.get_codec(found)
    return decoder(codec)


def _finder(
    array: Any, folder: Path
) -> Callable[[tuple[int, int]], AbstractContextManager[StoredChunk | None]]:
    encode, most = array.metadata.encode_chunk_key, largest_chunk(array)

    @contextmanager
    def find(index: tuple[int, int]) -> Iterator[StoredChunk | None]:
        path: Path = folder / encode(index)
        if not is_stored(path, folder, most):
            yield None
            return
        with closing(BlockFile(path)) as file:
            yield StoredChunk(file, 0, file.size())

    return find


def _chunk_files(array: Any, name: str, folder: Path, dtype: np.dtype[Any]) -> ChunkFiles:
    chunk: tuple[int, int] = tuple(array.chunks)
    fill = array.fill_value if array.fill_value is not None else 0
    encode = array.metadata.encode_chunk_key
    making = threading.Lock()
    written: set[Path] = set()
    made = False

    def open_chunk(index: tuple[int, int], stack: ExitStack, write: bool) -> FileMatrix | None:
        nonlocal made
        path = folder / encode(index)
        if not is_stored(path, folder):
            if not write:
                return None
            with making:
                make_chunk(path, chunk, dtype, fill)
                made = True
        if write:
            # Left when the chunk is written, whatever was flushed meanwhile.
            stack.callback(written.add, path)
        file = BlockFile(path, writable=write)
        stack.callback(file.close)
        return FileMatrix(file, chunk, dtype)

    def flush() -> None:
        nonlocal made
        if made:
            made = False
            sync_tree(folder)
            return
        while written:
            sync(written.pop())

    return ChunkFiles(
        name,
        array.shape,
        dtype,
        chunk,
        fill,
        open_chunk,
        _source(folder),
        home=folder,
        flush=flush,
        close=lambda: None,
    )


def make_chunk(path: Path, chunk: tuple[int, int], dtype: np.dtype[Any], fill: Any) -> None:
    """Make the file of a chunk, if it is missing, with its space reserved and `fill` everywhere."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    nbytes = chunk[0] * chunk[1] * dtype.itemsize
    file = reserve(path, b"", nbytes, aside(path))
    try:
        if fill != 0:
            file.write(0, np.full(chunk, fill, dtype).reshape(-1).view(np.uint8))
        file.path.replace(path)
    finally:
        file.close()


def _source(folder: Path) -> tuple[int, int]:
    try:
        status = folder.stat()
    except OSError as error:
        raise InputError(f"there is no Zarr array {folder}: {error.strerror}") from error
    return status.st_dev, status.st_ino
