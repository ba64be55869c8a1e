"""File contents as responses: ranges, conditions, ETags, and rectangles of a matrix."""

from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.responses import Response, StreamingResponse

from hdgemm.matrices.npy import read_header
from hdgemm.server.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

_CHUNK: Final = 1 << 20
#: Threads that read contents: a file system that does not answer must not block all others.
_READERS: Final = CapacityLimiter(32)
#: The largest piece that is answered at once, in bytes.
MAX_PIECE: Final = 64 << 20


def stream_file(request: Request, file: io.FileIO, sha256: str, name: str) -> Response:
    """Answer with a file or a range of it; `file` is closed when the answer ends.

    Raises `ProblemError` 416 for a range outside the file.
    """
    size = os.fstat(file.fileno()).st_size
    etag = f'"{sha256}"'
    digest = base64.b64encode(bytes.fromhex(sha256)).decode()
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Repr-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": f'attachment; filename="{name}"',
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
    return StreamingResponse(_read(file, start, stop), status, headers, media_type)


async def _read(file: io.FileIO, start: int, stop: int) -> AsyncIterator[bytes]:
    with file:
        while start < stop:
            length = min(_CHUNK, stop - start)
            chunk = await to_thread.run_sync(
                os.pread, file.fileno(), length, start, limiter=_READERS
            )
            if not chunk:
                # Ending short of Content-Length breaks the connection, which the client notices.
                return
            yield chunk
            start += len(chunk)


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


def rectangle(file: io.FileIO, rows: str | None, cols: str | None) -> Response:
    """Answer with a piece of an open .npy file as one; ``rows=0:10``, None stands for all.

    Raises `ProblemError` 422 where it is no range of the matrix, 413 where it is too large to be
    answered at once.
    """
    with file:
        header = read_header(Path(f"/proc/self/fd/{file.fileno()}"))
        height, width = header.shape
        row, col = _span(rows, height, "rows"), _span(cols, width, "cols")
        extents = (row.stop - row.start, col.stop - col.start)
        nbytes = extents[0] * extents[1] * header.dtype.itemsize
        if nbytes > MAX_PIECE:
            raise ProblemError(
                413, "piece-too-large", f"the piece has {nbytes} bytes, {MAX_PIECE} are the most",
                requested=nbytes, available=MAX_PIECE,
            )  # fmt: skip
        order: Literal["C", "F"] = "F" if header.fortran else "C"
        found = np.empty(extents, header.dtype, order)
        if nbytes:
            matrix = np.memmap(file, header.dtype, "r", header.offset, header.shape, order)
            found[:] = matrix[row, col]
    buffer = io.BytesIO()
    np.save(buffer, found)
    return Response(buffer.getvalue(), media_type="application/octet-stream")


def _span(text: str | None, extent: int, name: str) -> slice:
    if text is None:
        return slice(0, extent)
    first, last = (int(part) for part in text.split(":"))
    if not 0 <= first <= last <= extent:
        raise ProblemError(
            422, "bad-span", f"{name}={text} is no range of {extent} {name}", extent=extent
        )
    return slice(first, last)
