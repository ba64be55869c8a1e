"""One part of an upload: bytes that are durable already are compared, new ones written."""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import re
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hdgemm.server.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hdgemm.server.tables import StoredMatrix


def part_range(headers: Mapping[str, str], size: int) -> tuple[int, int]:
    """Return the first byte and the end of the part that a request contains.

    Raises `ProblemError` 400 for a Content-Range that cannot be read, 416 for one outside the
    content, 413 for a body that is longer than its part.
    """
    given = headers.get("content-range")
    start, stop = 0, size
    if given is not None:
        match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", given)
        if match is None or int(match[1]) > int(match[2]):
            raise ProblemError(
                400, "bad-content-range", "Content-Range must look like 'bytes 0-1048575/8000000'"
            )
        start, stop = int(match[1]), int(match[2]) + 1
        if stop > size or match[3] not in {str(size), "*"}:
            raise ProblemError(
                416, "range-not-satisfiable", f"the content has {size} bytes", size=size,
                headers={"Content-Range": f"bytes */{size}"},
            )  # fmt: skip
    length = headers.get("content-length")
    if length is not None and length.isdigit() and int(length) != stop - start:
        raise ProblemError(
            413 if int(length) > stop - start else 400, "length-mismatch",
            f"the body has {length} bytes, its part {stop - start}",
            expected=stop - start, got=int(length), headers={"Connection": "close"},
        )  # fmt: skip
    return start, stop


def announced_digest(headers: Mapping[str, str]) -> bytes | None:
    """Return the SHA-256 of the part that `Content-Digest` (RFC 9530) announces."""
    given = headers.get("content-digest")
    if given is None:
        return None
    match = re.fullmatch(r"sha-256=:([A-Za-z0-9+/]{43}=):", given.strip())
    try:
        if match is not None:
            return base64.b64decode(match[1], validate=True)
    except binascii.Error:
        pass
    raise ProblemError(400, "bad-digest", "Content-Digest must look like 'sha-256=:<base64>:'")


@contextmanager
def no_writers(path: Path) -> Iterator[Path]:
    """Exclude all `PartWriter` objects of a matrix's file, in every process, while it is checked.

    Yields a name of the open file, which a deletion of the matrix does not remove. Raises
    `ProblemError` 409 while a part is being written, 404 when the file was deleted.
    """
    fd = open_content(path)
    try:
        _lock(fd, fcntl.F_RDLCK, 0, 0)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def open_content(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a matrix's file; raise a 404 when the matrix was deleted meanwhile."""
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProblemError(404, "no-such-matrix", f"there is no matrix {path.stem}") from None


def _lock(fd: int, kind: int, start: int, length: int) -> None:
    """Lock bytes of a file for this open file description; length 0 stands for all that follow."""
    lock = struct.pack("hhqqi0q", kind, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        raise ProblemError(
            409,
            "part-in-flight",
            "another request is sending, or checking, a part of these bytes",
            headers={"Retry-After": "1"},
        ) from None


class PartWriter:
    """Writes one part of an upload into a matrix's file.

    An open-file-description lock on the part's bytes excludes all other writers and `no_writers`,
    in this process, in others and on other machines; it ends when the file is closed or the process
    dies. The matrix's state and its durable ranges must be read while the lock is held: before it,
    another request may complete the matrix, or acknowledge other bytes.

    Parameters
    ----------
    start, stop
        The part's bytes within the content.
    digest
        The SHA-256 that the part must have; None for a part that is not hashed.
    """

    def __init__(
        self, path: Path, matrix: StoredMatrix, start: int, stop: int, digest: bytes | None = None
    ) -> None:
        self._fd = open_content(path, os.O_RDWR)
        self._matrix = matrix
        self._digest = digest
        self._hash = hashlib.sha256()
        self._durable: list[tuple[int, int]] = []
        self.start, self.stop, self.position = start, stop, start
        try:
            if start < stop:
                _lock(self._fd, fcntl.F_WRLCK, matrix.offset + start, stop - start)
        except BaseException:
            os.close(self._fd)
            raise

    def knows(self, durable: list[tuple[int, int]]) -> Self:
        """Set the durable ranges, which are compared and never written again."""
        self._durable = durable
        return self

    def feed(self, data: bytes | bytearray) -> None:
        """Write the part's next bytes.

        Raises `ProblemError` 413 for more bytes than the part has, 409 where acknowledged bytes
        differ.
        """
        if self.position + len(data) > self.stop:
            raise ProblemError(
                413,
                "part-too-long",
                f"the part has {self.stop - self.start} bytes",
                headers={"Connection": "close"},
            )
        if self._digest is not None:
            self._hash.update(data)
        view = memoryview(data)
        for first, last, durable in self._pieces(len(data)):
            piece = view[first - self.position : last - self.position]
            offset = self._matrix.offset + first
            if not durable:
                _write_all(self._fd, piece, offset)
            elif os.pread(self._fd, len(piece), offset) != piece:
                raise ProblemError(
                    409,
                    "part-differs",
                    f"bytes {first} to {last} were acknowledged before, with another content",
                )
        self.position += len(data)

    def _pieces(self, length: int) -> Iterator[tuple[int, int, bool]]:
        position, end = self.position, self.position + length
        for start, stop in self._durable:
            if stop <= position or start >= end:
                continue
            if position < start:
                yield position, start, False
                position = start
            yield position, min(stop, end), True
            position = min(stop, end)
        if position < end:
            yield position, end, False

    def check(self) -> None:
        """Raise a 400 for a body that is too short, a 422 for one with another digest."""
        if self.position != self.stop:
            raise ProblemError(
                400,
                "body-too-short",
                f"the part has {self.stop - self.start} bytes, {self.position - self.start} came",
            )
        if self._digest is not None and self._hash.digest() != self._digest:
            raise ProblemError(
                422, "digest-mismatch", "the part's SHA-256 is not the announced one"
            )

    def sync(self) -> None:
        """Make the written bytes durable."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        os.close(self._fd)


def _write_all(fd: int, piece: memoryview, offset: int) -> None:
    try:
        while piece:
            written = os.pwrite(fd, piece, offset)
            piece, offset = piece[written:], offset + written
    except OSError as error:
        raise ProblemError(507, "disk-full", f"cannot write: {error.strerror}") from error
