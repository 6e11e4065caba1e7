"""The servers and the findings of the doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.operations.doctor.diagnosis import Diagnosis

#: Seconds that an examination may take.
BUDGET: Final = 20.0


async def show(visit: Visit) -> Response:
    """Show the servers of the ensemble, by their own report."""
    return visit.page("servers.html", section="/servers", diagnosis=await _diagnosis(visit))


async def findings(visit: Visit) -> Response:
    """Show the findings of the doctor."""
    return visit.page("findings.html", section="/findings", diagnosis=await _diagnosis(visit))


async def _diagnosis(visit: Visit) -> Diagnosis | None:
    """Return the last examination; None while the first is made."""
    visit.require_all()
    admin = visit.listing.admin
    return await visit.shared.get_or_previous(("diagnosis",), lambda: admin.diagnose(budget=BUDGET))
