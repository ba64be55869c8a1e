"""File contents as responses: ranges, conditions, ETags, and rectangles of a matrix."""

from __future__ import annotations

import base64
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import numpy as np
from anyio import CapacityLimiter, to_thread
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.lib.stride_tricks import as_strided
from starlette.responses import Response, StreamingResponse

from hdgemm.matrices.npy import read_header
from hdgemm.server.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

#: Bytes read at once where few contents are read: each read is a turn of a thread. A connection
#: holds two chunks, however slowly its client reads.
_CHUNK: Final = 1 << 20
#: Bytes of the chunks of all contents, one of each. Above it they get smaller, to `_LEAST_CHUNK`.
_ALL_CHUNKS: Final = 64 << 20
_LEAST_CHUNK: Final = 64 << 10
#: Gaps between the lines of a piece that are read with it, in bytes: fewer, larger requests.
_GAP: Final = 4096
#: Threads that read contents: a file system that does not answer must not block all others.
_READERS: Final = CapacityLimiter(32)
#: The largest rectangle that is answered, in bytes.
MAX_PIECE: Final = 64 << 20


def stream_file(request: Request, file: io.FileIO, sha256: str, name: str) -> Response:
    """Answer with a file or a range of it; `file` is closed when the answer ends.

    Raises `ProblemError` 416 for a range outside the file.
    """
    size = os.fstat(file.fileno()).st_size
    etag = f'"{sha256}"'
    digest = base64.b64encode(bytes.fromhex(sha256)).decode()
    shown = f'filename="{name}"' if name.isascii() else f"filename*=UTF-8''{quote(name)}"
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Repr-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": f"attachment; {shown}",
    }
    if _matches(request.headers.get("if-none-match"), etag):
        file.close()
        return Response(status_code=304, headers=headers)
    try:
        wanted = _range(request, etag, size)
    except ProblemError:
        file.close()
        raise
    start, stop = wanted or (0, size)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    status = 200 if wanted is None else 206
    media_type = "application/octet-stream"
    if request.method == "HEAD":
        file.close()
        return Response(status_code=status, headers=headers, media_type=media_type)
    return StreamingResponse(_read(file, _Piece.of(start, stop)), status, headers, media_type)


def stream_bytes(file: io.FileIO, start: int, stop: int, media_type: str) -> Response:
    """Answer with bytes of a file that has no ETag; `file` is closed when the answer ends."""
    headers = {"Content-Length": str(stop - start)}
    return StreamingResponse(
        _read(file, _Piece.of(start, stop)), headers=headers, media_type=media_type
    )


