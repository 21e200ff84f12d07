"""The application: routes, errors with their bodies, and what every request passes first."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

import lessmore
from lessmore.errors import LessmoreError
from lessmore.serve.api import Reader, Serving
from lessmore.serve.auth import Key
from lessmore.serve.errors import RequestError, UnavailableError, status_of
from lessmore.serve.guard import AccessLog, BodyError, BodyGuard, error_response, in_protocol
from lessmore.serve.hub import hub_routes
from lessmore.serve.inference import inference_routes
from lessmore.serve.page.routes import page_routes
from lessmore.serve.schemas import Alive, ErrorBody
from lessmore.serve.service import Service
from lessmore.serve.v1 import stream_routes

_LOG = logging.getLogger("lessmore.serve")
_TYPES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_REMEDIES = {404: "see /docs for the addresses there are", 405: "see /docs for the methods of this address"}


_server_routes = APIRouter(tags=["server"])


@_server_routes.get("/healthz")
async def healthz() -> Alive:
    """Whether the process answers."""
    return Alive(status="ok")


@_server_routes.get("/readyz")
async def readyz(service: Serving) -> Alive:
    """Whether a forward pass of the model is good, and the server takes images."""
    if not await service.ready():
        raise UnavailableError("the model is not ready", "wait until /readyz answers 200", 1)
    return Alive(status="ready")


@_server_routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Serving, _: Reader) -> Response:
    """Figures in Prometheus' text format."""
    return Response(await service.measure(), media_type="text/plain; version=0.0.4; charset=utf-8")


Around = Callable[[], AbstractAsyncContextManager[None]]


def make_app(service: Service, keys: Sequence[Key], around: Around = nullcontext) -> FastAPI:
    """The application of one server.

    Args:
        service: What it serves.
        keys: Who may use it; where there are none, anyone on this machine.
        around: What else runs while the server does, such as its cameras.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with around():
            yield
        await service.drain()
        await service.close()

    app = FastAPI(
        title="lessmore",
        description="Zero-shot image classification that adapts to each stream of images.",
        version=lessmore.__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads its script from elsewhere
        redoc_url=None,
        responses={"default": {"model": ErrorBody, "description": "What went wrong, and what to do about it."}},
    )
    _add_errors(app, service)
    app.state.service, app.state.keys = service, list(keys)
    for routes in (stream_routes, hub_routes, inference_routes, _server_routes, page_routes):
        app.include_router(routes)
    app.add_middleware(BodyGuard, settings=service.settings, metrics=service.metrics)
    app.add_middleware(AccessLog, metrics=service.metrics)
    return app


def _add_errors(app: FastAPI, service: Service) -> None:
    def told(request: Request, error: Exception) -> Response:
        service.metrics.errors.labels(status_of(error)[1]).inc()
        return error_response(error, request.url.path)

    @app.exception_handler(LessmoreError)
    async def typed(request: Request, error: Exception) -> Response:
        return told(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"] if part != "body")[:200]
        wrong = f"{where or 'the body'}: {first['msg']}".encode("ascii", "replace").decode()
        return told(request, RequestError(wrong, "see /docs for what is taken"))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, BodyError):
            return told(request, error.error)
        kind = _TYPES.get(error.status_code, "bad_request")
        service.metrics.errors.labels(kind).inc()
        detail = {"type": kind, "message": str(error.detail), "remedy": _REMEDIES.get(error.status_code, "see /docs")}
        return JSONResponse(in_protocol({"error": detail}, request.url.path), error.status_code, error.headers)
