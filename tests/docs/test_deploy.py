"""deploy/: settings that commands know, units that run as they are written, and a recipe that names real options."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
import typer

from comet_mpc.cli.main import _written, app
from comet_mpc.settings import Settings
from support.documents import ROOT
from support.waiting import PATIENCE

DEPLOY = ROOT / "deploy"
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
    used |= {name for unit in UNITS for name in re.findall(r"\b(COMET_\w+)=", unit.read_text())}
    assert {"COMET_KEYS", "COMET_SERVE_MODEL"} <= used <= known


def test_compose_files_use_options_that_there_are() -> None:
    for path in DEPLOY.glob("compose.*.yaml"):
        words = re.findall(r'"([^"]+)"', re.search(r"command: \[(.*?)\]", path.read_text(), re.DOTALL)[1])  # type: ignore[index]
        options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
        assert options <= names(words[0]).keys(), path


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
