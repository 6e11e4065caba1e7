"""The messages of a queue: pages of them, and a search by id, key, group, tag and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.http.dashboard.readings.messages import EXAMINED, SHOWN, STATUSES, Wanted, list_messages
from aiozkqueue.http.dashboard.web.pager import page_number, pages_of

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit


async def show(visit: Visit, name: str) -> Response:
    """Show a page of the messages. While a long queue is listed, the page states this and loads again."""
    queue = await visit.queue(name)
    figures = await visit.figures_of(name)
    queue = visit.listing_of(queue, figures.sample.size)
    status = visit.query("status")
    wanted = Wanted(visit.query("id"), visit.query("text"), status if status in STATUSES else "")
    number = page_number(visit)
    listing = await visit.shared.get_or_previous(
        ("messages", name, wanted, number), lambda: list_messages(visit.shared, queue, wanted, number)
    )
    total = figures.sample.size if listing is None or listing.found is None else listing.found
    return visit.page(
        "messages.html",
        section="/",
        tab="messages",
        figures=figures,
        wanted=wanted,
        filtered=any(wanted),
        statuses=STATUSES,
        listing=listing,
        examined=EXAMINED,
        total=total,
        pager=pages_of(visit, number, min(total, EXAMINED), SHOWN),
        may_change=visit.visitor.may_change(name),
    )
