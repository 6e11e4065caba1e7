"""Sequence diagrams in Mermaid's language, drawn as SVG: the site shows them without a script from elsewhere. Pure.

It knows what the pages use: participants, arrows with a text, and replies (``-->>``).
"""

from __future__ import annotations

import re
from html import escape
from typing import Final, NamedTuple

_BLOCK: Final = re.compile(r"^```mermaid\n(sequenceDiagram\n.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTICIPANT: Final = re.compile(r"participant (\w+) as (.+)")
_MESSAGE: Final = re.compile(r"(\w+)(--?)>>(\w+): (.+)")

_COLUMN: Final = 150
_ROW: Final = 40
_TOP: Final = 56
_LOOP: Final = 22
_CHARACTER: Final = 6.2
_MARGIN: Final = 12


class Message(NamedTuple):
    """An arrow from one participant to another, or to itself."""

    source: int
    target: int
    text: str
    reply: bool


def with_drawings(markdown: str) -> str:
    """Return a page in which each sequence diagram is drawn. Raises: ValueError: a line is not understood."""
    return _BLOCK.sub(lambda block: drawing(block[1]), markdown)


def drawing(source: str) -> str:
    """Return a sequence diagram as SVG. Raises: ValueError: a line is not understood."""
    names, messages = read(source)
    height = _TOP + _ROW * len(messages) + _MARGIN
    centres = [_COLUMN * (index + 0.5) + _MARGIN for index in range(len(names))]
    parts: list[str] = []
    for name, x in zip(names, centres, strict=True):
        parts.append(f'<line x1="{x}" y1="32" x2="{x}" y2="{height}" stroke-dasharray="2 4" opacity="0.5"/>')
        parts.append(f'<rect x="{x - 66}" y="4" width="132" height="28" rx="4" fill="none"/>')
        parts.append(
            f'<text x="{x}" y="23" text-anchor="middle" stroke="none" fill="currentColor">{escape(name)}</text>'
        )
    right = centres[-1] + _COLUMN / 2
    for index, message in enumerate(messages):
        arrow, end = _arrow(message, centres, _TOP + _ROW * index + 20)
        parts += arrow
        right = max(right, end)
    width = right + _MARGIN
    told = escape("; ".join(f"{names[m.source]} to {names[m.target]}: {m.text}" for m in messages), quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{told}" class="sequence" '
        'stroke="currentColor" font-size="12" font-family="sans-serif">'
        f"{''.join(parts)}</svg>\n"
    )


def read(source: str) -> tuple[list[str], list[Message]]:
    """Return the participants of a diagram and its messages. Raises: ValueError: a line is not understood."""
    keys: list[str] = []
    names: list[str] = []
    messages: list[Message] = []
    for line in source.splitlines()[1:]:
        if participant := _PARTICIPANT.fullmatch(line.strip()):
            keys.append(participant[1])
            names.append(participant[2])
        elif message := _MESSAGE.fullmatch(line.strip()):
            source_key, dashes, target_key, text = message.groups()
            messages.append(Message(keys.index(source_key), keys.index(target_key), text, dashes == "--"))
        elif line.strip():
            msg = f"a line of a diagram that is not understood: {line.strip()!r}"
            raise ValueError(msg)
    return names, messages


def _arrow(message: Message, centres: list[float], y: float) -> tuple[list[str], float]:
    """Return the parts of an arrow with its text, and how far to the right they reach."""
    start, end = centres[message.source], centres[message.target]
    dashes = ' stroke-dasharray="5 4"' if message.reply else ""
    if message.source == message.target:
        line = f'<path d="M{start} {y} h{_LOOP} v10 h-{_LOOP - 4}" fill="none"/>'
        tip, x, text_y = _tip(start, y + 10, -1), start + _LOOP + 6, y + 9
    else:
        line = f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}"{dashes}/>'
        tip, x, text_y = _tip(end, y, 1 if end > start else -1), min(start, end) + 8, y - 5
    return [line, tip, _text(x, text_y, message.text)], x + len(message.text) * _CHARACTER


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" stroke="none" fill="currentColor">{escape(words)}</text>'


def _tip(x: float, y: float, direction: int) -> str:
    back = x - 7 * direction
    return f'<path d="M{x} {y} L{back} {y - 4} L{back} {y + 4} Z" fill="currentColor"/>'
