"""Why there is no answer: every error of the gateway has the same shape, whoever refuses the request.

It is the shape of OpenAI's API, so that programs made for that show the message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    PeerError,
    PeerTimeout,
    QuotaExceeded,
    ServerBusy,
    ShapeError,
    UnsafeTokenizer,
)

_STATUS: tuple[tuple[type[CometError], int], ...] = (
    (ServerBusy, 503),
    (QuotaExceeded, 429),
    (PeerTimeout, 504),
    (PeerError, 502),
    (UnsafeTokenizer, 502),
    (ConfigurationError, 400),
    (ShapeError, 400),
)
_NAMES = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed"}
_MOST_SHOWN = 3

STATUSES = (400, 401, 403, 404, 405, 408, 411, 413, 415, 421, 422, 429, 500, 502, 503, 504)
"""All that a request may be answered with instead of a result."""


@dataclass
class Reason:
    """The name of an error, and what to do. It never contains a text."""

    type: str
    message: str


@dataclass
class Problem:
    """Why there is no answer."""

    error: Reason


def answer(status: int, error: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(asdict(Problem(Reason(error, message))), status, headers)


def status_of(error: CometError) -> int:
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def add_to(app: FastAPI) -> None:
    """Every error of the application is told in this shape."""
    app.add_exception_handler(CometError, _of_comet)
    app.add_exception_handler(RequestValidationError, _of_the_body)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _of_a_bug)


async def _of_comet(_: Request, error: Exception) -> Response:
    assert isinstance(error, CometError)
    status = status_of(error)
    return answer(status, type(error).__name__, str(error), {"Retry-After": "5"} if status == 503 else None)


async def _of_the_body(_: Request, error: Exception) -> Response:
    """Where it is wrong, and why: not what is there, for that is a text."""
    found = cast(RequestValidationError, error).errors()
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:_MOST_SHOWN]]
    return answer(422, "InvalidRequest", f"{'; '.join(said)}. /openapi.json describes the requests")


async def _of_http(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    headers = dict(found.headers) if found.headers else None
    name = _NAMES.get(found.status_code, "Refused")
    message = f"{request.method} {request.url.path[:100]}: {found.detail}. /openapi.json describes the requests"
    return answer(found.status_code, name, message, headers)


async def _of_a_bug(_: Request, error: Exception) -> Response:
    """The error itself is in the gateway's log."""
    return answer(500, "InternalError", f"the gateway failed ({type(error).__name__}): see what it has logged")
