"""deploy/: settings that commands know, units that run as they are written, and a recipe that names real options."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from comet_mpc.cli.main import _written, app
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.metrics import parse
from comet_mpc.offline.dealer.server import Dealer
from comet_mpc.settings import Settings
from support.documents import ROOT
from support.processes import running_world
from support.waiting import PATIENCE

DEPLOY = ROOT / "deploy"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
COMET = typer.main.get_command(app)
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def names(command: str) -> dict[str, str]:
    return _written(COMET.commands[command].load())  # type: ignore[attr-defined]


def test_every_setting_is_one_that_its_command_has() -> None:
    content = tomllib.loads((DEPLOY / "comet.toml").read_text())
    settings = Settings(DEPLOY / "comet.toml", COMET.commands)  # type: ignore[attr-defined]
    sections = [name for name, value in content.items() if isinstance(value, dict)]
    assert {"serve", "deal", "query", "gateway"} == set(sections)
    for name in sections:
        assert settings.of(name, names(name))


def test_every_variable_of_the_container_is_one_that_is_read() -> None:
    known = {"COMET_KEYS", "COMET_CACHE", "COMET_SERVER"}
    for command in ("serve", "deal", "query", "gateway"):
        known |= {f"COMET_{command}_{name}".upper() for name in names(command)}
    used = set(re.findall(r"\b(COMET_\w+)=", (DEPLOY / "Containerfile").read_text()))
    used |= {name for one in DEPLOY.glob("*.yaml") for name in re.findall(r"environment: \[(\w+)\]", one.read_text())}
    used |= {name for unit in UNITS for name in re.findall(r"\b(COMET_\w+)=", unit.read_text())}
    assert {"COMET_KEYS", "COMET_SERVE_MODEL"} <= used <= known


def test_compose_files_use_options_that_there_are() -> None:
    for path in DEPLOY.glob("compose.*.yaml"):
        words = re.findall(r'"([^"]+)"', re.search(r"command: \[(.*?)\]", path.read_text(), re.DOTALL)[1])  # type: ignore[index]
        options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
        assert options <= names(words[0]).keys(), path


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    return found


def test_the_dashboard_has_a_place_of_its_own_for_every_panel() -> None:
    """What Grafana needs to load it: numbers that differ, known kinds, and no two panels in one place."""
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        own = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert own, panel["title"]
        assert not own & cells, panel["title"]
        assert x + w <= 24, panel["title"]
        cells |= own
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(letters) == len(set(letters))
        assert panel["type"] in {"row", "stat", "timeseries", "heatmap", "bargauge"}
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_dashboard_asks_the_source_and_the_instances_that_were_chosen() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "instance"]
    for panel in (panel for panel in panels() if panel["type"] != "row"):
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            assert target["expr"].count("comet_") == target["expr"].count('instance=~"$instance"'), target["expr"]


def lost(written: Any, read: Any, where: str) -> list[str]:
    """Where Grafana's own types have nothing, or something else, for what is written."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [each for name in written for each in lost(written[name], read.get(name), f"{where}.{name}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [each for i, pair in enumerate(zip(written, read, strict=True)) for each in lost(*pair, f"{where}[{i}]")]
    return [] if written == read else [where]


