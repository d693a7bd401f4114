"""The pages of the site that are made from the code, and links that leave the folder of documents.

mkdocs calls `on_files` and `on_page_markdown`. A page says where generated text goes: `<!-- generated: modules -->`.
The files of the checkout's root (changelog, contributing, security policy) and the examples become pages, too.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import comet_mpc
from comet_mpc import errors
from comet_mpc.cli.main import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "comet_mpc"
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
}
"""Files of the checkout that the site shows, and where."""
_ORDER = ("errors", "units", "progress", "files", "net", "engine", "offline", "functions", "models", "train", "service")
"""Packages from the bottom up; those that are not named here follow."""


# Modules ---------------------------------------------------------------------------------------------------


def first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def modules() -> str:
    """A heading and the docstring of every package, then a line for every module in it."""
    lines = ["## At the bottom", ""]
    lines += [_module(path.stem, path) for path in sorted(SOURCE.glob("*.py")) if not path.stem.startswith("_")]
    packages = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
    for package in sorted(packages, key=_rank):
        name = ".".join(package.relative_to(SOURCE).parts)
        lines += ["", f"## {name}", "", first_line(package / "__init__.py"), ""]
        found = sorted(path for path in package.glob("*.py") if not path.stem.startswith("_"))
        lines += [_module(f"{name}.{path.stem}", path) for path in found]
    return "\n".join(lines) + "\n"


def _module(name: str, path: Path) -> str:
    return f"- `{name}`: {first_line(path)}"


def _rank(package: Path) -> tuple[int, tuple[str, ...]]:
    parts = package.relative_to(SOURCE).parts
    return _ORDER.index(parts[0]) if parts[0] in _ORDER else len(_ORDER), parts


# Command line ----------------------------------------------------------------------------------------------


def command_line() -> str:
    """Every command with its help text, arguments and options."""
    return "\n".join(line for name, command in commands() for line in _command(name, command)) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name."""
    whole: Any = typer.main.get_command(app)
    yield "comet", whole
    for name, lazy in whole.commands.items():
        command = lazy.load()
        yield f"comet {name}", command
        for inner, each in getattr(command, "commands", {}).items():
            yield f"comet {name} {inner}", each


