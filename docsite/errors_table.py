"""The table of all errors: what each means, and what raises it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from docsite.public import by_home, documented, error_named, raised_by

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Where the page on errors wants the table.
MARK: Final = "<!-- errors table -->"
# Of more than this the table tells the number only; each error's own section has them all.
_FEW: Final = 12


def table() -> str:
    """Return the table in Markdown, the errors in the order of their tree."""
    rows = ["| error | means | raised by |", "|---|---|---|"]
    for name, paths in raisers().items():
        error = by_home()[f"aiozkqueue.errors.{name}"]
        meaning = " ".join(error.docstring.partition("\n\n")[0].split())
        who = links(paths) if len(paths) <= _FEW else f"{len(paths)} members"
        rows.append(f"| [`{name}`][{error.path}] | {meaning} | {who or 'its subclasses'} |")
    return "\n".join(rows)


def links(paths: Iterable[str]) -> str:
    """Return these members as links."""
    return ", ".join(f"[`{path.removeprefix('aiozkqueue.')}`][{path}]" for path in paths)


@cache
def raisers() -> dict[str, list[str]]:
    """Return the paths of the members that raise each error of the package."""
    found: dict[str, list[str]] = {name: [] for name in names()}
    for path, member in documented().items():
        for raised in raised_by(member):
            if raised.error in found:
                found[raised.error].append(path)
    return found


def names() -> list[str]:
    """Return the names of the package's errors, each after what it is a kind of."""
    return [error.__name__ for error in _kinds(documented()["aiozkqueue.QueueError"].value)]


def _kinds(error: type[Exception]) -> list[type[Exception]]:
    kinds = [kind for kind in error.__subclasses__() if error_named(kind.__name__)]
    return [error, *(found for kind in kinds for found in _kinds(kind))]