def through_grafana(board: dict[str, Any]) -> Any:
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_grafanas_own_types_read_every_word_of_the_dashboard() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    assert lost(board, through_grafana(board), "board") == []
    panel = next(one for one in board["panels"] if one["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["units"] = panel["fieldConfig"]["defaults"].pop("unit")  # the control
    assert any(".units" in each for each in lost(board, through_grafana(board), "board"))


@pytest.mark.service
def test_dashboard_alerts_and_documents_know_the_metrics_that_there_are(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Names, labels, phases and kinds, as a server and a dealer that have done something publish them."""
    with running_world(keys, tiny_checkpoint, tmp_path / "state", with_dealer=True, limits={}, workers=2) as world:
        with world.client(tmp_path / "cache") as client:
            client.prepare(2, batch=1, bucket=16)
            client.classify(["the film is good"])
            client.prepare(1, batch=1, bucket=16)
            with urllib.request.urlopen(world.server.metrics, timeout=PATIENCE) as reply:
                page = reply.read().decode()
        (prepared, *_) = [one for one in world.server.events() if one["event"] == "prepared a bundle"]
    dealer = Dealer("127.0.0.1", 0, TlsIdentity.find(keys, "dealer"))
    with dealer:
        found = [parse(page), parse(dealer.counters.text(dealer.gauges()))]
    types = re.findall(r"^# TYPE (\w+) ", page + dealer.counters.text(dealer.gauges()), re.MULTILINE)
    documented = set(re.findall(r"^\| `(comet_\w+)`", METRICS.read_text(), re.MULTILINE)) | {"comet_phase_seconds"}
    assert documented == set(types)

    labels: dict[str, dict[str, set[str]]] = {}
    for own in found:
        for name, values in own.items():
            for each in (one for one, _ in values):
                for label, value in each.items():
                    labels.setdefault(name, {}).setdefault(label, set()).add(value)
    assert labels["comet_bundles"] == {"model": {"model"}, "batch": {"1"}, "bucket": {"16"}}
    assert labels["comet_owner_bundles"] == {"owner": {prepared["owner"]}}
    assert prepared["client"] == "client"  # only the log says whose it is, and so does no other page
    assert not re.search(r"\bclient\b", re.sub(r"(?m)^# HELP.*$", "", page))

    names = {name for own in found for name in own}
    expressions = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
    expressions += [rule["expr"] for rule in rules]
    for expression in expressions:
        used = re.findall(r"(comet_\w+)(?:\{([^}]*)\})?", expression)
        assert used, expression
        for name, chosen in used:
            assert name in names | {"comet_revocation_list_timestamp_seconds"}, expression
            for label, sign, wanted in re.findall(r'(\w+)(!?=~?)"([^"]*)"', chosen):
                if label != "instance":
                    options = wanted.split("|") if "~" in sign else [wanted]
                    has = labels[name][label]
                    assert all(any(re.fullmatch(one, value) for value in has) for one in options), expression
    documented_phases = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[a-z_`, ]+`) \| (?:both|server|dealer) \| ",
                                   METRICS.read_text(), re.MULTILINE)))  # fmt: skip
    assert set(documented_phases) == labels["comet_phase_seconds_count"]["phase"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_units_are_in_order(tmp_path: Path) -> None:
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/local/bin/comet", sys.executable))
    command = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def started(unit: str, directory: Path, keys: Path, **more: str) -> tuple[subprocess.Popen[str], str]:
    """What a unit starts, with its own variables and its own command; and the first line that it prints."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / f"comet-{unit}.service")
    service = parser["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/usr/local/bin/comet"
    name, _, value = service.get("Environment", f"COMET_KEYS={keys}").partition("=")
    environment = {**os.environ, name: value.replace("%d", str(keys)), "PYTHONUNBUFFERED": "1", **more}
    words = [word.replace("/etc/comet", str(directory)) for word in words]
    command = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline()


@pytest.mark.service
def test_units_start_a_server_and_a_gateway_that_answer(tmp_path: Path, keys: Path, tiny_checkpoint: Path) -> None:
    """Only directories and ports are others than in the files."""
    content = (DEPLOY / "comet.toml").read_text().replace("/var/", f"{tmp_path}/var/")
    content = re.sub(r'"[\w.]+:\d+"', '"127.0.0.1:0"', content)
    content = content.replace(f"{tmp_path}/var/lib/comet-models/model", str(tiny_checkpoint))
    (tmp_path / "comet.toml").write_text(content)
    server, line = started("server", tmp_path, keys, COMET_SERVE_UNTRAINED="1")
    gateway = None
    try:
        address = line.split(" at ")[1].split(",")[0]
        (tmp_path / "comet.toml").write_text(content.replace('server = "127.0.0.1:0"', f'server = "{address}"'))
        gateway, line = started("gateway", tmp_path, keys)
        url, token = line.split()[2], tmp_path / "var/cache/comet-gateway/gateway.token"
        assert token.stat().st_mode & 0o077 == 0
        header = {"Authorization": token.read_text().partition(": ")[2].strip()}
        reply = httpx.post(f"{url}v1/classify", json={"texts": ["a film"]}, headers=header, timeout=PATIENCE)
        assert reply.json()["answers"][0]["label"] in ("negative", "positive")
        assert (tmp_path / "var/cache/comet-gateway").is_dir()
    finally:
        for process in (gateway, server):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=PATIENCE)
    assert server.returncode == 0
    assert gateway.returncode in (0, 143)
