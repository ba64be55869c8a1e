"""Uploads and downloads of matrices: resumed after interruptions, checked by SHA-256."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import numpy as np

from hdgemm.client._connection import RemoteError
from hdgemm.errors import HdgemmError, InputError, MatrixIOError
from hdgemm.matrices.draft import give_name, real_path, reserve
from hdgemm.matrices.factor_files import remove_described
from hdgemm.matrices.files import space_advice
from hdgemm.matrices.layout import check_read
from hdgemm.matrices.npy import read_header
from hdgemm.matrices.operands import as_array
from hdgemm.tables import is_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.client._connection import Connection
    from hdgemm.matrices.files import BlockFile

_PART: Final = 16 << 20
_ATTEMPTS: Final = 8


@dataclass(frozen=True)
class RemoteMatrix:
    """A matrix on the server.

    Parameters
    ----------
    id
        The server's identifier.

    See Also
    --------
    hdgemm.Client : Its method `upload` returns one.

    Examples
    --------
    >>> with hdgemm.Client("http://127.0.0.1:8000") as client:
    ...     matrix = client.upload(b)
    ...     jobs = [client.submit("A.npy", matrix), client.compute("svdvals", matrix)]
    """

    id: str

    @property
    def reference(self) -> dict[str, str]:
        """How an input of a job names this matrix."""
        return {"matrix": self.id}


@dataclass(frozen=True)
class _Source:
    """A matrix to be uploaded: its name in messages, its description, and its bytes by range."""

    name: str
    description: dict[str, Any]
    size: int
    read: Callable[[int, int], bytes | memoryview]

    def part(self, start: int, stop: int) -> bytes | memoryview:
        """Return a range of its bytes; raise `InputError` where it has become shorter."""
        data = self.read(start, stop)
        if len(data) < stop - start:
            found = start + len(data)
            raise self.changed(f"it has {found} of {self.size} bytes", self.size, found)
        return data

    def changed(self, how: str, expected: int | str, found: int | str) -> InputError:
        """Make the error of a matrix that is not the announced one any more."""
        message = f"{self.name} was changed during the upload: {how}; upload it again"
        return InputError(message, expected=expected, found=found)


@contextmanager
def _opened(matrix: NDArray[Any] | str | os.PathLike[str]) -> Iterator[_Source]:
    if isinstance(matrix, (str, os.PathLike)):
        path = Path(matrix)
        header = read_header(path)
        _check(header.shape, header.dtype, str(path))
        with path.open("rb") as stream:
            fd, size = stream.fileno(), path.stat().st_size
            described = {
                "name": _matrix_name(path),
                "shape": list(header.shape),
                "format": "npy",
                "dtype": header.dtype.name,
                "order": "F" if header.fortran else "C",
                "size": size,
            }
            yield _Source(
                str(path), described, size, lambda start, stop: os.pread(fd, stop - start, start)
            )
        return
    matrix = as_array(matrix, "array")
    _check(matrix.shape, matrix.dtype, "array")
    fortran = matrix.flags.f_contiguous and not matrix.flags.c_contiguous
    stored = matrix.T if fortran else matrix
    flat = np.ascontiguousarray(stored, stored.dtype.newbyteorder("<")).reshape(-1)
    view = flat.view(np.uint8).data
    described = {
        "shape": list(matrix.shape),
        "dtype": matrix.dtype.name,
        "format": "raw",
        "order": "F" if fortran else "C",
    }
    yield _Source("the array", described, view.nbytes, lambda start, stop: view[start:stop])


def _matrix_name(path: Path) -> str:
    """Return a file's name as the service takes it: printable, at most 200 characters."""
    return "".join(each if is_printable(each) else "_" for each in path.name[:200])


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if len(shape) != 2:
        raise InputError(f"{name} must be a matrix (2-D), it has shape {shape}")
    check_read(dtype, name)


def upload(
    connection: Connection,
    matrix: NDArray[Any] | str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
) -> RemoteMatrix:
    """Upload a matrix; bytes that the server already has are not sent again.

    Raises
    ------
    InputError
        `matrix` cannot be uploaded or is changed meanwhile, or the service refuses it.
    RemoteError
        The service cannot be reached; call again to resume.
    """
    with _opened(matrix) as source:
        digest = _digest(source.part, source.size)
        info = _find(connection, source, digest) or _create(connection, source, digest)
        at = f"/v1/matrices/{info['id']}"
        while not info["complete"]:
            for start, stop in _missing(info["received"], source.size):
                data = source.part(start, stop)
                info = connection.request(
                    "PUT",
                    f"{at}/content",
                    content=bytes(data),
                    headers=_part_headers(start, stop, source.size, data),
                ).json()
                if progress is not None:
                    progress(sum(b - a for a, b in info["received"]), source.size)
            info = _complete(connection, at, source)
        return RemoteMatrix(info["id"])


