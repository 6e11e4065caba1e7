"""Reads the code blocks of a Markdown page, and compares output with the output on the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    #: The file name that the page gives; empty if the block runs as it is.
    file: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    text: str
    output: str
    status: int
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m[1], m[2] or "", m[3], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def commands(block: Block) -> list[Command]:
    """The commands of a console block: each line after ``$``, its output, and ``[exit status n]`` if it is not 0."""
    found: list[Command] = []
    for offset, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ "), "", 0, block.line + offset))
            continue
        last = found.pop()
        if status := re.fullmatch(r"\[exit status (\d+)\]", line):
            found.append(Command(last.text, last.output, int(status[1]), last.line))
        else:
            found.append(Command(last.text, f"{last.output}{line}\n", last.status, last.line))
    return found


def shows(expected: str, actual: str) -> bool:
    """Whether the output is as shown; ``…`` stands for any text within a line."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, actual) is not None
