"""HDF5 datasets: plain elements at their file offsets, all others through h5py.

Of contiguous and of uncompressed chunked datasets h5py only tells the layout: during a run their
file is not open in h5py, and elements are read as from any other file. Chunks that gzip compressed
are read and decoded here, too, while h5py has their file open, so that nothing moves them.
Datasets with other filters, virtual and external ones, and files of other drivers, are read through
h5py.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import HdgemmError, InputError, MatrixIOError, load_extra
from hdgemm.matrices._chunk_decoders import gzip_decoder
from hdgemm.matrices._chunkfiles import ChunkFiles
from hdgemm.matrices._compressed_chunks import CompressedChunks, StoredChunk
from hdgemm.matrices._hdf5_chunks import ChunkTable
from hdgemm.matrices._hdf5_links import check_links, datasets_in
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile, check_regular, sync_file
from hdgemm.matrices.layout import check_read

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from contextlib import AbstractContextManager, ExitStack

    from hdgemm.matrices._chunk_decoders import Decode
    from hdgemm.matrices.base import Matrix

#: The HDF5 library serves one thread at a time, for all files together.
LIBRARY_LOCK: Final = threading.RLock()
#: Bytes that an encoded chunk may have more than a decoded one.
_LARGER_ENCODED: Final = 1 << 16
# A thread that a forked child lacks may hold it. h5py's own lock keeps HDF5 whole.
os.register_at_fork(after_in_child=LIBRARY_LOCK._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001


def load_h5py() -> Any:
    """Import h5py, or say how to get it."""
    return load_extra("h5py", "HDF5 files need h5py", "hdf5")


@contextmanager
def library(verb: str, path: Path) -> Iterator[None]:
    """Hold HDF5's lock, and raise its errors as `MatrixIOError`: "cannot `verb` `path`"."""
    with LIBRARY_LOCK:
        try:
            yield
        except HdgemmError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise MatrixIOError(
                f"cannot {verb} {path}: {error}", path=str(path), offset=0, length=0
            ) from error


def open_hdf5(path: Path, item: str, *, writable: bool = False) -> Matrix:
    """Open one dataset of a file; raises what `open_location` raises."""
    check_regular(path)
    with library("read", path):
        file = open_file(path, "r+" if writable else "r")
        try:
            item = item or _only_matrix(file, path)
            matrix = _from_dataset(
                _find(file, path, item), f"{path}::/{item}", writable=writable, file=file
            )
        except BaseException:
            file.close()
            raise
        if not isinstance(matrix, RectangleMatrix):
            file.close()
        return matrix


def from_dataset(dataset: Any, what: str, *, writable: bool = False) -> Matrix:
    """Take an `h5py.Dataset` that the caller has open.

    It is read at its file offsets where the file has plain elements; it is written through h5py,
    which may hold parts of it in memory.
    """
    with LIBRARY_LOCK:
        if writable and dataset.file.mode == "r":
            raise InputError(f"{what} is to be overwritten, but its file is open for reading only")
        if dataset.file.mode != "r":
            dataset.file.flush()
        name = f"{_file_of(dataset) or dataset.file.filename}::{dataset.name}"
        return _from_dataset(dataset, name, writable=writable)


def open_file(path: Path, mode: str) -> Any:
    """Open a file in h5py; called, like everything of h5py, with the library's lock held."""
    h5py = load_h5py()
    try:
        # Blocks are cut at chunks, so that HDF5's cache of 8 MB for each dataset would be unused.
        return h5py.File(path, mode, **({"rdcc_nbytes": 0} if mode == "r" else {}))
    except OSError as error:
        message = f"cannot open {path} as HDF5: {error}"
        if mode == "r+" and "already open" in str(error):
            message = (
                f"cannot write to {path}, which HDF5 has open for reading, as it has the file of a "
                "compressed matrix while that is read: store the result in another file"
            )
        raise InputError(message, path=str(path)) from error


def _only_matrix(file: Any, path: Path) -> str:
    """Return the name of the only dataset of two dimensions; `InputError` unless there is one."""
    found = _matrices_in(file)
    if len(found) != 1:
        raise InputError(
            f"{path} names no dataset, and the file has {', '.join(found[:20]) or 'no matrix'}: "
            f"write it like '{path}::/{found[0] if found else 'A'}'",
            path=str(path),
        )
    return found[0]


