"""A process that takes from a Curator queue until it is killed, and prints each message that it has handled."""

from __future__ import annotations

import asyncio
import sys

import aiozkqueue as zq

SESSION_TIMEOUT = 4.0


async def work(hosts: str, root: str, path: str, locks: str, pause: float, concurrency: int) -> None:
    """Handle messages, each for ``pause`` seconds."""
    async with zq.connect(hosts, root=root, session_timeout=SESSION_TIMEOUT) as session:

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(pause)
            sys.stdout.write(f"{delivery.body.decode()}\n")
            sys.stdout.flush()

        queue = session.curator_queue(path, lock_path=locks)
        await session.listener(queue, handle, concurrency=concurrency).run()


if __name__ == "__main__":
    hosts, root, path, locks, pause, concurrency = sys.argv[1:]
    asyncio.run(work(hosts, root, path, locks, float(pause), int(concurrency)))
