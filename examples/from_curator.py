"""Migration from Curator, step by step, without lost messages and without changing all programs at once.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/from_curator.py consume
AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/from_curator.py move

1. Java produces and consumes with Curator's ``DistributedQueue`` and a ``lockPath``. Consumers here (``consume``) join
   one at a time. They use the same names, bytes and locks, so each message is handled by one consumer of either kind.
   Their puts to new queues are committed together with the removal from Curator's.
2. When the last Java consumer has stopped, ``move`` moves messages from Curator's queue to a new one while Java still
   produces: each message is taken and put in one transaction. Consumers switch to the new queue, which has attempts,
   dead letters, priorities and delays.
3. When the last Java producer has stopped and ``move`` finds no more messages, stop it. The migration is complete.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiozkqueue as zq


def java_queue(session: zq.QueueSession) -> zq.Queue[bytes]:
    """Open Java's ``QueueBuilder.builder(client, consumer, serializer, "/app/orders").lockPath("/app/locks")``."""
    return session.curator_queue("/app/orders", lock_path="/app/locks")


async def consume(delivery: zq.Delivery[bytes]) -> None:
    """Handle an order from Java, and put its result into a new queue."""
    delivery.put("invoices", b"invoice for " + delivery.body)
    print(f"handled {delivery.body.decode()}", flush=True)


async def move(delivery: zq.Delivery[bytes]) -> None:
    """Move an order."""
    delivery.put("orders", delivery.body)
    print(f"moved {delivery.body.decode()}", flush=True)


async def main(step: str) -> None:
    """Run one of the steps until SIGTERM."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await zq.run(session.listener(java_queue(session), {"consume": consume, "move": move}[step], concurrency=8))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
