"""The list of modules in docs/architecture.md, made from the modules' own first lines.

Run this file to write it anew: `python tests/docs/module_list.py`. A test compares.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "comet_mpc"
START, END = "<!-- modules: written by `python tests/docs/module_list.py` -->\n", "<!-- end of modules -->\n"
ORDER = ("errors", "units", "progress", "files", "net", "engine", "offline", "functions", "models", "train", "service")
"""From the ground up; packages that are not named here follow."""


def first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def _item(name: str, text: str) -> str:
    return textwrap.fill(
        f"- `{name}`: {text}", 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def module_list() -> str:
    """Markdown: a heading and the package's docstring, then a line for every module in it."""
    lines: list[str] = ["", "### At the bottom", ""]
    lines += [
        _item(path.stem, first_line(path)) for path in sorted(SOURCE.glob("*.py")) if not path.stem.startswith("_")
    ]
    packages = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
    for package in sorted(packages, key=_rank):
        name = ".".join(package.relative_to(SOURCE).parts)
        modules = sorted(path for path in package.glob("*.py") if not path.stem.startswith("_"))
        lines += ["", f"### {name}", "", textwrap.fill(first_line(package / "__init__.py"), 116), ""]
        lines += [_item(f"{name}.{path.stem}", first_line(path)) for path in modules]
    return "\n".join(lines) + "\n\n"


def _rank(package: Path) -> tuple[int, tuple[str, ...]]:
    parts = package.relative_to(SOURCE).parts
    return ORDER.index(parts[0]) if parts[0] in ORDER else len(ORDER), parts


def written() -> str:
    """What the page has now."""
    return PAGE.read_text("utf-8").partition(START)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    PAGE.write_text(before + START + module_list() + END + rest.partition(END)[2], "utf-8")
