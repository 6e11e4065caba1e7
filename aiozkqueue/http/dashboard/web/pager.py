"""Pages of a long list, by a number in the address."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

if TYPE_CHECKING:
    from .visit import Visit


class Pager(NamedTuple):
    """The position in a long list."""

    first: int
    """The number of the first entry on this page, from 1; 0: there are no entries."""
    last: int
    total: int
    earlier: str | None
    """The address of the page before; None: this is the first page."""
    later: str | None


def page_number(visit: Visit) -> int:
    """Return the number of the page, from 0."""
    text = visit.query("page")
    return int(text) if text.isdecimal() and len(text) < 6 else 0  # noqa: PLR2004 - a list has fewer pages


def pages_of(visit: Visit, number: int, total: int, size: int) -> Pager:
    """Return the position of a page of ``size`` entries."""
    first, last = number * size, min(total, (number + 1) * size)
    return Pager(
        first=first + 1 if first < total else 0,
        last=last,
        total=total,
        earlier=_address(visit, number - 1) if number else None,
        later=_address(visit, number + 1) if last < total else None,
    )


def _address(visit: Visit, number: int) -> str:
    kept = {name: value for name, value in visit.request.query_params.items() if name not in {"page", "done", "seal"}}
    return f"?{urlencode(kept | ({'page': str(number)} if number else {}))}"
