"""`/v1/matrices`: upload in parts, complete, download, delete."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from hdgemm.matrices.transfer import ALIGNMENT
from hdgemm.server import jobs, quotas, uploads
from hdgemm.server.content import rectangle, stream_file
from hdgemm.server.documents import MatrixInfo, MatrixList
from hdgemm.server.models import NewMatrix  # noqa: TC001 - FastAPI reads it
from hdgemm.server.parts import PartWriter, announced_digest, no_writers, open_content, part_range
from hdgemm.server.problems import ProblemError, responses
from hdgemm.server.routes.jobs import MOST_LISTED, Cursor, Limit, make_cursor, read_cursor
from hdgemm.server.routes.results import STREAMED, Span
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them

if TYPE_CHECKING:
    from hdgemm.server.service import Service
    from hdgemm.server.tables import StoredMatrix
    from hdgemm.server.tokens import Account

router = APIRouter(prefix="/v1", tags=["matrices"])
MatrixId = Annotated[
    str, Path(pattern=r"^[0-9a-f]{32}$", description="The matrix's id.", examples=["0" * 32])
]
#: A part is written in pieces of this size: few thread changes, little memory.
_BUFFER: Final = 1 << 22


@router.post("/matrices", status_code=201, responses={
    201: {"model": MatrixInfo, "description": "Reserved",
          "headers": {"Location": {"schema": {"type": "string"}}}},
    **responses(413, 415, 507)})  # fmt: skip
def create_matrix(new: NewMatrix, service: TheService, account: TheAccount) -> JSONResponse:
    """Reserve the disk for a matrix that will be uploaded."""
    settings = service.settings
    size = uploads.content_size(new) + ALIGNMENT
    with service.database.queue() as conn:
        quotas.check_disk(jobs.reserved(conn), settings.matrices_dir, size, settings)
        quotas.check_quota(conn, account, size)
        matrix = uploads.insert(conn, new, account.id, service.database.now(conn))
        # Within the transaction: a row never stands for a file that is not there.
        uploads.create_file(matrix, uploads.content_path(matrix.id, settings))
    location = {"Location": f"{service.documents.prefix}/v1/matrices/{matrix.id}"}
    return JSONResponse(service.documents.matrix(matrix, []), 201, location)


@router.get("/matrices", responses=responses(model=MatrixList))
def list_matrices(
    service: TheService,
    account: TheAccount,
    sha256: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> JSONResponse:
    """List this token's matrices, newest first; with `sha256`, those announced with it."""
    limit, documents = min(limit, MOST_LISTED), service.documents
    below = read_cursor(cursor)
    with service.database.read() as conn:
        seq = None if below is None else int(below[0])
        found = uploads.page(conn, account.id, seq, limit + 1, sha256)
        shown = [documents.matrix(item, uploads.ranges(conn, item.id)) for item in found[:limit]]
    links = [documents.link("/v1/matrices", "self")]
    if len(found) > limit:
        more = f"/v1/matrices?limit={limit}&cursor={make_cursor(found[limit - 1].seq)}"
        more += "" if sha256 is None else f"&sha256={sha256}"
        links.append(documents.link(more, "next"))
    return JSONResponse({"matrices": shown, "links": links})


def _load(
    service: Service, matrix_id: str, account: Account
) -> tuple[StoredMatrix, list[tuple[int, int]]]:
    with service.database.read() as conn:
        # Ranges first: a matrix that is deleted between the two reads is absent, not incomplete.
        received = uploads.ranges(conn, matrix_id)
        return uploads.get(conn, matrix_id, account.id), received


def _load_unfinished(
    service: Service, matrix_id: str, account: Account
) -> tuple[StoredMatrix, list[tuple[int, int]]]:
    matrix, received = _load(service, matrix_id, account)
    if matrix.completed is not None:
        raise ProblemError(409, "complete", f"matrix {matrix_id} is complete and never changes")
    return matrix, received


@router.get("/matrices/{matrix_id}", responses=responses(404, model=MatrixInfo))
def get_matrix(matrix_id: MatrixId, service: TheService, account: TheAccount) -> JSONResponse:
    """Describe a matrix, and say which ranges of it are there."""
    return JSONResponse(service.documents.matrix(*_load(service, matrix_id, account)))


