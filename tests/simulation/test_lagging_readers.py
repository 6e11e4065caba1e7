"""A call through a lagging server takes into account all changes that were acknowledged before the call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.http import Keys
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.operations.history_pins import pin
from aiozkqueue.schedule import Jobs, NotificationQueue, Notifications
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

#: Seconds by which the server of the second session lags, and after which it has caught up.
LAG, OVER = 2.0, 5.0


class Event(BaseModel):
    """An event with a number."""

    n: int


class Pair:
    """A session at the leader, and a session at a server that can lag."""

    def __init__(self, cluster: Cluster, ahead: zq.QueueSession, behind: zq.QueueSession) -> None:
        self._cluster = cluster
        self.ahead = ahead
        self.behind = behind

    def lag(self) -> None:
        """Let the server of the second session lag from now on."""
        self._cluster.ensemble.servers[1].lag = LAG

    def moment(self, seconds: float) -> datetime:
        """Return the moment in this many seconds, by ZooKeeper's time."""
        return datetime.fromtimestamp(self._cluster.ensemble.now() / 1000 + seconds, UTC)


async def bus_join(pair: Pair) -> None:
    ahead, behind = Bus(pair.ahead, "orders", Event), Bus(pair.behind, "orders", Event)
    await behind.join("audit")
    pair.lag()
    await ahead.leave("audit")
    await behind.join("audit")
    await asyncio.sleep(OVER)
    await ahead.post(Event(n=1))
    assert await ahead.queue("audit").size() == 1


async def job_pause(pair: Pair) -> None:
    ahead, behind = Jobs(pair.ahead), Jobs(pair.behind)
    await ahead.add("report", "* * * * * *", "reports", b"x")
    await behind.pause("report")
    pair.lag()
    await ahead.resume("report")
    assert (await behind.pause("report")).paused
    await asyncio.sleep(OVER)
    assert (await ahead.get("report")).paused


async def job_declare(pair: Pair) -> None:
    ahead, behind = Jobs(pair.ahead), Jobs(pair.behind)
    await behind.declare("report", "0 * * * *", "reports", b"x")
    pair.lag()
    await ahead.change("report", cron="* * * * *")
    await behind.declare("report", "0 * * * *", "reports", b"x")
    await asyncio.sleep(OVER)
    assert (await ahead.get("report")).cron == "0 * * * *"


async def scheduled(pair: Pair) -> tuple[NotificationQueue[Event], NotificationQueue[Event], str]:
    first = await Notifications(pair.ahead).create("billing", "reminders", Event)
    second = await Notifications(pair.behind).get("billing", "reminders", Event)
    await second.find()
    pair.lag()
    return first, second, await first.schedule(Event(n=1), pair.moment(20), search_key2="t")


async def notification_remove(pair: Pair) -> None:
    _, second, entry_id = await scheduled(pair)
    assert await second.remove(entry_id)


async def notification_update(pair: Pair) -> None:
    first, second, entry_id = await scheduled(pair)
    assert await second.update(entry_id, Event(n=2))
    assert [found.event.n for found in await first.find("t")] == [2]


async def notification_remove_all(pair: Pair) -> None:
    _, second, _ = await scheduled(pair)
    assert await second.remove_all("t") == 1


async def move_of_bundles(pair: Pair) -> None:
    jobs = pair.ahead.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=64))
    await jobs.put(b"first")
    await pair.behind.queue("jobs").size()
    pair.lag()
    await jobs.put_many([b"%d" % number for number in range(200)])
    reference = await pair.behind.admin.moves.start("jobs", "elsewhere")
    await asyncio.sleep(120)
    status = await pair.behind.admin.moves.status(reference)
    assert (status.moved, await jobs.size(), await pair.ahead.queue("elsewhere").size()) == (201, 0, 201)


async def purge(pair: Pair) -> None:
    jobs = pair.ahead.queue("jobs")
    await jobs.put(b"first")
    await pair.behind.queue("jobs").size()
    pair.lag()
    await jobs.put(b"second")
    assert await pair.behind.queue("jobs").purge() == 2


