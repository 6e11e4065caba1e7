"""One message: the options of its put, its payload, and its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.http.core.permissions import Verb
from aiozkqueue.http.dashboard.readings.message import details
from aiozkqueue.http.dashboard.readings.payloads import display

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit


async def show(visit: Visit, name: str, message_id: str) -> Response:
    """Show one message; its payload only to visitors who may read it. A deep queue is searched in the background."""
    queue = await visit.queue(name)
    figures = await visit.figures_of(name)
    queue = visit.listing_of(queue, figures.sample.size + figures.sample.dead)
    found = await visit.shared.get_or_previous(("message", name, message_id), lambda: details(queue, message_id))
    body = None if found is None or found.stored is None else found.stored.body
    may_read = visit.visitor.may(Verb.POLL, name)
    return visit.page(
        "message.html",
        404 if found is not None and found.stored is None and not found.events else 200,
        section="/",
        tab="message",
        figures=figures,
        message_id=message_id,
        found=found,
        may_read=may_read,
        payload=display(body) if may_read and body is not None else None,
        may_change=visit.visitor.may_change(name),
    )
