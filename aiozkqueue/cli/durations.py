"""Lengths of time as they are typed: `90`, `90s`, `15m`, `2h`, `1d`, `inf`."""

from __future__ import annotations

import math
import re
from typing import Final

import typer

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
        message = f"{text!r} is no duration: give seconds, or a number with s, m, h or d, such as 15m"
        raise typer.BadParameter(message)
    return float(match[1]) * _UNITS[match[2]]
