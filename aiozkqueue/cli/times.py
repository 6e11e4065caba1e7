"""Times as they are typed: durations such as `90`, `90s`, `15m`, `2h`, `1d` and `inf`, and moments in ISO 8601."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

#: What the help shows for one.
TIME: Final = "TIME"

_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str | float) -> float:
    """Read a number of seconds, or of a unit; an option's default is one already. Raises: typer.BadParameter."""
    if not isinstance(text, str):
        return text
    if text == "inf":
        return math.inf
    match = _DURATION.fullmatch(text)
    if match is None:
        message = f"{text!r} is not a duration: give seconds, or a number with s, m, h or d, such as 15m"
        raise typer.BadParameter(message)
    return float(match[1]) * _UNITS[match[2]]


def duration_from(least: float, to: float = math.inf) -> Callable[[str | float], float]:
    """Make a parser like `parse_duration` that refuses shorter or longer durations with typer.BadParameter."""

    def parse(text: str | float) -> float:
        seconds = parse_duration(text)
        if not least <= seconds <= to:
            allowed = f"at least {least:g} s" if to == math.inf else f"{least:g} s to {to:g} s"
            message = f"{text!r}: give {allowed}"
            raise typer.BadParameter(message)
        return seconds

    return parse


def parse_moment(text: str) -> datetime:
    """Read a time that names its zone. Raises: typer.BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        message = f"{text!r} is not an ISO 8601 time with a zone, such as 2030-01-31T08:00+01:00"
        raise typer.BadParameter(message)
    return moment


def in_utc(moment: datetime | None) -> datetime | None:
    """Return a time in UTC; one without a zone is local time."""
    return None if moment is None else moment.astimezone(UTC)
