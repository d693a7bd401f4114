"""A picture of what every inverse square root is taken of, beside the interval it is certified or calibrated for.

One panel per kind of site, one row per layer, t on a logarithmic axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from comet_mpc.engine.share import Reals
from comet_mpc.models.checkpoint import CometConfig, Site

_PANELS = {
    "activation": ("Activation", "t = h² + μ²"),
    "scores": ("Attention scores", "t = s² + μ²"),
    "norms": ("Queries and keys", "t = ‖q‖² over its bound"),
    "denominators": ("Attention denominators", "t = Σ R / n"),
    "attention_norm": ("LayerNorm after attention", "t = variance"),
    "output_norm": ("LayerNorm after feed-forward", "t = variance"),
    "pooler": ("Pooler", "t = 1 + x²"),
}
_SEEN, _OUTSIDE, _BAND, _EDGE = "#3b6ea8", "#c8413a", "#e6ebe4", "#55705a"
_BINS, _SMALLEST = 90, 1e-9


def _row_name(site: str) -> str:
    owner = site.rsplit(".", 1)[0]
    return f"{int(owner.removeprefix('layers.')) + 1}" if owner.startswith("layers.") else ""


def _rows(values: Mapping[str, Reals], kind: str) -> dict[str, str]:
    """Labels of a panel's rows -> sites, first layer first; the embeddings' LayerNorm stands above the others."""
    found = {_row_name(site): site for site in values if site.rsplit(".", 1)[-1] == kind}
    if kind == "output_norm" and "embeddings.norm" in values:
        found = {"emb.": "embeddings.norm", **found}
    return found


def _site(config: CometConfig, name: str) -> Site | None:
    """A layer's own, or the one for all layers."""
    return config.sites.get(name) or config.sites.get(name.rsplit(".", 1)[-1])


def _range(values: list[Reals], sites: list[Site | None]) -> tuple[float, float]:
    """Powers of ten: all that was seen, and all intervals."""
    ends = [float(end) for found in values for end in (found.min(), found.max())]
    ends += [end for site in sites if site for end in (site.rule.low, site.rule.high)]
    logs = np.log10(np.maximum(ends, _SMALLEST))
    room = 0.04 * float(np.ptp(logs)) + 0.05
    return float(logs.min()) - room, float(logs.max()) + room


def _draw_row(axis: Any, at: int, found: Reals, site: Site | None, edges: Reals) -> None:
    if site is not None:  # bins that begin at the interval's low end
        width = edges[1] - edges[0]
        edges = edges + (np.log10(site.rule.low) - edges[0]) % width - width
        edges = np.append(edges, edges[-1] + width)
    density, _ = np.histogram(np.log10(np.maximum(found, _SMALLEST)), bins=edges)
    heights = 0.82 * density / density.max()
    middles = (edges[1:] + edges[:-1]) / 2
    inside = np.ones(len(middles), bool)
    if site is not None:
        low, high = np.log10(site.rule.low), np.log10(site.rule.high)
        axis.fill_between([low, high], at - 0.04, at + 0.9, color=_BAND, linewidth=0)
        for end, certified in ((low, site.certified_low), (high, site.certified_high)):
            axis.plot([end, end], [at - 0.04, at + 0.9], color=_EDGE, lw=1.6, ls="-" if certified else (0, (2, 1.2)))
        inside = (middles > low) & (edges[:-1] < high)
    for part, colour in ((inside, _SEEN), (~inside, _OUTSIDE)):
        axis.bar(middles[part], heights[part], width=edges[1] - edges[0], bottom=at, color=colour, linewidth=0)


def _draw_panel(
    axis: Any, title: tuple[str, str], rows: dict[str, Reals], sites: list[Site | None], tallest: int
) -> None:
    left, right = _range(list(rows.values()), sites)
    edges = np.linspace(left, right, _BINS + 1)
    for at, (found, site) in enumerate(zip(rows.values(), sites, strict=True)):
        _draw_row(axis, len(rows) - 1 - at, found, site, edges)
    axis.set_title(title[0], loc="left", fontsize=11, fontweight="bold", pad=16)
    axis.text(0, 1.02, title[1], transform=axis.transAxes, fontsize=9, color="#555555")
    axis.set_xlim(left, right)
    axis.set_ylim(-0.15 if len(rows) > 1 else 0.85 - tallest, len(rows))
    axis.set_yticks([len(rows) - 1 - at + 0.35 for at in range(len(rows))], rows.keys(), fontsize=8)
    step = max(1, round((right - left) / 5))
    powers = range(int(np.ceil(left)), int(np.floor(right)) + 1, step)
    if len(powers) >= 2:
        axis.set_xticks(list(powers), [f"$10^{{{power}}}$" for power in powers], fontsize=8)
    else:
        ticks = np.linspace(left, right, 4)[1:3]
        axis.set_xticks(ticks, [f"{10**tick:.2g}" for tick in ticks], fontsize=8)
    if len(rows) > 1:
        axis.set_ylabel("layer", fontsize=8, color="#555555")
    axis.tick_params(length=0)
    axis.grid(axis="x", color="#dddddd", lw=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _legend(axis: Any, form: str) -> None:
    axis.set_axis_off()
    handles = [
        Patch(color=_SEEN, label="seen, by layer"),
        Patch(color=_OUTSIDE, label="seen outside the interval"),
        Patch(color=_BAND, label="interval of the public rule"),
        Line2D([], [], color=_EDGE, lw=1.6, label="certified: holds for every input"),
        Line2D([], [], color=_EDGE, lw=1.6, ls=(0, (2, 1.2)), label="from data, or a fixed part of the top"),
    ]
    axis.legend(handles=handles, loc="upper left", frameon=False, fontsize=9, title=form, alignment="left")


def draw(values: Mapping[str, Reals], config: CometConfig, path: Path, title: str) -> None:
    """values: t by site, as `batches.observe` gives them."""
    panels = {kind: found for kind in _PANELS if (found := _rows(values, kind))}
    columns = min(4, len(panels) + 1)
    lines = -(-(len(panels) + 1) // columns)
    tallest = max(len(rows) for rows in panels.values())
    figure = Figure(figsize=(3.6 * columns, lines * (1.3 + 0.36 * max(3, tallest)) + 0.6), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    axes = np.atleast_1d(figure.subplots(lines, columns)).reshape(-1)
    for axis, (kind, rows) in zip(axes, panels.items(), strict=False):
        seen = {label: values[site] for label, site in rows.items()}
        _draw_panel(axis, _PANELS[kind], seen, [_site(config, site) for site in rows.values()], tallest)
    _legend(axes[len(panels)], "Arguments of 1/√t")
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=150)
