"""Charts of the last hour as inline SVG, without scripts and with a description for screen readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 600
HEIGHT: Final = 120
_HOUR: Final = 3600.0
_TOP: Final = 8


def chart(label: str, points: Sequence[tuple[float, float]], now: float) -> Markup:
    """Draw the values of the last hour over time (seconds since 1970)."""
    shown = [(at, value) for at, value in points if now - _HOUR <= at <= now]
    most = max((value for _, value in shown), default=0.0)
    last = shown[-1][1] if shown else 0.0
    described = f"{label}: now {last:g}, at most {most:g} in the last hour"
    line = " ".join(
        f"{WIDTH - (now - at) / _HOUR * WIDTH:.1f},{HEIGHT - value / (most or 1.0) * (HEIGHT - _TOP):.1f}"
        for at, value in shown
    )
    return Markup(  # noqa: S704 - the label is escaped, the rest are numbers
        f'<figure class="chart">'
        f"<figcaption>{escape(label)} <span>now {last:g}, at most {most:g}</span></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escape(described)}">'
        f'<polyline points="{line}"/></svg></figure>'
    )
