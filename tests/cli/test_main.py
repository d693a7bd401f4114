"""The command: what it prints, what it exits with, and that errors are one line."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from comet_mpc import __version__
from comet_mpc.cli.main import _COMMANDS, app
from comet_mpc.cli.tables import origin
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import CometConfig, tensor_shapes
from comet_mpc.models.fold import in_form
from comet_mpc.models.stored.checkpoints import read_config, save_config
from support.toy_model import make_checkpoint
from support.waiting import PATIENCE


def comet(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_version() -> None:
    assert comet("--version").stdout == f"comet {__version__}\n"


def test_a_model_that_was_not_fine_tuned_is_not_served(tmp_path: Path) -> None:
    """The same weights with other non-linear steps answer at random until they are trained with them."""
    model = make_checkpoint(tmp_path / "model", layers=1)
    state = ("--state", str(tmp_path / "state"))
    refused = comet("--debug", "serve", str(model), "--keys", str(tmp_path), *state)
    assert isinstance(refused.exception, ConfigurationError)
    assert f"comet finetune {model} OUT" in str(refused.exception)
    config = msgspec.structs.replace(read_config(model), scores={"accuracy": 91.5})
    save_config(model, config)
    for more in ([], ["--untrained"]):
        refused = comet("--debug", "serve", str(model), "--keys", str(tmp_path), "--state", str(tmp_path / "s"), *more)
        assert "authority.pem is missing" in str(refused.exception)  # so far it came
    assert in_form_of(config).scores == {}


def in_form_of(config: CometConfig) -> CometConfig:
    """Unified again: other steps than those it was trained with."""
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(config).items()}
    changed, _ = in_form(
        config, tensors, activation=config.activation, attention=config.attention, pooler=config.pooler,
        labels=config.encoder.labels,
    )  # fmt: skip
    return changed


def test_help_and_version_load_nothing_heavy() -> None:
    code = """
import sys
from typer.testing import CliRunner
from comet_mpc.cli.main import app
for option in ("--version", "--help"):
    assert CliRunner().invoke(app, [option]).exit_code == 0
