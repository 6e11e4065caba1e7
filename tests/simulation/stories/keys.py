"""Messages with keys or with a lifetime, and cancelled messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.operations.ttl import sweep_expired
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.rules.keys import NEVER, Keyed, Life
from tests.simulation.stories import story
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.history import History

    Act = Callable[["_Scene", list[zq.QueueSession]], Awaitable[None]]

KEYS = "xy"


class _Scene:
    """A queue, and the sessions that put to it and take from it. It records all observations."""

    def __init__(self, seed: int | str) -> None:
        self.run = Run(seed, size=1)
        self.run.disturbances.calm = True
        self.keyed = self.run.history.part(Keyed)
        self.random = self.run.random
        self.numbers = dict.fromkeys(KEYS, 0)
        self.known: dict[str, Life] = {}

    @property
    def now(self) -> float:
        return self.run.loop.time()

    async def pause(self, most: float = 10) -> None:
        await asyncio.sleep(self.random.random() * most * self.run.disturbances.scale)

    async def put(self, queue: zq.Queue[bytes], key: str, **options: object) -> Life:
        self.numbers[key] += 1
        life = Life(key, self.numbers[key], self.now)
        self.keyed.lives.append(life)
        body = f"{key}{life.number}"
        self.known[body] = life
        try:
            await queue.put(body.encode(), key=key, **options)  # type: ignore[arg-type]
        except zq.DuplicateKeyError:
            life.refused = self.now
        else:
            life.put = self.now
        return life

    async def poll(self, session: zq.QueueSession, limit: int, hold: float = 3, timeout: float = 0) -> list[Life]:
        """Take the waiting messages, hold them for a while, and usually commit."""
        began = self.now
        async with session.transaction(autocommit=False) as tx:
            messages = await tx.take_many(session.queue("k"), limit, timeout=timeout)
            given = [self.known[message.body.decode()] for message in messages]
            self.keyed.polls.append((began, [(life, max(life.put, life.free)) for life in given]))
            for life in given:
                life.delivered, life.free = self.now, NEVER
            await self.pause(hold)
            if self.random.random() < 0.2:
                await tx.rollback(delay=0)
                for life in given:
                    life.free = self.now
                return given
            for life in given:
                life.disposition = self.now
            try:
                await tx.commit()
            except zq.NotCommittedError as error:
                self.run.history.trouble.append(f"a claim was lost although no other client may take it: {error}")
                return given
            for life in given:
                life.ended = self.now
        return given

    async def finish(self, session: zq.QueueSession) -> None:
        """Take the remaining messages, and record the leftovers."""
        self.random.seed(1)
        while await session.queue("k").size():
            await self.poll(session, 10, timeout=5)
        for path in self.run.ensemble.tree.nodes:
            folder = path.removeprefix("/zms/k/").partition("/")
            if folder[0] in ("locks", "meta", "keys", "due") and folder[2]:
                self.keyed.leftovers.append(f"{path} is left, and its message has ended")


def _play(
    seed: int | str, config: zq.QueueConfig, act: Callable[[_Scene, list[zq.QueueSession]], Awaitable[None]]
) -> History:
    async def main() -> History:
        scene = _Scene(seed)
        connect = scene.run.cluster.connect
        async with connect(name="p") as first, connect(name="q") as second, connect(name="last") as last:
            await first.queue("k").configure(config)
            await act(scene, [first, second])
            await asyncio.sleep(1)
            await scene.finish(last)
        return scene.run.history

    return run_virtual(main, limit=LIMIT)


@story
def duplicates_are_put_while_others_are_taken(seed: int | str) -> History:
    """Two sessions put to a collapsing queue and take from it."""

    async def act(scene: _Scene, sessions: list[zq.QueueSession]) -> None:
        scene.keyed.collapsing = True

        async def produce(session: zq.QueueSession, key: str) -> None:
            for _ in range(8):
                await scene.put(session.queue("k"), key)
                await scene.pause(4)

        async def consume(session: zq.QueueSession) -> None:
            for _ in range(6):
                await scene.poll(session, scene.random.choice([1, 10]))
                await scene.pause(4)

        await asyncio.gather(
            *(produce(session, key) for session, key in zip(sessions, KEYS, strict=True)), *map(consume, sessions)
        )

    return _play(seed, zq.QueueConfig(collapse=True, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))), act)


@story
def producers_compete_for_unique_keys(seed: int | str) -> History:
    """Two sessions put with the same unique keys, take and commit."""

    async def act(scene: _Scene, sessions: list[zq.QueueSession]) -> None:
        scene.keyed.unique = True

        async def produce(session: zq.QueueSession) -> None:
            for _ in range(8):
                await scene.put(session.queue("k"), scene.random.choice(KEYS), unique=True)
                await scene.pause(3)

        async def consume(session: zq.QueueSession) -> None:
            for _ in range(6):
                await scene.poll(session, 1)
                await scene.pause(3)

        await asyncio.gather(*map(produce, sessions), *map(consume, sessions))

    return _play(seed, zq.QueueConfig(policy=zq.ConsumeTimes(1000, backoff=zq.Fixed(0))), act)


@story
def messages_expire_while_others_are_taken(seed: int | str) -> History:
    """Messages with a short lifetime, late consumers, and a session that sweeps expired messages."""

    async def act(scene: _Scene, sessions: list[zq.QueueSession]) -> None:
        ttl = 0.2

        async def produce(session: zq.QueueSession) -> None:
            for _ in range(10):
                life = await scene.put(session.queue("k"), scene.random.choice(KEYS), ttl=ttl)
                # The end was fixed before the put returned. A message that is claimed before it may be delivered a
                # round trip later.
                life.expires = life.put + ttl + 0.1 + 20 * scene.run.disturbances.scale
                await asyncio.sleep(scene.random.random() * 0.2)

        async def consume(session: zq.QueueSession) -> None:
            for _ in range(8):
                await asyncio.sleep(scene.random.random() * 0.6)
                await scene.poll(session, 10)

        async def sweep(session: zq.QueueSession) -> None:
            for _ in range(8):
                await asyncio.sleep(scene.random.random() * 0.6)
                await sweep_expired(session._runtime.handle("k"))

        first, second = sessions
        await asyncio.gather(produce(first), consume(first), consume(second), sweep(second))
        await asyncio.sleep(1)

    return _play(seed, zq.QueueConfig(policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0))), act)


async def _cancel(scene: _Scene, session: zq.QueueSession, chosen: str) -> bool:
    """Cancel a message, directly or in a transaction that commits a little later; return whether it was cancelled."""
    queue = session.queue("k")
    if scene.random.random() < 0.5:
        return bool(await queue.cancel(id=chosen))
    async with session.transaction(autocommit=False) as tx:
        asked = await tx.cancel(queue, id=chosen)
        await scene.pause(3)
        try:
            await tx.commit()
        except zq.NotCommittedError:
            return False
    return bool(asked)


@story
def messages_are_cancelled_while_they_are_taken(seed: int | str) -> History:
    """A session cancels messages that another one takes."""

    async def act(scene: _Scene, sessions: list[zq.QueueSession]) -> None:
        ids: dict[str, Life] = {}
        first, second = sessions

        async def produce() -> None:
            for _ in range(10):
                scene.numbers["x"] += 1
                life = Life(f"x{scene.numbers['x']}", 1, scene.now)
                scene.known[life.key] = life
                scene.keyed.lives.append(life)
                ids[await first.queue("k").put(life.key.encode())] = life
                await scene.pause(2)

        async def consume() -> None:
            for _ in range(8):
                await scene.poll(second, 1)
                await scene.pause(2)

        async def cancel() -> None:
            for _ in range(10):
                await scene.pause(2)
                if ids:
                    chosen = scene.random.choice(list(ids))
                    if await _cancel(scene, first, chosen):
                        ids[chosen].cancelled = scene.now

        await asyncio.gather(produce(), consume(), cancel())

    return _play(seed, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))), act)
