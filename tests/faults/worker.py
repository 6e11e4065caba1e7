"""A consumer in a separate process that tests kill, stop and continue. It writes its actions to a file.

``python -m tests.faults.worker <role> <hosts> <root> <journal> <session timeout>``
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MANY = 100_000


class Journal:
    """A file whose lines are on disk before the program continues."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())
        os.fsync(self._file)


async def hold(session: zq.QueueSession, journal: Journal) -> None:
    """Take a message and keep it."""
    async with session.transaction() as tx:
        message = await tx.take(session.queue("jobs"), timeout=None)
        assert message is not None
        journal.write(f"holds {message.id}")
        await asyncio.sleep(600)


async def hold_many(session: zq.QueueSession, journal: Journal) -> None:
    """Take as many messages as the session may hold, and keep them."""
    held = 0
    async with session.transaction(autocommit=False) as tx:
        with suppress(zq.TransactionTooLargeError):  # the error would roll back, and replace the locks by timed ones
            while messages := await tx.take_many(session.queue("jobs"), 500):
                held += len(messages)
                journal.write(f"holds {held}")
        await asyncio.sleep(600)


async def commit_late(session: zq.QueueSession, journal: Journal) -> None:
    """Take a message, wait to be stopped and continued, and commit."""
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(session.queue("jobs"), timeout=None)
        assert message is not None
        tx.put("results", b"from the one that was stopped")
        journal.write("holds")
        while os.path.exists(f"{sys.argv[4]}.wait"):  # noqa: ASYNC110, ASYNC240, PTH110 - blocking is harmless in this process
            await asyncio.sleep(0.005)
        try:
            await tx.commit()
        except zq.QueueError as error:
            journal.write(type(error).__name__)
        else:
            journal.write("committed")


async def consume(session: zq.QueueSession, journal: Journal) -> None:
    """Consume, and never finish a message; write each delivery to the journal first."""
    async with session.queue("jobs").consume() as deliveries:
        async for delivery in deliveries:
            journal.write(f"{delivery.body.decode()} {delivery.attempt}")
            await asyncio.sleep(600)


ROLES: dict[str, Callable[[zq.QueueSession, Journal], Awaitable[None]]] = {
    "hold": hold,
    "hold_many": hold_many,
    "commit_late": commit_late,
    "consume": consume,
}


async def main(role: str, hosts: str, root: str, journal: str, timeout: str) -> None:
    async with zq.connect(hosts, root=root, session_timeout=float(timeout)) as session:
        await ROLES[role](session, Journal(journal))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
