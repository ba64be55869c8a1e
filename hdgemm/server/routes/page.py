"""The page for people: static files, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from hdgemm.server.problems import from_status

router = APIRouter(include_in_schema=False)
_FOLDER: Final = Path(__file__).parent.parent / "static"
_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    **dict.fromkeys(
        ("app.js", "api.js", "show.js", "job.js", "submit.js"), "text/javascript; charset=utf-8"
    ),
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@router.get("/")
def index() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return what the page loads."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in _TYPES:
        raise from_status(404, f"there is no file {name!r}")
    headers = {"Cache-Control": "no-cache"}
    return Response((_FOLDER / name).read_bytes(), headers=headers, media_type=_TYPES[name])
