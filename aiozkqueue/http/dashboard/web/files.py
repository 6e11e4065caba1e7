"""Templates, style sheets and scripts, read once at import."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from aiozkqueue.http.core.remedies import text_of

_HERE: Final = files("aiozkqueue.http.dashboard")
_KINDS: Final = {"css": "text/css", "js": "text/javascript"}
#: The other files that a browser loads, with their content types. uPlot is a copy of its release; see its licence.
STATIC: Final = {
    name: ((_HERE / "static" / name).read_bytes(), _KINDS[name.rpartition(".")[2]])
    for name in ("dashboard.css", "uplot.css", "dashboard.js", "charts.js", "uplot.js")
}
NOTHING: Final = "\N{EN DASH}"
#: A hash of the files, so that browsers can cache them.
EDITION: Final = sha256(b"".join(content for content, _ in STATIC.values())).hexdigest()[:12]
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def _when(moment: datetime | float | None) -> str:
    if moment is None:
        return NOTHING
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """Return a time span with one unit, such as ``3 min``."""
    if seconds is None:
        return NOTHING
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"  # noqa: PLR2004 - two digits
    return f"{max(0.0, seconds):.0f} s" if seconds >= 10 or not seconds else f"{seconds:.1f} s"  # noqa: PLR2004 - digits


def _rate(per_second: float) -> str:
    return "0" if not per_second else f"{per_second:,.1f}"


def _size(count: int) -> str:
    return f"{count:,} B" if count < 10_240 else f"{count / 1024:,.0f} KiB"  # noqa: PLR2004 - five digits


def _code(text: str) -> Markup:
    """Return a text whose parts in backticks are shown as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


ENVIRONMENT: Final = Environment(
    loader=DictLoader({template.name: template.read_text("utf-8") for template in (_HERE / "templates").iterdir()}),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(
    when=_when, duration=duration, number="{:,}".format, rate=_rate, size=_size, code=_code, remedied=text_of
)
