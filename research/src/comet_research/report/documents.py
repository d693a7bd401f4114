"""What is generated of the documents: tables and pictures that say nothing but what the records say.

A block of tables begins with `<!-- results: NAME -->` on a line of its own and ends with `<!-- end of results -->`. A
picture is a file of `pictures/` beside the documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write
from comet_research.report import accuracy, claims, costs, published, published_models
from comet_research.report.charts import Bars, Scatter, picture
from comet_research.report.drawings import cost_drawings, peer_drawings
from comet_research.report.grid import Grid
from comet_research.report.records import Results
from comet_research.report.trade_off import trade_offs

_BLOCK = re.compile(r"^(<!-- results: (?P<name>[\w-]+) -->\n)(?P<body>.*?)^(<!-- end of results -->)$", re.M | re.S)

BLOCKS: Mapping[str, Callable[[Results], list[Grid]]] = {
    "aims": lambda results: [claims.aim_grid(results)],
    "claims": lambda results: [claims.claim_grid(results)],
    "models-dealer": lambda results: [costs.model_grid(results, "dealer")],
    "models-pair": lambda results: [costs.model_grid(results, "pair")],
    "networks": lambda results: [costs.network_grid(results)],
    "ways": lambda results: [costs.way_grid(results)],
    "demo": lambda results: [costs.demo_grid(results)],
    "accuracy": lambda results: [accuracy.summary_grid(results)],
    "accuracy-forms": accuracy.form_grids,
    "accuracy-steps": lambda results: [accuracy.step_grid(results)],
    "protocol": lambda results: [accuracy.protocol_grid(results)],
    "operations": lambda results: [costs.operation_grid(results)],
    "peers": costs.peer_grids,
    "trials": lambda results: [costs.trial_grid(results)],
    "paper-accuracy": published_models.accuracy_grids,
    "paper": published.cost_grids,
    "paper-appendix": lambda results: [published.appendix_grid(results)],
    "truncation": lambda results: [costs.truncation_grid(results)],
    "kernels": lambda results: [costs.kernel_grid(results)],
}

PICTURES: Mapping[str, Callable[[Results], Sequence[Scatter | Bars]]] = {
    "systems": lambda results: peer_drawings(results)[:1],
    "length": lambda results: cost_drawings(results)[:1],
    "trade-off": lambda results: trade_offs(results)[:1],
}
"""Of what is drawn, the first."""


def rewritten(text: str, results: Results, name: str = "the page") -> str:
    """A page with its blocks as the records say."""

    def block(found: re.Match[str]) -> str:
        try:
            make = BLOCKS[found["name"]]
        except KeyError:
            known = ", ".join(BLOCKS)
            raise ConfigurationError(f"{name}: there are no results {found['name']!r}: choose from {known}") from None
        tables = "\n".join(grid.markdown() for grid in make(results) if grid.rows)
        return f"{found[1]}\n{tables}\n{found[4]}"

    return _BLOCK.sub(block, text)


def drawn(name: str, results: Results) -> str | None:
    """A picture as an SVG file, if there are records for it."""
    found = next(iter(PICTURES[name](results)), None)
    return picture(found) if found else None


def write_documents(directory: Path, results: Results) -> list[Path]:
    """Writes the blocks of every Markdown file of a directory, and the pictures beside them. Returns the files that
    were not up to date."""
    wanted = {path: rewritten(path.read_text("utf-8"), results, path.name) for path in sorted(directory.rglob("*.md"))}
    pictures = directory / "pictures"
    if pictures.is_dir():
        wanted |= {pictures / f"{name}.svg": text for name in PICTURES if (text := drawn(name, results)) is not None}
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in changed:
        with atomic_write(path) as file:
            file.write(wanted[path].encode())
    return changed
