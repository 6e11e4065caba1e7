"""Helpers for queues with bundles: fill them, drain them, and read them with an independent client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.layout import BundleName, BundleRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

NUMBER = 100
BODIES = [b"%d" % number for number in range(NUMBER)]


class Stored:
    """The znodes of a queue, read by an independent client."""

    def __init__(self, view: Observer, root: str) -> None:
        self._view = view
        self._base = f"{root}/jobs"

    async def names(self) -> list[str]:
        return await self._view.children(f"{self._base}/items")

    async def bundles(self) -> list[BundleName]:
        return [name for text in await self.names() if (name := BundleName.parse(text)) is not None]

    async def singles(self) -> list[str]:
        return [text for text in await self.names() if text.startswith("item-")]

    async def records(self) -> list[BundleRecord]:
        names = [name for name in await self._view.children(f"{self._base}/meta") if name.startswith("bundle-")]
        return [BundleRecord.decode(await self._view.get(f"{self._base}/meta/{name}")) for name in names]

    async def configuration(self) -> str:
        return (await self._view.get(self._base)).decode()

    async def is_empty(self) -> bool:
        folders = ("items", "locks", "meta", "due")
        return not any([await self._view.children(f"{self._base}/{folder}") for folder in folders])


async def bundled(
    session: zq.QueueSession, bodies: list[bytes] | None = None, policy: zq.Policy | None = None
) -> zq.Queue[bytes]:
    """Fill a queue with bundles."""
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64, policy=policy))
    await queue.put_many(BODIES if bodies is None else bodies)
    return queue


async def drain(
    session: zq.QueueSession, queue: zq.Queue[bytes], idle: float = 1.0, *, expected: int = 0
) -> list[bytes]:
    """Take and commit messages one by one until none arrives; wait longer for the expected number."""
    values: list[bytes] = []
    while True:
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=idle if len(values) >= expected else 30)
            if message is None:
                return values
            await tx.commit()
            values.append(message.value)


async def half_done(open_session: Opener, expire: Expire) -> zq.Queue[bytes]:
    """Finish ten messages of a filled queue, take ten more, and end the ZooKeeper session that holds them."""
    holder = await open_session()
    queue = holder.queue("jobs")
    async with holder.transaction() as tx:
        await tx.take_many(queue, 10)
        await tx.commit()
    try:
        async with holder.transaction() as tx:
            await tx.take_many(queue, 10)
            await expire(holder)
            await tx.commit()
    except zq.SessionExpiredError:
        return queue
    raise AssertionError("a commit of an ended session was applied")
