"""Settings from a file and from the environment: which goes first, and that nothing in them is ignored silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from comet_mpc.cli.main import _Lazy, app
from comet_mpc.errors import ConfigurationError
from comet_mpc.settings import Settings
from support.toy_model import TINY, make_checkpoint


def comet(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment)


def written(directory: Path, content: str) -> str:
    path = directory / "comet.toml"
    path.write_text(content)
    return str(path)


@pytest.mark.slow
def test_the_command_line_goes_before_the_environment_and_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[plan]\nshape = "minilm"\ntokens = 16\nlayers = 1\n')
    plan = ("--config", file, "plan", "--json", "-")
    assert json.loads(comet(*plan).stdout)["tokens"] == 16
    assert json.loads(comet(*plan, COMET_PLAN_TOKENS="32").stdout)["tokens"] == 32
    assert json.loads(comet(*plan, "--tokens", "8", COMET_PLAN_TOKENS="32").stdout)["tokens"] == 8
    assert json.loads(comet("plan", "--json", "-", COMET_CONFIG=file).stdout)["tokens"] == 16


def test_the_users_own_file_is_read_and_none_is_needed(tmp_path: Path) -> None:
    (tmp_path / "comet").mkdir()
    arguments = ("plan", "--layers", "1", "--tokens", "8", "--json", "-")
    assert comet(*arguments, XDG_CONFIG_HOME=str(tmp_path)).exit_code == 1  # no shape is named
    written(tmp_path / "comet", '[plan]\nshape = "minilm"\n')
    assert json.loads(comet(*arguments, XDG_CONFIG_HOME=str(tmp_path)).stdout)["model"] == "minilm"


def test_what_stands_above_is_for_all_and_a_section_goes_first(tmp_path: Path) -> None:
    """Names are as on the command line, with - or _; a command that has commands passes its sections on."""
    file = Path(
        written(tmp_path, 'keys = "a"\nsource = "pair"\n[serve]\nkeys = "b"\nanswer-bits = 4\n[group.ops]\nx = 1\n')
    )
    settings = Settings(file, ["serve", "deal", "group"])
    assert settings.of("serve", {"keys": "keys", "answer_bits": "bits"}) == {"keys": "b", "bits": 4}
    assert settings.of("deal", {"keys": "directory"}) == {"directory": "a"}
    assert settings.of("group", {}) == {"ops": {"x": 1}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[plan]\ntoken = 16\n", r"\[plan\] has no setting 'token'. Did you mean 'tokens'\?"),
        ("[plan]\nxyzzy = 16\n", r"\[plan\] has no setting 'xyzzy'. Its settings: .*tokens"),
        ("[plam]\n", r"\[plam\] is not a command. Did you mean 'plan'\?"),
        ("timeuot = 16\n", r"unknown setting 'timeuot'. Did you mean 'timeout'\?"),
        ("xyzzy = 16\n", "unknown setting 'xyzzy'. Settings outside a section: keys"),
        ("[plan", "cannot read"),
        ("\0", "cannot read"),
        ("a = " + "[" * 10_000, "cannot read"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, content: str, said: str) -> None:
    found = comet("--debug", "--config", written(tmp_path, content), "plan", "--shape", "minilm")
    assert isinstance(found.exception, ConfigurationError)
    with pytest.raises(ConfigurationError, match=said):
        raise found.exception


def test_a_value_of_the_wrong_kind_is_refused_as_on_the_command_line(tmp_path: Path) -> None:
    file = written(tmp_path, '[plan]\nshape = "minilm"\ntokens = "many"\n')
    assert comet("--config", file, "plan").exit_code == 2
    assert comet("--config", str(tmp_path / "none"), "plan").exit_code == 1


def test_with_a_server_in_the_settings_the_first_word_is_a_text(tmp_path: Path) -> None:
    file = written(tmp_path, f'server = "127.0.0.1:1"\nkeys = "{tmp_path / "keys"}"\n')
    assert comet("keys", "make", str(tmp_path / "keys")).exit_code == 0
    for arguments in (("a text",), ("127.0.0.1:1", "a text")):
        found = comet("--config", file, "query", *arguments, "--cache", str(tmp_path / "cache"))
        assert "nobody listens at 127.0.0.1:1" in found.stderr
    assert "is not an address" in comet("query", "a text", "--keys", str(tmp_path / "keys")).stderr
    found = comet("query", "a text", "--keys", str(tmp_path / "keys"), COMET_SERVER="127.0.0.1:1")
    assert "nobody listens at 127.0.0.1:1" in found.stderr


def test_what_clients_may_take_is_what_the_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def server(*_: object, **options: Any) -> None:
        given.update(options)
        raise ConfigurationError("seen")

    monkeypatch.setattr("comet_mpc.service.hosting.blueprint.Server", server)
    assert comet("keys", "make", str(tmp_path / "keys")).exit_code == 0
    checkpoint = make_checkpoint(tmp_path / "model", **TINY)
    file = written(tmp_path, "[serve]\nstore_gb = 2.5\nclient_gb = 0.5\npreparations = 3\nclient_connections = 7\n")
    own = ("--keys", str(tmp_path / "keys"), "--state", str(tmp_path / "state"))
    words = ("--client-queries", "9", "--untrained", *own)
    assert "seen" in comet("--config", file, "serve", str(checkpoint), *words).stderr
    limits = given["limits"]
    assert (limits.store_bytes, limits.client_bytes, limits.client_bundles) == (2_500_000_000, 500_000_000, 9)
    assert (limits.preparations, given["per_client"]) == (3, 7)


def every_command(words: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """`comet`, its commands and theirs, each with the words that call it."""
    command = command or typer.main.get_command(app)
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command((*words, name), inner.load() if isinstance(inner, _Lazy) else inner)


def variable(words: tuple[str, ...], name: str) -> str:
    return "_".join(("comet", *words, name)).upper().replace("-", "_")


def test_every_option_is_a_variable_as_it_is_written() -> None:
    shared = {"COMET_KEYS", "COMET_CACHE"}
    found: set[str] = set()
    for words, command in every_command():
        for parameter in command.params:
            option = max(parameter.opts, key=len).removeprefix("--")
            if parameter.param_type_name == "option" and option not in ACTIONS and parameter.envvar not in shared:
                assert parameter.envvar == variable(words, option)
                assert parameter.envvar not in found
                found.add(parameter.envvar)
    assert {"COMET_DEBUG", "COMET_CONFIG", "COMET_SERVE_ANSWER_BITS", "COMET_KEYS_MAKE_HOST"} <= found


ACTIONS = ("help", "version", "install-completion", "show-completion")


@pytest.mark.parametrize("value", ["1", "0.2.0"])
def test_variables_that_are_no_settings_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Every name that such an option could have, of every command, is in the environment, and nothing happens."""
    others = ("API_KEY", "PORT", "PORT_7001_TCP", "SERVICE_HOST", "SERVER_PORT")  # of other programs and clusters
    for words, _ in every_command():
        for name in (*ACTIONS, *others):
            monkeypatch.setenv(variable(words, name), value)
    (_, whole), *inner = every_command()
    context = whole.make_context("comet", ["plan"])
    for words, command in inner:
        try:
            command.make_context("_".join(words), [], context)
        except typer.Exit:
            pytest.fail(f"{words} did what a variable says")
        except Exception as error:  # the first argument is missing, or the command of a group
            if type(error).__name__ not in ("MissingParameter", "NoArgsIsHelpError"):
                raise
    assert "1 × 8 tokens" in comet("plan", "--shape", "minilm", "--layers", "1", "--tokens", "8").stdout
    assert comet("keys", "make", str(tmp_path / "keys")).exit_code == 0


def test_a_wrong_value_in_a_variable_names_the_variable() -> None:
    found = comet("plan", "--shape", "minilm", COMET_PLAN_TOKENS="many", COLUMNS="200")
    assert found.exit_code == 2
    assert "'--tokens' (env var: 'COMET_PLAN_TOKENS')" in found.stderr
