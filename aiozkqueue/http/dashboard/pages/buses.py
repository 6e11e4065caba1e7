"""The buses and their groups, with the backlog of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.bus.registered import Buses

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.session.session import QueueSession


class _Group(NamedTuple):
    bus: str
    group: str | None
    """None: the queue of the bus itself."""
    queue: str


async def show(visit: Visit) -> Response:
    """Show the buses whose queues the visitor may see."""
    groups = await visit.shared.get(("buses",), lambda: _read(visit.session))
    figures = {queue.name: queue for queue in await visit.figures()}
    shown = [(group, figures.get(group.queue)) for group in groups if visit.sees(group.queue)]
    return visit.page("buses.html", section="/buses", groups=shown)


async def _read(session: QueueSession) -> list[_Group]:
    buses = Buses(session)
    return [
        _Group(bus, group, queue) for bus in await buses.list() for group, queue in (await buses.queues(bus)).items()
    ]
