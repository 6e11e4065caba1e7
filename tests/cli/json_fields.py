"""The fields of ``--json`` that docs/cli.md states, by command and kind of object."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"


@cache
def documented() -> dict[tuple[str, str], tuple[frozenset[str], frozenset[str]]]:
    """Return the fields that each object always has, and those that it may have."""
    section = PAGE.read_text().partition("## JSON fields")[2].partition("\n## ")[0]
    found: dict[tuple[str, str], tuple[frozenset[str], frozenset[str]]] = {}
    for commands, fields in re.findall(r"^\| (`.*?) \| (`.*) \|$", section, re.MULTILINE):
        every = re.findall(r"`(\w+)`(\??)", fields)
        always = frozenset(name for name, optional in every if not optional)
        for command, kind in re.findall(r"`([\w -]+)`(?: \(([\w-]+)\))?", commands):
            found[command, kind] = always, frozenset(name for name, _ in every)
    return found


def check(arguments: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Assert that the objects that a command printed have the fields of the page."""
    known = documented()
    for record in records:
        name = " ".join(arguments[:2])
        if not any(name == command for command, _ in known):
            name = arguments[0]
        row = known.get((name, str(record.get("kind", "")))) or known.get((name, ""))
        assert row is not None, f"docs/cli.md has no fields of {name}"
        always, every = row
        assert always <= record.keys() <= every, f"{name}: {always ^ record.keys()}"
