"""Who may talk to the gateway: what a browser says about a request is checked before anything else is done with it.

A gateway on loopback has no password: whatever runs on this machine for this user may use it. A browser also runs
what other sites have written. Such a page

- cannot name this gateway as `Host` when its own name was made to lead here (DNS rebinding): other names are refused;
- says where it comes from (`Origin`, `Sec-Fetch-Site`): other origins are refused, and no answer allows them (CORS);
- cannot send `application/json` without asking first (a preflight), and other bodies are refused.

Bodies have a length and a limit. Answers are not stored, framed or sniffed, and the page loads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 1 << 22

_OPEN = {"/", "/page.css", "/page.js", "/icon.svg"}
"""May be reached by a link on another site: it is the same for everybody."""

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def own_names(host: str, port: int, others: Iterable[str] = ()) -> frozenset[str]:
    """What `Host` may say: this machine's own names with the port, and others as they were given."""
    written = f"[{host}]" if ":" in host else host
    local = {f"{name}:{port}" for name in (written, "localhost", "127.0.0.1", "[::1]")}
    return frozenset(name.lower() for name in (*local, *others))


class Guard:
    """Around an application. names: what `Host` may be."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refused = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        answer: ASGIApp = self._app
        if refused is not None:
            status, reason = refused
            answer = JSONResponse({"error": "Refused", "message": reason}, status)
        await answer(scope, receive, closed)

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """A status and the reason; None lets the request pass."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if headers.getlist("host")[1:] or host not in self._names:
            return 421, f"this gateway is not called {host!r}: ask for {', '.join(sorted(self._names))}"
        if origin is not None and (origin == "null" or urlsplit(origin).netloc.lower() != host):
            return 403, "a page of another site may not use this gateway"
        if path not in _OPEN and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "a page of another site may not use this gateway"
        if method in ("GET", "HEAD"):
            return None
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "send application/json"
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            return 411, "say how long the body is (Content-Length)"
        if int(length) > LARGEST_BODY:
            return 413, f"a body may have {LARGEST_BODY} bytes: send fewer texts at a time"
        return None
