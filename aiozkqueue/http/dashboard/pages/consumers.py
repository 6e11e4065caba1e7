"""The sessions that consume, with the messages that each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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


class ConsumersRead(NamedTuple):
    """The consumers of one queue."""

    queue: str
    shown: Sequence[ConsumerInfo]
    unreadable: Sequence[tuple[str, str]]
    """The queue and the reason, if some of its consumers or of their messages cannot be read."""


async def consumers_of(session: QueueSession, queue: str) -> ConsumersRead:
    """Read the consumers of a queue, without listing a long queue."""
    unreadable: list[AccessDeniedError] = []
    shown: list[ConsumerInfo] = []
    try:
        shown = await consumers(core_of(session).handle(queue), MOST_LISTED, unreadable)
    except AccessDeniedError as error:
        unreadable.append(error)
    return ConsumersRead(queue, shown, [(queue, str(error)) for error in unreadable[:1]])


async def _read(session: QueueSession, names: Sequence[str]) -> list[ConsumersRead]:
    return [await consumers_of(session, name) for name in names]