print(sorted({"numpy", "scipy", "tokenizers", "torch", "cryptography"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    shown = comet(name, "--help")
    assert shown.exit_code == 0, shown.output
    assert f" {name} " in shown.stdout
    assert _COMMANDS[name][2] in " ".join(comet("--help").stdout.replace("│", " ").split())


def test_a_misspelt_command_is_code_2() -> None:
    assert comet("querry").exit_code == 2


@pytest.mark.slow
def test_tables_fit_80_columns() -> None:
    shown = CliRunner().invoke(app, ["plan", "--shape", "bert-base"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert "…" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_record_has_its_command_without_paths_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["eval", "/somewhere/else/model", "--data", "../glue", "--json=~/results/a.json", "--limit=5", "b/c"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/comet", *words])
    assert origin()["command"] == "comet eval model --data glue --json=a.json --limit=5 b/c"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("model"), layers=1))


@pytest.mark.service
def test_demo_gives_the_plaintext_answers_at_the_planned_cost(checkpoint: str) -> None:
    result = comet("demo", "--model", checkpoint, "--json", "-", "the film is good", "a dull plot")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)
    for shown, text in ((first, "the film is good"), (second, "a dull plot")):
        assert shown["text"] == text
        assert shown["label"] == shown["plain_label"]
        assert abs(shown["probability"] - shown["plain_probability"]) < 0.02
        assert shown["online_bytes"] == shown["planned_online_bytes"] == shown["client_sent"] + shown["server_sent"]
        assert shown["rounds"] == shown["planned_rounds"]
        assert min(shown[field] for field in ("offline_bytes", "online_seconds", "offline_seconds")) > 0
        assert shown["text_itself"]["p_value"] < 1e-3  # the control: a text is not random
        assert shown["server_saw"]["p_value"] > 1e-9
    assert second["offline_bytes"] == first["offline_bytes"]  # prepared together


@pytest.mark.service
def test_demo_prints_tables(checkpoint: str) -> None:
    result = comet("demo", "--model", checkpoint, "good film")
    assert result.exit_code == 0, result.output
    for expected in ("good film", "in the clear", "exactly as planned", "no third party"):
        assert expected in result.stdout


def test_demo_needs_a_checkpoint_that_is_one(tmp_path: Path) -> None:
    result = comet("demo", "--model", str(tmp_path), "good film")
    assert result.exit_code == 1
    assert "config.json" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_plan_prints_tables_or_json(checkpoint: str) -> None:
    shown = comet("plan", "--shape", "minilm", "--tokens", "32", "--network", "200mbit/10ms")
    assert shown.exit_code == 0, shown.output
    assert "attention" in shown.stdout
    planned = json.loads(comet("plan", checkpoint, "--tokens", "16", "--json", "-").stdout)
    assert planned["online_bytes"] == planned["client_sends"] + planned["server_sends"]
    assert sum(cost["rounds"] for cost in planned["operations"]) == planned["rounds"]
    assert "schedule" not in planned
    listed = comet("plan", checkpoint, "--tokens", "16", "--rounds")
    assert "Rounds of layer 0" in listed.stdout
    assert "TruncateOpen" in listed.stdout or "Truncate" in listed.stdout
    planned = json.loads(comet("plan", checkpoint, "--tokens", "16", "--rounds", "--json", "-").stdout)
    assert len(planned["schedule"]) == planned["rounds"]
    assert sum(entry["from_client"] for entry in planned["schedule"]) == planned["client_sends"]
    for wrong in (["plan"], ["plan", "--shape", "gpt"], ["plan", "--shape", "minilm", "--network", "fast"]):
        assert comet(*wrong).exit_code != 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "--shape", "bert-bas"), "unknown shape 'bert-bas'. Did you mean 'bert-base'?"),
        (("plan", "--shape", "xyz"), "unknown shape 'xyz'. The shapes: minilm,"),
        (("plan", "--shape", "minilm", "--source", "dealr"), "'dealr'. Did you mean 'dealer'?"),
        (("plan", "nowhere"), "no such directory: nowhere"),
        (("querry",), "Did you mean 'query'?"),
        (("plan", "--shap", "minilm"), "--shape"),
    ],
)
def test_a_misspelt_name_is_met_with_the_nearest_one(arguments: tuple[str, ...], said: str) -> None:
    shown = comet(*arguments)
    assert shown.exit_code
    assert said in shown.stderr


def test_what_is_no_comet_checkpoint_says_what_it_is_and_what_to_do(tmp_path: Path) -> None:
    serve = ("serve", "--keys", str(tmp_path), "--state", str(tmp_path / "state"))
    plain = tmp_path / "my-classifier"
    plain.mkdir()
    assert comet(*serve, str(plain)).stderr.endswith(f"{plain} is not a checkpoint: it has no config.json\n")
    (plain / "config.json").write_text('{"model_type": "bert", "hidden_size": 384}')
    for command in (serve, ("plan",), ("demo", "--model")):
        shown = comet(*command, str(plain)).stderr
        assert f"comet adopt {plain} my-classifier-comet --data ROWS.csv" in shown
    assert "is a file" in comet(*serve, str(plain / "config.json")).stderr
    (plain / "config.json").write_text("{}")
    assert "is not a Comet checkpoint" in comet(*serve, str(plain)).stderr


def test_keys_are_made_once(tmp_path: Path) -> None:
    made = comet("keys", "make", str(tmp_path / "keys"), "--host", "dealer.example")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "keys" / "dealer.key").stat().st_mode & 0o777 == 0o600
    again = comet("keys", "make", str(tmp_path / "keys"))
    assert again.exit_code == 1
    assert "exists" in again.stderr
    assert again.stderr.count("\n") == 1
    assert comet("keys", "make", str(tmp_path / "keys"), "--force").exit_code == 0


