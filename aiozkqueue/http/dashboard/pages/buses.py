"""The buses and their groups, with the backlog of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.bus.registered import Buses
from aiozkqueue.errors import AccessDeniedError, PayloadError

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
    groups, unreadable = await visit.shared.get(("buses",), lambda: _read(visit.session))
    figures = {queue.name: queue for queue in await visit.figures()}
    shown = [(group, figures.get(group.queue)) for group in groups if visit.sees(group.queue)]
    refused = [(bus, reason) for bus, reason in unreadable.items() if visit.sees(bus)]
    return visit.page("buses.html", section="/buses", groups=shown, unreadable=refused)


async def _read(session: QueueSession) -> tuple[list[_Group], dict[str, str]]:
    """Return the groups of all buses, and why the groups of some cannot be read."""
    buses, groups, unreadable = Buses(session), list[_Group](), dict[str, str]()
    for bus in await buses.list():
        try:
            groups += [_Group(bus, group, queue) for group, queue in (await buses.queues(bus)).items()]
        except (AccessDeniedError, PayloadError) as error:
            unreadable[bus] = str(error)
    return groups, unreadable
