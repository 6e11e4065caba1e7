"""A lost request that the servers then refuse by its size: the outcome is still known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Fault

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

LIMIT = 100_000
LARGE = b"x" * 300_000


@pytest.mark.parametrize(
    ("fault", "stored"), [(None, False), (Fault.LOST_BEFORE, False), (Fault.LOST_AFTER, True), (Fault.LATE, None)]
)
def test_a_put_that_is_lost_and_then_refused_by_its_size_reports_whether_it_is_stored(
    fault: Fault | None,
    stored: bool | None,  # noqa: FBT001 - a parameter; None if both outcomes are correct
) -> None:
    async def main() -> tuple[bool, int, int]:
        async with simulated(servers=3) as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"before")
            ensemble = cluster.ensemble
            requests: list[Request] = []

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                if request.size < len(LARGE) or requests:
                    return None
                requests.append(request)
                asyncio.get_running_loop().call_soon(setattr, ensemble, "max_request", LIMIT)
                return fault

            if fault is None:
                ensemble.max_request = LIMIT
            ensemble.judge = judge
            try:
                await jobs.put(LARGE)
            except zq.TransactionTooLargeError as error:
                assert "jute.maxbuffer=1048575" in str(error)  # noqa: PT017 - the other outcome is also checked
                returned = False
            else:
                returned = True
            size = await jobs.size()
            await asyncio.sleep(100)  # time for a late copy to arrive
            return returned, size, await jobs.size()

    returned, size, later = run_virtual(main)
    assert stored in {returned, None}
    assert size == later == 1 + returned