def test_keys_say_what_to_do_with_a_name_that_was_used(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    assert comet("keys", "make", keys).exit_code == 0
    assert comet("keys", "issue", keys, "alice").exit_code == 0
    for state in ("valid until", "revoked"):
        again = comet("keys", "issue", keys, "alice")
        assert again.exit_code == 1
        assert f"'alice' has had a certificate ({state}" in again.stderr
        for remedy in (f"comet keys renew {keys} alice", f"comet keys revoke {keys} alice", "another name"):
            assert remedy in again.stderr
        comet("keys", "revoke", keys, "alice")
    assert comet("keys", "renew", keys, "alice").exit_code == 0


def test_keys_list_knows_an_old_authority(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    assert comet("keys", "make", keys).exit_code == 0
    assert comet("keys", "issue", keys, "alice").exit_code == 0
    assert comet("keys", "make", keys, "--force").exit_code == 0
    listed = comet("keys", "list", keys)
    assert "alice: issued by an authority that was replaced, so nobody accepts it" in " ".join(listed.stdout.split())
    states = [(one["name"], one["state"]) for one in json.loads(comet("keys", "list", keys, "--json", "-").stdout)]
    roles = ("client", "server", "dealer")
    assert states == [(name, "old authority") for name in (*roles, "alice")] + [(name, "valid") for name in roles]
    assert comet("keys", "renew", keys, "alice").exit_code == 0
    assert "replaced" not in comet("keys", "list", keys).stdout


@pytest.mark.service
def test_dealer_starts_and_stops(tmp_path: Path) -> None:
    assert comet("keys", "make", str(tmp_path)).exit_code == 0
    command = [sys.executable, "-c", "from comet_mpc.cli.main import app; app()", "deal",
               "--listen", "127.0.0.1:0", "--keys", str(tmp_path), "--metrics", "127.0.0.1:0"]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as dealer:
        assert dealer.stdout is not None
        assert dealer.stdout.readline().startswith("dealing at 127.0.0.1:")
        metrics = dealer.stdout.readline().removeprefix("metrics at ").strip()
        for page, text in (("healthz", "ok"), ("readyz", "ok"), ("metrics", "comet_bundles_dealt_total 0")):
            with urllib.request.urlopen(metrics.replace("metrics", page), timeout=PATIENCE) as reply:
                assert text in reply.read().decode()
        dealer.send_signal(signal.SIGINT)
        assert dealer.wait(PATIENCE) == 130  # as every command that Ctrl-C ends


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    assert comet("keys", "make", str(tmp_path)).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = comet("deal", "--listen", f"127.0.0.1:{port}", "--keys", str(tmp_path))
    assert result.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 2  # the log says that it starts


def test_missing_keys_are_one_clear_line_unless_debugging(tmp_path: Path) -> None:
    result = comet("deal", "--listen", "127.0.0.1:0", "--keys", str(tmp_path))
    assert result.exit_code == 1
    assert "authority.pem is missing" in result.stderr
    debugged = comet("--debug", "deal", "--listen", "127.0.0.1:0", "--keys", str(tmp_path))
    assert type(debugged.exception).__name__ == "ConfigurationError"


def test_an_interrupt_while_modules_are_imported_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    code = "from comet_mpc.cli.start import run; run()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (found.returncode, found.stderr) == (130, "stopped before anything was done\n")


def test_the_command_begins_before_anything_else_is_imported() -> None:
    """Until then Ctrl-C shows a traceback, of the launcher that pip has written."""
    code = """
import sys
from comet_mpc.cli.start import run
print(sorted({"email", "importlib.metadata", "msgspec", "numpy", "typer"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_the_operating_system_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("comet_mpc.cli.operating.keys.make_authority", refuse)
    found = comet("keys", "make", str(tmp_path))
    assert found.exit_code == 1
    assert found.stderr == "comet: Too many open files; raise the limit (ulimit -n)\n"
