"""Templates, style sheet and script, read once at import."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Final

from jinja2 import DictLoader, Environment, StrictUndefined

_HERE: Final = files(__package__ or "")
_TEMPLATES: Final = (
    "layout.html",
    "queues.html",
    "queue.html",
    "message.html",
    "dead_letters.html",
    "confirm.html",
    "sign_in.html",
    "problem.html",
)
#: The other files that a browser loads, with their content types.
STATIC: Final = {
    name: ((_HERE / "static" / name).read_bytes(), kind)
    for name, kind in (("dashboard.css", "text/css"), ("dashboard.js", "text/javascript"))
}
NOTHING: Final = "\N{EN DASH}"
#: A hash of the files, so that browsers can cache them.
EDITION: Final = sha256(b"".join(content for content, _ in STATIC.values())).hexdigest()[:12]


def _when(moment: datetime | float | None) -> str:
    if moment is None:
        return NOTHING
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


ENVIRONMENT: Final = Environment(
    loader=DictLoader({name: (_HERE / "templates" / name).read_text("utf-8") for name in _TEMPLATES}),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(when=_when, age=_age, number="{:,}".format)