def _matrices_in(file: Any) -> list[str]:
    """Return the names of all datasets of two dimensions."""
    h5py = load_h5py()
    found: list[str] = []

    def note(name: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset) and each.ndim == 2:
            found.append(name)

    file.visititems(note)
    return found


def _find(file: Any, path: Path, item: str) -> Any:
    h5py = load_h5py()
    try:
        check_links(file, item)
        # Unlike `get`, indexing tells why a dataset cannot be opened.
        found = file[item] if item in file else None  # noqa: SIM401
    except (KeyError, OSError) as error:
        raise InputError(f"cannot open {path}::{item}: {error}", path=str(path)) from error
    if isinstance(found, h5py.Group) and (inside := datasets_in(found)):
        raise InputError(
            f"{path} has no dataset {item!r}, but a group with {', '.join(inside[:20])}: write it "
            f"like '{path}::/{item.strip('/')}/{inside[0]}'",
            path=str(path),
        )
    if not isinstance(found, h5py.Dataset):
        if at_top := datasets_in(file):
            there = f"at its top level are: {', '.join(at_top)}"
        else:
            there = f"its matrices are: {', '.join(_matrices_in(file)[:20]) or 'none'}"
        raise InputError(
            f"{path} has no dataset {item!r}; {there}",
            path=str(path),
        )
    return found


def _from_dataset(dataset: Any, name: str, *, writable: bool, file: Any = None) -> Matrix:
    """Open a dataset at its offsets in its true file where it has such, else through h5py.

    `file` is the file that was opened for it, None for a dataset of the caller's.
    """
    if dataset.ndim != 2:
        raise InputError(f"{name} must be a matrix (2-D), it has shape {dataset.shape}")
    check_read(dataset.dtype, name)
    if dataset.is_virtual or dataset.external:
        return _in_other_files(dataset, name, file, writable=writable)
    path = _file_of(dataset)
    if path is None or (writable and file is None):
        return _through_h5py(dataset, name, file, home=path, writable=writable)
    offset = dataset.id.get_offset() if dataset.chunks is None else None
    if offset is not None or not dataset.size:
        source = _source(dataset)
        opened = BlockFile(path, writable=writable)
        matrix = FileMatrix(opened, dataset.shape, dataset.dtype, offset or 0, source=source)
        matrix.name = name
        return matrix
    if dataset.chunks and not writable:
        filters = _filters(dataset)
        if not filters:
            return _plain_chunks(dataset, name, path)
        if file is not None and (decode := _gzip(filters, dataset)) is not None:
            chunks = ChunkTable(dataset)
            if not chunks.unfiltered:
                return _compressed_chunks(dataset, name, file, path, chunks, decode)
    return _through_h5py(dataset, name, file, home=path, writable=writable)


def _file_of(dataset: Any) -> Path | None:
    """Return the file that holds a dataset, which may be another than the one that links to it;
    None where HDF5 does not keep it as one plain file.
    """
    if dataset.file.driver != "sec2":
        return None
    path = Path(f"/proc/self/fd/{dataset.file.id.get_vfd_handle()}").readlink()
    return path if path.is_file() else None


def _in_other_files(
    dataset: Any, name: str, file: Any, *, writable: bool
) -> FileMatrix | RectangleMatrix:
    """Open a virtual dataset, or one with external storage, all files of which are there.

    Of a missing one, or one that is found from one working directory only, HDF5 would read fill
    values: `InputError`.
    """
    path = Path(dataset.file.filename).absolute()
    if dataset.is_virtual:
        names = {source.file_name for source in dataset.virtual_sources()} - {"."}
        places = [path.parent / one for one in names if "%" not in one]  # % stands for many files
    else:
        places = [Path(one).absolute() for one, _, _ in dataset.external]
    for place in places:
        if not place.exists():
            raise InputError(f"{name} keeps elements in {place}, which is missing")
        check_regular(place)
    if dataset.is_virtual or len(places) > 1 or "HDF5_EXTFILE_PREFIX" in os.environ:
        files = tuple(places) if dataset.external else (*places, path)
        return _through_h5py(dataset, name, file, writable=writable, files=files)
    (_, offset, _), opened = dataset.external[0], BlockFile(places[0], writable=writable)
    return FileMatrix(opened, dataset.shape, dataset.dtype, offset, source=_source(dataset))


