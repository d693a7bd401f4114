"""The `comet` command. A subcommand's module is imported when it is called, so that help and version are quick."""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from comet_mpc import __version__
from comet_mpc.cli.stopping import STOPPED, advice_of
from comet_mpc.errors import CometError
from comet_mpc.logs import log_as_json
from comet_mpc.settings import Settings

_USE, _OPERATE, _TRAIN = "Use", "Operate", "Train"
_COMMANDS = {
    "demo": ("demo.demo", _USE, "Try it: private predictions between processes on this machine."),
    "query": ("asking.query.query", _USE, "Classify texts privately, with a model that a server holds."),
    "generate": ("asking.generate.generate", _USE, "Write a text privately, with a model that a server holds."),
    "gateway": ("asking.gateway.gateway", _USE, "Answer HTTP requests of programs on the client's machine."),
    "plan": ("plan.plan", _USE, "Show what a private prediction will cost, without running it."),
    "serve": ("operating.service.serve", _OPERATE, "Serve models to clients."),
    "deal": ("operating.service.deal", _OPERATE, "Run a dealer: a third party that prepares randomness for others."),
    "top": ("operating.top.top", _OPERATE, "Show what a server or a dealer is doing now."),
    "keys": ("operating.keys.keys", _OPERATE, "Create, renew and revoke the certificates of clients and servers."),
    "audit": ("audit.audit_command", _OPERATE, "Test whether a party learns anything from what it receives."),
    "adopt": ("adopt.adopt", _TRAIN, "Convert your model for private serving."),
    "unify": ("train.unify", _TRAIN, "Replace a model's non-linear functions by those of the protocol."),
    "finetune": ("train.finetune", _TRAIN, "Train a Comet model for a task."),
    "calibrate": ("train.calibrate", _TRAIN, "Set the ranges of a model's values from data."),
    "eval": ("evaluate.evaluate", _TRAIN, "Measure a model's accuracy, in the clear or privately."),
}
"""Name: the function (or group of commands) and its module, the group that it is listed in, and what it does."""
_LOGGING = ("serve", "deal")
"""Commands that write a log: they say in it that they are starting."""
_SLOW = ("adopt", "unify", "calibrate", "finetune", "eval", "gateway")
"""Commands whose imports alone may take seconds on a slow machine. They say first that they are starting."""
_MUCH = {"--csv", "--file", "--ready"}
"""Options that give `comet query` much to do."""


class _Lazy(TyperCommand):
    """Stands for a command whose module is not imported yet."""

    def __init__(self, name: str, home: str, panel: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_help_panel=panel)
        self._home = home

    def load(self) -> Any:
        """The command itself."""
        module, _, name = self._home.rpartition(".")
        found = getattr(import_module(module), name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            single.command(self.name)(found)
            found = single
        command = get_command(found)
        _bind(command, f"COMET_{self.name}")
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _starting(str(self.name), args):
            command = self.load()
        if parent is not None and parent.obj is not None:
            settings = parent.obj.of(self.name, _written(command))
            for parameter in command.params:  # one value of many may stand alone
                if parameter.nargs == -1 or getattr(parameter, "multiple", False):
                    value = settings.get(parameter.name)
                    settings |= {parameter.name: [value]} if isinstance(value, str) else {}
            extra.setdefault("default_map", settings)
        return command.make_context(info_name, args, parent, **extra)


@contextlib.contextmanager
def _starting(name: str, args: list[str]) -> Iterator[None]:
    """Says so before anything heavy is imported: on a terminal, until that is done."""
    line = f"comet {name}: starting"
    if {"-h", "--help"} & set(args):
        yield
    elif name in _LOGGING:
        log_as_json()
        logging.getLogger(__name__).info("starting", extra={"fields": {"command": f"comet {name}"}})
        yield
    elif sys.stderr.isatty():
        print(line, end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
    else:
        if name in _SLOW or (name == "query" and _MUCH & set(args)):
            typer.echo(line, err=True)
        yield


def _written(command: Any) -> dict[str, str]:
    """The options and arguments of a command as a user writes them, and as its function calls them."""
    names = {}
    for parameter in command.params:
        options = [name.removeprefix("--") for name in parameter.opts if name.startswith("--")]
        names[(options[0] if options else parameter.name).replace("-", "_")] = parameter.name
    names.pop("help", None)
    return names


def _bind(command: Any, prefix: str) -> None:
    """Options can be environment variables, named as they are written. What only prints something, such as --help or
    --version, cannot: a variable of that name is somebody else's."""
    for written, name in _written(command).items():
        (parameter,) = (parameter for parameter in command.params if parameter.name == name)
        if parameter.param_type_name == "option" and parameter.envvar is None and not parameter.is_eager:
            parameter.envvar = f"{prefix}_{written}".upper().replace("-", "_")
    for name, inner in getattr(command, "commands", {}).items():
        if not isinstance(inner, _Lazy):
            _bind(inner, f"{prefix}_{name}")


class Commands(TyperGroup):
    """Shows an error of ours as one line, without a traceback unless asked for. Ends in order when terminated."""

    program = "comet"
    package = "comet_mpc.cli"
    listed: ClassVar[Mapping[str, tuple[str, str, str]]] = _COMMANDS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _bind(self, "COMET")
        for name, (home, panel, summary) in self.listed.items():
            self.add_command(_Lazy(name, f"{self.package}.{home}", panel, summary))

    def invoke(self, ctx: Any) -> Any:
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            return super().invoke(ctx)
        except CometError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"{self.program}: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt as stop:
            typer.echo(f"\nstopped. {advice_of(stop)}", err=True)
            raise typer.Exit(STOPPED) from None
        except OSError as error:  # what nobody could name better, such as too few file descriptors or a full disk
            if ctx.params.get("debug") or error.errno == errno.EPIPE:
                raise
            hint = "; raise the limit (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
            where = f": {error.filename}" if error.filename else ""
            typer.echo(f"{self.program}: {error.strerror or error}{where}{hint}", err=True)
            raise typer.Exit(1) from None
        finally:
            signal.signal(signal.SIGTERM, before)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"comet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read default options from a TOML file. Default: comet/comet.toml in the user's settings directory.",
        ),
    ] = None,
) -> None:
    """Classify private texts with a private Transformer.

    The server does not learn the text or the answer, and the client does not learn the weights.

    You can also set every option in an environment variable, such as COMET_SERVE_LISTEN, or in the settings file.
    """
    context.obj = Settings(config, _COMMANDS)
