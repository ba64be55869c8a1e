"""Zarr arrays in object stores, ``s3://bucket/store.zarr::A``, through obstore.

An object store renames nothing, so that a new array cannot be written aside. Its chunks are
written in their places, and its metadata, without which there is no array, last.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError, MatrixIOError, load_extra
from hdgemm.matrices.draft import Draft
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.zarr_draft import chunk_of
from hdgemm.matrices.zarrs import from_zarr, load_zarr

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.location import Location

_METADATA = "zarr.json"


def open_objects(place: Location, *, writable: bool = False) -> Matrix:
    """Open an existing array of a store that is named by a URL; errors as of `open_location`.

    Endpoint, region and credentials come from the usual variables (``AWS_ENDPOINT_URL``,
    ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` …).
    """
    zarr = load_zarr()
    store = zarr.storage.ObjectStore(_connect(place.url), read_only=not writable)
    try:
        array = zarr.open_array(store=store, path=place.item, mode="r+" if writable else "r")
    except Exception as error:
        # obstore's errors have no common base class.
        raise InputError(
            f"cannot open {place} as a Zarr array: {_first_line(error)}", path=str(place)
        ) from error
    return from_zarr(array, str(place), writable=writable, source=(place.url, place.item))


def _first_line(error: Exception) -> str:
    """Return the message of one of obstore's errors without its source, which takes many lines."""
    return str(error).partition("\n")[0]


def _connect(url: str) -> Any:
    store = load_extra("obstore.store", f"{url} needs obstore", "s3")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    plain = url.startswith("s3") and endpoint.startswith("http://")
    settings: dict[str, Any] = {"endpoint": endpoint} if url.startswith("s3") and endpoint else {}
    try:
        return store.from_url(url, client_options={"allow_http": plain}, **settings)
    except Exception as error:
        raise InputError(f"cannot reach {url}: {_first_line(error)}", path=url) from error


class _ObjectsDraft(Draft["Matrix"]):
    """Chunks that are in their places, and metadata that is still here."""

    def __init__(self, place: Location, matrix: Matrix, objects: Any, metadata: bytes) -> None:
        super().__init__(place.path, place.path, matrix)
        self._objects, self._metadata = objects, metadata
        self._prefix = f"{place.item}/" if place.item else ""

    def _give_name(self) -> None:
        try:
            self._objects.put(self._prefix + _METADATA, self._metadata)
        except Exception as error:
            raise MatrixIOError(
                f"cannot publish {self.matrix.name}: {_first_line(error)}",
                path=self.matrix.name, offset=0, length=len(self._metadata),
            ) from error  # fmt: skip

    def _settle(self) -> None:
        """Do nothing: what the store has taken is durable."""

    def _remove(self) -> None:
        for page in self._objects.list(self._prefix + "c/"):
            self._objects.delete([entry["path"] for entry in page])


def create_objects(place: Location, shape: tuple[int, int], dtype: DTypeLike) -> Draft[Matrix]:
    """Begin a new uncompressed array (format 3) that readers find when it is published.

    `InputError` for a name that is taken: the old array could not be kept until the new one is
    complete.
    """
    zarr = load_zarr()
    stored = check_dtype(dtype, str(place))
    objects = _connect(place.url)
    if _there(objects, place):
        raise InputError(
            f"{place} exists, and an object store cannot replace an array as a whole: delete it, "
            "or choose another name", path=str(place),
        )  # fmt: skip
    held = zarr.storage.MemoryStore()
    # All chunks will be written, so that none of them is the fill value's.
    made = zarr.create_array(
        store=held, name=place.item or None, shape=shape, chunks=chunk_of(shape), dtype=stored,
        compressors=None, fill_value=0, config={"write_empty_chunks": True},
    )  # fmt: skip
    metadata = _metadata(made)
    there = zarr.storage.StorePath(zarr.storage.ObjectStore(objects), place.item)
    array = zarr.Array(zarr.AsyncArray(made.metadata, there, config=made.async_array.config))
    matrix = from_zarr(array, str(place), writable=True, source=(place.url, place.item))
    return _ObjectsDraft(place, matrix, objects, metadata)


def _metadata(array: Any) -> bytes:
    from zarr.core.buffer import default_buffer_prototype

    content = array.metadata.to_buffer_dict(default_buffer_prototype())
    metadata: bytes = content[_METADATA].to_bytes()
    return metadata


def _there(objects: Any, place: Location) -> bool:
    prefix = f"{place.item}/" if place.item else ""
    try:
        return any(
            entry["path"].rsplit("/", 1)[-1] in (_METADATA, ".zarray", ".zgroup")
            for entry in objects.list_with_delimiter(prefix)["objects"]
        )
    except Exception as error:
        raise InputError(f"cannot reach {place}: {_first_line(error)}", path=str(place)) from error


def objects_state(place: Location) -> tuple[int, int]:
    """Return the bytes of all objects of an array, and when the last one was changed, in ns."""
    size, changed = 0, 0
    try:
        for page in _connect(place.url).list(f"{place.item}/" if place.item else None):
            size += sum(entry["size"] for entry in page)
            latest = max((entry["last_modified"].timestamp() for entry in page), default=0.0)
            changed = max(changed, int(latest * 1e9))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot reach {place}: {_first_line(error)}", path=str(place)) from error
    return size, changed
