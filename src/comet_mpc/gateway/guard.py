"""Who may talk to the gateway, and with how much: checked before anything else is done with a request.

Whoever asks shows a token, unless the gateway listens at a socket in the file system, which has an owner: other users
of this machine would ask with the client's certificate. A browser also runs what other sites have written. Such a page

- cannot name this gateway as `Host` when its own name was made to lead here (DNS rebinding): other names are refused;
- says where it comes from (`Origin`, `Sec-Fetch-Site`): other origins are refused, and no answer allows them (CORS);
- cannot send `application/json` without asking first (a preflight), and other bodies are refused.

A body says its length, once; its bytes are counted as they come, whatever was said, and it has a deadline. Answers are
not stored, framed or sniffed, and the page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comet_mpc.gateway import problems
from comet_mpc.gateway.connections import REQUEST_SECONDS

LARGEST_BODY = 1 << 22

_LINKED = {"/", "/page.css", "/page.js", "/icon.svg"}
"""May be reached by a link on another site: it is the same for everybody."""
_OPEN = _LINKED | {"/healthz", "/readyz", "/openapi.json"}
"""Needs no token: it tells nothing of a text, and asks the server nothing that costs. It is read, and takes no body."""

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_TOLD_WITH = {401: {"www-authenticate": "Bearer"}, 405: {"allow": "GET, HEAD"}}
_MOST_FORGOTTEN = 4 * LARGEST_BODY
Refusal = tuple[int, str, str]
"""Status, name and reason."""


class Guard:
    """Around an application.

    names    what `Host` may be
    token    what must be shown; None if the way to this gateway is guarded already
    seconds  that a body may take
    """

    def __init__(
        self, app: ASGIApp, names: frozenset[str], token: str | None, seconds: float = REQUEST_SECONDS
    ) -> None:
        self._app, self._names, self._token, self._seconds = app, names, token, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        refused = self._stranger(scope["path"], headers) or _unfit(scope["path"], scope["method"], headers)
        if refused is None:
            body = await self._body(receive)
            if isinstance(body, bytes):
                await self._app(scope, _given(body, receive), closed)
                return
            refused = body
        more = _TOLD_WITH.get(refused[0], {})

        async def lingering(message: Message) -> None:
            if message["type"] != "http.response.body":
                await closed(message)
                return
            await send({**message, "more_body": True})
            await self._rest(receive)
            await send({"type": message["type"]})

        # what was not read of the body would be taken for the next request
        await problems.answer(*refused, {"connection": "close", **more})(scope, receive, lingering)

    def _stranger(self, path: str, headers: Headers) -> Refusal | None:
        """None lets the request pass."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if headers.getlist("host")[1:] or host not in self._names:
            asked = f"this gateway is not called {host[:100]!r}: ask for {', '.join(sorted(self._names))}"
            return 421, "WrongHost", asked
        if origin is not None and _named_by(origin) != host:
            return 403, "OtherSite", "a page of another site may not use this gateway"
        if path not in _LINKED and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "OtherSite", "a page of another site may not use this gateway"
        if path in _OPEN or self._token is None:
            return None
        scheme, _, shown = (", ".join(headers.getlist("authorization"))).partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(shown.strip().encode(), self._token.encode()):
            return (
                401,
                "NoToken",
                "show the token of this gateway (Authorization: Bearer …); it says where that is when it starts",
            )
        return None

    async def _body(self, receive: Receive) -> bytes | Refusal:
        """All of it, if it is not too long and comes in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":  # who asked is gone
                        return 400, "BadRequest", "the body ended before its length"
                    body += message.get("body", b"")
                    if len(body) > LARGEST_BODY:
                        return _too_long()
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            return 408, "TooSlow", f"the body did not come within {self._seconds:g} seconds"

    async def _rest(self, receive: Receive) -> None:
        """Forgets what else comes, as long as a body may take: an answer can be lost if the connection is closed while
        its asker still sends."""
        left = _MOST_FORGOTTEN
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return


def _named_by(origin: str) -> str | None:
    """The host that an `Origin` names; None if it names none, as null does."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:  # http://[
        return None


def _unfit(path: str, method: str, headers: Headers) -> Refusal | None:
    """By its method or its body; None lets the request pass."""
    if path in _OPEN and method not in ("GET", "HEAD"):  # it would be read for somebody without a token
        return 405, "MethodNotAllowed", f"{path} is for GET and HEAD only"
    length, chunked = headers.get("content-length"), "transfer-encoding" in headers
    if chunked and length is not None:
        return 400, "BadRequest", "a body has Content-Length or Transfer-Encoding, not both"
    if method in ("GET", "HEAD"):
        return (400, "BadRequest", f"a {method} has no body") if chunked or length not in (None, "0") else None
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "NotJson", "send application/json"
    if length is None or not (length.isascii() and length.isdecimal()):
        return 411, "NoLength", "say how long the body is (Content-Length)"
    return _too_long() if int(length) > LARGEST_BODY else None


def _too_long() -> Refusal:
    return 413, "TooLong", f"a body may have {LARGEST_BODY} bytes: send fewer texts at a time"


def _given(body: bytes, receive: Receive) -> Receive:
    """What the application receives: the body at once, then whatever comes, which is that the asker has gone."""
    first = True

    async def again() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
