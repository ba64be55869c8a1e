"""HDF5 datasets: contiguous ones by their offset in the file, chunked ones chunk by chunk.

h5py is asked for the layout only, where that is possible: during a run the file is not open in it,
and elements move past it like those of any other file.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError
from hdgemm.matrices.chunkfiles import ChunkFiles
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular, sync_file
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.rectangles import RectangleMatrix

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import ExitStack

    from hdgemm.matrices.base import Matrix

#: The HDF5 library is one thread's at a time, whatever files it has open.
LIBRARY_LOCK: Final = threading.RLock()


def load_h5py() -> Any:
    """Import h5py, or say how to get it."""
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            "HDF5 files need h5py, which is not installed: pip install 'hdgemm[hdf5]'"
        ) from error
    return h5py


def open_hdf5(path: Path, item: str, *, writable: bool = False) -> Matrix:
    """Open one dataset of a file.

    Raises
    ------
    InputError
        When the file or the dataset is missing, or it is no matrix.
    InputTypeError
        When its dtype cannot be multiplied.
    """
    check_regular(path)
    with LIBRARY_LOCK:
        file = open_file(path, "r+" if writable else "r")
        try:
            matrix = _from_dataset(_find(file, path, item), path, writable=writable)
        except BaseException:
            file.close()
            raise
        if not isinstance(matrix, RectangleMatrix):
            file.close()
        return matrix


def from_dataset(dataset: Any, what: str, *, writable: bool = False) -> Matrix:
    """Take an `h5py.Dataset` that the caller has open.

    It is read past h5py where its elements lie in its file plainly; it is written through h5py,
    which may have parts of it in memory.
    """
    with LIBRARY_LOCK:
        if writable and dataset.file.mode == "r":
            raise InputError(f"{what} is to be overwritten, but its file is open for reading only")
        path = Path(dataset.file.filename)
        _check(dataset, f"{what} ({dataset.name})")
        plain = not writable and dataset.file.driver == "sec2" and path.is_file()
        if not plain:
            name = f"{path}::{dataset.name}"
            return _through_h5py(dataset, name, path, opened=False, writable=writable)
        if dataset.file.mode != "r":
            dataset.file.flush()
        return _from_dataset(dataset, path, writable=False, opened=False)


def open_file(path: Path, mode: str) -> Any:
    """Open a file in h5py; called, like everything of h5py, with the library's lock held."""
    h5py = load_h5py()
    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise InputError(f"cannot open {path} as HDF5: {error}", path=str(path)) from error


def _find(file: Any, path: Path, item: str) -> Any:
    h5py = load_h5py()
    found = file.get(item)
    if not isinstance(found, h5py.Dataset):
        there = [str(name) for name, node in file.items() if isinstance(node, h5py.Dataset)]
        raise InputError(
            f"{path} has no dataset {item!r}; at its top level are: {', '.join(there) or 'none'}",
            path=str(path),
        )
    return found


def _check(dataset: Any, name: str) -> None:
    if dataset.ndim != 2:
        raise InputError(f"{name} must be a matrix (2-D), it has shape {dataset.shape}")
    check_dtype(dataset.dtype, name)


def _from_dataset(dataset: Any, path: Path, *, writable: bool, opened: bool = True) -> Matrix:
    name = f"{path}::{dataset.name}"
    _check(dataset, name)
    if dataset.chunks is None:
        offset = None if dataset.is_virtual or dataset.external else dataset.id.get_offset()
        if offset is not None:
            file = BlockFile(path, writable=writable)
            matrix = FileMatrix(
                file, dataset.shape, dataset.dtype, offset, source=_source(dataset, path)
            )
            matrix.name = name
            return matrix
    elif not writable and dataset.id.get_create_plist().get_nfilters() == 0:
        return _plain_chunks(dataset, name, path)
    return _through_h5py(dataset, name, path, opened=opened, writable=writable)


def _plain_chunks(dataset: Any, name: str, path: Path) -> ChunkFiles:
    offsets: dict[tuple[int, int], int] = {}
    high, wide = dataset.chunks

    def note(chunk: Any) -> None:
        row, col = chunk.chunk_offset
        offsets[row // high, col // wide] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    file = BlockFile(path)
    dtype = dataset.dtype

    def open_chunk(index: tuple[int, int], _stack: ExitStack, _write: bool) -> FileMatrix | None:
        offset = offsets.get(index)
        return None if offset is None else FileMatrix(file, (high, wide), dtype, offset)

    return ChunkFiles(
        name, dataset.shape, dtype, (high, wide), dataset.fillvalue, open_chunk,
        _source(dataset, path), home=path, flush=file.flush, close=file.close,
    )  # fmt: skip


def _through_h5py(
    dataset: Any, name: str, path: Path, *, opened: bool, writable: bool
) -> RectangleMatrix:
    file = dataset.file

    def flush() -> None:
        with LIBRARY_LOCK:
            file.flush()
        if path.is_file():
            sync_file(path)

    def close() -> None:
        with LIBRARY_LOCK:
            file.close()

    return RectangleMatrix(
        dataset, name=name, chunk=dataset.chunks, keeps=not writable, lock=LIBRARY_LOCK,
        flush=flush, source=_source(dataset, path), close=close if opened else None,
        home=None if dataset.is_virtual or dataset.external or not path.is_file() else path,
    )  # fmt: skip


def _source(dataset: Any, path: Path) -> Hashable:
    """Tell a dataset from all others, by whatever name it was found."""
    place = load_h5py().h5o.get_info(dataset.id).addr
    if not path.is_file():
        return str(path), place
    status = path.stat()
    return (status.st_dev, status.st_ino), place
