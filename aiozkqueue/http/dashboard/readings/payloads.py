"""Payloads for display: JSON is indented and highlighted, other text is shown as it is, bytes as a hex dump. Pure."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from aiozkqueue.http.core.splitting import loads

#: The maximum size of a payload that is shown, bytes.
MOST: Final = 64 * 1024
#: The maximum number of bytes that are shown as a hex dump.
MOST_HEX: Final = 1024
_LINE: Final = 16
#: Half of a surrogate pair: JSON can name it, UTF-8 cannot encode it.
_HALF: Final = re.compile("[\ud800-\udfff]")
_TOKEN: Final = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=:)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>\b(?:true|false|null)\b)'
    r"|(?P<figure>-?\b\d[\d.eE+-]*)"
)


class Payload(NamedTuple):
    """A payload for display."""

    kind: str
    shown: Markup
    size: int
    cut: bool
    """Whether only a part is shown."""


def display(body: bytes) -> Payload:
    """Return a payload for display. Everything in it is escaped."""
    cut = len(body) > MOST
    try:
        text = body[:MOST].decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError:
        return Payload("bytes", escape(_hex(body[:MOST_HEX])), len(body), len(body) > MOST_HEX)
    if not cut:
        try:
            indented = json.dumps(loads(text), indent=2, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):  # not JSON, or a number that a float cannot hold
            pass
        else:
            escaped = _HALF.sub(lambda half: f"\\u{ord(half.group()):04x}", indented)
            return Payload("JSON", _highlighted(escaped), len(body), cut)
    return Payload("text", escape(text), len(body), cut)


def _highlighted(text: str) -> Markup:
    parts: list[str] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts += (
            escape(text[at : token.start()]),
            f'<span class="json-{token.lastgroup}">{escape(token.group())}</span>',
        )
        at = token.end()
    return Markup("".join([*parts, escape(text[at:])]))  # noqa: S704 - each part is escaped


def _hex(body: bytes) -> str:
    lines = [body[start : start + _LINE] for start in range(0, len(body), _LINE)]
    return "\n".join(
        f"{number * _LINE:08x}  {line.hex(' '):<47}  {''.join(chr(c) if 32 <= c < 127 else '.' for c in line)}"  # noqa: PLR2004 - printable ASCII
        for number, line in enumerate(lines)
    )
