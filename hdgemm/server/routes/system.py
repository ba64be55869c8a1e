"""The page's files, landing document, health, figures and workers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from hdgemm.server import activity, jobs, load
from hdgemm.server.documents import iso
from hdgemm.server.problems import ProblemError, from_status, responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them
from hdgemm.server.tables import WorkerRow

if TYPE_CHECKING:
    from hdgemm.server.service import Service

router = APIRouter(tags=["system"])
_CONFORMANCE: Final = [
    f"http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/{part}"
    for part in ("core", "ogc-process-description", "json", "job-list", "dismiss")
]
#: A worker notes that it lives every two seconds; one silent for so long takes no jobs.
_SILENT_SECONDS: Final = 15.0
#: How long a readiness check may take.
_READY_SECONDS: Final = 5.0
_FOLDER: Final = Path(__file__).parent.parent / "static"
_FILES: Final = frozenset(path.name for path in _FOLDER.iterdir())


@router.get("/", include_in_schema=False)
def index() -> Response:
    """Return the page."""
    return static("index.html")


@router.get("/static/{name}", include_in_schema=False)
def static(name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise from_status(404, f"there is no file {name!r}")
    return FileResponse(_FOLDER / name, headers={"Cache-Control": "no-cache"})


@router.get("/openapi.json", include_in_schema=False)
def describe_api(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = request.app.openapi()
    return document


@router.get("/v1", responses=responses())
async def landing(service: TheService, account: TheAccount) -> dict[str, Any]:
    """Link to all resources, and name the folders that this token's jobs may read and write."""
    link, roots = service.documents.link, service.settings.roots
    relation = "http://www.opengis.net/def/rel/ogc/1.0"
    return {
        "title": "hdgemm",
        "description": "C := alpha·op(A)·op(B) + beta·C for matrices larger than memory",
        "roots": [str(root) for root in account.readable(roots)],
        "write_roots": [str(root) for root in account.writable(roots)],
        "links": [
            link("/v1", "self"),
            link("/openapi.json", "service-desc", "application/vnd.oai.openapi+json;version=3.1"),
            link("/v1/conformance", f"{relation}/conformance"),
            link("/v1/processes", f"{relation}/processes"),
            link("/v1/jobs", f"{relation}/job-list"),
            link("/v1/matrices", "matrices"),
        ],
    }


@router.get("/v1/conformance", responses=responses())
async def conformance() -> dict[str, list[str]]:
    """List the parts of OGC API – Processes that this server follows."""
    return {"conformsTo": _CONFORMANCE}


@router.get("/v1/system", responses=responses())
def describe_system(service: TheService, account: TheAccount) -> dict[str, Any]:
    """Describe workers, devices, disk, and this token's limits."""
    with service.database.read() as conn:
        found = conn.execute(sa.select(WorkerRow).order_by(WorkerRow.id)).all()
        now = service.database.now(conn)
        unfinished = jobs.count_unfinished(conn, account.id)
    disk = shutil.disk_usage(service.settings.data_dir)
    return {
        "workers": [
            {"id": row.id, "host": row.host, "memory": row.memory, "devices": row.devices,
             "started": iso(row.started), "seconds_since_seen": max(0.0, now - row.seen)}
            for row in found
        ],
        "disk": {"total": disk.total, "used": disk.used, "free": disk.free},
        "account": {"name": account.name, "max_jobs": account.most_jobs(service.settings),
                    "max_bytes": account.max_bytes, "rate": account.rate,
                    "max_priority": account.highest_priority,
                    "unfinished_jobs": unfinished},
    }  # fmt: skip


@router.get("/v1/system/load", responses=responses())
def describe_load(service: TheService) -> dict[str, Any]:
    """Return the load of each worker's machine over the last hour, oldest sample first."""
    with service.database.read() as conn:
        return {"workers": load.history(conn, service.database.now(conn))}


@router.get("/v1/system/activity", responses={200: {}, **responses()})
async def describe_activity(service: TheService) -> Response:
    """Return throughput and queue of all jobs over the last day, oldest time first."""

    def read() -> bytes:
        with service.database.read() as conn:
            return json.dumps(activity.last_day(conn, service.database.now(conn))).encode()

    body = await service.activity.get("day", read)
    return Response(body, media_type="application/json")


@router.get("/healthz", responses=responses())
async def healthy() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={200: {}, **responses(507)})
async def ready(service: TheService) -> Response:
    """Say whether the database and the data folder take writes, and a worker can take jobs.

    Without a worker, the server still accepts jobs: the answer is 200, its status "no-worker".
    """
    with anyio.move_on_after(_READY_SECONDS):
        body = await service.readiness.get("ready", lambda: _check(service))
        return Response(body, media_type="application/json")
    raise ProblemError(
        503,
        "database-busy",
        f"the readiness check took more than {_READY_SECONDS:g} seconds",
        headers={"Retry-After": "2"},
    )


def _check(service: Service) -> bytes:
    with service.database.write() as conn:
        # A read-only or full database refuses this, although no row has such a name.
        conn.execute(sa.delete(WorkerRow).where(WorkerRow.id == ""))
        alive = WorkerRow.seen > service.database.now(conn) - _SILENT_SECONDS
        count = conn.execute(sa.select(sa.func.count()).where(alive)).scalar_one()
    with tempfile.TemporaryFile(dir=service.settings.data_dir) as probe:
        probe.write(bytes(1 << 16))
        probe.flush()
        os.fsync(probe.fileno())
    found: dict[str, Any] = {"status": "ok" if count else "no-worker", "workers": count}
    if not count:
        found["detail"] = "jobs are accepted, and none starts: no worker is alive"
    return json.dumps(found).encode()


@router.get("/metrics", response_class=Response, responses={
    200: {"description": "Prometheus text", "content": {"text/plain": {}}},
    **responses()})  # fmt: skip
def figures(request: Request) -> Response:
    """Return the figures for Prometheus."""
    text = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