def _digest(read: Callable[[int, int], bytes | memoryview], size: int) -> str:
    hashed = hashlib.sha256()
    for start in range(0, size, _PART):
        hashed.update(read(start, min(start + _PART, size)))
    return hashed.hexdigest()


def _find(connection: Connection, source: _Source, digest: str) -> dict[str, Any] | None:
    found = connection.request("GET", "/v1/matrices", params={"sha256": digest}).json()
    same = ("shape", "dtype", "order", "format")
    known: list[dict[str, Any]] = [
        info
        for info in found["matrices"]
        if all(info[key] == source.description[key] for key in same)
    ]
    return next(iter(sorted(known, key=lambda info: not info["complete"])), None)


def _create(connection: Connection, source: _Source, digest: str) -> dict[str, Any]:
    body = {**source.description, "sha256": digest}
    answer = connection.request("POST", "/v1/matrices", repeatable=False, json=body)
    created: dict[str, Any] = answer.json()
    return created


def _complete(connection: Connection, at: str, source: _Source) -> dict[str, Any]:
    """Let the service check the whole content."""
    try:
        answer = connection.request("POST", f"{at}/complete", timeout=None)
    except InputError as error:
        problem = error.numbers.get("problem", {})
        if problem.get("type") != "/problems/digest-mismatch":
            raise
        how = "the bytes sent have another SHA-256"
        raise source.changed(how, problem["expected"], problem["found"]) from error
    info: dict[str, Any] = answer.json()
    return info


def _missing(received: list[list[int]], size: int) -> Iterator[tuple[int, int]]:
    position = 0
    for first, last in [*received, [size, size]]:
        for start in range(position, first, _PART):
            yield start, min(start + _PART, first)
        position = max(position, last)


def _part_headers(start: int, stop: int, size: int, data: bytes | memoryview) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {
        "Content-Range": f"bytes {start}-{stop - 1}/{size}",
        "Content-Digest": f"sha-256=:{digest}:",
        "Content-Type": "application/octet-stream",
    }


def download(
    connection: Connection,
    path: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Download a .npy file; `out` appears when it is complete and its digest is right.

    A link at `out` stays, and the file that it leads to is replaced. Arrays beside a result have no
    digest; a broken download of one begins again. Of downloads to one `out` at the same time, the
    last one to end stays.

    Raises
    ------
    InputError
        `out` exists and is not a file, or cannot be created.
    MatrixIOError
        The file cannot be written.
    RemoteError
        The service cannot be reached, the connection breaks again and again without progress, or
        the digest is wrong.
    """
    out = real_path(out)
    file = reserve(out, b"", 0)
    try:
        etag = _fetch(connection, path, file, progress)
        if etag:
            _check_digest(file, etag)
        give_name(file, out)
        remove_described(out)
    except HdgemmError:
        raise
    except OSError as error:
        raise MatrixIOError(
            f"cannot write {out}: {error.strerror}{space_advice(out, error)}", path=str(out)
        ) from error
    finally:
        file.close()
        file.path.unlink(missing_ok=True)


def _fetch(
    connection: Connection,
    path: str,
    file: BlockFile,
    progress: Callable[[int, int], None] | None,
) -> str:
    """Download a content into a file, over as many connections as it needs; return its ETag."""
    etag, reached, breaks = "", 0, 0
    while True:
        have = file.size() if etag else 0
        headers = {"Range": f"bytes={have}-", "If-Range": etag} if have else {}
        try:
            with connection.stream(path, headers) as answer:
                etag = str(answer.headers.get("etag", ""))
                _receive(answer, file, have if answer.status_code == 206 else 0, progress)
                return etag
        except httpx.TransportError as error:
            breaks = 1 if file.size() > reached else breaks + 1
            reached = max(reached, file.size())
            if breaks == _ATTEMPTS:
                raise RemoteError(
                    f"the connection broke {breaks} times without progress after {reached} bytes "
                    f"of the download: {error}"
                ) from error


def _receive(
    answer: httpx.Response,
    file: BlockFile,
    have: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Store an answer's bytes in a file, after the `have` bytes that are there."""
    total = have + int(answer.headers["content-length"])
    with open(file.fileno(), "r+b", closefd=False) as stream:
        stream.seek(have)
        stream.truncate()
        for chunk in answer.iter_bytes(1 << 20):
            stream.write(chunk)
            have += len(chunk)
            if progress is not None:
                progress(have, total)


def _check_digest(file: BlockFile, etag: str) -> None:
    fd = file.fileno()
    found = _digest(lambda start, stop: os.pread(fd, stop - start, start), file.size())
    if found != etag.strip('"'):
        raise RemoteError(f"the download has SHA-256 {found}, the service's file has {etag}")