def _command(name: str, command: Any) -> Iterator[str]:
    parameters = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = [name, *(_argument(each) for each in arguments), "[OPTIONS]"]
    yield from (f"## {name}", "", inspect.cleandoc(command.help or ""), "", "```text", " ".join(usage), "```", "")
    if arguments:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{_argument(each)}` | {_cell(getattr(each, 'help', '') or '')} |" for each in arguments)
        yield ""
    panels = dict.fromkeys(getattr(each, "rich_help_panel", None) or "Options" for each in options)
    for panel in panels:
        group = [each for each in options if (getattr(each, "rich_help_panel", None) or "Options") == panel]
        rows = [(f"`{_option(each)}`", _cell(each.help or ""), _default(each)) for each in group]
        columns = 3 if any(default for *_, default in rows) else 2
        for row in ((panel, "meaning", "default"), ("---",) * 3, *rows):
            yield f"| {' | '.join(row[:columns])} |"
        yield ""


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper()) + ("…" if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag or parameter.count:
        return names
    choices = getattr(parameter.type, "choices", None)
    shown = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER", "str": "NAME"}
    name = str(parameter.type.name)
    kind = parameter.metavar or ("/".join(map(str, choices)) if choices else shown.get(name, name.upper()))
    return f"{names} {kind}".replace("|", "/")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if (
        value is None
        or value is False
        or callable(value)
        or value in ((), [], "")
        or type(value).__name__ == "Sentinel"
    ):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# Python ----------------------------------------------------------------------------------------------------


def api() -> str:
    """Every public name: its signature, its docstring, and those of its methods."""
    names = [name for name in comet_mpc.__all__ if not name.startswith("__") and name not in errors.__all__]
    return _names(comet_mpc, names)


def training() -> str:
    """The same of `comet_mpc.train`, where that can be imported."""
    try:
        from comet_mpc import train
    except errors.ConfigurationError as error:
        return f"(Not listed, because {error}.)\n"
    return _names(train, train.__all__)


def _names(home: ModuleType, names: Sequence[str]) -> str:
    ordered = sorted(names, key=str.lower)
    return "\n".join(line for name in ordered for line in _name(name, getattr(home, name))) + "\n"


def _name(name: str, found: Any) -> Iterator[str]:
    yield from (f"## {name}", "")
    if isinstance(found, int):
        yield from (f"`{name} = {found!r}`: a party.", "")
    elif inspect.isclass(found):
        yield from _described(name, found, found)
        for method, each in vars(found).items():
            yield from _member(name, method, each)
    else:
        yield from _described(name, found, found)


def _member(owner: str, name: str, member: Any) -> Iterator[str]:
    inner = getattr(member, "__func__", member)
    if name.startswith("_") or not (inspect.isfunction(inner) or isinstance(member, property)):
        return
    yield from (f"### {owner}.{name}", "")
    if isinstance(member, property):
        yield from (_text(member), "")
    else:
        yield from _described(name, inner, member)


def _described(name: str, found: Any, documented: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(found)
        words = [str(each).replace("'", "") for each in parameters.parameters.values() if each.name != "self"]
        result = parameters.return_annotation
        returns = "" if result is parameters.empty else f" -> {str(result).strip(chr(39))}"
        whole = f"{name}({', '.join(words)}){returns}"
        if len(whole) > 88:
            whole = f"{name}(\n    " + ",\n    ".join(words) + f",\n){returns}"
        yield from ("```text", whole, "```", "")
    except (TypeError, ValueError):  # a type that is made of others has no signature
        pass
    yield from (_text(documented), "")


def _text(found: Any) -> str:
    """The docstring. Lines such as `timeout  seconds …`, which describe arguments, become a list."""
    lines: list[str] = []
    for line in (inspect.getdoc(found) or "").splitlines():
        item = re.match(r"(\w+(?:, \w+)*)  +(\S.*)", line)
        if item and lines and not lines[-1].startswith(("- ", "  ")):
            lines.append("")
        lines.append(f"- `{item[1]}`: {item[2]}" if item else line)
    return "\n".join(lines)


# Logs ------------------------------------------------------------------------------------------------------

_LEVELS = ("error", "warning", "info")


def events() -> str:
    """Every event of the log with its level and the module that writes it."""
    found = sorted({event for path in SOURCE.rglob("*.py") for event in _events(path)})
    rows = [f"| {event} | {_LEVELS[rank]} | `{module}` |" for rank, event, module in found]
    return "\n".join(["| event | level | module |", "|---|---|---|", *rows]) + "\n"


def _events(path: Path) -> Iterator[tuple[int, str, str]]:
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:  # what `_complain` is told
            case ast.Assign(targets=[ast.Name("event")], value=ast.Constant(str(event))):
                yield 0, event, module
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr.replace("exception", "error")
        logger = ast.unparse(owner) in ("_log", "logging.getLogger(__name__)")
        helper = name in ("_complain", "_log_error", "_usable")
        for argument in node.args if (logger and name in _LEVELS) or helper else ():
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                level = name if logger else "warning" if name == "_log_error" else "error"
                yield _LEVELS.index(level), argument.value, module


# What mkdocs calls -----------------------------------------------------------------------------------------

GENERATED: dict[str, Callable[[], str]] = {
    "modules": modules,
    "command-line": command_line,
    "api": api,
    "training": training,
    "events": events,
}


def examples() -> dict[str, str]:
    """The page of every example, by where it is in the site."""
    pages = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        pages[f"examples/{path.stem}.md"] = f"# examples/{path.name}\n\n```python\n{path.read_text('utf-8')}```\n"
    return pages


def moved(markdown: str, source: Path, page: str) -> str:
    """Links of a file of the checkout, as they must be at this page of the site.

    What the site does not show, such as a folder, stays as plain text.
    """

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return found[0]
        name, _, anchor = target.partition("#")
        path = Path(os.path.normpath(source.parent / name)).relative_to(ROOT)
        if path.parts[0] == "docs":
            there = str(path.relative_to("docs"))
        elif path.parts[0] == "examples" and path.suffix == ".py":
            there = f"examples/{path.stem}.md"
        elif str(path) in PROJECT:
            there = PROJECT[str(path)]
        elif str(path) == "README.md":
            there, anchor = "index.md", ""
        else:
            return text
        return f"[{text}]({os.path.relpath(there, Path(page).parent)}{'#' if anchor else ''}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, markdown)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    for name, page in PROJECT.items():
        text = moved((ROOT / name).read_text("utf-8"), ROOT / name, page)
        files.append(File.generated(config, page, content=text))
    for page, text in examples().items():
        files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts generated text in its place, and takes out what only the tests of the documents read."""
    source = page.file.abs_src_path
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # it would name this page alone
    if source is not None and Path(source).is_relative_to(ROOT / "docs"):
        markdown = moved(markdown, Path(source), page.file.src_uri)
    for name, make in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return re.sub(r"^(\s*```)(python|sh|text) .*$", r"\1\2", markdown, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.stdout.write(GENERATED[sys.argv[1]]())
