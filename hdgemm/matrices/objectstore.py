"""Zarr arrays in object stores, ``s3://bucket/store.zarr::A``, through obstore.

An object store renames nothing, so that a new array cannot be written aside. A run claims its name,
writes chunks in their places, and puts the metadata, without which there is no array, last.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError, MatrixIOError, load_extra
from hdgemm.matrices._claim import CLAIM, Claim
from hdgemm.matrices._zarrs import from_zarr, load_zarr
from hdgemm.matrices.draft import Draft
from hdgemm.matrices.layout import check_written
from hdgemm.matrices.zarr_draft import chunk_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike

    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.location import Location

_METADATA = "zarr.json"


def open_objects(place: Location, *, writable: bool = False) -> Matrix:
    """Open an existing array of a store that is named by a URL; raises what `open_location` raises.

    Endpoint, region and credentials come from the usual variables (``AWS_ENDPOINT_URL``,
    ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` …).
    """
    # First: where zarr is missing, too, the extra of object stores, which has both, is named.
    objects = _connect(place.url)
    zarr = load_zarr()
    store = zarr.storage.ObjectStore(objects, read_only=not writable)
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
    """Chunks that are in their places, and metadata that is still here; `claim` makes them ours."""

    def __init__(
        self, place: Location, matrix: Matrix, objects: Any, metadata: bytes, claim: Claim
    ) -> None:
        super().__init__(place.path, place.path, matrix)
        self._place, self._objects, self._metadata = place, objects, metadata
        self._claim = claim

    def _give_name(self) -> None:
        from obstore import exceptions

        if not self._claim.held():
            raise self._error(
                "its claim was removed during the run, so that another run may have "
                "written chunks: compute it again"
            )
        try:
            self._objects.put(_prefix(self._place) + _METADATA, self._metadata, mode="create")
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise self._error(
                "another array has got this name during the run, and is not replaced"
            ) from error
        except Exception as error:
            raise self._error(_first_line(error)) from error

    def _error(self, cause: str) -> MatrixIOError:
        name = self.matrix.name
        return MatrixIOError(
            f"cannot publish {name}: {cause}", path=name, offset=0, length=len(self._metadata)
        )

    def _settle(self) -> None:
        """Remove the claim: what the store has taken is durable."""
        # The array is complete, and with its metadata there no run needs the claim.
        with suppress(Exception):
            self._claim.release()

    def _remove(self) -> None:
        """Remove the chunks, unless another run may have written some of them."""
        # Where the store fails, the claim stays and tells the next run about the chunks.
        with suppress(Exception):
            if self._claim.held() and not _there(self._objects, self._place):
                self._objects.delete(_chunks(self._objects, self._place))
            self._claim.release()


def create_objects(
    place: Location, shape: tuple[int, int], dtype: DTypeLike, journal: Path | None = None
) -> Draft[Matrix]:
    """Begin a new uncompressed array (format 3) that readers find when it is published.

    With the `journal` of a durable run, the run goes on with the chunks that are there.
    `InputError` for a name that is taken: the old array could not be kept until the new one is
    complete; and for one that another run writes.
    """
    check_written(dtype, str(place))
    objects = _connect(place.url)
    _refuse_existing(objects, place)
    claim = Claim(objects, _prefix(place) + CLAIM, str(place), journal)
    try:
        _refuse_existing(objects, place)  # the run that had the claim before may have published
        if not journal:
            _clear(objects, place, inherited=claim.inherited)
        matrix, metadata = _unpublished(objects, place, shape, dtype)
    except BaseException:
        claim.release()
        raise
    return _ObjectsDraft(place, matrix, objects, metadata, claim)


def _clear(objects: Any, place: Location, *, inherited: bool) -> None:
    """Remove the chunks of the run that a claim was inherited from; refuse all others."""
    chunks = _chunks(objects, place)
    if chunks and not inherited:
        raise InputError(
            f"chunks of an array without metadata lie at {place}: {len(chunks)}, the first one "
            f"{chunks[0]}; delete them, or choose another name",
            path=str(place),
        )
    with _reached(place):
        objects.delete(chunks)


def open_unpublished(place: Location, shape: tuple[int, int], dtype: DTypeLike) -> Matrix:
    """Open an array for writing that another process has begun with `create_objects`."""
    return _unpublished(_connect(place.url), place, shape, dtype)[0]


def _unpublished(
    objects: Any, place: Location, shape: tuple[int, int], dtype: DTypeLike
) -> tuple[Matrix, bytes]:
    """Return an array that has no metadata in its store yet, and that metadata."""
    zarr = load_zarr()
    held = zarr.storage.MemoryStore()
    # All chunks will be written, so that none of them is the fill value's.
    made = zarr.create_array(
        store=held,
        name=place.item or None,
        shape=shape,
        chunks=chunk_of(shape),
        dtype=check_written(dtype, str(place)),
        compressors=None,
        fill_value=0,
        config={"write_empty_chunks": True},
    )
    there = zarr.storage.StorePath(zarr.storage.ObjectStore(objects), place.item)
    array = zarr.Array(zarr.AsyncArray(made.metadata, there, config=made.async_array.config))
    matrix = from_zarr(array, str(place), writable=True, source=(place.url, place.item))
    return matrix, _metadata(made)


def _prefix(place: Location) -> str:
    return f"{place.item}/" if place.item else ""


def _chunks(objects: Any, place: Location) -> list[str]:
    """Return the names of the objects that are chunks of an array of format 3, by their names."""
    prefix = _prefix(place)
    name = re.compile(rf"{re.escape(prefix)}c/\d+/\d+")
    with _reached(place):
        pages = objects.list(prefix + "c/")
        return [entry["path"] for page in pages for entry in page if name.fullmatch(entry["path"])]


@contextmanager
def _reached(place: Location) -> Iterator[None]:
    """Turn an error of the store into `InputError`; obstore's errors have no common base class."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot reach {place}: {_first_line(error)}", path=str(place)) from error


def _refuse_existing(objects: Any, place: Location) -> None:
    if _there(objects, place):
        raise InputError(
            f"{place} exists, and an object store cannot replace an array as a whole: delete it, "
            "or choose another name",
            path=str(place),
        )


def _metadata(array: Any) -> bytes:
    from zarr.core.buffer import default_buffer_prototype

    content = array.metadata.to_buffer_dict(default_buffer_prototype())
    metadata: bytes = content[_METADATA].to_bytes()
    return metadata


def _there(objects: Any, place: Location) -> bool:
    with _reached(place):
        return any(
            entry["path"].rsplit("/", 1)[-1] in (_METADATA, ".zarray", ".zgroup")
            for entry in objects.list_with_delimiter(_prefix(place))["objects"]
        )


def objects_state(place: Location) -> tuple[int, int]:
    """Return the bytes of all objects of an array, and when the last one was changed, in ns."""
    size, changed = 0, 0
    with _reached(place):
        for page in _connect(place.url).list(f"{place.item}/" if place.item else None):
            size += sum(entry["size"] for entry in page)
            latest = max((entry["last_modified"].timestamp() for entry in page), default=0.0)
            changed = max(changed, int(latest * 1e9))
    return size, changed
