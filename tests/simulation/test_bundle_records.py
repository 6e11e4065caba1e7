"""The order of the operations that end messages of bundles, and record their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Kind
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection
    from aiozkqueue.zookeeper import Operation


@pytest.mark.parametrize("end", ["finish", "reject"])
def test_the_end_of_a_message_of_a_bundle_asserts_the_claim_before_it_creates_the_record(end: str) -> None:
    """A lost claim is then the refusal, even if the record of the next holder has the same name.

    The name has the millisecond of the end, which is the same if the clock stands still.
    """

    async def main() -> list[list[Operation]]:
        sent = list[list["Operation"]]()
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64, history=zq.History()))
            await jobs.put_many([b"%d" % number for number in range(64)])

            def judge(_: ServerConnection, request: Request) -> None:
                if request.kind is Kind.MULTI and any("/history/" in each.path for each in request.argument):
                    sent.append(list(request.argument))

            cluster.ensemble.judge = judge
            async with session.transaction() as tx:
                for message in await tx.take_many(jobs, 2, timeout=30):
                    if end == "reject":
                        tx.reject(message, "bad")
            return sent

    (operations,) = run_virtual(main)[-1:]
    record = next(index for index, each in enumerate(operations) if "/history/" in each.path)
    claim = next(index for index, each in enumerate(operations) if "/meta/bundle-" in each.path)
    assert isinstance(operations[record], Create)
    assert claim < record
