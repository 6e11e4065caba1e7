"""A process that works on a bundle and is killed at one of its requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.layout import is_bundle
from aiozkqueue.session.internals import state_of
from tests.simulation.history import History
from tests.simulation.killing import SESSION_TIMEOUT, When, killed_at

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 4
BODIES = [b"%d" % number for number in range(2 * SIZE)]


@dataclass
class Holder:
    """The process that is killed, and the messages that it has received."""

    shown: set[bytes] = field(default_factory=set[bytes])
    """The messages that it has received."""
    begun: set[bytes] = field(default_factory=set[bytes])
    """The messages whose commit it has begun."""
    finished: set[bytes] = field(default_factory=set[bytes])
    """The messages whose commit has returned."""

    async def prepare(self, session: zq.QueueSession) -> None:
        """Store two bundles."""
        queue = session.queue("jobs")
        await queue.configure(zq.QueueConfig(bundle=SIZE, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
        await queue.put_many(BODIES)

    async def work(self, session: zq.QueueSession) -> None:
        """Finish a message, fail with the next, finish a third one, and leave the last one untaken in the session."""
        for number in range(SIZE - 1):
            async with session.transaction(autocommit=False) as tx:
                message = await tx.take(session.queue("jobs"), timeout=1)
                assert message is not None
                self.shown.add(message.body)
                if number == 1:
                    await tx.rollback(delay=0.1)
                    continue
                self.begun.add(message.body)
                await tx.commit()
                self.finished.add(message.body)
        await asyncio.sleep(1)

    async def take_over(self, session: zq.QueueSession) -> list[str]:
        """Take all remaining messages; return what is wrong."""
        await asyncio.sleep(3 * SESSION_TIMEOUT)  # the session of the killed process has ended
        queue, zookeeper = session.queue("jobs"), session._runtime.zookeeper
        paths, wrong = state_of(queue).paths, list[str]()
        taken = await _take(session, 1)
        names = [name for name in await zookeeper.children(paths.items) if is_bundle(name)]
        if self.shown and len(names) > 1:
            wrong.append(f"a message that kills its process has {SIZE - 1} hostages: {names}")
        while more := await _take(session, len(BODIES)):
            taken += more
        wrong += [f"{body!r} came back, though it was finished" for body in self.finished & set(taken)]
        wrong += [f"{body!r} is lost" for body in set(BODIES) - self.begun - set(taken)]
        wrong += [f"{body!r} came twice" for body in set(taken) if taken.count(body) > 1]
        folders = (paths.items, paths.locks, paths.metas, paths.due)
        return wrong + [f"left: {folder}/{name}" for folder in folders for name in await zookeeper.children(folder)]


async def _take(session: zq.QueueSession, limit: int) -> list[bytes]:
    async with session.transaction() as tx:
        return [message.body for message in await tx.take_many(session.queue("jobs"), limit, timeout=2)]


def killed(number: int, when: When) -> tuple[bool, list[str]]:
    """Kill the process at a request; return whether the request was reached, and what is wrong afterwards."""
    holder = Holder()
    return killed_at(number, when, before=holder.prepare, work=holder.work, after=holder.take_over)


def killed_holders() -> Callable[[str], History]:
    """Return the history of a seed, whose number at the end is that of the request."""

    def history(seed: str) -> History:
        number = int(seed.rpartition(" ")[2])
        return History(trouble=[what for when in When for what in killed(number, when)[1]])

    return history
