"""Plots as inline SVG, without scripts; their text can be read aloud, searched and copied. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
_ROW: Final = 28
_LABELS: Final = 230
_VALUES: Final = 130
_AXIS: Final = 26
_LETTER: Final = 7.8
"""The approximate width of a letter."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
#: The tick marks of a time scale.
_TICKS: Final = {
    0.001: "1 ms",
    0.01: "10 ms",
    0.1: "0.1 s",
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3600.0: "1 h",
    36_000.0: "10 h",
    259_200.0: "3 d",
    2_592_000.0: "30 d",
    31_536_000.0: "1 year",
}


class Column(NamedTuple):
    """The number of ends in a span of time, by kind."""

    begin: datetime
    values: Sequence[int]
    text: str


class Bar(NamedTuple):
    """A name, shown in full on hover, and its amount."""

    label: str
    value: float
    text: str


class Range(NamedTuple):
    """A name and three percentiles in seconds: p50, p95 and p99."""

    label: str
    p50: float
    p95: float
    p99: float


def duration(seconds: float) -> str:
    """Format a time for people, with three digits."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def amount(value: float) -> str:
    """Format a number for people: thousands are separated, small numbers have two decimals."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"  # noqa: PLR2004 - places


def columns(title: str, kinds: Sequence[str], shown: Sequence[Column], span: timedelta) -> str:
    """Draw stacked columns over time; ``kinds`` are their classes, from the bottom up."""
    left, top, height = 64, 10, 220
    first = shown[0].begin
    count = round((shown[-1].begin - first) / span) + 1
    step = (WIDTH - left) / count
    most = _round_up(max(sum(column.values) for column in shown))
    parts: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, amount(most * share), "end"))
    for column in shown:
        x = left + round((column.begin - first) / span) * step
        y = float(top + height)
        boxes: list[str] = []
        for kind, value in zip(kinds, column.values, strict=True):
            tall = height * value / most
            y -= tall
            if value:
                wide = max(1.0, step - (2 if step > 6 else 0))  # noqa: PLR2004 - a gap where there is room
                boxes.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>')
        parts.append(f"<g><title>{escape(column.text)}</title>{''.join(boxes)}</g>")
    labels = min(6, count)
    for number in range(labels):
        index = round(number * (count - 1) / max(1, labels - 1))
        anchor = "start" if number == 0 else "end" if number == labels - 1 else "middle"
        x = left + (index + (0.5 if anchor == "middle" else float(anchor == "end"))) * step
        parts.append(_text(x, top + height + 20, _moment(first + index * span, span), anchor))
    return _svg(title, top + height + _AXIS + 4, parts)


def bars(title: str, kind: str, shown: Sequence[Bar], *, labels: int = _LABELS) -> str:
    """Draw horizontal bars, each with its name on the left, in this many pixels, and its amount on the right."""
    most = max((bar.value for bar in shown), default=0) or 1
    room = WIDTH - labels - _VALUES
    parts: list[str] = []
    for number, bar in enumerate(shown):
        y = number * _ROW
        wide = max(2.0, room * bar.value / most)
        parts.append(
            f"<g><title>{escape(f'{bar.label}: {bar.text}')}</title>{_label(bar.label, y, labels)}"
            f'<rect class="{kind}" x="{labels}" y="{y + 6}" width="{wide:.1f}" height="{_ROW - 10}" rx="2"/>'
            f"{_text(labels + wide + 8, y + 19, bar.text)}</g>"
        )
    return _svg(title, len(shown) * _ROW, parts)


def ranges(title: str, shown: Sequence[Range]) -> str:
    """Draw a line for each name from its median to its 99th percentile, on a logarithmic time scale."""
    ticks = _ticks(min(row.p50 for row in shown), max(row.p99 for row in shown))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    room = WIDTH - _LABELS - 40

    def at(seconds: float) -> float:
        return _LABELS + room * (math.log10(max(ticks[0], seconds)) - low) / (high - low)

    bottom = len(shown) * _ROW
    parts: list[str] = []
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="0" y2="{bottom}"/>')
        parts.append(_text(at(tick), bottom + 18, _TICKS[tick], "middle"))
    for number, row in enumerate(shown):
        y = number * _ROW + _ROW / 2
        what = f"{row.label}: p50 {duration(row.p50)}, p95 {duration(row.p95)}, p99 {duration(row.p99)}"
        parts.append(
            f"<g><title>{escape(what)}</title>{_label(row.label, number * _ROW, _LABELS)}"
            f'<line class="range" x1="{at(row.p50):.1f}" x2="{at(row.p99):.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="p99" cx="{at(row.p99):.1f}" cy="{y}" r="5"/>'
            f'<rect class="p95" x="{at(row.p95) - 2:.1f}" y="{y - 8}" width="4" height="16"/>'
            f'<circle class="p50" cx="{at(row.p50):.1f}" cy="{y}" r="5"/></g>'
        )
    return _svg(title, bottom + _AXIS, parts)


def _ticks(least: float, most: float) -> list[float]:
    """Return at least two tick marks of a scale that covers both values."""
    marks = list(_TICKS)
    first = max((index for index, mark in enumerate(marks) if mark <= least), default=0)
    last = min((index for index, mark in enumerate(marks) if mark >= most), default=len(marks) - 1)
    first = min(first, len(marks) - 2)
    return marks[first : max(last, first + 1) + 1]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _label(label: str, y: float, wide: int) -> str:
    return _text(wide - 10, y + 19, shortened(label, int((wide - 10) / _LETTER)), "end")


def shortened(text: str, most: int) -> str:
    """Shorten a long text in its middle: names that begin alike often differ at the end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Return the next round number above for the end of an axis, half of which is round too."""
    size = 10.0 ** math.floor(math.log10(max(1.0, value)))
    steps = (2, 4, 6, 8, 10) if size == 1 else (1, 2, 3, 4, 5, 6, 8, 10)
    return next(size * step for step in steps if size * step >= value)


def _moment(moment: datetime, span: timedelta) -> str:
    if span >= timedelta(days=1):
        return moment.strftime("%Y-%m-%d")
    if span >= timedelta(minutes=15):
        return moment.strftime("%m-%d %H:%M")
    return moment.strftime("%H:%M:%S") if span < timedelta(minutes=1) else moment.strftime("%H:%M")
