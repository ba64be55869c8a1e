"""Uploaded matrices: reserved, filled part by part, checked, then immutable.

An acknowledged byte is never written again: a part that is sent twice is compared with the stored
bytes, so that a broken, repeated or hostile upload cannot change acknowledged ones.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from hdgemm.errors import InputError
from hdgemm.matrices.layout import as_dtype
from hdgemm.matrices.location import format_named
from hdgemm.matrices.npy import npy_header, read_header
from hdgemm.matrices.transfer import ALIGNMENT
from hdgemm.server import jobs
from hdgemm.server.problems import ProblemError
from hdgemm.server.tables import Part, StoredMatrix, new_id

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.server.models import NewMatrix
    from hdgemm.server.settings import Settings

_CHUNK: Final = 1 << 22
#: Separate durable ranges that an unfinished upload may have; each is a row.
MOST_RANGES: Final = 1000


def content_path(matrix_id: str, settings: Settings) -> Path:
    """Return the path of a matrix's file."""
    return settings.matrices_dir / f"{matrix_id}.npy"


def content_size(new: NewMatrix) -> int:
    """Return how many bytes will be uploaded."""
    elements = new.shape[0] * new.shape[1] * as_dtype(new.dtype).itemsize
    if format_named(new.format).has_header:
        return elements + 128 if new.size is None else new.size
    if new.size not in {None, elements}:
        raise ProblemError(
            422, "bad-input", f"{elements} bytes are the elements of that shape, not {new.size}",
            expected=elements, got=new.size,
        )  # fmt: skip
    return elements


def insert(conn: sa.Connection, new: NewMatrix, owner: str, now: float) -> StoredMatrix:
    """Insert the row of a matrix that is to be uploaded."""
    row = conn.execute(
        sa.insert(StoredMatrix)
        .values(
            id=new_id(), owner=owner, name=new.name, rows=new.shape[0], cols=new.shape[1],
            dtype=new.dtype, order=new.order, format=new.format, size=content_size(new),
            offset=0 if format_named(new.format).has_header else ALIGNMENT,
            sha256=new.sha256, created=now,
        )
        .returning(StoredMatrix)
    ).one()  # fmt: skip
    return StoredMatrix.of(row)


def create_file(matrix: StoredMatrix, path: Path) -> None:
    """Reserve the disk and, for raw content, write the header.

    Raises `ProblemError` 507 when the disk refuses.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if matrix.file_size:
            os.posix_fallocate(fd, 0, matrix.file_size)
        if not format_named(matrix.format).has_header:
            shape, dtype = (matrix.rows, matrix.cols), as_dtype(matrix.dtype).newbyteorder("<")
            os.pwrite(fd, npy_header(shape, dtype, matrix.order), 0)
        os.fsync(fd)
    except OSError as error:
        path.unlink()
        raise ProblemError(
            507,
            "disk-full",
            f"cannot reserve {matrix.file_size} bytes: {error.strerror}",
            requested=matrix.file_size,
        ) from error
    finally:
        os.close(fd)


def get(conn: sa.Connection, matrix_id: str, owner: str) -> StoredMatrix:
    """Return an owner's matrix or raise a 404, for another owner's matrix too."""
    query = sa.select(StoredMatrix).where(StoredMatrix.id == matrix_id, StoredMatrix.owner == owner)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise ProblemError(404, "no-such-matrix", f"there is no matrix {matrix_id}")
    return StoredMatrix.of(row)


def page(
    conn: sa.Connection, owner: str, before: int | None, limit: int, sha256: str | None = None
) -> list[StoredMatrix]:
    """Return an owner's matrices, newest first; with `sha256`, those announced with it."""
    query = sa.select(StoredMatrix).where(StoredMatrix.owner == owner)
    if before is not None:
        query = query.where(StoredMatrix.seq < before)
    if sha256 is not None:
        query = query.where(StoredMatrix.sha256 == sha256)
    rows = conn.execute(query.order_by(StoredMatrix.seq.desc()).limit(limit))
    return [StoredMatrix.of(row) for row in rows]


def refuse_incomplete(matrix: StoredMatrix) -> None:
    """Raise a 409 for a matrix that is not complete."""
    if matrix.completed is None:
        raise ProblemError(
            409, "incomplete", f"matrix {matrix.id} is not complete: upload it, then POST complete"
        )


