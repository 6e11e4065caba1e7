"""Moving from Curator, step by step, with nothing lost on the way and no day on which all must change at once.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/from_curator.py consume
AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/from_curator.py move

1. Java produces and consumes by Curator's ``DistributedQueue``, with a ``lockPath``. Consumers here (``consume``) join
   them, one at a time: the same names, bytes and locks, so each message is handled by one of either kind. What they put
   into queues of ours is committed together with the removal from Curator's.
2. When the last Java consumer has gone, ``move`` carries Curator's queue over to a queue of ours, while Java still
   produces: each message is taken there and put here in one transaction. Consumers turn to the new queue, which has
   attempts, dead letters, priorities, delays.
3. When the last Java producer has gone, and ``move`` finds nothing any more, stop it. That was all.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiozkqueue as zq


def java_queue(session: zq.QueueSession) -> zq.Queue[bytes]:
    """As Java has it: ``QueueBuilder.builder(client, consumer, serializer, "/app/orders").lockPath("/app/locks")``."""
    return session.curator_queue("/app/orders", lock_path="/app/locks")


async def consume(delivery: zq.Delivery[bytes]) -> None:
    """Handle an order from Java; its result is ours."""
    delivery.put("invoices", b"invoice for " + delivery.body)
    print(f"handled {delivery.body.decode()}", flush=True)


async def move(delivery: zq.Delivery[bytes]) -> None:
    """Carry an order over."""
    delivery.put("orders", delivery.body)
    print(f"moved {delivery.body.decode()}", flush=True)


async def main(step: str) -> None:
    """Do one of the steps until SIGTERM."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await zq.run(session.listener(java_queue(session), {"consume": consume, "move": move}[step], concurrency=8))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
