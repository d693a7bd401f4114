"""The gateway over real HTTP, in front of a real server: answers, errors, and who may not ask."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.gateway.guard import LARGEST_BODY
from comet_mpc.models.heads import Head
from comet_mpc.models.served import ServedModel
from comet_mpc.offline.sources import PAIR
from support.gateways import gateway_process
from support.processes import TWIN_BOUND, ServerProcess, server_process
from support.toy_model import TINY, make_checkpoint, twin_logits
from support.waiting import PATIENCE

pytestmark = pytest.mark.service

TEXT = "the film is good"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def server(directory: Path, keys: Path, tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    with server_process(keys, tiny_checkpoint, None, directory / "state", workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(directory: Path, keys: Path, server: ServerProcess) -> Iterator[httpx.Client]:
    with (
        gateway_process(server.address, keys, directory / "cache") as gateway,
        gateway.client() as asking,
    ):
        yield asking


def right(logits: list[float], model: ServedModel, text: str = TEXT) -> bool:
    expected = twin_logits(model, model.encode([text]))[0]
    return bool(max(abs(a - b) for a, b in zip(logits, expected, strict=True)) < TWIN_BOUND)


def test_a_text_is_answered_and_the_server_saw_random_bytes(client: httpx.Client, tiny_model: ServedModel) -> None:
    model = client.get("/v1/model").json()
    assert model["fingerprint"] == tiny_model.fingerprint
    assert model["source"] == "pair"
    reply = client.post("/v1/classify", json={"texts": [TEXT]})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    (answer,), (seen,) = found["answers"], found["server_saw"]
    assert right(answer["logits"], tiny_model)
    plan = tiny_model.plan(1, 16, PAIR)
    assert (answer["cost"]["online_bytes"], answer["cost"]["rounds"]) == (plan.online_bytes, plan.rounds)
    assert (seen["texts"], seen["tokens"]) == (1, 16)
    assert plan.sent(0) * 0.8 < seen["received"]["size"] <= plan.sent(0)  # frames have headers
    assert seen["received"]["p_value"] > 1e-9
    assert found["text_itself"]["size"] == len(TEXT)
    assert found["text_itself"]["p_value"] < 0.01  # the control: a text is not random
    pair = client.post("/v1/classify", json={"texts": [["a film", "a plot"], TEXT]}).json()
    assert [run["texts"] for run in pair["server_saw"]] == [2]
    assert right(pair["answers"][1]["logits"], tiny_model)


def test_randomness_is_prepared_and_it_is_well(client: httpx.Client) -> None:
    assert client.post("/v1/prepare", json={"count": 2, "batch": 1}).json() == {"ready": 2}
    assert [client.get(path).text for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]


def test_it_describes_itself(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        *("/healthz", "/readyz", "/v1/model", "/v1/models", "/v1/prepare"),
        *("/v1/classify", "/v1/tag", "/v1/embed", "/v1/embeddings", "/v1/completions"),
    }
    assert {"Answers", "Tags", "Vectors", "Prediction", "Cost", "Problem"} <= described["components"]["schemas"].keys()
    classify = described["paths"]["/v1/classify"]["post"]
    refusals = [answer["content"] for code, answer in classify["responses"].items() if code != "200"]
    assert {one["application/json"]["schema"]["$ref"] for one in refusals} == {"#/components/schemas/Problem"}
    assert {"401", "408", "413", "422"} <= classify["responses"].keys()
    (scheme,) = classify["security"][0]
    assert described["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    assert client.get("/docs").status_code == 404  # it would load scripts from another site


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"host": "attacker.example"}),
        (421, {"host": "127.0.0.1"}),
        (403, {"origin": "http://attacker.example"}),
        (403, {"origin": "null"}),
        (403, {"sec-fetch-site": "cross-site"}),
        (403, {"sec-fetch-site": "same-site"}),
        (415, {"content-type": "text/plain"}),
        (415, {"content-type": "application/x-www-form-urlencoded"}),
    ],
)
def test_what_another_site_could_send_is_refused(client: httpx.Client, status: int, headers: dict[str, str]) -> None:
    body = b'{"texts": ["' + TEXT.encode() + b'"]}'
    refused = client.post("/v1/classify", content=body, headers=JSON | headers)
    assert refused.status_code == status
    assert TEXT not in refused.text
    assert "access-control-allow-origin" not in refused.headers


def test_a_body_that_is_too_long_or_has_no_length_is_refused(client: httpx.Client) -> None:
    assert client.post("/v1/classify", content=b" " * (LARGEST_BODY + 1), headers=JSON).status_code == 413
    assert client.post("/v1/classify", content=iter([b"{}"]), headers=JSON).status_code == 411


def test_who_still_sends_hears_why_it_was_refused(client: httpx.Client) -> None:
    body = b'{"texts": ["' + TEXT.encode() + b'"]}'
    head = f"POST /v1/classify HTTP/1.1\r\nHost: attacker.example\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), PATIENCE) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"WrongHost" not in answer:
            answer += connection.recv(4096)
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):  # closed before the body is there, it would be reset, and the answer lost
            connection.recv(4096)
        connection.settimeout(PATIENCE)
        connection.sendall(body)
        assert connection.recv(4096) == b""
    assert answer.startswith(b"HTTP/1.1 421")


def test_its_own_page_may_ask(client: httpx.Client) -> None:
    own = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert client.post("/v1/classify", json={"texts": [TEXT]}, headers=own).status_code == 200
    assert client.options("/v1/classify", headers={"origin": "http://attacker.example"}).status_code == 403


def test_the_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/", headers={"sec-fetch-site": "cross-site"})  # somebody followed a link
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    for name in ("", "page.css", "page.js", "icon.svg"):
        content = client.get(f"/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in content
        assert "https:" not in content


@pytest.mark.parametrize(
    "body", [{"texts": [" "]}, {"texts": []}, {"texts": [1]}, {"text": TEXT}, {"texts": ["a"] * 300}]
)
def test_a_request_that_makes_no_sense_is_named(client: httpx.Client, body: dict[str, Any]) -> None:
    reply = client.post("/v1/classify", json=body)
    assert reply.status_code in (400, 422)
    assert reply.json()["error"].keys() == {"type", "message"}


def test_a_server_that_is_gone_or_has_a_new_model_is_told(
    tmp_path: Path, keys: Path, shared_dealer: int, tiny_checkpoint: Path
) -> None:
    """The gateway goes on, and asks nothing of a model that nobody has accepted."""
    other = make_checkpoint(tmp_path / "other", **TINY, seed=5)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        server = first.enter_context(
            server_process(keys, tiny_checkpoint, shared_dealer, tmp_path / "state", workers=2)
        )
        gateway = stack.enter_context(gateway_process(server.address, keys, tmp_path / "cache"))
        with gateway.client() as asking:
            assert asking.post("/v1/classify", json={"texts": [TEXT]}).status_code == 200
            first.close()
            gone = asking.post("/v1/classify", json={"texts": [TEXT]})
            assert (gone.status_code, gone.json()["error"]["type"][:4]) == (502, "Peer")
            again = server_process(keys, other, shared_dealer, tmp_path / "state", workers=2, port=server.port)
            stack.enter_context(again)
            answers = [asking.post("/v1/classify", json={"texts": [TEXT]}) for _ in range(2)]
            assert [(one.status_code, one.json()["error"]["type"]) for one in answers] == [(502, "ModelChanged")] * 2
            assert f"--accept-model {ServedModel.load(other).fingerprint}" in answers[0].json()["error"]["message"]


def test_models_of_tokens_and_of_embeddings_answer(tmp_path: Path, keys: Path, shared_dealer: int) -> None:
    heads = {"embed": Head(kind="embedding", pooling="mean", unit=True), "tag": Head(kind="tokens")}
    for path, head in heads.items():
        labels = {"labels": ("O", "B-THING")} if path == "tag" else {}
        checkpoint = make_checkpoint(tmp_path / path, **TINY, head=head, **labels)  # type: ignore[arg-type]
        with (
            server_process(keys, checkpoint, shared_dealer, tmp_path / f"state-{path}", workers=2) as server,
            gateway_process(server.address, keys, tmp_path / "cache") as gateway,
            gateway.client() as asking,
        ):
            assert asking.get("/v1/model").json()["kind"] == head.kind
            found = asking.post(f"/v1/{path}", json={"texts": [TEXT]}).json()
            assert found["server_saw"][0]["received"]["p_value"] > 1e-9
            assert asking.post("/v1/classify", json={"texts": [TEXT]}).status_code == 400
        if path == "embed":
            assert sum(value**2 for value in found["answers"][0]["vector"]) == pytest.approx(1.0)
        else:
            assert [word["text"] for word in found["answers"][0]["words"]] == TEXT.split()
            assert all(part["label"] == "THING" for part in found["entities"][0])


def test_other_machines_are_kept_out_unless_told(keys: Path, tmp_path: Path) -> None:
    command = ["gateway", "server.example:7001", "--listen", "0.0.0.0:0", "--keys", str(keys), "--cache", str(tmp_path)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "no TLS" in refused.stderr


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_works_in_a_browser(client: httpx.Client, width: int) -> None:
    """No error in its console, no line wider than the window, and the answer is shown. Its address brings the token,
    which does not stay there."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page, said = browser.new_page(viewport={"width": width, "height": 800}), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{client.base_url}#token={client.headers['authorization'].split()[1]}")
        assert page.url == str(client.base_url)
        page.fill("#text", TEXT)
        page.click("#send")
        page.wait_for_selector("#answer:not([hidden])", timeout=1000 * PATIENCE)
        assert page.inner_text("#label") in ("negative", "positive")
        assert "16 tokens" in page.inner_text("#learned")
        assert "your text, for comparison (not sent)" in page.inner_text("#bytes")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert said == []
        browser.close()
