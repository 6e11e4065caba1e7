"""The widths of a table's columns, in a window that may be too narrow for all cells. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Cells of up to this width stay on one line: a time has 19 characters, and a number with its unit has fewer.
_WHOLE: Final = 19
#: Columns of text that may break inside a word. A word of the other columns may be an argument of another command.
_TEXTS: Final = {"payload", "event", "reason", "last error", "error", "messages", "tags", "value", "what", "advice"}


def fitted(names: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the width of each column, given the room for all of them; None if they need more.

    A cell that is wider than its column continues on the next line. No name, time or number with a unit does.
    """
    columns = [[row[index] for row in rows] for index in range(len(names))]
    full_widths = [max(map(cell_len, (name, *cells))) for name, cells in zip(names, columns, strict=True)]
    widths = [_least(name, cells) for name, cells in zip(names, columns, strict=True)]
    spare = room - sum(widths)
    if spare < 0:
        return None
    # The columns that want least are served first, so that only long texts wrap.
    narrow = sorted(range(len(names)), key=lambda index: full_widths[index] - widths[index])
    for served, index in enumerate(narrow):
        more = min(full_widths[index] - widths[index], spare // (len(narrow) - served))
        widths[index] += more
        spare -= more
    return widths


def _least(name: str, cells: Sequence[str]) -> int:
    words = max(map(cell_len, name.split()), default=0)
    return max([words, *(_least_of_cell(name, cell) for cell in cells)])


def _least_of_cell(name: str, cell: str) -> int:
    width = cell_len(cell)
    if width <= _WHOLE:
        return width
    return _WHOLE if name in _TEXTS else max(_WHOLE, *map(cell_len, cell.split(" ")))
