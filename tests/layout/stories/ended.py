"""The remains of deleted queues and cancelled messages."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import NotFoundError
from aiozkqueue.layout.cancelled import cancelled_ids
from aiozkqueue.session.internals import core_of, state_of

from .story import Now, Old, take, until


class Deleted:
    """A deleted queue, whose znode stays for a week."""

    queues: tuple[str, ...] = ("deleted",)

    async def made(self, old: Old) -> None:
        deleted = old.session.queue("deleted")
        await deleted.put(b"1")
        await deleted.admin.delete(force=True)

    async def found(self, now: Now) -> None:
        deleted = now.session.queue("deleted")
        assert not await deleted.exists()
        assert "deleted" not in await now.session.queues()
        with pytest.raises(NotFoundError):
            await deleted.configuration()
        await deleted.put(b"2")
        (message,) = await take(now.session, deleted)
        assert message.value == b"2"


class CancelledInHand:
    """A message that was cancelled while its handler ran; its id is stored for the holders."""

    queues: tuple[str, ...] = ("cancelled-in-hand",)

    async def made(self, old: Old) -> None:
        jobs = old.session.queue("cancelled-in-hand")
        old.known["cancelled-in-hand"] = message = await jobs.put(b"1")
        async with old.session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            assert await jobs.cancel(id=message, running=True)
            await tx.rollback()

    async def found(self, now: Now) -> None:
        jobs = now.session.queue("cancelled-in-hand")
        path = state_of(jobs).paths.cancelled
        node = await core_of(now.session).zookeeper.read(path)
        assert cancelled_ids(node.data) == [now.known["cancelled-in-hand"]]
        assert await jobs.cancel(id=now.known["cancelled-in-hand"], running=True) is zq.Alteration.NOT_FOUND
        cancelled = asyncio.Event()

        async def handle(_: zq.Delivery[bytes]) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with now.session.listener(jobs, handle):
            message = await jobs.put(b"2")

            async def held() -> bool:
                return bool((await jobs.stats()).in_flight)

            await until(held)
            assert await jobs.cancel(id=message, running=True)
            await asyncio.wait_for(cancelled.wait(), 30)
        node = await core_of(now.session).zookeeper.read(path)
        assert cancelled_ids(node.data) == [now.known["cancelled-in-hand"], message]
