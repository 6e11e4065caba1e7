"""A process that takes a message and holds it until a test kills it."""

from __future__ import annotations

import asyncio
import sys

import aiozkqueue as zq


async def main(hosts: str, root: str, path: str, kind: str) -> None:
    """Take a message, print it, and wait."""
    async with zq.connect(hosts, root=root, session_timeout=4) as session, session.transaction() as tx:
        queue: zq.Queue[bytes]
        locks = f"{path}-locks"
        queue = session.kazoo_queue(path) if kind == "kazoo" else session.curator_queue(path, lock_path=locks)
        message = await tx.take(queue, timeout=30)
        sys.stdout.write(f"{'' if message is None else message.body.decode()}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
