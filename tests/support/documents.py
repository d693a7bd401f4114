"""The project's Markdown files as tests see them: code blocks, headings, links; and how their blocks are run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE

__all__ = [
    "ROOT",
    "Block",
    "Page",
    "Runner",
    "Service",
    "check_command",
    "comet_lines",
    "free_ports",
    "markdown_files",
    "masked",
    "page_of",
]

ROOT = Path(__file__).parents[2]
_REDIRECT = Path(__file__).parent / "redirect"
_FLAGS = {"python": {"no-run", "server", "demo-server", "train"}, "sh": {"no-run"}, "text": {"output"}}
_FENCE = re.compile(r"^(\s*)```(.*)$")


def markdown_files() -> list[Path]:
    """Every Markdown file of the checkout that is ours."""
    folders = (ROOT / "docs", ROOT / "examples", ROOT / "research")
    return sorted({*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))})


@dataclass(frozen=True)
class Block:
    """A fenced code block. line: where its text begins. flags: the words after the language."""

    path: Path
    line: int
    language: str
    flags: frozenset[str]
    text: str

    @property
    def runs(self) -> bool:
        """A block that needs the extra [train] runs where that is installed."""
        able = "train" not in self.flags or find_spec("torch") is not None
        return self.language in ("python", "sh") and "no-run" not in self.flags and able

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path
    blocks: list[Block]
    prose: list[tuple[int, str]] = field(repr=False)
    """Lines outside of code blocks, with their numbers."""

    @property
    def headings(self) -> set[str]:
        """Anchors of the headings, as a renderer makes them."""
        titles = [line.lstrip("#").strip() for _, line in self.prose if line.startswith("#")]
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    @property
    def links(self) -> Iterator[tuple[int, str]]:
        for number, line in self.prose:
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                yield number, target

    @property
    def code_spans(self) -> Iterator[tuple[int, str]]:
        """Inline code, also where it is broken over two lines."""
        text = "\n".join(line for _, line in self.prose)
        for found in re.finditer(r"`([^`]+)`", text):
            yield self.prose[text[: found.start()].count("\n")][0], " ".join(found[1].split())

    @property
    def steps(self) -> Iterator[list[Block]]:
        """Blocks that run, in order, those of Python that follow each other together; and outputs that they must have.
        What an output is compared with runs alone."""
        together: list[Block] = []
        for block, after in zip_longest(self.blocks, self.blocks[1:]):
            shown = after is not None and "output" in after.flags
            alone = shown or block.language != "python"
            if together and block.runs and alone:
                yield together
                together = []
            if block.runs and not alone:
                together.append(block)
            elif block.runs or "output" in block.flags:
                yield [block]
        if together:
            yield together

    @property
    def serves(self) -> bool:
        """Whether its own commands start a server."""
        return any(block.runs and "comet serve" in block.text for block in self.blocks if block.language == "sh")


def page_of(path: Path, text: str | None = None) -> Page:
    """Reads a page. Flags that no test knows, and commands in blocks that no test looks at, are errors."""
    blocks, prose = [], []
    start, indent, info = 0, "", ""
    lines: list[str] = []
    for number, line in enumerate((path.read_text("utf-8") if text is None else text).splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and not start:
            start, indent, info, lines = number + 1, fence[1], fence[2].strip(), []
        elif fence:
            language, *flags = info.split() or [""]
            block = Block(path, start, language, frozenset(flags), "\n".join(lines) + "\n")
            unknown = block.flags - _FLAGS.get(language, set())
            if unknown:
                raise ValueError(f"{block}: unknown words after ```{language}: {', '.join(sorted(unknown))}")
            if language not in _FLAGS and re.search(r"^\s*(\$|comet|comet-lab|python|pip) ", block.text, re.MULTILINE):
                raise ValueError(f"{block}: commands belong into a block that begins with ```sh")
            blocks.append(block)
            start = 0
        elif start:
            lines.append(line.removeprefix(indent))
        else:
            prose.append((number, line))
    if start:
        raise ValueError(f"{path.name}:{start}: a code block does not end")
    return Page(path, blocks, prose)


# Command lines ---------------------------------------------------------------------------------------------


def comet_lines(block: Block) -> Iterator[tuple[int, list[str]]]:
    """The commands of a block as words, comments left out, lines that end in a backslash joined."""
    pending = ""
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        words = shlex.split(pending, comments=True)
        pending = ""
        if words:
            yield number, words


def check_command(command: Any, words: list[str], *, whole: bool = True) -> None:
    """Parses the words as the command line would: ValueError for an unknown command, option or value.

    whole: everything that is required must be there too. Otherwise only names are looked up, as for a mention in prose.
    """
    command = command.load() if hasattr(command, "load") else command
    if not whole:
        for word in words:
            if word.startswith("--"):
                known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
                if word.split("=")[0] not in {*known, "--help"}:
                    raise ValueError(f"{command.name} has no option {word}")
            elif hasattr(command, "commands"):
                if word not in command.commands:
                    raise ValueError(f"{command.name} has no command {word}")
                command = command.commands[word]
                command = command.load() if hasattr(command, "load") else command
        return
    try:
        context = command.make_context(command.name, list(words))
        if hasattr(command, "resolve_command"):
            name, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert name is not None
            check_command(inner, rest)
    except Exception as error:
        if type(error).__name__ == "Exit":  # --version and --help are done when they are parsed
            return
        if hasattr(error, "format_message"):
            raise ValueError(f"{' '.join(words)}: {error.format_message()}") from error
        raise


# Running blocks --------------------------------------------------------------------------------------------

_SERVICES = """
comet() {  # servers and dealers go on in the background, once they have said where they listen
    case ${1-} in
    serve | deal)
        local said; said=$(mktemp -u -p .); mkfifo "$said"
        exec {say}<>"$said"
        command comet "$@" >"$said" 2>>"$1.log" & echo $! >>processes
        read -r -t 240 line <&"$say" || { cat "$1.log" >&2; return 1; }
        echo "$line" ;;
    *) command comet "$@" ;;
    esac
}
"""


_SCRIPTS = """
import runpy, sys
for name in sys.argv[1:]:
    runpy.run_path(name, run_name="__main__")