@router.put(
    "/matrices/{matrix_id}/content",
    responses=responses(404, 409, 413, 415, 416, 507, model=MatrixInfo),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/octet-stream": {
            "schema": {"type": "string", "format": "binary"}}}},
        "parameters": [
            {"name": "Content-Range", "in": "header", "required": False,
             "schema": {"type": "string"}, "example": "bytes 0-1048575/8000000"},
            {"name": "Content-Digest", "in": "header", "required": False,
             "schema": {"type": "string"}, "description": "sha-256=:<base64>: of the part"},
        ],
    },
)  # fmt: skip
async def put_content(
    request: Request, matrix_id: MatrixId, service: TheService, account: TheAccount
) -> JSONResponse:
    """Take a part of the content, in any order; it is durable once this is answered."""
    matrix, _ = await to_thread.run_sync(_load_unfinished, service, matrix_id, account)
    start, stop = part_range(request.headers, matrix.size)
    digest = announced_digest(request.headers)
    path = uploads.content_path(matrix_id, service.settings)
    writer = await to_thread.run_sync(PartWriter, path, matrix, start, stop, digest)
    try:
        # Again under the writer's lock, which excludes the check of a completion.
        _, durable = await to_thread.run_sync(_load_unfinished, service, matrix_id, account)
        whole = await _receive(request, writer.knows(durable))
        if whole or digest is not None:
            writer.check()
        request.app.state.metrics.bytes_in.inc(writer.position - start)
        info = await to_thread.run_sync(_acknowledge, service, writer, matrix, account)
    finally:
        writer.close()
    return JSONResponse(info)


async def _receive(request: Request, writer: PartWriter) -> bool:
    """Write the body; return whether it arrived whole."""
    buffer = bytearray()
    try:
        async for chunk in request.stream():
            buffer += chunk
            if len(buffer) >= _BUFFER:
                await to_thread.run_sync(writer.feed, buffer)
                buffer = bytearray()
    except ClientDisconnect:
        return False
    finally:
        if buffer:
            await to_thread.run_sync(writer.feed, buffer)
    return True


def _acknowledge(
    service: Service, writer: PartWriter, matrix: StoredMatrix, account: Account
) -> dict[str, Any]:
    writer.sync()
    with service.database.write() as conn:
        uploads.get(conn, matrix.id, account.id)
        uploads.acknowledge(conn, matrix.id, writer.start, writer.position)
        return service.documents.matrix(matrix, uploads.ranges(conn, matrix.id))


@router.post("/matrices/{matrix_id}/complete", responses=responses(404, 409, model=MatrixInfo))
async def complete_matrix(
    matrix_id: MatrixId, service: TheService, account: TheAccount
) -> JSONResponse:
    """Check that the content is complete and as announced; from then on it never changes."""
    matrix, received = await to_thread.run_sync(_load, service, matrix_id, account)
    if matrix.completed is None:
        await service.hashes.run(_complete, service, matrix_id, account)
        matrix, received = await to_thread.run_sync(_load, service, matrix_id, account)
    return JSONResponse(service.documents.matrix(matrix, received))


def _complete(service: Service, matrix_id: str, account: Account) -> None:
    """Check the content, and mark it complete or drop it, while no part can be written."""
    with no_writers(uploads.content_path(matrix_id, service.settings)) as path:
        matrix, received = _load(service, matrix_id, account)
        if matrix.completed is not None:
            return
        if matrix.size and received != [(0, matrix.size)]:
            raise ProblemError(
                409, "incomplete", "not all of the content is there", received=received,
                size=matrix.size,
            )  # fmt: skip
        try:
            etag = uploads.check_content(matrix, path)
        except ProblemError as error:
            if error.kind == "digest-mismatch":
                # Otherwise a part of the right content is refused: acknowledged bytes never change.
                with service.database.write() as conn:
                    uploads.forget_parts(conn, matrix_id)
            raise
        with service.database.write() as conn:
            uploads.complete(conn, matrix_id, etag, service.database.now(conn))


@router.head("/matrices/{matrix_id}/content", include_in_schema=False)
@router.get(
    "/matrices/{matrix_id}/content", responses={**STREAMED, **responses(404, 409, 413, 416)}
)
async def get_content(
    request: Request,
    matrix_id: MatrixId,
    service: TheService,
    account: TheAccount,
    rows: Span = None,
    cols: Span = None,
) -> Response:
    """Return a matrix as .npy: all of it, a byte range, or the rectangle `rows`, `cols`."""
    matrix, _ = await to_thread.run_sync(_load, service, matrix_id, account)
    uploads.refuse_incomplete(matrix)
    file = io.FileIO(open_content(uploads.content_path(matrix_id, service.settings)))
    if rows is None and cols is None:
        return stream_file(request, file, matrix.etag or "", f"{matrix_id}.npy")
    return await to_thread.run_sync(rectangle, request, file, rows, cols)


@router.delete("/matrices/{matrix_id}", status_code=204, responses=responses(404, 409, 507))
def delete_matrix(matrix_id: MatrixId, service: TheService, account: TheAccount) -> Response:
    """Delete a matrix that no unfinished job reads."""

    def delete() -> None:
        with service.database.queue() as conn:
            uploads.delete(conn, matrix_id, account.id)

    service.database.with_reserve(delete)
    uploads.content_path(matrix_id, service.settings).unlink(missing_ok=True)
    return Response(status_code=204)
