"""Sticky queues: the node that put a message takes it; late messages are reassigned to all nodes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.session.internals import core_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

STICKY = zq.QueueConfig(
    affinity="producer",
    reap_after=60,
    reap_every=3600,
    history=zq.History(),
    policy=zq.AtLeastOnce(backoff=zq.Fixed(0)),
)


@pytest.fixture
async def nodes(on_clock: OnClock) -> dict[str, zq.QueueSession]:
    """Sessions on three nodes, ``a`` to ``c``."""
    sessions = {name: await on_clock(node=name) for name in "abc"}
    await sessions["a"].queue("jobs").configure(STICKY)
    return sessions


async def take(session: zq.QueueSession, timeout: float = 0) -> str | None:
    async with session.transaction() as tx:
        message = await tx.take(session.queue("jobs"), timeout=timeout)
    return None if message is None else message.value.decode()


async def reap(session: zq.QueueSession) -> int:
    """Make one pass, as the janitor does at the configured interval."""
    return await session.queue("jobs").admin.reap()


async def test_a_node_takes_only_its_own_messages(nodes: dict[str, zq.QueueSession]) -> None:
    for name, session in nodes.items():
        async with session.transaction() as tx:
            tx.put(session.queue("jobs"), f"of {name}".encode())
    assert (await nodes["a"].queue("jobs").stats()).bound == 3
    for name in ("c", "a", "b"):
        assert await take(nodes[name], timeout=30) == f"of {name}"
        assert await take(nodes[name]) is None


async def test_a_put_by_its_own_node_wakes_an_idle_consumer(nodes: dict[str, zq.QueueSession]) -> None:
    waiting = asyncio.create_task(take(nodes["b"], timeout=30))
    await asyncio.sleep(0.3)
    await nodes["a"].queue("jobs").put(b"of a")
    await nodes["b"].queue("jobs").put(b"of b")
    assert await waiting == "of b"
    assert await nodes["a"].queue("jobs").size() == 1


async def test_a_message_its_node_does_not_take_is_reaped_once_with_its_tokens_errors_and_date(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    a, b, c = (nodes[name] for name in "abc")
    jobs = a.queue("jobs")
    message_id = await jobs.put(b"x", headers={"user": "u1"}, key="k")
    async with a.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        put_at = message.enqueued_at
        await tx.rollback(delay=0)
    assert await reap(b) == 0, "the message is not late yet"
    clock.advance(60)
    meters = [core_of(opened).measure() for opened in (b, c)]
    reaped = await asyncio.gather(reap(b), reap(c))
    assert sorted(reaped) == [0, 1], "two reapers never duplicate a message"
    assert [meter.of("jobs").reaped for meter in meters] == reaped
    async with b.transaction() as tx:
        redelivered = await tx.take(b.queue("jobs"), timeout=10)
    assert redelivered is not None
    assert (redelivered.id, redelivered.headers, redelivered.key, redelivered.attempt) == (
        message_id,
        {"user": "u1"},
        "k",
        2,
    )
    assert redelivered.enqueued_at == put_at
    assert await jobs.size() == 0
    assert [record.outcome.value async for record in jobs.history()] == ["reaped", "finished"]


async def test_a_redriven_message_without_a_node_is_not_bound_to_the_node_of_the_operator(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    """It was reassigned to all nodes before it became a dead letter."""
    a, b, c = (nodes[name] for name in "abc")
    jobs = a.queue("jobs")
    await jobs.put(b"x")
    clock.advance(60)
    assert await reap(b) == 1
    async with b.transaction() as tx:
        message = await tx.take(b.queue("jobs"), timeout=10)
        assert message is not None
        tx.reject(message, "not now")
    assert await c.queue("jobs").dead_letters.redrive() == 1
    assert (await jobs.stats()).bound == 0
    assert await take(b, timeout=10) == "x"


async def test_a_redriven_message_keeps_its_node(nodes: dict[str, zq.QueueSession]) -> None:
    a, b = nodes["a"], nodes["b"]
    await a.queue("jobs").put(b"x")
    async with a.transaction() as tx:
        message = await tx.take(a.queue("jobs"), timeout=10)
        assert message is not None
        tx.reject(message, "not now")
    assert await b.queue("jobs").dead_letters.redrive() == 1
    assert await take(b) is None
    assert await take(a, timeout=10) == "x"


@pytest.mark.parametrize("options", [{}, {"priority": 3, "ttl": 3600, "tags": {"size": 1}}], ids=str)
async def test_messages_that_are_moved_into_a_sticky_queue_are_not_bound_to_the_node_of_the_mover(
    nodes: dict[str, zq.QueueSession], options: zq.PutOptions
) -> None:
    a, b, c = (nodes[name] for name in "abc")
    await a.queue("plain").put(b"x", **options)
    reference = await c.admin.moves.start("plain", "jobs")
    await eventually(partial(_moved, c, reference), 30)
    assert (await a.queue("jobs").stats()).bound == 0
    assert await take(b, timeout=10) == "x"


async def _moved(session: zq.QueueSession, reference: str) -> bool:
    return (await session.admin.moves.status(reference)).state == "done"


async def test_a_late_message_with_the_largest_headers_is_reassigned(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    headers = {"a": "x" * (32 * 1024 - len('{"headers":{"a":""}}'))}
    await nodes["a"].queue("jobs").put(b"x", headers=headers)
    clock.advance(60)
    assert await reap(nodes["b"]) == 1
    async with nodes["b"].transaction() as tx:
        message = await tx.take(nodes["b"].queue("jobs"), timeout=10)
    assert message is not None
    assert message.headers == headers


async def test_a_large_late_message_is_reassigned_in_a_queue_whose_history_keeps_payloads(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    await nodes["a"].queue("jobs").configure(zq.QueueConfig(history=zq.History(payload=True)))
    await nodes["a"].queue("jobs").put(b"x" * 600_000)
    clock.advance(60)
    assert await reap(nodes["b"]) == 1
    assert await take(nodes["b"], timeout=30) == "x" * 600_000


async def test_held_and_retrying_messages_are_not_reaped(nodes: dict[str, zq.QueueSession], clock: TestClock) -> None:
    a, b = nodes["a"], nodes["b"]
    jobs = a.queue("jobs")
    await jobs.put_many([b"held", b"failed"])
    async with a.transaction(autocommit=False) as tx, a.transaction(autocommit=False) as failing:
        assert await tx.take(jobs) is not None
        assert await failing.take(jobs) is not None
        await failing.rollback(delay=600)
        clock.advance(100)
        assert await reap(b) == 0
        await tx.commit()


async def test_a_pass_reaps_the_ten_oldest_and_does_not_count_local_messages(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    a, b, c = (nodes[name] for name in "abc")
    await b.queue("jobs").put_many([b"local"] * 15)
    await a.queue("jobs").put_many([str(number).encode() for number in range(12)])
    assert await take(b, timeout=30) == "local"  # so b is a consumer of this queue
    clock.advance(100)
    assert await reap(b) == 10
    assert [await take(c, timeout=30) for _ in range(10)] == [str(number) for number in range(10)]
    assert await take(c) is None
    assert await reap(b) == 2


@pytest.mark.parametrize("role", ["produces", "looks on", "consumes"])
async def test_a_session_in_any_role_never_reaps_messages_of_its_own_node(
    nodes: dict[str, zq.QueueSession], on_clock: OnClock, clock: TestClock, role: str
) -> None:
    worker, b = nodes["a"], nodes["b"]
    second = await on_clock(node="a")
    await worker.queue("jobs").put_many([b"held", b"waits"])
    if role == "produces":
        await second.queue("jobs").put(b"more")
    async with worker.transaction(autocommit=False) as tx:
        held = await tx.take(worker.queue("jobs"), timeout=30)  # the worker is alive and busy
        assert held is not None
        if role == "consumes":
            async with second.transaction(autocommit=False) as other:
                assert await other.take(second.queue("jobs"), timeout=30) is not None
                await other.rollback(delay=0)
        clock.advance(100)
        assert await reap(second) == 0
        assert await take(b) is None, "no message was reassigned to all nodes"
        assert await reap(b) == (2 if role == "produces" else 1), "another node reassigns messages that are not held"
        await tx.commit()


async def test_the_queue_or_the_call_sets_how_many_messages_a_pass_reaps(
    nodes: dict[str, zq.QueueSession], on_clock: OnClock, clock: TestClock
) -> None:
    a, b, c = (nodes[name] for name in "abc")
    await a.queue("jobs").configure(zq.QueueConfig(reap_limit=3))
    await a.queue("jobs").put_many([str(number).encode() for number in range(75)])
    clock.advance(100)
    assert await reap(b) == 3
    assert await b.queue("jobs").admin.reap(limit=2) == 2
    assert [await take(c, timeout=30) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    later = await on_clock(node="d")
    assert await reap(later) == 3, "the setting is the queue's, for every session"
    assert await later.queue("jobs").admin.reap(limit=1000) == 67
    for wrong in (0, -1, 1001, True, "2"):
        with pytest.raises(zq.InvalidOptionError, match="limit"):
            await later.queue("jobs").admin.reap(limit=wrong)  # type: ignore[arg-type]


async def test_the_janitor_reaps_the_messages_of_a_dead_node_at_its_interval(
    zookeeper: str, queue_root: str, nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    async with zq.connect(zookeeper, root=queue_root, node="dying") as dying:
        await dying.queue("jobs").put(b"x")
    assert await nodes["a"].queue("jobs").peek()  # the clock has seen the timestamp of the put before it moves
    clock.advance(100)
    await nodes["a"].queue("jobs").configure(zq.QueueConfig(reap_every=0.5))
    assert await take(nodes["c"], timeout=40) == "x"


async def test_the_janitor_leaves_the_messages_of_a_paused_queue_to_their_nodes(
    nodes: dict[str, zq.QueueSession], server_view: Observer, queue_root: str
) -> None:
    jobs = nodes["a"].queue("jobs")
    await jobs.configure(zq.QueueConfig(paused=True, reap_after=2, reap_every=0.5))
    await jobs.put(b"x")
    base, reaper = f"{queue_root}/jobs", f"{queue_root}/jobs/reaper"
    put = (await jobs.peek())[0].enqueued_at

    async def late_pass() -> bool:
        names = await server_view.children(base)
        return "reaper" in names and (await server_view.stat(reaper)).mtime / 1000 > put.timestamp() + 4

    await nodes["b"].queue("jobs").put(b"y")  # its session follows the queue
    await eventually(late_pass, 60)
    assert (await jobs.stats()).bound == 2
    await jobs.configure(zq.QueueConfig(paused=False))

    async def reassigned() -> bool:
        return (await jobs.stats()).bound == 0

    await eventually(reassigned, 60)


async def test_a_history_that_an_acl_does_not_let_this_user_create_is_named(
    nodes: dict[str, zq.QueueSession], clock: TestClock, server_view: Observer, queue_root: str
) -> None:
    await nodes["a"].queue("jobs").put(b"x")
    clock.advance(90)
    await server_view.set_acl(f"{queue_root}/jobs", [make_acl("world", "anyone", read=True, write=True)])
    with pytest.raises(zq.AccessDeniedError, match=rf"queue 'jobs': {queue_root}/jobs/history: not allowed"):
        await nodes["b"].queue("jobs").admin.reap()


async def test_the_time_of_a_pause_does_not_make_messages_late(
    nodes: dict[str, zq.QueueSession], clock: TestClock, server_view: Observer, queue_root: str
) -> None:
    jobs, reaper = nodes["a"].queue("jobs"), f"{queue_root}/jobs/reaper"
    await jobs.configure(zq.QueueConfig(paused=True, reap_after=1000, reap_every=0.5))
    await jobs.put(b"x")
    await nodes["b"].queue("jobs").put(b"y")  # its session follows the queue

    async def passes(number: int) -> None:
        """Wait for this many passes; the first may have begun before."""

        async def version() -> int:
            return (await server_view.stat(reaper)).version if await server_view.exists(reaper) else 0

        begun = await version()

        async def made() -> bool:
            return await version() >= begun + number

        await eventually(made, 60)

    await passes(2)
    clock.advance(2000)
    await passes(2)
    await jobs.configure(zq.QueueConfig(paused=False))
    await passes(3)
    assert (await jobs.stats()).bound == 2, "their nodes have had no time to take them"
    clock.advance(2000)

    async def reassigned() -> bool:
        return (await jobs.stats()).bound == 0

    await eventually(reassigned, 60)


async def test_a_running_session_follows_a_shorter_interval_of_reaping(
    zookeeper: str, queue_root: str, nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    async with zq.connect(zookeeper, root=queue_root, node="dying") as dying:
        await dying.queue("jobs").put(b"x")
    for session in nodes.values():  # each session first checks in a minute
        await session.queue("jobs").put(b"opens the queue")
    await nodes["a"].queue("jobs").configure(zq.QueueConfig(reap_after=1, reap_every=5))
    await nodes["b"].queue("jobs").put(b"of a session that has to read the new configuration")
    clock.advance(10)
    assert {await take(nodes["c"], timeout=30) for _ in range(2)} == {"opens the queue", "x"}


async def test_a_scheduled_message_belongs_to_its_node_and_is_late_only_after_its_date(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    a, b = nodes["a"], nodes["b"]
    await a.queue("jobs").put(b"mine", delay=30)
    clock.advance(30)
    assert await take(b, timeout=1) is None
    assert await take(a, timeout=30) == "mine"
    await a.queue("jobs").put(b"lying", delay=200)
    clock.advance(100)
    assert await reap(b) == 0, "it is not due, no matter when it was put"
    clock.advance(200)
    assert await reap(b) == 1
    assert await take(b, timeout=30) == "lying"


async def test_another_session_of_the_node_takes_its_messages(
    zookeeper: str, queue_root: str, nodes: dict[str, zq.QueueSession]
) -> None:
    await nodes["a"].queue("jobs").put(b"x")
    async with zq.connect(zookeeper, root=queue_root, node="a") as second_session:
        assert await take(second_session, timeout=30) == "x"


async def test_a_queue_whose_affinity_is_removed_delivers_to_all_nodes(
    nodes: dict[str, zq.QueueSession], server_view: Observer, queue_root: str
) -> None:
    await nodes["a"].queue("jobs").put(b"x")
    assert await take(nodes["b"]) is None
    await nodes["a"].queue("jobs").configure(zq.QueueConfig(affinity="any"))
    assert await take(nodes["b"], timeout=30) == "x"
    await nodes["a"].queue("jobs").put(b"y")
    [name] = await server_view.children(f"{queue_root}/jobs/items")
    assert "-n" not in name


@pytest.mark.parametrize(
    "wrong",
    [
        {"affinity": "host"},
        {"reap_after": -1},
        {"reap_every": 0},
        {"reap_limit": 0},
        {"reap_limit": 1001},
        {"reap_limit": 2.0},
        {"reap_limit": True},
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(zq.InvalidOptionError):
        zq.QueueConfig(**wrong)  # type: ignore[arg-type]


async def test_a_sticky_queue_has_no_groups(nodes: dict[str, zq.QueueSession]) -> None:
    jobs = nodes["a"].queue("jobs")
    with pytest.raises(ConfigConflictError, match="sticky"):
        await jobs.put(b"1", group="g")
    with pytest.raises(ConfigConflictError, match="sticky"):
        async with nodes["a"].transaction() as tx:
            tx.put(jobs, b"1", group="g")
    await jobs.put(b"plain")
    assert await jobs.size() == 1
    grouped = nodes["a"].queue("grouped")
    await grouped.put(b"1", group="g")
    with pytest.raises(ConfigConflictError, match="group"):
        await grouped.configure(STICKY)
    assert await take(nodes["a"]) == "plain"


async def test_the_reaper_finds_late_messages_behind_fresh_and_more_urgent_ones(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    a = nodes["a"].queue("jobs")
    await a.put(b"late", priority=5)
    await a.put(b"late and scheduled", delay=1)
    clock.advance(100)
    await a.put_many([b"fresh"] * 60, priority=-5)
    assert await reap(nodes["b"]) == 2
    assert {await take(nodes["c"], timeout=30), await take(nodes["c"], timeout=30)} == {"late", "late and scheduled"}


async def test_a_reap_follows_the_newest_configuration_of_another_session(
    nodes: dict[str, zq.QueueSession], clock: TestClock
) -> None:
    a, b = nodes["a"].queue("jobs"), nodes["b"].queue("jobs")
    await a.put_many([b"x"] * 5)
    clock.advance(50)
    assert await b.admin.reap() == 0
    await a.configure(zq.QueueConfig(reap_after=40, reap_limit=3))
    assert (await b.admin.reap(), await b.admin.reap()) == (3, 2)
