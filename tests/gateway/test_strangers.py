"""Who may not use the gateway, and who cannot hold it up: other users, endless bodies, stalled connections."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from comet_mpc.errors import ConfigurationError
from comet_mpc.gateway.connections import MOST_CONNECTIONS
from comet_mpc.gateway.guard import LARGEST_BODY, Guard
from comet_mpc.gateway.listening import listening
from comet_mpc.gateway.token import find_token
from support.gateways import Gateway, gateway_process
from support.waiting import PATIENCE

pytestmark = pytest.mark.service

NOBODY = "127.0.0.1:9"
"""No server: nothing here gets that far."""
SECONDS = 2.0
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Gateway]:
    cache = tmp_path_factory.mktemp("strangers")
    with gateway_process(NOBODY, keys, cache, "--request-seconds", str(SECONDS)) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client(limits=httpx.Limits(max_keepalive_connections=0)) as asking:  # the deadline is short
        yield asking


def head(gateway: Gateway, *lines: str, path: str = "/v1/classify") -> bytes:
    """Of a request that is allowed but for what `lines` say."""
    host = gateway.url.removeprefix("http://").rstrip("/")
    token = gateway.header["authorization"]
    first = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Authorization: {token}", "Content-Type: application/json"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


def answered(line: socket.socket) -> bytes:
    """All that comes until the gateway closes the connection."""
    found = b""
    while data := line.recv(1 << 16):
        found += data
    return found


def closed(line: socket.socket) -> bool:
    """Once the gateway has closed it: waits until then."""
    try:
        return answered(line) is not None
    except ConnectionResetError:
        return True


# Other users of this machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/tag", "/v1/embed", "/v1/prepare", "/v1/model", "/v1/nothing"])
def test_without_the_token_there_is_no_answer(gateway: Gateway, path: str) -> None:
    shown = gateway.header["authorization"]
    wrong = ["", "Bearer", f"Bearer {'x' * 43}", shown[:-1], f"Basic {shown.split()[1]}", f"{shown}, {shown}"]
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE) as asking:
        for value in wrong:
            headers = {"authorization": value} if value else {}
            method = "GET" if path.endswith("model") else "POST"
            refused = asking.request(method, path, headers=JSON | headers, content=b"{}" if method == "POST" else None)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "NoToken"), value
            assert refused.headers["www-authenticate"] == "Bearer"


def test_the_token_lets_in_and_the_page_and_health_need_none(gateway: Gateway, client: httpx.Client) -> None:
    refused = client.post("/v1/classify", json={"texts": []})
    assert refused.status_code == 422  # it got past the guard
    for path in ("/", "/page.js", "/healthz", "/openapi.json"):
        assert httpx.get(f"{gateway.url[:-1]}{path}").status_code == 200
    unready = httpx.get(f"{gateway.url}readyz")
    assert unready.status_code == 503
    assert unready.json()["error"].keys() == {"type", "message"}


def test_the_token_is_for_its_owner_and_survives_a_restart(gateway: Gateway, tmp_path: Path) -> None:
    assert stat.S_IMODE(gateway.token_file.stat().st_mode) == 0o600
    token = find_token(tmp_path / "a" / "token")
    assert find_token(tmp_path / "a" / "token") == token
    assert find_token(tmp_path / "other") != token
    (tmp_path / "a" / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        find_token(tmp_path / "a" / "token")
    for text in ("", "Authorization: Bearer short", "ü" * 40):
        (tmp_path / "bad").write_text(text)
        (tmp_path / "bad").chmod(0o600)
        with pytest.raises(ConfigurationError, match="token"):
            find_token(tmp_path / "bad")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_reads_the_token_from_the_file(gateway: Gateway) -> None:
    command = ["curl", "-sS", "-H", f"@{gateway.token_file}", "-H", "Content-Type: application/json"]
    command += ["-d", '{"texts": []}', f"{gateway.url}v1/classify"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert '"InvalidRequest"' in done.stdout, done.stderr


def test_a_unix_socket_is_for_its_owner_and_needs_no_token(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "gateway.sock"
    with gateway_process(NOBODY, keys, tmp_path / "cache", "--listen", f"unix:{path}") as gateway:
        assert gateway.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as asking:
            assert asking.get("/healthz").text == "ok\n"
            assert asking.post("/v1/classify", json={"texts": []}).status_code == 422
            assert asking.get("/healthz", headers={"host": "attacker.example"}).status_code == 421
        with pytest.raises(ConfigurationError, match="in use"), listening(f"unix:{path}"):
            pass
        assert not gateway.token_file.exists()
    assert not path.exists()


def test_what_a_killed_gateway_left_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listening(f"unix:{path}") as place:
        assert place.has_owner
    path.write_text("a file of somebody's")
    with pytest.raises(ConfigurationError), listening(f"unix:{path}"):
        pass
    assert path.read_text()


def test_a_socket_that_somebody_may_listen_at_is_left_alone(tmp_path: Path) -> None:
    """One whose queue is full cannot be asked; one that another gateway has made since is not ours to remove."""
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(ConfigurationError, match="in use"), listening(f"unix:{path}"):
            pass
        first.close()
        busy.accept()[0].close()
        with socket.socket(socket.AF_UNIX) as again:
            again.connect(str(path))  # it is where it was
    path.unlink()
    with listening(f"unix:{path}"), socket.socket(socket.AF_UNIX) as another:
        path.rename(tmp_path / "moved")
        with pytest.raises(ConfigurationError, match="in use"), listening(f"unix:{path}"):  # it holds the lock
            pass
        another.bind(str(path))
    assert path.is_socket()


# Bodies --------------------------------------------------------------------------------------------------------------


def test_two_lengths_are_one_too_many(gateway: Gateway) -> None:
    """Five bytes are announced, and chunks without end follow."""
    with gateway.connect() as line:
        line.sendall(head(gateway, "Content-Length: 5", "Transfer-Encoding: chunked"))
        reply = answered(line)
    assert reply.startswith(b"HTTP/1.1 400")
    assert b'"BadRequest"' in reply


@pytest.mark.parametrize("length", [LARGEST_BODY, LARGEST_BODY + 1])
def test_bytes_are_counted_as_they_come(length: int) -> None:
    """Whatever the header said, and whoever let it through."""
    asked, statuses, left = [], [], [length]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(len((await receive())["body"]))
        await PlainTextResponse("ok")(scope, receive, send)

    async def receive() -> Message:
        size = min(left[0], 1 << 16)
        left[0] -= size
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left[0])}

    async def send(message: Message) -> None:
        statuses.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"5")]
    scope = {"type": "http", "method": "POST", "path": "/v1/classify", "headers": headers}
    asyncio.run(Guard(app, frozenset({"localhost"}), None)(scope, receive, send))
    assert (statuses[0], asked) == ((200, [length]) if length <= LARGEST_BODY else (413, []))


def test_a_body_in_chunks_says_no_length(gateway: Gateway) -> None:
    with gateway.connect() as line:
        line.sendall(head(gateway, "Transfer-Encoding: chunked"))
        assert answered(line).startswith(b"HTTP/1.1 411")


def test_a_body_that_stalls_is_given_up(gateway: Gateway) -> None:
    with gateway.connect() as line:
        line.sendall(head(gateway, "Content-Length: 100") + b'{"texts": [')
        reply = answered(line)
    assert reply.startswith(b"HTTP/1.1 408")
    assert b'"TooSlow"' in reply


def test_a_get_has_no_body(gateway: Gateway) -> None:
    for line in ("Content-Length: 300000000", "Transfer-Encoding: chunked"):
        with gateway.connect() as connection:
            connection.sendall(head(gateway, line, path="/healthz").replace(b"POST", b"GET", 1))
            assert answered(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("path", ["/", "/page.js", "/healthz", "/readyz", "/openapi.json"])
def test_nobody_sends_a_body_without_a_token(gateway: Gateway, path: str) -> None:
    """What needs no token is refused before its body comes: with one it could be held up for its deadline."""
    asked = head(gateway, "Content-Length: 100", path=path)
    for method in (b"POST", b"PUT", b"OPTIONS"):
        with gateway.connect() as line:
            line.sendall(asked.replace(b"POST", method, 1))
            reply = answered(line)
        assert reply.startswith(b"HTTP/1.1 405"), method
        assert b'"MethodNotAllowed"' in reply
        assert b"allow: GET, HEAD" in reply


# Connections ---------------------------------------------------------------------------------------------------------


def test_stalled_connections_end_and_keep_nobody_out(gateway: Gateway, client: httpx.Client) -> None:
    """Twice as many as there may be, a third each: silent, in their first header, in a later one."""
    host = gateway.url.removeprefix("http://").rstrip("/").encode()
    begun = b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n"
    lines = [gateway.connect() for _ in range(2 * MOST_CONNECTIONS)]
    for number, line in enumerate(lines):
        with contextlib.suppress(ConnectionError):  # another has its place already
            line.sendall([b"", begun, begun + b"\r\n" + begun][number % 3])
    assert client.get("/healthz").text == "ok\n"
    assert all(closed(line) for line in lines)
    assert client.get("/healthz").text == "ok\n"


def test_a_header_byte_by_byte_is_given_up_too(gateway: Gateway) -> None:
    """A byte now and then does not set the clock back."""
    with gateway.connect() as line:
        line.settimeout(SECONDS / 20)
        line.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        ended = False
        for _ in range(int(20 * PATIENCE / SECONDS)):
            try:
                line.sendall(b"x")
                ended = line.recv(100) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
            if ended:
                break
    assert ended


# One shape of errors -------------------------------------------------------------------------------------------------


def test_every_error_has_the_same_shape_and_no_text(gateway: Gateway, client: httpx.Client) -> None:
    secret = "a very secret text"
    found = [
        client.get("/nothing"),
        client.delete("/v1/classify", headers=JSON),
        client.get("/v1/classify"),
        client.post("/v1/classify", content=f'{{"texts": "{secret}"'.encode(), headers=JSON),
        client.post("/v1/classify", json={"texts": secret}),
        client.post("/v1/classify", json={"texts": [{"secret": secret}]}),
        client.post("/v1/classify", content=b"{}", headers={"content-type": "text/plain"}),
        client.post("/v1/classify", json={"texts": [secret]}),
        client.get("/healthz", headers={"host": "attacker.example"}),
        client.get("/v1/model", headers={"origin": "http://["}),
        client.get("/v1/model", headers={"origin": "null"}),
    ]
    assert [one.status_code for one in found] == [404, 411, 405, 422, 422, 422, 415, 502, 421, 403, 403]
    with gateway.connect() as line:
        line.sendall(b"no HTTP at all\r\n\r\n")
        raw = answered(line)
    head_lines, _, body = raw.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head_lines
    for content in (*(one.content for one in found), body):
        problem = httpx.Response(400, content=content).json()
        assert problem["error"].keys() == {"type", "message"}
        assert all(problem.values())
        assert secret not in content.decode()