"""
"""Each with names of its own. One process imports once: for most blocks that is most of the work."""


@dataclass(frozen=True)
class Service:
    """A tiny model, served at this port of this machine. keys: certificates for client and server."""

    port: int
    keys: Path
    model: Path


class Runner:
    """Runs the blocks of a page one after the other in one directory.

    Documents say `server.example:7001`. Here every name is this machine and every such port is mapped to one that is
    free, so a block runs as it stands (`tests/support/redirect`).
    """

    def __init__(self, directory: Path, ports: Mapping[int, int]) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        cache = directory / "cache"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NO_COLOR"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(_REDIRECT),
            "COMET_PORTS": json.dumps(ports),
            "XDG_CACHE_HOME": str(cache),
            "FORCE_COLOR": "1",  # tables as a terminal of 80 columns shows them, in one colour
            "TERM": "dumb",
            "COLUMNS": "80",
            "COMET_SERVE_READY": "1",  # of prepared queries: what else a page prepares ahead, nobody asks for
        }

    def run(self, *blocks: Block) -> str:
        """What the blocks print, which are one of sh or some of Python. AssertionError with their place and output if
        one fails."""
        first = blocks[0]
        if first.language == "sh":
            assert len(blocks) == 1
            return self.process(["bash", "-euo", "pipefail", "-c", _SERVICES + first.text], str(first))
        scripts = [self.directory / f"line_{block.line}.py" for block in blocks]
        for script, block in zip(scripts, blocks, strict=True):
            script.write_text(block.text, "utf-8")
        names = [script.name for script in scripts]
        return self.process([sys.executable, "-c", _SCRIPTS, *names], f"{first.path.name}: {', '.join(names)}")

    def process(self, command: list[str], name: str) -> str:
        with (self.directory / "stdout").open("w+") as out, (self.directory / "stderr").open("w+") as err:
            done = subprocess.run(
                command, cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                timeout=PATIENCE, check=False,
            )  # fmt: skip
            out.seek(0)
            err.seek(0)
            printed, complaints = out.read(), err.read()
        assert done.returncode == 0, f"{name} failed with {done.returncode}:\n{printed[-2000:]}\n{complaints[-4000:]}"
        return printed

    def close(self) -> None:
        """Ends the servers and dealers that blocks have started."""
        started = self.directory / "processes"
        for line in started.read_text().split() if started.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(int(line))
                try:
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    ended, _, _ = select.select([process], [], [], PATIENCE)
                    assert ended, "a server or dealer of a document did not end"
                finally:
                    os.close(process)


def free_ports(*wanted: int) -> dict[int, int]:
    """For every port of a document, one that is free on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in wanted]
    try:
        return {port: each.getsockname()[1] for port, each in zip(wanted, sockets, strict=True)}
    finally:
        for each in sockets:
            each.close()


_CHANGING = (
    (re.compile(r"(\d+)\.\d%"), r"\1 %"),  # the last digit of an answer is rounded at random
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "TIME"),
    (re.compile(r"\b([0-9a-f]{2} ){11}[0-9a-f]{2}\b"), "BYTES"),
    (re.compile(r"(?<!< )\b0\.\d{4}\b"), "P-VALUE"),
    (re.compile("[─-╿]+"), "LINE"),
    (re.compile(" +"), " "),
)


def masked(text: str) -> list[str]:
    """Lines of a printed output without what differs from run to run: times, random bytes, widths, last digits."""
    for pattern, name in _CHANGING:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]
