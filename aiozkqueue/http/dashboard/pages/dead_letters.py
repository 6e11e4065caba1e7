"""The dead letters of one queue, and the queues that have any."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.http.dashboard.readings.letters import SHOWN, LetterFilter, search
from aiozkqueue.http.dashboard.web.pager import page_number, pages_of
from aiozkqueue.sampling import MOST_LISTED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from starlette.responses import Response

    from aiozkqueue.http.dashboard.readings.letters import FoundLetters
    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.session.queue import Queue

#: The maximum number of concurrent searches: each may need some megabytes.
SEARCHES = 2
_searches = asyncio.Semaphore(SEARCHES)


async def of_all(visit: Visit) -> Response:
    """Show the queues with dead letters, those with the most first."""
    queues = [queue for queue in await visit.figures() if queue.sample.dead]
    queues.sort(key=lambda queue: -queue.sample.dead)
    return visit.page("all_dead_letters.html", section="/dead-letters", queues=queues, omitted=len(visit.omitted()))


async def show(visit: Visit, name: str) -> Response:
    """Show the dead letters of a queue, or those that a search finds, and how many have which reason.

    While very many dead letters are listed, the page states this and loads again.
    """
    queue = await visit.queue(name)
    figures = await visit.figures_of(name)
    key, read = _reading(visit, queue, sought := sought_by(visit), figures.sample.dead)
    ask = visit.shared.get_or_previous if figures.sample.dead > MOST_LISTED else visit.shared.get
    found = await ask(key, read)
    rows = [] if found is None else found.rows
    number = page_number(visit)
    return visit.page(
        "dead_letters.html",
        section="/",
        tab="dead letters",
        figures=figures,
        sought=sought,
        found=found,
        shown=rows[number * SHOWN : (number + 1) * SHOWN],
        pager=pages_of(visit, number, len(rows), SHOWN),
        may_read=visit.visitor.may(Verb.POLL, name),
        may_change=visit.visitor.may_change(name),
    )


def sought_by(visit: Visit) -> LetterFilter:
    """Return the search that the address of a page names."""
    return LetterFilter(visit.query("search"), visit.query("reason"))


async def find(visit: Visit, queue: Queue[bytes], sought: LetterFilter) -> FoundLetters:
    """Search the dead letters of a queue. Visitors with the same permissions share the result."""
    figures = await visit.figures_of(queue.name)
    return await visit.shared.get(*_reading(visit, queue, sought, figures.sample.dead))


def _reading(
    visit: Visit, queue: Queue[bytes], sought: LetterFilter, dead: int
) -> tuple[tuple[Hashable, ...], Callable[[], Coroutine[Any, Any, FoundLetters]]]:
    """Return the key of a search among ``dead`` dead letters, by which visitors share it, and the search."""
    listed = visit.listing_of(queue, dead)
    payloads = bool(sought.text) and visit.visitor.may(Verb.POLL, queue.name)

    async def read() -> FoundLetters:
        async with _searches:
            return await search(listed, sought, payloads=payloads)

    return ("letters", queue.name, sought, payloads), read
