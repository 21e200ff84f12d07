"""What routes ask for: the service, the caller with a scope, and a stream that the caller may reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Path, Request

from lessmore.serve.auth import Caller, find_caller
from lessmore.serve.registry import StreamRow
from lessmore.serve.service import Service


def service_of(request: Request) -> Service:
    """The service behind the application."""
    service: Service = request.app.state.service
    return service


def caller_with(scope: str) -> Callable[[Request], Caller]:
    """Finds the caller, who must have a scope."""

    def find(request: Request) -> Caller:
        caller = find_caller(request.app.state.keys, request.headers)
        caller.check(scope)
        return caller

    return find


Serving = Annotated[Service, Depends(service_of)]
Reader = Annotated[Caller, Depends(caller_with("read"))]
Classifier = Annotated[Caller, Depends(caller_with("classify"))]
Admin = Annotated[Caller, Depends(caller_with("admin"))]
StreamId = Annotated[str, Path(max_length=200)]


def _row_for(scope: str) -> Callable[..., Awaitable[StreamRow]]:
    with_scope = caller_with(scope)

    async def find(request: Request, stream: StreamId) -> StreamRow:
        return await service_of(request).find(stream, with_scope(request))

    return find


ReadRow = Annotated[StreamRow, Depends(_row_for("read"))]
ClassifyRow = Annotated[StreamRow, Depends(_row_for("classify"))]
AdminRow = Annotated[StreamRow, Depends(_row_for("admin"))]
