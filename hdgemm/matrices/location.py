"""Locations of matrices: a file or store, and the item in it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices.files import open_regular
from hdgemm.matrices.raw import RawLayout, parse_layout

Format = Literal["npy", "raw", "hdf5", "zarr"]
_SUFFIXES: Final[dict[str, Format]] = {
    ".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".he5": "hdf5",
    ".zarr": "zarr",
}  # fmt: skip
#: Suffixes of formats that hdgemm does not write, and of raw files, which need a layout.
_OTHER_SUFFIXES: Final = frozenset({
    ".npz", ".csv", ".tsv", ".txt", ".mat", ".mtx", ".nc", ".parquet", ".arrow", ".feather", ".pkl",
    ".json", ".zip", ".gz", ".bin", ".raw", ".dat", ".png", ".html",
})  # fmt: skip
#: Object stores that are reached by a URL; a `Path` of one has lost a slash.
_URL: Final = re.compile(r"(?P<scheme>s3|gs|az):/+(?P<rest>[^/].*?)(::(?P<item>.*))?")


@dataclass(frozen=True, slots=True)
class Location:
    """The file or store, the format, and the item in it.

    `path` is the file, or the folder of a Zarr store; it is made absolute, so that a later change
    of the working directory does not matter. `item` is the dataset or array inside, ``""`` for a
    store that is one array. `raw` is the layout of a raw file, `url` that of the object store that
    holds a Zarr store, ``""`` for a local one.
    """

    path: Path
    format: Format = "npy"
    item: str = ""
    raw: RawLayout | None = None
    url: str = ""

    def __post_init__(self) -> None:
        if not self.url:
            object.__setattr__(self, "path", Path(os.path.abspath(self.path)))  # noqa: PTH100

    def __str__(self) -> str:
        name = self.url or str(self.path)
        return f"{name}::{self.item}" if self.item else name

    def check_suffix(self) -> None:
        """Raise `InputError` for a matrix that would be created under another format's suffix."""
        suffix = self.path.suffix.lower()
        others = _SUFFIXES if self.format == "raw" else _OTHER_SUFFIXES
        if self.format in ("npy", "raw") and suffix in others:
            stem = self.path.with_suffix("")
            raise InputError(
                f"{self.path} has the suffix of another format: write "
                f"{stem}.npy, {stem}.h5::/C, {stem}.zarr::C or {stem}.bin::ROWSxCOLS:DTYPE"
            )

    def holds_matrix(self) -> bool:
        """Say whether a matrix is stored there; False for object stores, which replace none."""
        if self.url or not self.path.exists():
            return False
        if self.format == "zarr":
            return any((self.path / self.item / name).exists() for name in ("zarr.json", ".zarray"))
        if self.format == "hdf5":
            from hdgemm.matrices.hdf5 import load_h5py

            with load_h5py().File(self.path, "r") as file:
                return self.item in file
        return True


def parse_location(text: str | os.PathLike[str] | Location) -> Location:
    """Read a name such as ``A.npy``, ``file.h5::/group/A``, ``store.zarr::A`` or
    ``A.bin::2000x3000:float64``, or ``s3://bucket/store.zarr::A``; `InputError` for others.

    Raw files take ``ROWSxCOLS:DTYPE``, then ``:F`` for column-major ones and ``:BYTES`` for what to
    skip at the start: ``A.bin::2000x3000:>f4:F:512``. A file that has the whole text for its name
    is that file.
    """
    if isinstance(text, Location):
        return text
    try:
        whole = os.fsdecode(text)
    except TypeError as error:
        raise InputTypeError(
            f"a location is a path or a text, not a {type(text).__name__}"
        ) from error
    try:
        return _parse(whole)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{whole!r} is no usable path: {error}", path=whole) from error


def _parse(whole: str) -> Location:
    if "\0" in whole:
        raise ValueError("it has a null character")
    if (match := _URL.fullmatch(whole)) and not Path(whole).exists():
        url = f"{match['scheme']}://{match['rest'].rstrip('/')}"
        return Location(Path(url), "zarr", (match["item"] or "").strip("/"), url=url)
    name, separator, item = whole.rpartition("::")
    if not separator or Path(whole).exists():
        name, item = whole, ""
    path = Path(name)
    path.exists()  # raises for a name that is too long, or a folder that may not be read
    if item and (layout := parse_layout(item, whole)):
        return Location(path, "raw", raw=layout)
    if {".", ".."} & set(item.split("/")):
        raise InputError(f"{whole} names an item with '.' or '..': write its path from the top")
    kind = _format(path)
    if kind == "hdf5" and not item.strip("/"):
        raise InputError(f"{whole} names no dataset; write it like '{path}::/group/A'")
    if kind == "npy" and item:
        raise InputError(
            f"cannot read {whole!r}: what follows '::' is a dataset of a .h5 file, an array of a "
            ".zarr store, or a raw layout like '2000x3000:float64'"
        )
    return Location(path, kind, item.strip("/"))


def _format(path: Path) -> Format:
    """Return a format by the suffix, else by the first bytes of a file or the names in a folder."""
    if kind := _SUFFIXES.get(path.suffix.lower()):
        return kind
    if any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup")):
        return "zarr"
    if path.is_file():
        with os.fdopen(open_regular(path), "rb") as stream:
            if stream.read(8) == b"\x89HDF\r\n\x1a\n":
                return "hdf5"
    return "npy"
