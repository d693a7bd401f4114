"""A table of texts, for a terminal, for Markdown and for the page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from html import escape

from rich import box
from rich.table import Table
from rich.text import Text

_WIDTH = 116


def wrapped(text: str) -> str:
    """As a note has it: in lines that a document may have."""
    return "\n".join(textwrap.wrap(text, _WIDTH))


@dataclass
class Grid:
    """left: how many columns are texts; the others are numbers. sources: the files that the cells come from."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""
    left: int = 1
    sources: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        rule = ["---" if place < self.left else "---:" for place in range(len(self.columns))]
        lines = [self.columns, rule, *self.rows]
        body = "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)
        return f"**{self.title}**\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def table(self) -> Table:
        found = Table(
            title=Text(self.title, style="bold"), caption=self.note or None, title_justify="left",
            caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        )  # fmt: skip
        for place, column in enumerate(self.columns):
            found.add_column(column, justify="left" if place < self.left else "right")
        for row in self.rows:
            found.add_row(*map(Text, row))
        return found

    def html(self) -> str:
        """Every cell knows the name of its column, so that a narrow screen can show a row as a list."""
        kinds = ["text" if place < self.left else "number" for place in range(len(self.columns))]
        head = "".join(
            f'<th scope="col" class="{k}">{escape(c)}</th>' for k, c in zip(kinds, self.columns, strict=True)
        )
        lines = []
        for row in self.rows:
            cells = [f'<th scope="row">{escape(row[0])}</th>']
            cells += [
                f'<td class="{kind}" data-column="{escape(column)}">{escape(cell)}</td>'
                for kind, column, cell in zip(kinds[1:], self.columns[1:], row[1:], strict=True)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        caption = f"<caption>{escape(self.title)}</caption>"
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return (
            f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table>"
            f"{note}{came_from(self.sources)}"
        )


def came_from(sources: list[str]) -> str:
    """The files behind a table or a drawing, for the page."""
    if not sources:
        return ""
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in sources)
    if len(sources) <= 3:
        return f'<p class="source">From {shown}</p>'
    return f'<details class="source"><summary>From {len(sources)} files</summary><p>{shown}</p></details>'
