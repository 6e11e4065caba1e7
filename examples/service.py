"""A service: two listeners, several messages at a time, until SIGTERM; then the messages in progress are finished.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/service.py
seq 100 | aiozkqueue put numbers --lines
"""

from __future__ import annotations

import asyncio
import os

import aiozkqueue as zq


async def square(delivery: zq.Delivery[int]) -> None:
    """Put the square into the next queue, in the transaction that takes the number."""
    if delivery.value < 0:
        raise zq.Reject("only natural numbers here")
    await asyncio.sleep(0.01)
    delivery.put("squares", str(delivery.value**2).encode())


async def show(delivery: zq.Delivery[int]) -> None:
    """Print the result."""
    print(delivery.value, flush=True)


async def main() -> None:
    """Run both listeners."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        await zq.run(
            session.listener(session.queue("numbers", int), square, concurrency=8),
            session.listener(session.queue("squares", int), show),
        )
    print("drained", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
