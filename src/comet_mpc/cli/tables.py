"""Results: tables for people, no wider than 80 columns unless there is room, and JSON for machines."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from comet_mpc.files import atomic_write
from comet_mpc.offline.sources import find_source
from comet_mpc.units import human_bytes, human_seconds

if TYPE_CHECKING:  # a command that shows no measurement need not load what measures
    from comet_mpc.local.demo import TextResult


def report(records: Any, json: Path | None, *shown: Any) -> None:
    """The tables, and JSON where it is wanted; with JSON on standard output, nothing else goes there."""
    if str(json) != "-":
        console = Console()
        for each in shown:
            console.print(each, highlight=False)
    write_json(json, records)


def write_json(path: Path | None, value: Any) -> None:
    """To a file, or to standard output (-), or nowhere."""
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    if str(path) == "-":
        typer.echo(text)
        return
    with atomic_write(path) as file:
        file.write(text + b"\n")


def record(path: Path | None, result: object, program: str = "comet") -> None:
    """Writes a result, a mapping or an object with fields, with the command and the versions that it depends on."""
    write_json(path, msgspec.to_builtins(result) | origin(program))


def in_words(scores: Mapping[str, float]) -> str:
    """Metrics as people read them."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def origin(program: str = "comet") -> dict[str, Any]:
    """The command that a result was made with, and the versions that it depends on."""
    versions = {"python": platform.python_version()}
    for name in ("comet-mpc", "torch", "numpy", "tokenizers"):  # torch may be absent
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {"command": " ".join([program, *map(_portable, sys.argv[1:])]), "versions": versions}


def _portable(word: str) -> str:
    """Of a path that only this machine has, its last part."""
    option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + sign + (Path(value).name if value.startswith(("/", "../", "~")) else value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Group:
    """A table whose first `left` columns are texts and whose others are numbers. Cells are taken literally."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", no_wrap=index >= left)
    for row in rows:
        made.add_row(*map(Text, row))
    return Group(Text(title, style="bold"), made)


def _p_value(p: float | None) -> str:
    if p is None:
        return "too short to tell"
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def demo_tables(texts: Sequence[TextResult]) -> list[Group | str]:
    """The answers, what was seen, and what it cost."""
    last = texts[-1]
    source = find_source(last.source)
    others = ", a server and a dealer: three" if source.has_third_party else " and a server: two"
    agree = all((one.online_bytes, one.rounds) == (one.planned_online_bytes, one.planned_rounds) for one in texts)
    return [
        f"\nA client{others} processes on this machine, connected by TLS 1.3.\n"
        "The server does not learn the texts or the answers.\n"
        "The client does not learn the weights.\n",
        table(
            "The answers, which only the client sees",
            ("text", "private", "", "in the clear", ""),
            (
                (one.text, one.label, f"{one.probability:.1%}", one.plain_label, f"{one.plain_probability:.1%}")
                for one in texts
            ),
        ),
        table(
            "What the server saw of the last text, and the text for comparison",
            ("", "first bytes", "size", "p"),
            (
                (what, g.first_bytes[:35], human_bytes(g.size), _p_value(g.p_value))
                for what, g in (("all that it received", last.server_saw), ("the text (not sent)", last.text_itself))
            ),
            left=2,
        ),
        "p: the chance that random numbers look this uneven. 1 run in 100 is below 0.01.\n",
        table(
            "What each text cost" + (". Bytes and rounds are exactly as planned" if agree else ""),
            ("tokens", "client sends", "server sends", "rounds", "time", "offline", "time"),
            (
                (
                    str(one.bucket),
                    human_bytes(one.client_sent),
                    human_bytes(one.server_sent),
                    str(one.rounds),
                    human_seconds(one.online_seconds),
                    human_bytes(one.offline_bytes),
                    human_seconds(one.offline_seconds),
                )
                for one in texts
            ),
            left=0,
        ),
        f"Set-up, once per client and model: {human_bytes(last.setup_bytes)}, "
        f"{human_seconds(last.setup_seconds)}.\n\n"
        f"The randomness was prepared before (offline): that needs no text.\n{source.promise}\n",
    ]
