"""Locations of matrices: a file or store, its format, and the item in it."""

# ruff: noqa: ARG002  (a method has the parameters that some format needs)

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices._raw import RawLayout, parse_layout
from hdgemm.matrices.draft import Draft, real_path
from hdgemm.matrices.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import DTypeLike, NDArray

    from hdgemm.matrices.base import Matrix

#: Errors of a path at which there is nothing.
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
#: Suffixes of formats that hdgemm does not write, and of raw files, which need a layout.
_OTHER_SUFFIXES: Final = frozenset(
    {
        ".npz",
        ".csv",
        ".tsv",
        ".txt",
        ".mat",
        ".mtx",
        ".nc",
        ".parquet",
        ".arrow",
        ".feather",
        ".pkl",
        ".json",
        ".zip",
        ".gz",
        ".bin",
        ".raw",
        ".dat",
        ".png",
        ".html",
    }
)
#: Object stores that are reached by a URL; a `Path` of one has lost a slash.
_URL: Final = re.compile(r"(?P<scheme>s3|gs|az):/+(?P<rest>[^/:].*?)(::(?P<item>.*))?")
#: Other texts that begin like a URL, and URLs of object stores without a bucket.
_NO_FILE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*|(s3|gs|az):/*")


class MatrixSpec(NamedTuple):
    """A matrix to be created; the fields are parameters of `create_matrix`."""

    shape: tuple[int, int]
    dtype: DTypeLike
    order: str
    part: Path | None
    sparse: bool
    beside: Collection[str] = ()


class Format(ABC):
    """A format of stored matrices: facts that the rest of the package asks for, and the functions
    that open and create a matrix.

    A new format is a subclass with `name`, `open` and `create`, an instance of which is given to
    `register`. All else is by default as in a file that is one row-major matrix.
    """

    #: The name in journals and in `Location.format`.
    name: ClassVar[str]
    #: Suffixes of its files and stores, in lower case.
    suffixes: ClassVar[frozenset[str]] = frozenset()
    #: The first bytes of its files, by which a file of any suffix is recognised; b"" for none.
    magic: ClassVar[bytes] = b""
    #: Whether the whole file is the matrix, which a rename replaces; else it is an item of a store.
    whole_file: ClassVar[bool] = True
    #: Whether each item is a folder of its own, so that several runs may write one store.
    item_folders: ClassVar[bool] = False
    #: Whether a new matrix is stored in the order that is asked for, ``"C"`` or ``"F"``.
    takes_order: ClassVar[bool] = False
    #: Whether the file states shape and dtype.
    has_header: ClassVar[bool] = True
    #: Whether one item can be read while another of the same file is written.
    shared: ClassVar[bool] = True

    def recognises(self, path: Path, start: bytes) -> bool:
        """Say whether a path without a known suffix has this format; `start` is the beginning of
        the file, b"" where it is none.
        """
        return bool(self.magic) and start.startswith(self.magic)

    def check_item(self, whole: str, path: Path, item: str) -> None:
        """Raise `InputError` for an item that this format does not have, or needs."""
        if item:
            raise InputError(
                f"cannot read {whole!r}: what follows '::' is a dataset of a .h5 file, an array of "
                "a .zarr store, or a raw layout like '2000x3000:float64'"
            )

    def refuses_suffix(self, suffix: str) -> bool:
        """Say whether a new file under this suffix would be taken for another format's."""
        return self.whole_file and suffix in _OTHER_SUFFIXES - self.suffixes

    def order(self, place: Location, asked: str) -> str:
        """Return the order of a new matrix."""
        return asked if self.takes_order else "C"

    def chunk(self, shape: tuple[int, int]) -> tuple[int, int] | None:
        """Return the chunk of a new matrix; None for a format without chunks."""
        return None

    def holds_matrix(self, place: Location) -> bool:
        """Say whether a file or store that exists holds this matrix."""
        return True

    def holds_vector(self, place: Location) -> bool:
        """Say whether the stored matrix has one dimension only."""
        return False

    def own_path(self, place: Location) -> Path:
        """Return the file that holds the matrix, or the folder that it has of its own."""
        return place.path / place.item if self.item_folders else place.path

    def identity(self, place: Location) -> dict[str, Any]:
        """Return the fields by which a journal tells this location from others of the same path."""
        return {"format": self.name, "item": place.item, "layout": []}

    @abstractmethod
    def open(self, place: Location, *, writable: bool = False) -> tuple[Matrix, bool]:
        """Open an existing matrix; return it row-major, and whether that is its transpose."""

    @abstractmethod
    def create(self, place: Location, spec: MatrixSpec) -> Draft[Any]:
        """Begin a new matrix; raises what `hdgemm.matrices.stores.create_matrix` raises."""

    def check_new(  # noqa: B027 - files need none
        self, place: Location, *, durable: bool, beside: Collection[str] = ()
    ) -> None:
        """Raise the `InputError` of `create` for an item of a store; nothing is written.

        With `durable`, a durable run makes the matrix.
        """

    def reopen(self, place: Location, part: Path) -> Draft[Any]:
        """Resume a draft that another process began with `create` and this `part`."""
        there = replace(place, path=part)
        matrix, flipped = self.open(there, writable=True)
        matrix.opened_from = there, flipped
        return Draft(real_path(place.path), part, matrix, trans=flipped)

    def map(self, place: Location) -> NDArray[Any] | None:
        """Map a whole matrix into memory for reading; None for a format that NumPy cannot map."""
        return None

    def take(self, x: Any, what: str, *, writable: bool) -> Matrix | None:
        """Take an object of the format's library, such as an h5py dataset; None for any other."""
        return None


class _Register(dict[str, Format]):
    """The formats by their names."""

    def __missing__(self, name: str) -> Format:
        raise InputError(f"unknown format {name!r}; known are {', '.join(self)}")


_FORMATS: Final = _Register()


def register(added: Format) -> None:
    """Add a format; its name and suffixes belong to no other one."""
    for known in _FORMATS.values():
        if known.name == added.name or known.suffixes & added.suffixes:
            raise InputError(f"the format {known.name} has this name or suffix already")
    _FORMATS[added.name] = added


def formats() -> Iterable[Format]:
    """Return all formats."""
    return _FORMATS.values()


def format_named(name: str) -> Format:
    """Return a format; `InputError` where none has this name."""
    return _FORMATS[name]


@dataclass(frozen=True, slots=True)
class Location:
    """The file or store, the format, and the item in it.

    `path` is the file, or the folder of a Zarr store; it is made absolute, so that a later change
    of the working directory does not matter. `format` is a name, `kind` the format itself. `item`
    is the dataset or array inside, ``""`` for a store that is one array. `raw` is the layout of a
    raw file, `url` the address of the object store that holds a Zarr store, ``""`` for a local one.
    """

    path: Path
    format: str = "npy"
    item: str = ""
    raw: RawLayout | None = None
    url: str = ""

    def __post_init__(self) -> None:
        if not self.url:
            object.__setattr__(self, "path", Path(os.path.abspath(self.path)))  # noqa: PTH100

    def __str__(self) -> str:
        name = self.url or str(self.path)
        return f"{name}::{self.item}" if self.item else name

    @property
    def kind(self) -> Format:
        """The format, which answers for all that depends on it."""
        return _FORMATS[self.format]

    def check_suffix(self) -> None:
        """Raise `InputError` for a matrix that would be created under another format's suffix, or
        for an item of a store with one colon before its name, or for a file among a store's.
        """
        kind = self.kind
        if kind.whole_file:
            self._check_colons()
            self._check_folders()
        if kind.refuses_suffix(self.path.suffix.lower()):
            stem = self.path.with_suffix("")
            raise InputError(
                f"{self.path} has the suffix of another format: write "
                f"{stem}.npy, {stem}.h5::/C, {stem}.zarr::C or {stem}.bin::ROWSxCOLS:DTYPE"
            )

    def _check_colons(self) -> None:
        for each in _FORMATS.values():
            for suffix in () if each.whole_file else each.suffixes:
                store, colon, item = str(self.path).partition(f"{suffix}:")
                if colon:
                    raise InputError(
                        f"{self.path} is no item of {store}{suffix}: write two colons before its "
                        f"name, {store}{suffix}::{item}"
                    )

    def _check_folders(self) -> None:
        for folder in self.path.absolute().parents:
            if is_store(folder):
                raise InputError(
                    f"{self.path} lies among the files of the store {folder}: choose another "
                    f"folder, or an array of the store, {folder}::NAME"
                )

    def holds_matrix(self) -> bool:
        """Say whether a matrix is stored there; False for object stores, which replace none."""
        return not self.url and self.path.exists() and self.kind.holds_matrix(self)


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
            f"a location is a path or a text, not {type(text).__name__}"
        ) from error
    try:
        return _parse(whole)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{whole!r} is no usable path: {reason}", path=whole) from error


def _parse(whole: str) -> Location:
    if "\0" in whole:
        raise ValueError("it has a null character")
    if (match := _URL.fullmatch(whole)) and not Path(whole).exists():
        url = f"{match['scheme']}://{match['rest'].rstrip('/')}"
        return Location(Path(url), "zarr", (match["item"] or "").strip("/"), url=url)
    if _NO_FILE.fullmatch(whole) and not Path(whole).exists():
        raise InputError(
            f"{whole!r} is no location: a URL names a bucket and a Zarr store in it, like "
            "s3://bucket/store.zarr::A (or gs://, az://); files are named by their path alone"
        )
    name, separator, item = whole.rpartition("::")
    if not separator or Path(whole).exists():
        name, item = whole, ""
    path = Path(name)
    _check_usable(path)
    if item and (layout := parse_layout(item, whole)):
        return Location(path, "raw", raw=layout)
    if {".", ".."} & set(item.split("/")):
        raise InputError(f"{whole} names an item with '.' or '..': write its path from the top")
    kind = format_at(path)
    kind.check_item(whole, path, item)
    return Location(path, kind.name, item.strip("/"))


def _check_usable(path: Path) -> None:
    """Raise OSError for a name that is too long, or a folder that may not be read.

    `Path.exists` did so before Python 3.14.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno not in _MISSING:
            raise


def format_at(path: Path) -> Format:
    """Return the format by the suffix, else by the first bytes of a file or a folder's names."""
    suffix = path.suffix.lower()
    for each in _FORMATS.values():
        if suffix in each.suffixes:
            return each
    start = b""
    if path.is_file():
        with os.fdopen(open_regular(path), "rb") as stream:
            start = stream.read(max(len(each.magic) for each in _FORMATS.values()))
    found = (each for each in _FORMATS.values() if each.recognises(path, start))
    return next(found, _FORMATS["npy"])


def is_store(path: Path) -> bool:
    """Say whether a folder belongs to a store of some format."""
    return any(each.recognises(path, b"") for each in _FORMATS.values())


def items_beside(place: Any, places: Iterable[Location]) -> set[str]:
    """Return the items of `places` that lie in the same file or store as a location."""
    if not isinstance(place, Location):
        return set()
    own = place.path.resolve()
    return {each.item for each in places if each.item and each.path.resolve() == own}
