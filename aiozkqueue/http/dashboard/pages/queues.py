"""The list of queues: search, order, totals, and the queues that need attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.http.dashboard.readings.figures import OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.responses import Response

    from aiozkqueue.http.dashboard.readings.figures import Figures
    from aiozkqueue.http.dashboard.web.visit import Visit

#: The maximum number of queues without figures that a search shows.
MOST_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class _Column:
    key: str
    title: str
    value: Callable[[Figures], float]
    """The figure to sort by, with the largest first; the names are in order anyway."""


_COLUMNS: Final[tuple[_Column, ...]] = (
    _Column("name", "Queue", lambda _: 0.0),
    _Column("waiting", "Waiting", lambda queue: queue.sample.waiting),
    _Column("in_flight", "In flight", lambda queue: queue.sample.in_flight),
    _Column("delayed", "Delayed", lambda queue: queue.sample.delayed),
    _Column("retrying", "Retrying", lambda queue: queue.sample.retrying),
    _Column("size", "Size", lambda queue: queue.sample.size),
    _Column("put", "Put/s", lambda queue: queue.rates.put),
    _Column("removed", "Done/s", lambda queue: queue.rates.removed),
    _Column("oldest", "Oldest", lambda queue: queue.age or -1.0),
    _Column("dead", "Dead letters", lambda queue: queue.sample.dead),
    _Column("consumers", "Consumers", lambda queue: queue.sample.consumers),
)


class _Totals(NamedTuple):
    """The sums over the queues on the page."""

    waiting: int
    in_flight: int
    delayed: int
    retrying: int
    size: int
    put: float
    removed: float
    dead: int


async def show(visit: Visit) -> Response:
    """Show all queues that the visitor may see."""
    everything = await visit.figures()
    search, sick = visit.query("search"), bool(visit.query("attention"))
    found = [queue for queue in everything if search.casefold() in queue.name.casefold() and (queue.signs or not sick)]
    column = next((choice for choice in _COLUMNS if choice.key == visit.query("sort")), _COLUMNS[0])
    found.sort(key=column.value, reverse=True)
    omitted = visit.omitted()
    named = [name for name in omitted if search.casefold() in name.casefold()] if search and not sick else []
    unreadable = [(name, why) for name, why in visit.sampler.unreadable.items() if visit.sees(name)]
    partly = [(name, why) for name, why in visit.sampler.partly_unreadable.items() if visit.sees(name)]
    return visit.page(
        "queues.html",
        section="/",
        columns=_COLUMNS,
        sort=column.key,
        search=search,
        attention=sick,
        rows=found,
        all=len(everything) + len(omitted),
        omitted=len(omitted),
        named=named[:MOST_NAMED],
        more_named=len(named[MOST_NAMED:]),
        sick=sum(bool(queue.signs) for queue in everything),
        totals=_totals(found),
        unreadable=unreadable,
        partly=partly,
        hidden=not everything and not omitted and bool(visit.sampler.latest),
        old=OLD,
    )


def _totals(rows: Sequence[Figures]) -> _Totals:
    samples = [row.sample for row in rows]
    return _Totals(
        sum(sample.waiting for sample in samples),
        sum(sample.in_flight for sample in samples),
        sum(sample.delayed for sample in samples),
        sum(sample.retrying for sample in samples),
        sum(sample.size for sample in samples),
        sum(row.rates.put for row in rows),
        sum(row.rates.removed for row in rows),
        sum(sample.dead for sample in samples),
    )