async def redrive(pair: Pair) -> None:
    jobs = pair.ahead.queue("jobs")
    await jobs.put(b"m")
    await pair.behind.queue("jobs").size()
    pair.lag()
    async with pair.ahead.transaction() as tx:
        message = await tx.take(jobs, timeout=1)
        assert message is not None
        tx.reject(message, "refused")
    assert await pair.behind.queue("jobs").dead_letters.redrive() == 1


async def unpin(pair: Pair) -> None:
    jobs = pair.ahead.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    await pair.behind.queue("jobs").size()
    pair.lag()
    await pin(core_of(pair.ahead).handle("jobs"), "audit", pair.moment(0))
    assert await pair.behind.queue("jobs").admin.unpin("audit")


async def job_get(pair: Pair) -> None:
    ahead, behind = Jobs(pair.ahead), Jobs(pair.behind)
    await ahead.add("first", "* * * * *", "reports", b"x")
    await behind.get("first")
    pair.lag()
    await ahead.add("second", "* * * * *", "reports", b"x")
    assert (await behind.get("second")).name == "second"


async def notifications_get(pair: Pair) -> None:
    ahead, behind = Notifications(pair.ahead), Notifications(pair.behind)
    await ahead.create("billing", "first", Event)
    await behind.get("billing", "first", Event)
    pair.lag()
    await ahead.create("billing", "second", Event)
    await behind.get("billing", "second", Event)


async def bus_queues(pair: Pair) -> None:
    await Bus(pair.ahead, "first", Event).join("audit")
    await Buses(pair.behind).queues("first")
    pair.lag()
    await Bus(pair.ahead, "second", Event).join("audit")
    assert set(await Buses(pair.behind).queues("second")) == {None, "audit"}


async def move_status(pair: Pair) -> None:
    await pair.ahead.queue("jobs").put(b"first")
    await pair.behind.admin.moves.all()
    pair.lag()
    reference = await pair.ahead.admin.moves.start("jobs", "elsewhere")
    assert (await pair.behind.admin.moves.status(reference)).source == "jobs"


async def key_revoke(pair: Pair) -> None:
    ahead, behind = Keys(core_of(pair.ahead)), Keys(core_of(pair.behind))
    await ahead.create("first", ["queue|*|*"])
    await behind.all()
    pair.lag()
    key = await ahead.create("leaked", ["queue|*|*"])
    assert await behind.revoke("leaked") == 1
    assert await behind.caller(key) is None


async def key_create(pair: Pair) -> None:
    ahead, behind = Keys(core_of(pair.ahead)), Keys(core_of(pair.behind))
    await ahead.create("first", ["queue|*|*"])
    await behind.all()
    pair.lag()
    await ahead.create("second", ["queue|*|*"])
    with pytest.raises(zq.InvalidOptionError, match="second"):
        await behind.create("second", ["queue|*|*"])


async def key_caller(pair: Pair) -> None:
    ahead, behind = Keys(core_of(pair.ahead)), Keys(core_of(pair.behind))
    await ahead.create("first", ["queue|*|*"])
    await behind.all()
    pair.lag()
    for name in ("second", "third"):  # their syncs follow each other closely
        key = await ahead.create(name, ["queue|*|*"])
        caller = await behind.caller(key)
        assert caller is not None
        assert caller.name == name


async def unknown_keys(pair: Pair) -> None:
    """Any number of unknown keys causes few syncs."""
    behind, zookeeper = Keys(core_of(pair.behind)), core_of(pair.behind).zookeeper
    syncs, sync = 0, zookeeper.sync

    async def counted(path: str) -> None:
        nonlocal syncs
        syncs += 1
        await sync(path)

    zookeeper.sync = counted  # type: ignore[method-assign]  # to count the calls
    callers = await asyncio.gather(*(behind.caller(f"aiozkqueue-{number}") for number in range(200)))
    assert callers == [None] * 200
    assert 1 <= syncs <= 2


