"""One page with everything that was measured. It needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from comet_mpc.offline.sources import SOURCES
from comet_mpc.units import human_bytes, human_seconds
from comet_research.report.accuracy import form_grids, protocol_grid, step_grid, summary_grid
from comet_research.report.charts import Bars, Scatter, figure, styles
from comet_research.report.claims import aim_grid, claim_grid
from comet_research.report.costs import (
    demo_grid,
    kernel_grid,
    model_grid,
    network_grid,
    operation_grid,
    peer_grids,
    profile_grid,
    trial_grid,
    truncation_grid,
    way_grid,
)
from comet_research.report.drawings import (
    cost_drawings,
    distribution_drawings,
    peer_drawings,
    rule_drawings,
)
from comet_research.report.grid import Grid
from comet_research.report.published import appendix_grid, cost_grids
from comet_research.report.published_models import accuracy_grids
from comet_research.report.records import Results
from comet_research.report.trade_off import trade_offs

Part = Grid | Scatter | Bars
Section = tuple[str, str, Sequence[Part]]
"""A title, a sentence, and what is shown."""


def sections(results: Results) -> list[Section]:
    """Everything that there are records for."""
    costs, rules = cost_drawings(results), rule_drawings(results)
    found: list[Section] = [
        (
            "What holds",
            "What this project set out to reach, and what the Comet paper claims, beside what was measured.",
            [aim_grid(results), claim_grid(results)],
        ),
        (
            "Whole models",
            "Bytes and rounds are counted on the wire and equal the plan. Seconds depend on the machine.",
            [
                *costs[:5],
                *(model_grid(results, source) for source in SOURCES),
                network_grid(results),
                way_grid(results),
                demo_grid(results),
            ],
        ),
        (
            "Accuracy",
            "What a model loses when its non-linear steps become those that are served.",
            [*trade_offs(results), summary_grid(results), *form_grids(results), step_grid(results)],
        ),
        (
            "Inside the protocol",
            "The same rows through the protocol, or its fixed-point twin, and in real arithmetic.",
            [protocol_grid(results)],
        ),
        (
            "The rules for 1/sqrt",
            "Every non-linear step is made of 1/sqrt. All rules run on the same engine, in fixed point.",
            rules,
        ),
        (
            "Single operations",
            "At the size of a BERT-base layer, beside the functions of other systems on the same engine.",
            [*costs[5:], operation_grid(results)],
        ),
        (
            "Beside other systems",
            "The same inputs, on the same machine, in one run; each system in its best configuration.",
            [*peer_drawings(results), *peer_grids(results), trial_grid(results)],
        ),
        (
            "The paper's tables",
            "What the Comet paper reports, and the same functions measured on this engine.",
            [*distribution_drawings(results), *accuracy_grids(results), *cost_grids(results), appendix_grid(results)],
        ),
        (
            "Underneath",
            "Truncation is exact; the kernels are beside numpy's; and where the time of a query goes.",
            [truncation_grid(results), kernel_grid(results), profile_grid(results)],
        ),
    ]
    return [(title, text, shown) for title, text, parts in found if (shown := [p for p in parts if _shows(p)])]


def _shows(part: Part) -> bool:
    return bool(part.rows) if isinstance(part, Grid) else bool(part)


def make_page(results: Results) -> str:
    """The whole page as HTML."""
    parts = sections(results)
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title, _, _ in parts)
    body = "\n".join(_section(*part) for part in parts)
    style = "".join(styles(name) for name in ("drawing.css", "page.css"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Comet: what was measured</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>Comet: what was measured</h1>
<p>Private Transformer inference between two parties. Every figure on this page comes from a JSON file of
<code>research/benchmarks/results</code>; the list at the end names the command that made each.</p>
{_tiles(results)}
<nav>{links}<a href="#sources">Sources</a></nav>
</header>
<main>
{body}
{_commands(results)}
</main>
</body>
</html>
"""


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _section(title: str, text: str, parts: Sequence[Part]) -> str:
    figures = "\n".join(figure(part) for part in parts if not isinstance(part, Grid))
    tables = "\n".join(f'<div class="table">{part.html()}</div>' for part in parts if isinstance(part, Grid))
    drawn = f'<div class="figures">\n{figures}\n</div>' if figures else ""
    head = f"<h2>{escape(title)}</h2>\n<p>{escape(text)}</p>"
    return f'<section id="{_anchor(title)}">\n{head}\n{drawn}\n{tables}\n</section>'


def _tiles(results: Results) -> str:
    """The cheapest whole model of each kind, in large letters."""
    tiles = []
    for source in SOURCES:
        known = [
            record
            for record in results.of("model")
            if record["source"] == source and record["batch"] == 1 and not record.get("network")
        ]
        if not known:
            continue
        deepest = max(record["layers"] for record in known)
        best = min(
            (record for record in known if record["layers"] == deepest),
            key=lambda record: (abs(record["tokens"] - 128), record["online_bytes"]),
        )
        what = f"{best['model']}, {best['tokens']} tokens, {best.rule}, randomness from the {source}"
        figures = (
            (human_bytes(best["online_bytes"]), f"online, in {best['rounds']} rounds"),
            (human_bytes(best["offline_bytes"]), "offline, before the text"),
            (human_seconds(sum(best["cpu_seconds"])), "CPU online, both parties"),
            (human_bytes(max(best["peak_rss"])), "memory, the larger party"),
        )
        shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures)
        tiles.append(f'<div class="tiles"><p>{escape(what)}</p>{shown}</div>')
    return "".join(tiles)


def _commands(results: Results) -> str:
    """Each file, and the command in it."""
    commands: dict[str, str] = {}
    for records in results.kinds.values():
        for record in records:
            commands.setdefault(record.source, str(record.get("command", "")))
    rows = [[name, commands[name] or "(an older record, without its command)"] for name in sorted(commands)]
    table = Grid("Files and commands", ["file", "made by"], rows, left=2).html()
    strange = f'<p class="note">Not shown: {", ".join(map(escape, results.strange))}</p>' if results.strange else ""
    return f'<section id="sources">\n<h2>Sources</h2>\n<div class="table commands">{table}</div>{strange}\n</section>'
