"""Drawings as SVG: points and lines over two axes, and stacked bars. Colours are classes, so a page can set them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from comet_research.report.grid import came_from

WIDTH, HEIGHT = 460, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 14, 44
_COLOURS = 8
_WIDE = 250
"""An axis as long has room for five ticks or more."""
_LETTER = 6.2
"""About the width of a letter of the labels."""
_WIDE_LETTER = 7.1
"""And on a phone, where they are larger."""


@dataclass(frozen=True)
class Point:
    """note: what a pointer on it shows. label: what stands beside it."""

    x: float
    y: float
    note: str = ""
    label: str = ""


@dataclass(frozen=True)
class Series:
    """line: its points are joined. dots: each has a mark."""

    name: str
    points: Sequence[Point]
    line: bool = True
    dots: bool = True


@dataclass(frozen=True)
class Axis:
    """show: how a number is written at a tick."""

    name: str
    log: bool = False
    show: Callable[[float], str] = lambda value: f"{value:g}"
    low: float | None = None
    ticks: Sequence[float] = ()
    """Where they shall be; otherwise at round numbers."""


@dataclass
class Scatter:
    """Series over two axes."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    note: str = ""
    sources: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [series.name for series in self.series]

    @property
    def marks(self) -> bool:
        return any(series.dots for series in self.series)

    def __bool__(self) -> bool:
        return any(series.points for series in self.series)

    def drawn(self) -> tuple[str, int]:
        """What is inside, and its height."""
        across = _Scale(self.x, [p.x for s in self.series for p in s.points], _LEFT, WIDTH - _RIGHT)
        up = _Scale(self.y, [p.y for s in self.series for p in s.points], HEIGHT - _BOTTOM, _TOP)
        parts = [_axes(across, up)]
        taken: list[tuple[float, float, float, float]] = []
        for place, series in enumerate(self.series):
            spots = [(across(p.x), up(p.y), p) for p in series.points if across.holds(p.x) and up.holds(p.y)]
            if series.line and len(spots) > 1:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)
                parts.append(f'<polyline class="line c{place % _COLOURS}" points="{path}"/>')
            if series.dots:
                parts += [_mark(place, x, y, f"{series.name}: {p.note}" if p.note else "") for x, y, p in spots]
                taken += [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in spots]
        for series in self.series:
            for p in series.points:
                if p.label and across.holds(p.x) and up.holds(p.y):
                    parts.append(_label(p.label, across(p.x), up(p.y), taken))
        return "".join(parts), HEIGHT


@dataclass
class Bars:
    """Horizontal stacked bars: for every row the parts by name."""

    title: str
    axis: Axis
    rows: list[tuple[str, dict[str, float]]]
    note: str = ""
    sources: list[str] = field(default_factory=list)

    marks = True

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, parts in self.rows for name in parts))

    def __bool__(self) -> bool:
        return bool(self.rows)

    def drawn(self) -> tuple[str, int]:
        """What is inside, and its height."""
        left = min(275.0, 12 + _WIDE_LETTER * max(len(name) for name, _ in self.rows))
        scale = _Scale(self.axis, [0.0, *(sum(parts.values()) for _, parts in self.rows)], left, WIDTH - 58)
        thick = min(26.0, 290.0 / len(self.rows) * 0.68)
        step = thick / 0.68
        height = round(_TOP + step * len(self.rows) + _BOTTOM)
        parts = [_vertical_ticks(scale, _TOP, height - _BOTTOM)]
        names = self.names
        for place, (name, values) in enumerate(self.rows):
            y = _TOP + step * place + (step - thick) / 2
            middle = y + thick / 2 + 4
            parts.append(
                f'<text class="tick" text-anchor="end" x="{left - 6:.1f}" y="{middle:.1f}">{escape(name)}</text>'
            )
            total = 0.0
            for part, value in values.items():
                x, end = scale(total), scale(total + value)
                colour = names.index(part) % _COLOURS
                note = f"<title>{escape(f'{name}, {part}: {self.axis.show(value)}')}</title>"
                parts.append(
                    f'<rect class="bar c{colour}" x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 0.4):.1f}" '
                    f'height="{thick:.1f}">{note}</rect>'
                )
                total += value
            shown = escape(self.axis.show(total))
            parts.append(f'<text class="label" x="{scale(total) + 5:.1f}" y="{middle:.1f}">{shown}</text>')
        return "".join(parts), height