@dataclass(frozen=True)
class _Piece:
    """Bytes of a file at equal distances, as the elements of a rectangle lie.

    Parameters
    ----------
    offset
        Of its first byte in the file.
    lines
        Rows of a row-major matrix, columns of a column-major one.
    width, stride
        Bytes of a line, and from one line to the next.
    """

    offset: int
    lines: int
    width: int
    stride: int

    @classmethod
    def of(cls, start: int, stop: int) -> _Piece:
        """Return contiguous bytes of a file."""
        return cls(start, 1, stop - start, stop - start)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.lines * self.width

    def read(self, fd: int, position: int, most: int) -> bytes:
        """Return its bytes from a position on, at most `most`; fewer where the file ends."""
        line, within = divmod(position, self.width)
        at = self.offset + line * self.stride + within
        if self.stride == self.width:
            return os.pread(fd, min(most, self.size - position), at)
        if within or self.width >= most:
            return os.pread(fd, min(most, self.width - within), at)
        count = min(self.lines - line, most // self.width)
        at_once = max(1, most // self.stride) if self.stride - self.width <= _GAP else 1
        return b"".join(
            self._lines(fd, first, min(at_once, line + count - first))
            for first in range(line, line + count, at_once)
        )

    def _lines(self, fd: int, first: int, count: int) -> bytes:
        """Read lines with the gaps between them, and leave these out."""
        span = (count - 1) * self.stride + self.width
        data = os.pread(fd, span, self.offset + first * self.stride)
        if count == 1 or len(data) < span:
            return data[: self.width]
        found = np.frombuffer(data, np.uint8)
        return as_strided(found, (count, self.width), (self.stride, 1)).tobytes()


class _Streams:
    """Counts the contents that are read; only the event loop's thread enters and leaves."""

    def __init__(self) -> None:
        self._open = 0

    def __enter__(self) -> None:
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1

    @property
    def chunk(self) -> int:
        """Bytes that each of them reads at once."""
        return max(_LEAST_CHUNK, min(_CHUNK, _ALL_CHUNKS // max(1, self._open)))


_STREAMS: Final = _Streams()


async def _read(file: io.FileIO, piece: _Piece, head: bytes = b"") -> AsyncIterator[bytes]:
    with file, _STREAMS:
        if head:
            yield head
        position = 0
        while position < piece.size:
            chunk = await to_thread.run_sync(
                piece.read, file.fileno(), position, _STREAMS.chunk, limiter=_READERS
            )
            if not chunk:
                # Ending short of Content-Length breaks the connection, which the client notices.
                return
            yield chunk
            position += len(chunk)


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags


def _range(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """Return the requested range; several ranges are answered with the whole file."""
    given = request.headers.get("range")
    condition = request.headers.get("if-range")
    if given is None or (condition is not None and condition.strip() != etag):
        return None
    match = re.fullmatch(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", given)
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        start, stop = max(0, size - int(match[2])), size
    else:
        start, stop = int(match[1]), size if match[2] == "" else min(int(match[2]) + 1, size)
    if match[1] and match[2] and int(match[1]) > int(match[2]):
        return None
    if start >= stop:
        raise ProblemError(
            416, "range-not-satisfiable", f"the content has {size} bytes", size=size,
            headers={"Content-Range": f"bytes */{size}"},
        )  # fmt: skip
    return start, stop


def rectangle(request: Request, file: io.FileIO, rows: str | None, cols: str | None) -> Response:
    """Answer with a piece of an open .npy file as one; ``rows=0:10``, None stands for all.

    `file` is closed when the answer ends. Raises `ProblemError` 422 where it is no range of the
    matrix, 413 where it is too large.
    """
    try:
        head, piece = _rectangle(file, rows, cols)
    except BaseException:
        file.close()
        raise
    headers = {"Content-Length": str(len(head) + piece.size)}
    media_type = "application/octet-stream"
    if request.method == "HEAD":
        file.close()
        return Response(headers=headers, media_type=media_type)
    return StreamingResponse(_read(file, piece, head), headers=headers, media_type=media_type)


def _rectangle(file: io.FileIO, rows: str | None, cols: str | None) -> tuple[bytes, _Piece]:
    """Return the header of a rectangle's file, and where its elements lie."""
    header = read_header(Path(f"/proc/self/fd/{file.fileno()}"))
    height, width = header.shape
    row, col = _span(rows, height, "rows"), _span(cols, width, "cols")
    shape, itemsize = (len(row), len(col)), header.dtype.itemsize
    nbytes = shape[0] * shape[1] * itemsize
    if nbytes > MAX_PIECE:
        raise ProblemError(
            413, "piece-too-large", f"the piece has {nbytes} bytes, {MAX_PIECE} are the most",
            requested=nbytes, available=MAX_PIECE,
        )  # fmt: skip
    buffer = io.BytesIO()
    described = {"descr": dtype_to_descr(header.dtype), "fortran_order": header.fortran}
    write_array_header_1_0(buffer, {**described, "shape": shape})
    # Lines of a column-major file are columns.
    line, within, stride = (col, row, height) if header.fortran else (row, col, width)
    offset = header.offset + (line.start * stride + within.start) * itemsize
    piece = _Piece(offset, len(line), len(within) * itemsize, stride * itemsize)
    return buffer.getvalue(), piece


def _span(text: str | None, extent: int, name: str) -> range:
    if text is None:
        return range(extent)
    first, last = (int(part) for part in text.split(":"))
    if not 0 <= first <= last <= extent:
        raise ProblemError(
            422, "bad-span", f"{name}={text} is no range of {extent} {name}", extent=extent
        )
    return range(first, last)
