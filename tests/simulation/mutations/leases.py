"""Defects in leases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.session.leases import Leases
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.session.leases import Lease


@mutation(partial(run, feature="leases"))
def leases_end_early(patch: pytest.MonkeyPatch) -> None:
    take = Leases._take

    async def briefly(self: Leases[bytes], limit: int, lasting: float, patience: float | None) -> list[Lease[bytes]]:
        return await take(self, limit, lasting / 4, patience)

    patch.setattr(Leases, "_take", briefly)
