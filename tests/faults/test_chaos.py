"""All kinds of faults together. Afterwards each message is in one place, and no lock is left or counted."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import ZooKeeperProxy
from tests.faults.account import ATTEMPT, BACKOFF, CLAIM, SETTLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.account import Account

SECONDS = 4.0
TOTAL = 300

POLICIES = [
    pytest.param(zq.AtLeastOnce(backoff=zq.Fixed(0.02)), id="at least once"),
    pytest.param(zq.ConsumeTimes(10_000, backoff=zq.Fixed(0.02)), id="counted"),
]


class Chaos:
    """Programs that misbehave, a faulty network, and an operator who releases locks by force."""

    def __init__(self, sessions: list[zq.QueueSession], policy: zq.Policy, chance: random.Random) -> None:
        self.sessions = sessions
        self.policy = policy
        self.chance = chance
        self.over = False
        self.moves = 0

    def jobs(self, session: zq.QueueSession) -> zq.Queue[bytes]:
        return session.queue("jobs", policy=self.policy)

    async def transact(self, session: zq.QueueSession) -> None:
        """Run transactions that end in every possible way."""
        while not self.over:
            with suppress(zq.QueueError, TimeoutError, ZeroDivisionError):
                async with asyncio.timeout(self.chance.choice([0.001, 0.003, 0.01, 0.03, 5.0])):
                    async with session.transaction() as tx:
                        messages = await tx.take_many(self.jobs(session), self.chance.randint(1, 5), timeout=0.05)
                        for message in messages:
                            tx.put("results", message.body)
                        end = self.chance.random()
                        if end < 0.2:
                            await tx.rollback(delay=self.chance.choice([0, 0.02]))
                        elif end < 0.3:
                            raise ZeroDivisionError
                        elif end < 0.4:
                            await tx.commit(timeout=0.005)
                    self.moves += len(messages)
            await asyncio.sleep(0)

    async def loop(self, session: zq.QueueSession) -> None:
        """Run loops that are left and started again."""
        while not self.over:
            with suppress(zq.QueueError, TimeoutError):
                async with asyncio.timeout(self.chance.choice([0.005, 0.05, 0.5])):
                    prefetch = self.chance.choice([1, 2, 32])
                    async with self.jobs(session).consume(prefetch=prefetch, until_idle=0.05) as deliveries:
                        async for delivery in deliveries:
                            delivery.put("results", delivery.body)
                            if self.chance.random() < 0.1:
                                break
                            if self.chance.random() < 0.1:
                                await asyncio.sleep(0.002)
            await asyncio.sleep(0)

    async def listen(self, session: zq.QueueSession) -> None:
        """Run a listener whose handler fails at times; stop it, abort it, and run it again."""

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.01]))
            if self.chance.random() < 0.1:
                raise ZeroDivisionError
            delivery.put("results", delivery.body)

        while not self.over:
            listener = session.listener(self.jobs(session), handle, concurrency=4, drain_timeout=0.01)
            end = self.chance.choice([listener.stop, listener.abort])
            asyncio.get_running_loop().call_later(self.chance.uniform(0.005, 0.3), end)
            await listener.run()

    async def break_things(self, proxy: ZooKeeperProxy, operator: zq.QueueSession) -> None:
        """Lose connections, requests, replies and, twice, the ZooKeeper sessions; release locks by force."""
        faults: list[Callable[[], object]] = [
            proxy.reset_connections,
            *(lambda match=match: proxy.lose_after(match) for match in (CLAIM, SETTLE, ATTEMPT, BACKOFF)),
            *(lambda match=match: proxy.lose_before(match) for match in (CLAIM, SETTLE, ATTEMPT, BACKOFF)),
        ]
        began = asyncio.get_running_loop().time()
        blackouts = [SECONDS / 3, SECONDS * 2 / 3]
        while (now := asyncio.get_running_loop().time() - began) < SECONDS:
            if blackouts and now > blackouts[0]:
                blackouts.pop(0)
                proxy.refuse()
                proxy.reset_connections()
                await asyncio.sleep(1.0)
                await proxy.listen()
            elif self.chance.random() < 0.2:
                await self.jobs(operator).admin.release_claims()
            else:
                self.chance.choice(faults)()
            await asyncio.sleep(self.chance.uniform(0.01, 0.1))
        proxy.heal()
        self.over = True


async def settled(session: zq.QueueSession) -> None:
    """Wait until no claim is in progress, so that claims without a waiter have been released."""
    runtime = session._runtime
    async with asyncio.timeout(30):
        while any(dispatcher.claims_in_progress for dispatcher in runtime._dispatchers.values()):  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)
        await runtime.committer.drain()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.ImplicitSettleWarning")
async def test_each_message_is_in_one_place_and_no_lock_is_left_after_random_faults(
    quick: str, root: str, account: Account, policy: zq.Policy
) -> None:
    bodies = [b"%04d" % number for number in range(TOTAL)]
    chance = random.Random(11)  # the same faults in each run, as far as the server's timing allows
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(ZooKeeperProxy(quick))
        sessions = [
            await stack.enter_async_context(zq.connect(hosts, root=root, session_timeout=timeout))
            # The last one puts the messages and is the operator.
            for hosts, timeout in ((proxy.hosts, 0.7), (proxy.hosts, 0.7), (quick, 20))
        ]
        chaos = Chaos(sessions, policy, chance)
        feeder = chaos.jobs(sessions[2])

        async def feed() -> None:
            for body in bodies:
                await feeder.put(body)
                await asyncio.sleep(SECONDS / TOTAL / 1.5)

        async with asyncio.timeout(SECONDS + 60), asyncio.TaskGroup() as tasks:
            for session in sessions:
                tasks.create_task(chaos.transact(session))
                tasks.create_task(chaos.transact(session))
                tasks.create_task(chaos.loop(session))
                tasks.create_task(chaos.listen(session))
            tasks.create_task(feed())
            tasks.create_task(chaos.break_things(proxy, sessions[2]))

        await account.view.tree(root)
        for session in sessions:
            await settled(session)
        left, moved = await account.bodies("jobs"), await account.bodies("results")
        assert sorted([*left, *moved]) == bodies, f"{len(left)} left, {len(moved)} moved"
        held = await account.view.ephemerals(account.path("jobs", "locks"))
        assert held == {}, f"leaked: {held}"
        for session in sessions:
            runtime = session._runtime
            generation = runtime.zookeeper.generation
            registration = runtime.zookeeper.path_size(
                account.path("jobs", "consumers", f"{runtime.ids.client}-{generation}")
            )
            assert runtime._budgets.of(generation).used <= registration + 4, "released locks are still counted"
            dispatcher = runtime._dispatchers["jobs", None]
            if (
                dispatcher._generation == generation
            ):  # otherwise it forgets the claims of an earlier session with its next request
                assert dispatcher._candidates.held == set()
        # A single consumer can still take the remaining messages, without other traffic.
        async with asyncio.timeout(30):
            while await feeder.size():  # a consumer also ends as idle while its session reconnects
                async with chaos.jobs(sessions[0]).consume(until_idle=1) as deliveries:
                    async for delivery in deliveries:
                        delivery.put("results", delivery.body)
        assert sorted(await account.bodies("results")) == bodies
        assert await account.attempts("jobs") == []
        assert await account.view.children(account.path("jobs", "due")) == []
    print(f"\n{TOTAL} messages, {len(moved)} moved in the chaos, {proxy.accepted} connections")  # noqa: T201 - reports the measurement
