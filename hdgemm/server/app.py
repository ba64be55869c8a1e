"""The ASGI application: routes, middleware, error handlers and the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Route

from hdgemm.errors import HdgemmError
from hdgemm.server.documents import ProblemDocument
from hdgemm.server.metrics import Metrics
from hdgemm.server.middleware import RequestChecks
from hdgemm.server.problems import DATABASE_ERRORS, ProblemError, from_status, problem_of
from hdgemm.server.routes import files, jobs, matrices, processes, queue, results, system
from hdgemm.server.validation import MOST_VALUES, describe_errors, has_more_values, schema_of, show

if TYPE_CHECKING:
    from starlette.responses import Response

    from hdgemm.server.service import Service

#: Identifiers in a path: one that is malformed names nothing, as one that is unknown.
_IDS: Final = {
    ("path", "job_id"): ("no-such-job", "job"),
    ("path", "matrix_id"): ("no-such-matrix", "matrix"),
}
_ROUTERS: Final = tuple(
    module.router for module in (system, processes, queue, jobs, results, matrices, files)
)
_DESCRIPTION = """
Multiplies matrices larger than memory as jobs: C := alpha·op(A)·op(B) + beta·C.

Follows OGC API – Processes: execute a process, follow its job, fetch its results. Every error is a
problem document (RFC 9457).
"""


def create_app(service: Service) -> FastAPI:
    """Return the ASGI application of one service, which the caller opens and closes."""
    app = FastAPI(
        title="hdgemm", version="1", description=_DESCRIPTION, openapi_url=None,
        redirect_slashes=False,  # its redirects name the proxy's address, and no prefix
        dependencies=[Depends(_refuse_unknown_parameters), Depends(_refuse_many_values)],
    )  # fmt: skip
    app.state.service = service
    app.state.metrics = Metrics(service.settings, service.database)
    for router in _ROUTERS:
        app.include_router(router)
    app.add_middleware(RequestChecks, service=service, metrics=app.state.metrics)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (ProblemError, HdgemmError, *DATABASE_ERRORS, OSError, Exception):
        app.add_exception_handler(kind, _error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have."""
    accepted: list[str] = []
    for field in request.scope["route"].dependant.query_params:
        kind = field.field_info.annotation
        several = isinstance(kind, type) and issubclass(kind, BaseModel)
        accepted += kind.model_fields if several else [field.alias]
    for name in request.query_params:
        if name not in accepted:
            route = f"{request.method} {request.scope['route'].path}"
            what = f"{show(name)} is no query parameter of {route}; it takes "
            raise ProblemError(
                400, "unknown-parameter", what + (", ".join(accepted) or "none"),
                parameter=name, accepted=accepted,
            )  # fmt: skip


async def _refuse_many_values(request: Request) -> None:
    """Refuse a body of many values before it is validated.

    Validation runs on the event loop, and reports an error for each unknown member.
    """
    if request.scope["route"].body_field is None:
        return
    try:
        document = await request.json()
    except (ValueError, RecursionError):
        return  # no JSON, which the framework refuses
    if has_more_values(document, MOST_VALUES):
        raise ProblemError(
            422,
            "too-many-values",
            f"the body may have {MOST_VALUES} members and items in all",
            limit=MOST_VALUES,
        )


async def _error(_: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _http_error(request: Request, error: Any) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == 404 and (other := _path_of_route(request)) is not None:
        return RedirectResponse(request.app.state.service.documents.prefix + other, 307)
    if error.status_code == 400 and isinstance(error.__cause__, (RecursionError, ValueError)):
        # FastAPI's answer to a body that its JSON parser gave up on.
        return ProblemError(400, "bad-json", "the body is no JSON that can be read").response()
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return from_status(error.status_code, str(error.detail), headers).response()


def _path_of_route(request: Request) -> str | None:
    """Return path and query of the resource that a path names but for a slash at its end.

    Without scheme, host and port, which a proxy may change.
    """
    path = request.url.path
    path = path.rstrip("/") if path.endswith("/") else f"{path}/"
    routes = (route for router in _ROUTERS for route in router.routes)
    if not any(isinstance(route, Route) and route.path_regex.match(path) for route in routes):
        return None
    query = request.url.query
    return quote(path) + (f"?{query}" if query else "")


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes of a path; the framework names the first route's."""
    methods: set[str] = set()
    for route in (route for router in _ROUTERS for route in router.routes):
        if isinstance(route, Route) and route.path_regex.match(request.url.path):
            methods |= route.methods or set()
    return methods


async def _invalid(request: Request, error: Any) -> Response:
    """Answer with the value of each wrong field and the values that it allows."""
    found = error.errors()
    for item in found:
        if item["loc"] in _IDS:
            kind, what = _IDS[item["loc"]]
            return ProblemError(404, kind, f"there is no {what} {show(item['input'])}").response()
        if item["type"] == "json_invalid":
            return ProblemError(400, "bad-json", f"the body is no JSON: {item['msg']}").response()
    field = getattr(request.scope.get("route"), "body_field", None)
    schema = {} if field is None else schema_of(field.field_info.annotation)
    errors = describe_errors(found, error.body, schema)
    return ProblemError(
        422, "invalid-request", "; ".join(item["what"] for item in errors[:3]), errors=errors
    ).response()


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in document["paths"].items():
            if path.startswith("/v1") or path == "/metrics":
                for operation in methods.values():
                    operation["security"] = [{"token": []}]
        document["servers"] = [{"url": app.state.service.documents.prefix or "/"}]
        app.openapi_schema = document
    return app.openapi_schema
