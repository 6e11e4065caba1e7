"""The moves of the last week and their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit


async def show(visit: Visit) -> Response:
    """Show the moves from or to a queue that the visitor may see, the newest first."""
    moves = await visit.shared.get(("moves",), visit.session.admin.moves.all)
    shown = [move for move in moves if visit.sees(move.source) or visit.sees(move.target)]
    shown.sort(key=lambda move: move.started, reverse=True)
    return visit.page("moves.html", section="/moves", moves=shown)