async def message_ids(pair: Pair) -> None:
    """The first server signs with a secret that the second one has not read yet."""
    ahead, behind = MessageIds(core_of(pair.ahead)), MessageIds(core_of(pair.behind))
    place = "items/item-i0000000000000000000-0000000001"
    await behind.lease_tokens("jobs", [(await ahead.signer()).message_id("jobs", place)])
    pair.lag()
    await ahead.rotate()
    assert len(await behind.lease_tokens("jobs", [(await ahead.signer()).message_id("jobs", place)])) == 1


async def ledger_release(pair: Pair) -> None:
    jobs = pair.ahead.queue("jobs")
    await jobs.put(b"first")
    await pair.behind.queue("jobs").size()
    pair.lag()
    await Ledger(core_of(pair.ahead).handle("jobs"), "audit").next_batch(-1, None)
    await pair.behind.queue("jobs").admin.release_ledger("audit")


async def lease_acknowledge(pair: Pair) -> None:
    ahead, behind = pair.ahead.queue("jobs"), pair.behind.queue("jobs")
    await behind.put(b"the queue is known to both", delay=60)
    pair.lag()
    await ahead.put(b"leased at the first server")
    [leased] = await ahead.leases.take(lifetime=60)
    await behind.leases.acknowledge([leased.token])
    assert await ahead.size() == 1


@pytest.mark.parametrize(
    "program",
    [
        bus_join,
        job_pause,
        job_declare,
        notification_remove,
        notification_update,
        notification_remove_all,
        move_of_bundles,
        purge,
        redrive,
        unpin,
        job_get,
        notifications_get,
        bus_queues,
        move_status,
        key_revoke,
        key_caller,
        key_create,
        unknown_keys,
        message_ids,
        ledger_release,
        lease_acknowledge,
    ],
)
def test_a_call_sees_all_changes_that_were_acknowledged_before_it(program: Callable[[Pair], Awaitable[None]]) -> None:
    play(program)


def test_reads_show_own_changes_at_once_and_the_changes_of_a_peer_once_the_server_has_caught_up() -> None:
    async def contents(session: zq.QueueSession) -> tuple[list[bytes], int, int]:
        queue = session.queue("jobs")
        stats = await queue.stats()
        return [message.body for message in await queue.peek()], await queue.size(), stats.size

    async def program(pair: Pair) -> None:
        ahead, behind = pair.ahead.queue("jobs"), pair.behind.queue("jobs")
        await ahead.put(b"first")
        await asyncio.sleep(OVER)
        await contents(pair.behind)  # asks for ZooKeeper's time, once a minute, by a write, after which nothing lags
        pair.lag()
        await ahead.put(b"of the peer")
        assert await contents(pair.ahead) == ([b"first", b"of the peer"], 2, 2)
        assert await contents(pair.behind) == ([b"first"], 1, 1)
        await asyncio.sleep(OVER)
        assert await contents(pair.behind) == ([b"first", b"of the peer"], 2, 2)
        await ahead.put(b"later")
        await behind.put(b"own")
        assert await contents(pair.behind) == ([b"first", b"of the peer", b"later", b"own"], 4, 4)

    play(program)


def play(program: Callable[[Pair], Awaitable[None]]) -> None:
    """Run a program with a session at the leader and one at another server."""
    import_module("cronsim")  # imported before the virtual loop runs
    near = partial(float, 0.001)

    async def main() -> None:
        cluster = Cluster(Ensemble(Random(1), size=3, delays=Delays(near, near, near, near)), 1)
        async with AsyncExitStack() as stack:
            sessions: list[zq.QueueSession] = []
            for number, name in enumerate(("ahead", "behind")):
                session = await stack.enter_async_context(cluster.connect(name=name))
                zookeeper: Any = core_of(session).zookeeper  # the simulated client has a server
                zookeeper.session.server = cluster.ensemble.servers[number]
                cluster.cut(name)
                await zookeeper.wait_connected()
                sessions.append(session)
            await program(Pair(cluster, *sessions))

    run_virtual(main)
