"""The generated blocks of Markdown files: tables that say nothing but what the records say.

A block begins with `<!-- results: NAME -->` on a line of its own and ends with `<!-- end of results -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write
from comet_mpc.lab.report import accuracy, claims, costs, published, published_models
from comet_mpc.lab.report.grid import Grid
from comet_mpc.lab.report.records import Results

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


def write_documents(directory: Path, results: Results) -> list[Path]:
    """Writes the blocks of every Markdown file of a directory. Returns the files that were not up to date."""
    changed = []
    for path in sorted(directory.glob("*.md")):
        before = path.read_text("utf-8")
        after = rewritten(before, results, path.name)
        if after != before:
            with atomic_write(path) as file:
                file.write(after.encode())
            changed.append(path)
    return changed