class _Scale:
    """From values to places on the drawing, and the ticks between."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis, self.start, self.end = axis, start, end
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)] or [1.0]
        low = min(finite) if axis.low is None else axis.low
        high = max(finite)
        if axis.log:
            low, high = low / 1.25, high * 1.25
        else:
            margin = 0.06 * (high - low) or 1.0
            low, high = (low if low == 0.0 else low - margin), high + margin
        self.low, self.high = low, high

    def holds(self, value: float) -> bool:
        return math.isfinite(value) and self.low <= value <= self.high

    def __call__(self, value: float) -> float:
        if self.axis.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.axis.ticks:
            return [value for value in self.axis.ticks if self.holds(value)]
        if self.axis.log and self.high > 5 * self.low:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for among in ((1,), (1, 3), (1, 2, 5)):
                found = [n * 10.0**d for d in decades for n in among if self.low <= n * 10.0**d <= self.high]
                if len(found) >= 3:
                    break
            return found[:: max(1, math.ceil(len(found) / 6))]
        raw = (self.high - self.low) / (5 if abs(self.end - self.start) > _WIDE else 3)
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def _vertical_ticks(scale: _Scale, top: float, bottom: float) -> str:
    parts = []
    for value in scale.ticks():
        x = scale(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.1f}"/>')
        shown = escape(scale.axis.show(value))
        parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 16:.1f}">{shown}</text>')
    middle = (scale.start + scale.end) / 2
    name = escape(scale.axis.name)
    parts.append(f'<text class="axis" text-anchor="middle" x="{middle:.1f}" y="{bottom + 35:.1f}">{name}</text>')
    return "".join(parts)


def _axes(across: _Scale, up: _Scale) -> str:
    parts = [_vertical_ticks(across, _TOP, HEIGHT - _BOTTOM)]
    for value in up.ticks():
        y = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shown = escape(up.axis.show(value))
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{shown}</text>')
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(12 {middle:.1f}) rotate(-90)">'
        f"{escape(up.axis.name)}</text>"
    )
    return "".join(parts)


_SHAPES: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>',
    lambda x, y: f'<rect x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"/>',
    lambda x, y: f'<path d="M{x:.1f} {y - 5:.1f}l4.6 8.4h-9.2z"/>',
    lambda x, y: f'<path d="M{x:.1f} {y - 5.4:.1f}l5.4 5.4l-5.4 5.4l-5.4 -5.4z"/>',
    lambda x, y: f'<path d="M{x:.1f} {y + 5:.1f}l4.6 -8.4h-9.2z"/>',
)
"""Marks differ in shape too: for print, and for those who do not see the colours."""


def _mark(place: int, x: float, y: float, note: str = "") -> str:
    title = f"<title>{escape(note)}</title>" if note else ""
    shape = _SHAPES[place % len(_SHAPES)](x, y)
    return f'<g class="dot c{place % _COLOURS}">{title}{shape}</g>'


def _label(text: str, x: float, y: float, taken: list[tuple[float, float, float, float]]) -> str:
    """Beside its point, where nothing else is; nothing if there is no such place."""
    wide = _LETTER * len(text)
    for left, base in (
        (x + 5, y - 6),
        (x + 7, y + 4),
        (x - 7 - wide, y + 4),
        (x - wide / 2, y + 16),
        (x - wide, y + 16),
    ):
        box = (left, base - 9, left + wide, base + 2)
        inside = box[0] > _LEFT and box[2] < WIDTH - 2 and box[1] > 2 and box[3] < HEIGHT - _BOTTOM
        if inside and not any(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken):
            taken.append(box)
            return f'<text class="label" x="{left:.1f}" y="{base:.1f}">{escape(text)}</text>'
    return ""


def styles(name: str) -> str:
    """A style sheet of this package: drawing.css for what is inside an SVG, page.css for the page around it."""
    return files("comet_research.report").joinpath(name).read_text("utf-8")


def _signs(chart: Scatter | Bars) -> list[tuple[str, str]]:
    """For a legend: the name of every series, and its sign in a square of 12."""
    if len(chart.names) < 2:
        return []
    found = []
    for place, name in enumerate(chart.names):
        if isinstance(chart, Bars):
            sign = f'<rect class="bar c{place % _COLOURS}" width="11" height="11"/>'
        elif chart.marks:
            sign = _mark(place, 6, 6)
        else:
            sign = f'<line class="line c{place % _COLOURS}" x1="0" x2="12" y1="6" y2="6"/>'
        found.append((name, sign))
    return found


def figure(chart: Scatter | Bars) -> str:
    """A drawing with its title, legend, note and sources, for the page."""
    content, height = chart.drawn()
    title = escape(chart.title, quote=True)
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{content}</svg>'
    swatches = "".join(
        f'<li><svg class="swatch" viewBox="0 0 12 12">{sign}</svg>{escape(name)}</li>' for name, sign in _signs(chart)
    )
    legend = f'<ul class="legend">{swatches}</ul>' if swatches else ""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{drawing}{legend}{note}"
        f"{came_from(chart.sources)}</figure>"
    )


def picture(chart: Scatter | Bars) -> str:
    """The same as a file of its own, title, legend and note inside: for documents. Follows the reader's colours."""
    content, height = chart.drawn()
    head, line, edge = 30, 20, 14
    x, y, legend = float(edge), head + height + 4.0, []
    for name, sign in _signs(chart):
        wide = 17 + _WIDE_LETTER * len(name)
        if x > edge and x + wide > WIDTH - edge:
            x, y = float(edge), y + line
        legend.append(f'<g transform="translate({x:.0f} {y:.0f})">{sign}<text x="16" y="10">{escape(name)}</text></g>')
        x += wide + 10
    y += line if legend else 0
    lines = textwrap.wrap(chart.note, round((WIDTH - 2 * edge) / _LETTER))
    note = "".join(
        f'<text class="tick" x="{edge}" y="{y + 14 + 15 * place:.0f}">{escape(text)}</text>'
        for place, text in enumerate(lines)
    )
    bottom = round(y + 15 * len(lines) + (10 if lines else 0))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" role="img">\n'
        f"<title>{escape(chart.title)}</title>\n<style>\n{styles('drawing.css')}</style>\n"
        f'<rect class="panel" width="{WIDTH}" height="{bottom}" rx="10"/>\n'
        f'<text class="title" x="{edge}" y="21">{escape(chart.title)}</text>\n'
        f'<g transform="translate(0 {head})">{content}</g>\n{"".join(legend)}\n{note}\n</svg>\n'
    )
