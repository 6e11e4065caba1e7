"""A server that is slow to apply writes, and a session that only shows data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Fault, Kind

if TYPE_CHECKING:
    from aiozkqueue.sampling import Sample
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


def test_figures_are_read_with_the_last_known_time_while_another_call_waits_for_its_write() -> None:
    async def main() -> tuple[float, dict[str, Sample]]:
        async with simulated() as cluster:
            async with cluster.connect() as session:
                await session.queue("jobs").put(b"1")
            async with cluster.connect() as session:
                loop = asyncio.get_running_loop()
                until = loop.time() + 9

                def judge(_: ServerConnection, request: Request) -> Fault | None:
                    return Fault.DROPPED if request.kind is Kind.MULTI and loop.time() < until else None

                cluster.ensemble.judge = judge
                showing = asyncio.create_task(shown_time(core_of(session)))
                await asyncio.sleep(0.1)
                began = loop.time()
                sampler = Sampler(session)
                await sampler.sample_all(0)
                lasted = loop.time() - began
                assert not showing.done()
                await showing
                return lasted, dict(sampler.latest)

    lasted, samples = run_virtual(main)
    assert lasted < 3
    assert samples["jobs"].size == 1