def ranges(conn: sa.Connection, matrix_id: str) -> list[tuple[int, int]]:
    """Return the durable ranges of a matrix's content, merged, in order."""
    query = sa.select(Part.start, Part.stop).where(Part.matrix == matrix_id).order_by(Part.start)
    merged: list[tuple[int, int]] = []
    for start, stop in conn.execute(query):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def acknowledge(conn: sa.Connection, matrix_id: str, start: int, stop: int) -> None:
    """Record that a range is durable, merged with those it touches; call it after fsync.

    Raises `ProblemError` 409 for too many separate ranges.
    """
    if start == stop:
        return
    touched = Part.matrix == matrix_id, Part.start <= stop, Part.stop >= start
    merged = conn.execute(sa.delete(Part).where(*touched).returning(Part.start, Part.stop)).all()
    start = min([start, *(first for first, _ in merged)])
    stop = max([stop, *(last for _, last in merged)])
    conn.execute(sa.insert(Part).values(matrix=matrix_id, start=start, stop=stop))
    ranges = sa.select(sa.func.count()).select_from(Part).where(Part.matrix == matrix_id)
    if conn.execute(ranges).scalar_one() > MOST_RANGES:
        raise ProblemError(
            409,
            "too-many-ranges",
            f"the content would lie in more than {MOST_RANGES} separate ranges; send the parts "
            "between them first",
            limit=MOST_RANGES,
        )


def check_content(matrix: StoredMatrix, path: Path) -> str:
    """Check digest and header of a whole file; return the SHA-256 of the file.

    Raises `ProblemError` 422 when the content has another digest or header than announced.
    """
    whole, content = hashlib.sha256(), hashlib.sha256()
    with path.open("rb") as stream:
        head = stream.read(matrix.offset)
        whole.update(head)
        while chunk := stream.read(_CHUNK):
            whole.update(chunk)
            if matrix.sha256 is not None and matrix.offset:
                content.update(chunk)
    found = (content if matrix.offset else whole).hexdigest()
    if matrix.sha256 is not None and found != matrix.sha256:
        raise ProblemError(
            422, "digest-mismatch",
            "the content's SHA-256 is not the announced one; its bytes are dropped: send it again",
            expected=matrix.sha256, found=found,
        )  # fmt: skip
    _check_header(matrix, path)
    return whole.hexdigest()


def _check_header(matrix: StoredMatrix, path: Path) -> None:
    try:
        header = read_header(path)
    except InputError as error:
        message = str(error).replace(str(path), "the content")
        raise ProblemError(422, "bad-input", message) from error
    found: dict[str, Any] = {
        "shape": list(header.shape),
        "dtype": header.dtype.name,
        "order": "F" if header.fortran else "C",
    }
    said = {"shape": [matrix.rows, matrix.cols], "dtype": matrix.dtype, "order": matrix.order}
    if found != said:
        raise ProblemError(
            422, "header-mismatch", f"the header says {found}, announced was {said}",
            expected=said, found=found,
        )  # fmt: skip


def forget_parts(conn: sa.Connection, matrix_id: str) -> None:
    """Delete the records of a matrix's parts; an unfinished upload begins again.

    Call it while `parts.no_writers` excludes writers.
    """
    conn.execute(sa.delete(Part).where(Part.matrix == matrix_id))


def complete(conn: sa.Connection, matrix_id: str, etag: str, now: float) -> None:
    """Mark a matrix as complete, once, and delete the records of its parts.

    Call it while `parts.no_writers` excludes writers, since before its content was checked.
    """
    unfinished = StoredMatrix.id == matrix_id, StoredMatrix.completed.is_(None)
    conn.execute(sa.update(StoredMatrix).where(*unfinished).values(etag=etag, completed=now))
    forget_parts(conn, matrix_id)


def delete(conn: sa.Connection, matrix_id: str, owner: str) -> StoredMatrix:
    """Remove a matrix's row; the caller removes its file after the commit."""
    matrix = get(conn, matrix_id, owner)
    jobs.refuse_if_read(conn, "matrix", matrix_id)
    conn.execute(sa.delete(StoredMatrix).where(StoredMatrix.id == matrix_id))
    return matrix
