"""What a docstring says under ``Raises:``.

Three forms are in use, and may be mixed: Google's section, a line of its entries separated by semicolons, and "as
`other`" for the errors of another member.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECTION = re.compile(r"(?:^|(?<=\s))Raises:[ \n](?P<text>.*?)(?=\n\s*\n|\Z)", re.DOTALL)
_NAME = r"(?:[a-z]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|BadParameter)"
_ERRORS = re.compile(rf"(?P<names>{_NAME}(?:, {_NAME})*)(?:[:,]? (?P<when>.+))?", re.DOTALL)
_LIKE = re.compile(rf"as `(?P<name>[\w.]+)`(?:, but for (?P<but>{_NAME}(?:, {_NAME})*))?", re.DOTALL)


@dataclass(frozen=True)
class Raised:
    """An error, and when it is raised; empty when its name says it all."""

    error: str
    when: str


@dataclass(frozen=True)
class Like:
    """The errors of another member, but for some."""

    member: str
    but: tuple[str, ...]


@dataclass(frozen=True)
class Raises:
    """What a docstring says: the text around it, its entries in order, and what could not be read."""

    text: str
    entries: tuple[Raised | Like, ...]
    unread: tuple[str, ...]


def read(docstring: str) -> Raises:
    """Take a docstring (cleaned by `inspect.cleandoc`) apart."""
    found = _SECTION.search(docstring)
    if found is None:
        return Raises(docstring, (), ())
    entries: list[Raised | Like] = []
    unread: list[str] = []
    for line in _lines(found["text"]):
        for part in line.rstrip(".").split("; "):
            if like := _LIKE.match(part):
                entries.append(Like(like["name"], tuple((like["but"] or "").split(", ")) if like["but"] else ()))
            elif errors := _ERRORS.fullmatch(part):
                entries += [Raised(name, errors["when"] or "") for name in errors["names"].split(", ")]
            elif entries and isinstance(last := entries[-1], Raised) and last.when:
                # The semicolon was one of the sentence.
                entries[-1] = Raised(last.error, f"{last.when}; {part}")
            else:
                unread.append(part)
    around = (docstring[: found.start()].strip(), docstring[found.end() :].strip())
    return Raises("\n\n".join(filter(None, around)), tuple(entries), tuple(unread))


def _lines(text: str) -> list[str]:
    """The entries of a section; what is indented further, or follows a comma, belongs to the line before."""
    lines = text.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    # The text of a one-line form begins in the middle of its line; what follows lies under "Raises".
    outer = min(indents, default=0)
    entries: list[str] = []
    inline = bool(lines) and lines[0][:1].strip() != ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if entries and (inline or indent > outer or entries[-1].endswith((",", ";"))):
            entries[-1] = f"{entries[-1]} {line.strip()}"
        elif line.strip():
            entries.append(line.strip())
    return entries
