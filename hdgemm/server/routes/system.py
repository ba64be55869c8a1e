"""Landing page, health, figures, and what workers there are."""

from __future__ import annotations

import shutil
from typing import Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hdgemm.server import jobs
from hdgemm.server.documents import iso, link
from hdgemm.server.problems import responses
from hdgemm.server.service import TheAccount, TheService  # noqa: TC001 - FastAPI reads them
from hdgemm.server.tables import workers

router = APIRouter(tags=["system"])
_CONFORMANCE: Final = [
    f"http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/{part}"
    for part in ("core", "json", "oas30", "job-list", "dismiss")
]


@router.get("/v1", responses=responses())
async def landing(service: TheService) -> dict[str, Any]:
    """Say where everything is, and which folders jobs may name files in."""
    return {
        "title": "hdgemm",
        "description": "C := alpha·op(A)·op(B) + beta·C for matrices larger than memory",
        "roots": [str(root) for root in service.settings.roots],
        "links": [
            link("/openapi.json", "service-desc"),
            link("/v1/conformance", "http://www.opengis.net/def/rel/ogc/1.0/conformance"),
            link("/v1/processes", "http://www.opengis.net/def/rel/ogc/1.0/processes"),
            link("/v1/jobs", "http://www.opengis.net/def/rel/ogc/1.0/job-list"),
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
        found = conn.execute(sa.select(workers).order_by(workers.c.id)).all()
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
        "account": {"name": account.name, "max_jobs": account.max_jobs,
                    "max_bytes": account.max_bytes, "rate": account.rate,
                    "unfinished_jobs": unfinished},
    }  # fmt: skip


@router.get("/healthz", responses=responses())
async def healthy() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None, responses={200: {}, **responses()})
def ready(service: TheService) -> JSONResponse:
    """Say whether the database answers, 503 where it does not; and how many workers there are."""
    with service.database.read() as conn:
        count = conn.execute(sa.select(sa.func.count()).select_from(workers)).scalar_one()
    return JSONResponse({"status": "ok", "workers": count})


@router.get("/metrics", response_class=Response, responses={
    200: {"description": "Prometheus text", "content": {"text/plain": {}}},
    **responses()})  # fmt: skip
def figures(request: Request) -> Response:
    """Return the figures for Prometheus."""
    text = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
