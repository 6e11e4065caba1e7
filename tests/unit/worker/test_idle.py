"""A worker that ends when its listeners have had no message for some time, in simulated time."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual, simulated
from aiozkqueue.worker import UntilIdle

IDLE = 5.0


def lasted(handler_takes: float, *puts: float, outage: tuple[float, float] = (0, 0)) -> tuple[float, list[float]]:
    """Run a worker while messages are put after these times; return when it ended, and when handlers began."""

    async def main() -> tuple[float, list[float]]:
        begun: list[float] = []
        loop = asyncio.get_running_loop()

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(loop.time() - start)
            await asyncio.sleep(handler_takes)

        async with simulated() as cluster, cluster.connect(name="p") as producer, cluster.connect(name="w") as session:

            async def put() -> None:
                for after in puts:
                    await asyncio.sleep(start + after - loop.time())
                    await producer.queue("orders").put(b"x")

            async def fail() -> None:
                await asyncio.sleep(outage[0])
                for server in cluster.ensemble.servers:
                    cluster.ensemble.stop(server)
                await asyncio.sleep(outage[1] - outage[0])
                for server in cluster.ensemble.servers:
                    server.up = True
                cluster.ensemble.elect()

            listeners = [session.listener(session.queue(name), handler) for name in ("orders", "empty")]
            start = loop.time()
            tasks = [asyncio.create_task(put())]
            if outage[1]:
                tasks.append(asyncio.create_task(fail()))
            await zq.run(*listeners, UntilIdle(session, IDLE, listeners, listeners), signals=())
            ended = loop.time() - start
            await asyncio.gather(*tasks)
            return ended, begun

    return run_virtual(main)


def test_a_worker_ends_when_no_listener_has_had_a_message_for_the_time() -> None:
    ended, begun = lasted(0, 0, 3, 6)
    assert len(begun) == 3
    assert begun[-1] + IDLE <= ended < begun[-1] + IDLE + 3


def test_a_worker_does_not_end_while_a_handler_runs() -> None:
    ended, begun = lasted(20, 0)
    assert len(begun) == 1
    assert begun[-1] + 20 + IDLE <= ended < begun[-1] + 20 + IDLE + 3


def test_the_time_without_a_server_does_not_count() -> None:
    ended, _ = lasted(0, 0, outage=(1, 9))
    assert ended >= 9 + IDLE