def _filters(dataset: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Return the numbers of a dataset's filters and their parameters, in the order of encoding."""
    described = dataset.id.get_create_plist()
    found = [described.get_filter(number) for number in range(described.get_nfilters())]
    return [(number, parameters) for number, _, parameters, _ in found]


def _gzip(filters: list[tuple[int, tuple[int, ...]]], dataset: Any) -> Decode | None:
    """Return the decoder of gzip, with or without shuffle before; None for other filters."""
    filter_numbers, h5z = [number for number, _ in filters], load_h5py().h5z
    if filter_numbers == [h5z.FILTER_DEFLATE]:
        return gzip_decoder(0)
    if filter_numbers != [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE]:
        return None
    size = filters[0][1][0]
    return gzip_decoder(size) if size == dataset.dtype.itemsize else None


def _compressed_chunks(
    dataset: Any,
    name: str,
    opened: Any,
    path: Path,
    chunks: ChunkTable,
    decode: Decode,
) -> CompressedChunks:
    """Open compressed chunks at their offsets in the file, which stays open in h5py, too."""
    file = BlockFile(path)
    # What zlib cannot compress it stores with some bytes of its own.
    most = 2 * math.prod(dataset.chunks) * dataset.dtype.itemsize + _LARGER_ENCODED

    def find(index: tuple[int, int]) -> AbstractContextManager[StoredChunk | None]:
        chunk = chunks.find(index)
        if chunk is None:
            return nullcontext()
        if chunk.nbytes > most:
            raise ValueError(
                f"chunk {index} has {chunk.nbytes} bytes, and none can have over {most}"
            )
        return nullcontext(StoredChunk(file, *chunk))

    def close() -> None:
        file.close()
        with LIBRARY_LOCK:
            dataset.file.close()
            opened.close()

    return CompressedChunks(
        dataset,
        dataset.dtype,
        dataset.fillvalue,
        find,
        decode,
        name=name,
        chunk=dataset.chunks,
        keeps=True,
        source=_source(dataset),
        home=path,
        close=close,
    )


def _plain_chunks(dataset: Any, name: str, path: Path) -> ChunkFiles:
    """Open uncompressed chunks at their offsets in the file."""
    chunks, (high, wide) = ChunkTable(dataset), dataset.chunks
    file = BlockFile(path)
    dtype = dataset.dtype

    def open_chunk(index: tuple[int, int], _stack: ExitStack, _write: bool) -> FileMatrix | None:
        chunk = chunks.find(index)
        return None if chunk is None else FileMatrix(file, (high, wide), dtype, chunk.offset)

    return ChunkFiles(
        name,
        dataset.shape,
        dtype,
        (high, wide),
        dataset.fillvalue,
        open_chunk,
        _source(dataset),
        home=path,
        flush=file.flush,
        close=file.close,
    )


def _through_h5py(
    dataset: Any,
    name: str,
    opened: Any,
    *,
    writable: bool,
    home: Path | None = None,
    files: tuple[Path, ...] = (),
) -> RectangleMatrix:
    """Read and write through h5py; closing the matrix closes `opened`, if given."""

    def flush() -> None:
        with LIBRARY_LOCK:
            dataset.file.flush()
        if home is not None:
            sync_file(home)

    def close() -> None:
        with LIBRARY_LOCK:
            dataset.file.close()
            opened.close()

    matrix = RectangleMatrix(
        dataset,
        name=name,
        chunk=dataset.chunks,
        keeps=not writable,
        lock=LIBRARY_LOCK,
        flush=flush,
        source=_source(dataset),
        close=None if opened is None else close,
        home=home,
    )
    matrix.files = files
    return matrix


def _source(dataset: Any) -> Hashable:
    """Return the identity of a dataset, whatever names lead to it."""
    place = load_h5py().h5o.get_info(dataset.id).addr
    path = _file_of(dataset)
    if path is None:
        return dataset.file.filename, place
    status = path.stat()
    return (status.st_dev, status.st_ino), place
