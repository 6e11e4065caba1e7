"""Numbers in sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2 messages`. The plural of the noun ends in `s`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
