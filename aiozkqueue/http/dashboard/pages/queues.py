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


@dataclass(frozen=True, slots=True)
class _Column:
    key: str
    title: str
    value: Callable[[Figures], float]
    """The figure to sort by, with the largest first; the names are in order anyway."""


_COLUMNS: Final[tuple[_Column, ...]] = (
    _Column("name", "Queue", lambda _: 0.0),
    _Column("waiting", "Waiting", lambda one: one.sample.waiting),
    _Column("in_flight", "In flight", lambda one: one.sample.in_flight),
    _Column("delayed", "Delayed", lambda one: one.sample.delayed),
    _Column("retrying", "Retrying", lambda one: one.sample.retrying),
    _Column("size", "Size", lambda one: one.sample.size),
    _Column("put", "Put/s", lambda one: one.rates.put),
    _Column("removed", "Done/s", lambda one: one.rates.removed),
    _Column("oldest", "Oldest", lambda one: one.age or -1.0),
    _Column("dead", "Dead letters", lambda one: one.sample.dead),
    _Column("consumers", "Consumers", lambda one: one.sample.consumers),
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
    found = [one for one in everything if search.casefold() in one.name.casefold() and (one.signs or not sick)]
    column = next((one for one in _COLUMNS if one.key == visit.query("sort")), _COLUMNS[0])
    found.sort(key=column.value, reverse=True)
    unreadable = [(name, why) for name, why in visit.sampler.unreadable.items() if visit.sees(name)]
    return visit.page(
        "queues.html",
        section="/",
        columns=_COLUMNS,
        sort=column.key,
        search=search,
        attention=sick,
        rows=found,
        all=len(everything),
        sick=sum(bool(one.signs) for one in everything),
        totals=_totals(found),
        unreadable=unreadable,
        hidden=not everything and bool(visit.sampler.latest),
        old=OLD,
    )


def _totals(rows: Sequence[Figures]) -> _Totals:
    samples = [one.sample for one in rows]
    return _Totals(
        sum(one.waiting for one in samples),
        sum(one.in_flight for one in samples),
        sum(one.delayed for one in samples),
        sum(one.retrying for one in samples),
        sum(one.size for one in samples),
        sum(one.rates.put for one in rows),
        sum(one.rates.removed for one in rows),
        sum(one.dead for one in samples),
    )
