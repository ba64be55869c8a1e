"""Zarr arrays of either format: plain chunks of a local store as files, all others by zarr."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.chunkfiles import ChunkFiles
from hdgemm.matrices.draft import Draft, aside, require_space, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular, sync, sync_tree
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.rectangles import RectangleMatrix

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import ExitStack

    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix

#: Rows and columns of a chunk of a new array: 8 MiB of float64.
CHUNK: Final = (1024, 1024)


def load_zarr() -> Any:
    """Import zarr, or say how to get it."""
    try:
        import zarr
    except ImportError as error:
        raise InputError(
            "Zarr stores need zarr, which is not installed: pip install 'hdgemm[zarr]'"
        ) from error
    return zarr


def open_zarr(path: Path, item: str, *, writable: bool = False) -> Matrix:
    """Open one array of a local store, ``""`` for a store that is one array.

    Raises
    ------
    InputError
        When it is missing or no matrix.
    InputTypeError
        When its dtype cannot be multiplied.
    """
    zarr = load_zarr()
    name = f"{path}::{item}" if item else str(path)
    if not path.exists():
        raise InputError(f"there is no Zarr store {path}", path=str(path))
    for metadata in ("zarr.json", ".zarray", ".zattrs"):
        if (path / item / metadata).exists():
            check_regular(path / item / metadata)
    try:
        array = zarr.open_array(store=path, path=item, mode="r+" if writable else "r")
    except Exception as error:
        raise InputError(f"cannot open {name} as a Zarr array: {error}", path=name) from error
    return from_zarr(array, name, writable=writable)


def from_zarr(array: Any, name: str, *, writable: bool = False, source: Hashable = None) -> Matrix:
    """Take a `zarr.Array`, of whatever store; `source` names it where its store does not.

    Raises
    ------
    InputError
        When it is no matrix, or read-only though `writable`.
    InputTypeError
        When its dtype cannot be multiplied.
    """
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix (2-D), it has shape {array.shape}")
    check_dtype(np.dtype(array.dtype), name)
    if writable and array.read_only:
        raise InputError(f"{name} is to be overwritten, but its store is open for reading only")
    dtype = _plain_dtype(array)
    root = getattr(array.store, "root", None)
    if isinstance(root, Path) and not root.is_absolute():
        # The store would follow a change of the working directory, and read fill values there.
        return open_zarr(root.absolute(), array.path, writable=writable)
    if dtype is not None and isinstance(root, Path) and min(array.chunks) > 0:
        return _chunk_files(array, name, root / array.path, dtype)
    folder = root / array.path if isinstance(root, Path) else None
    return RectangleMatrix(
        array,
        name=name,
        # A shard is written as a whole, and read chunk by chunk.
        chunk=tuple((writable and array.shards) or array.chunks),
        keeps=not writable,
        source=source or (_source(folder) if folder else (str(array.store), array.path)),
        home=folder,
        flush=None if folder is None else lambda: sync_tree(folder),
    )


def _plain_dtype(array: Any) -> np.dtype[Any] | None:
    """Return how elements lie in chunk files, None where they are encoded somehow."""
    metadata = array.metadata
    dtype: np.dtype[Any] = np.dtype(array.dtype)
    if array.shards is not None or array.filters:
        return None
    if array.compressors:
        return None
    if metadata.zarr_format == 2:
        return dtype if metadata.order == "C" else None
    codecs = [codec.to_dict() for codec in metadata.codecs]
    if len(codecs) != 1 or codecs[0].get("name") != "bytes":
        return None
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    return dtype.newbyteorder(">" if endian == "big" else "<")


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
        if not path.exists():
            if not folder.is_dir():
                raise InputError(f"{folder} is missing", path=str(folder))
            if not write:
                return None
            with making:
                _make_chunk(path, chunk, dtype, fill)
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
        name, array.shape, dtype, chunk, fill, open_chunk, _source(folder), home=folder,
        flush=flush, close=lambda: None,
    )  # fmt: skip


def _make_chunk(path: Path, chunk: tuple[int, int], dtype: np.dtype[Any], fill: Any) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    nbytes = chunk[0] * chunk[1] * dtype.itemsize
    part = reserve(path, b"", nbytes)
    if fill != 0:
        file = BlockFile(part, writable=True)
        file.write(0, np.full(chunk, fill, dtype).reshape(-1).view(np.uint8))
        file.close()
    part.replace(path)


def _source(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


class _ArrayDraft(Draft["Matrix"]):
    """An array in a folder aside, renamed as a whole; an array that had the name is removed."""

    def __init__(self, root: Path, item: str, part: Path, matrix: Matrix) -> None:
        super().__init__(root / item, part, matrix)
        self._root, self._item = root, item

    def _give_name(self) -> None:
        old = old_name(self.part)
        if self.path.exists():
            self.path.replace(old)
        self.part.replace(self.path)
        sync(self.path.parent)
        shutil.rmtree(old, ignore_errors=True)

    def _remove(self) -> None:
        shutil.rmtree(self.part, ignore_errors=True)


def old_name(part: Path) -> Path:
    """Return the name that a replaced array has while the draft of this name takes its place."""
    return part.with_suffix(".old")


def reopen_zarr(root: Path, item: str, part: Path) -> Draft[Matrix]:
    """Go on with a draft that another process has begun."""
    root = root.resolve()
    return _ArrayDraft(root, item, part, open_zarr(part, "", writable=True))


def create_zarr(
    root: Path, item: str, shape: tuple[int, int], dtype: DTypeLike, part: Path | None = None
) -> Draft[Matrix]:
    """Begin a new uncompressed array (format 3), with its space reserved chunk by chunk.

    `part` is the name it has until it is published, None for any.

    Raises
    ------
    InputError
        When `root` holds something that is no Zarr group.
    MatrixIOError
        When the disk is too full.
    """
    zarr = load_zarr()
    stored = np.dtype(dtype)
    check_dtype(stored, f"{root}::{item}")
    root = root.resolve()
    if item:
        parent = item.rpartition("/")[0]
        try:
            group = zarr.open_group(store=root, mode="a")
            if parent:
                group.require_group(parent)
            _sync_groups(root, parent)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{root} is no Zarr group to put {item} in: {error}") from error
    target = root / item
    if target.exists() and not any((target / f).exists() for f in ("zarr.json", ".zarray")):
        raise InputError(f"{target} exists and is no Zarr array; choose another name")
    part = part or aside(target)
    shutil.rmtree(part, ignore_errors=True)
    # A chunk no larger than the matrix: the edges of a small one are not stored as megabytes.
    chunk = tuple(max(1, min(pair)) for pair in zip(CHUNK, shape, strict=True))
    array = zarr.create_array(
        store=part, shape=shape, chunks=chunk, dtype=stored, compressors=None, fill_value=0
    )
    draft: Draft[Matrix] = _ArrayDraft(root, item, part, from_zarr(array, str(part), writable=True))
    try:
        _reserve_chunks(array, part, stored)
    except BaseException:
        draft.discard()
        raise
    return draft


def _reserve_chunks(array: Any, folder: Path, dtype: np.dtype[Any]) -> None:
    rows, cols = (
        -(-extent // step) for extent, step in zip(array.shape, array.chunks, strict=True)
    )
    require_space(folder, rows * cols * array.chunks[0] * array.chunks[1] * dtype.itemsize)
    for index in np.ndindex(rows, cols):
        _make_chunk(folder / array.metadata.encode_chunk_key(index), array.chunks, dtype, 0)


def _sync_groups(root: Path, item: str) -> None:
    folder = root
    for name in ("", *item.split("/")):
        folder = folder / name
        for metadata in ("zarr.json", ".zgroup"):
            if (folder / metadata).exists():
                sync(folder / metadata)
        sync(folder)
    sync(root.parent)
