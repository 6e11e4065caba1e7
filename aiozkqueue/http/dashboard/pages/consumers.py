"""The sessions that consume, with the messages that each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.operations.consumers import consumers
from aiozkqueue.sampling import MOST_LISTED
from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.operations.consumers import ConsumerInfo
    from aiozkqueue.session.session import QueueSession

#: The maximum number of queues whose consumers one page shows.
MOST: Final = 100


async def show(visit: Visit) -> Response:
    """Show the consumers of all queues that the visitor may see."""
    consumed = [queue.name for queue in await visit.figures() if queue.sample.consumers]
    session = visit.session
    shown = consumed[:MOST]
    read = await visit.shared.get_or_previous(("consumers", "", *shown), lambda: _read(session, shown))
    left, omitted = len(consumed[MOST:]), len(visit.omitted())
    return visit.page("consumers.html", section="/consumers", queues=read, left=left, omitted=omitted)


async def consumers_of(session: QueueSession, queue: str) -> list[ConsumerInfo]:
    """Read the consumers of a queue, without listing a long queue. Raises: AccessDeniedError."""
    return await consumers(core_of(session).handle(queue), MOST_LISTED)


async def _read(session: QueueSession, names: Sequence[str]) -> list[tuple[str, list[ConsumerInfo]]]:
    found: list[tuple[str, list[ConsumerInfo]]] = []
    for name in names:
        try:
            found.append((name, await consumers_of(session, name)))
        except AccessDeniedError:
            continue  # the list of queues names it as unreadable
    return found
