"""A command that is slow says so first, and one that is stopped says how to go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from comet_mpc.cli.asking.answers import AnswerFile
from comet_mpc.cli.asking.query import _answer
from comet_mpc.cli.asking.texts import Texts
from comet_mpc.cli.asking.work import Shown
from comet_mpc.cli.main import app
from comet_mpc.service.hosting.state import claim
from comet_mpc.service.prediction import Answer
from support.answers import answer
from support.toy_model import TINY, make_checkpoint

pytestmark = pytest.mark.service

HEAVY = ("adopt", "unify", "calibrate", "finetune", "eval", "serve", "query --csv", "query --ready")

WATCH = """
import io, json, os, sys
from importlib.abc import MetaPathFinder
class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "scipy", "torch", "tokenizers", "cryptography", "safetensors"):
            print(json.dumps([name, sys.stderr.getvalue()]), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Watch())
sys.stderr = io.StringIO()
from comet_mpc.cli.main import app
app(sys.argv[1:])
"""
"""Ends the command where the first heavy import begins, and shows what had been said by then."""


def comet(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("command", HEAVY)
def test_a_slow_command_speaks_before_anything_heavy_is_imported(command: str, tmp_path: Path) -> None:
    """Importing alone takes seconds on a slow machine."""
    name, *options = command.split()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    words = [sys.executable, "-c", WATCH, name, *options]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    heavy, said = json.loads(found.stdout)
    assert heavy
    if name == "serve":  # its standard error is a log
        assert json.loads(said)["event"] == "starting"
    else:
        assert said == f"comet {name}: starting\n"


def test_help_does_not_say_that_it_starts() -> None:
    assert comet("serve", "--help").stderr == ""


def stopped(*arguments: str, at: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The command, stopped by Ctrl-C where it calls `at`."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(at, stop)
    return comet(*arguments)


def test_a_command_that_is_stopped_ends_with_130_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stopped("plan", "--shape", "minilm", at="comet_mpc.cli.plan.plan_shape", monkeypatch=monkeypatch)
    assert found.exit_code == 130
    assert "stopped. Run the command again to start over." in found.stderr
    model = make_checkpoint(tmp_path / "model", **TINY)
    arguments = ("serve", str(model), "--untrained", "--keys", str(tmp_path), "--state", str(tmp_path / "state"))
    found = stopped(*arguments, at="comet_mpc.service.hosting.blueprint.load_model", monkeypatch=monkeypatch)
    assert found.exit_code == 130
    assert "run the same command to serve again" in json.loads(found.stderr.splitlines()[-1])["event"]


@pytest.mark.parametrize(
    ("command", "at", "said"),
    [
        ("unify", "train.doing", "Nothing was written. Run the same command again."),
        ("finetune", "train.doing", "Run the same command to resume"),
        ("adopt", "adopt.doing", "Run the same command to resume"),
    ],
)
def test_training_that_is_stopped_says_what_is_kept(
    command: str, at: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = () if command == "unify" else ("--data", str(tmp_path))
    words = (command, str(tmp_path), str(tmp_path / "out"), *more)
    found = stopped(*words, at=f"comet_mpc.cli.{at}", monkeypatch=monkeypatch)
    assert found.exit_code == 130
    assert said in found.stderr


def test_a_query_that_is_stopped_says_where_its_answers_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        def ask(self, texts: Sequence[str], *, told: Callable[[int, Answer], None]) -> None:
            told(0, answer(1.0, 2.0))
            raise KeyboardInterrupt

    texts = Texts({1: "good", 2: "bad", 3: "long"})
    with AnswerFile(tmp_path / "out", texts.by_number) as file, pytest.raises(KeyboardInterrupt) as stop:
        _answer(Client(), texts, file, None, Shown())  # type: ignore[arg-type]
    assert stop.value.__notes__ == [f"Run the same command to resume: 1 of 3 answers are in {tmp_path / 'out'}."]
    with pytest.raises(KeyboardInterrupt) as stop:
        _answer(Client(), texts, None, None, Shown())  # type: ignore[arg-type]
    assert "--out FILE" in stop.value.__notes__[0]
    assert "1 of 3 texts were answered" in capsys.readouterr().err


def test_a_server_that_is_stopped_at_a_terminal_says_how_to_start_it_again(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", **TINY)
    assert comet("keys", "make", str(tmp_path / "keys")).exit_code == 0
    command = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()", "serve", str(model), "--untrained",
               "--listen", "127.0.0.1:0", "--keys", str(tmp_path / "keys"), "--state", str(tmp_path / "s")]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving at")
        server.send_signal(signal.SIGINT)
        _, log = server.communicate()
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert server.returncode == 130
    assert events[:2] == ["starting", "loading a model and proving its ranges"]
    assert events[-1] == "stopped by Ctrl-C: run the same command to serve again"


def test_a_cluster_that_is_stopped_ends_with_130_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClusterServer:
        def __init__(self, *_: object) -> None:
            """Ray is an extra."""

        def serve_forever(self, started: object) -> int:
            return signal.SIGINT

    module = ModuleType("comet_mpc.cluster.serving")
    monkeypatch.setattr(module, "ClusterServer", ClusterServer, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = comet("serve", str(tmp_path), "--cluster", "auto", "--state", str(tmp_path / "state"))
    assert found.exit_code == 130, found.stderr


def test_a_state_that_is_in_use_is_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    arguments = ("serve", str(tmp_path / "absent"), "--keys", str(tmp_path), "--state", str(tmp_path / "state"))
    with claim(tmp_path / "state"):
        found = comet(*arguments)
    assert found.exit_code == 1
    assert f"another server (process {os.getpid()}) works with" in found.stderr
    assert "absent" in comet(*arguments).stderr
