"""Znodes of other programs that block the end of a message affect only this message, and are reported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl, make_digest_acl

import aiozkqueue as zq
from aiozkqueue.errors import ImplicitSettleWarning, ItemNotEmptyError
from tests.integration.queue.conftest import Locks, eventually, no_locks, take_one

if TYPE_CHECKING:
    from tests.observer import Observer

EVIL = "evil-0000000900"
"""The name of a message that somebody else has put: its id is ``evil``."""


async def set_acl(view: Observer, path: str, *, readable: bool) -> None:
    """Give a znode to another user; with ``readable``, everybody may still read it."""
    acl = [make_digest_acl("somebody", "else", all=True)]
    if readable:
        acl.append(make_acl("world", "anyone", read=True))
    await view.set_acl(path, acl)


async def item_of(view: Observer, root: str, queue: str = "jobs") -> str:
    """Return the path of the only item."""
    (name,) = await view.children(f"{root}/{queue}/items")
    return f"{root}/{queue}/items/{name}"


async def nobody_holds_a_lock(view: Observer, root: str) -> None:
    """Wait until no session has a lock: an unneeded lock is removed a moment after its taker continues."""

    async def free() -> bool:
        return await view.ephemerals(f"{root}/jobs/locks") == {}

    await eventually(free)


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


@pytest.mark.parametrize("records", [1, 4])
async def test_a_znode_below_an_attempt_record_does_not_block_other_commits_of_the_session(
    records: int, session: zq.QueueSession, server_view: Observer, queue_root: str, locks: Locks
) -> None:
    jobs, others = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0))), session.queue("others")
    await jobs.put(b"opens the queue")
    await take_one(session)
    await others.put(b"opens the queue")
    for number in range(records):
        message = f"evil{number}"
        await server_view.create(f"{queue_root}/jobs/meta/meta-{message}", b'{"attempts":1}')
        await server_view.create(f"{queue_root}/jobs/meta/meta-{message}/child")
        await server_view.create(f"{queue_root}/jobs/items/item-i{message}-{900 + number:010d}", b"evil")
    calls: list[str] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.id)
        raise RuntimeError("no")

    async def all_dead() -> bool:
        return len(await server_view.children(f"{queue_root}/jobs/dlq")) == records

    async with session.listener(jobs, handler, concurrency=records):
        async with asyncio.timeout(30):
            for _ in range(20):
                async with asyncio.TaskGroup() as group:
                    for number in range(10):
                        group.create_task(others.put(b"%d" % number))
            await eventually(all_dead)
    assert await others.size() == 201
    assert len(calls) == records  # the record states that each was delivered once before
    await no_locks(locks)


async def test_a_message_whose_attempt_record_is_not_writable_is_released_and_redelivered(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, others = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.05))), session.queue("others")
    await others.put(b"opens the queue")
    message = await jobs.put(b"1")
    meta = f"{queue_root}/jobs/meta/meta-{message}"
    await server_view.create(meta, b'{"attempts":1}')
    await set_acl(server_view, meta, readable=True)
    calls: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.attempt)
        if len(calls) < 3:
            raise RuntimeError("no")

    async def empty() -> bool:
        return await jobs.size() == 0

    async with session.listener(jobs, handler):
        async with asyncio.timeout(30):
            await asyncio.gather(*(others.put(b"1") for _ in range(100)))
            await eventually(empty)
    assert len(calls) == 3
    assert logged(caplog, "record of attempts")


@pytest.mark.parametrize("policy", [zq.AtLeastOnce(backoff=zq.Fixed(0)), zq.ConsumeTimes(2), zq.ConsumeOnce()])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_item_with_a_child_znode_is_handled_a_few_times_and_then_skipped(
    policy: zq.Policy,
    *,
    fails: bool,
    session: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = session.queue("jobs", policy=policy)
    obstructed = await jobs.put(b"obstructed")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    calls: dict[bytes, int] = {}

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls[delivery.body] = calls.get(delivery.body, 0) + 1
        if fails and delivery.id == obstructed:
            raise zq.Reject("no use")

    async with session.listener(jobs, handler, concurrency=2):
        for number in range(40):
            await jobs.put(b"sound %d" % number)

        async def only_it() -> bool:
            return await jobs.size() == 1

        await eventually(only_it)
        await asyncio.sleep(1.5)  # a spinning loop would call it some hundred times meanwhile
    assert calls.pop(b"obstructed") <= 3
    assert len(calls) == 40
    assert logged(caplog, "znodes below it")
    assert not logged(caplog, "taken over by another consumer")
    await nobody_holds_a_lock(server_view, queue_root)


async def test_an_item_with_a_child_znode_fails_a_transaction_with_its_own_error(
    session: zq.QueueSession, server_view: Observer, queue_root: str, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"1")
    child = f"{await item_of(server_view, queue_root)}/child"
    await server_view.create(child)
    with pytest.raises(ItemNotEmptyError, match=rf"{message} of queue 'jobs'.*znodes below it"):
        async with session.transaction() as tx:
            assert await tx.take(jobs)
            tx.put("results", b"never")
    assert await session.queue("results").size() == 0
    await server_view.delete(child)
    assert (await take_one(session)).id == message
    await no_locks(locks)


async def test_a_loop_until_idle_ends_despite_an_item_with_a_child_znode(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"obstructed")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    await jobs.put_many([b"1", b"2"])
    bodies: list[bytes] = []
    with pytest.warns(ImplicitSettleWarning, match="of queue 'jobs' .* the log has the reason"):
        async with asyncio.timeout(30), jobs.consume(until_idle=0) as deliveries:
            bodies += [delivery.body async for delivery in deliveries]
    assert "znodes below it" in caplog.text
    assert sorted(bodies) == [b"1", b"2", b"obstructed"]


async def test_a_duplicate_with_a_child_znode_does_not_block_the_newest_message_of_its_key(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    await jobs.put(b"old", key="k")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    await jobs.put_many([b"older", b"newest"], key="k")
    await jobs.put(b"other", key="o")
    async with asyncio.timeout(30):
        taken = [(await take_one(session)).body for _ in range(2)]
        async with session.transaction() as tx:
            assert await tx.take(jobs) is None
    assert sorted(taken) == [b"newest", b"other"]
    assert await jobs.size() == 1  # the message that cannot be removed, which is not delivered after the newest one


async def test_a_session_names_at_most_a_hundred_duplicates_that_it_cannot_remove(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    await jobs.put_many([b"old"] * 120, key="k")
    for name in await server_view.children(f"{queue_root}/jobs/items"):
        await server_view.create(f"{queue_root}/jobs/items/{name}/child")
    await jobs.put(b"newest", key="k")
    async with session.transaction() as tx:
        assert [message.body for message in await tx.take_many(jobs, 10, timeout=50)] == [b"newest"]
    assert len(logged(caplog, "cannot be removed")) == 100
    assert await jobs.size() == 120


async def test_an_acknowledgement_names_an_item_with_a_child_znode_and_ends_the_other_leases(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"obstructed")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    await jobs.put_many([b"%d" % number for number in range(5)])
    leases = await jobs.leases.take(6)
    assert len(leases) == 6
    with pytest.raises(ItemNotEmptyError, match=message):
        await jobs.leases.acknowledge([lease.token for lease in leases])
    assert await jobs.size() == 1


@pytest.mark.parametrize("grouped", [False, True])
async def test_an_unreadable_item_is_skipped_and_logged_once(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
    *,
    grouped: bool,
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"sealed", group="sealed" if grouped else None)
    await set_acl(server_view, await item_of(server_view, queue_root), readable=False)
    await jobs.put_many([b"%d" % number for number in range(5)], group="sound" if grouped else None)
    bodies: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        bodies.append(delivery.body)

    async def all_handled() -> bool:
        return await jobs.size() == 1

    async with session.listener(jobs, handler):
        await eventually(all_handled)
        await jobs.put(b"after")
        await eventually(all_handled)
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4", b"after"]
    assert len(logged(caplog, "may not read it")) == 1
    async with other.queue("jobs").consume(until_idle=0) as deliveries:
        assert [delivery async for delivery in deliveries] == []
    await nobody_holds_a_lock(server_view, queue_root)


async def test_a_message_with_an_unreadable_attempt_record_is_skipped(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3))
    message = await jobs.put(b"sealed")
    await server_view.create(f"{queue_root}/jobs/meta/meta-{message}", b'{"attempts":1}')
    await set_acl(server_view, f"{queue_root}/jobs/meta/meta-{message}", readable=False)
    await jobs.put(b"sound")
    assert (await take_one(session)).body == b"sound"
    assert len(logged(caplog, "may not read it")) == 1
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
    await nobody_holds_a_lock(server_view, queue_root)


async def test_a_message_whose_attempt_cannot_be_counted_is_skipped(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3))
    message = await jobs.put(b"sealed")
    await server_view.create(f"{queue_root}/jobs/meta/meta-{message}", b'{"attempts":1}')
    await set_acl(server_view, f"{queue_root}/jobs/meta/meta-{message}", readable=True)
    await jobs.put(b"sound")
    bodies: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        bodies.append(delivery.body)

    async def handled() -> bool:
        return await jobs.size() == 1

    async with session.listener(jobs, handler):
        await eventually(handled)
    assert bodies == [b"sound"]
    assert len(logged(caplog, "its attempt cannot be recorded")) == 1
    await nobody_holds_a_lock(server_view, queue_root)


@pytest.mark.parametrize(
    "policy",
    [
        zq.AtLeastOnce(backoff=zq.Fixed(0)),
        zq.AtLeastOnce(backoff=zq.Fixed(0.05)),
        zq.ConsumeTimes(9, backoff=zq.Fixed(0)),
    ],
)
async def test_a_read_only_item_leaves_no_lock_when_its_handler_fails(
    policy: zq.Policy, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"1")
    await set_acl(server_view, await item_of(server_view, queue_root), readable=True)
    calls: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.attempt)
        if len(calls) <= 3:
            raise RuntimeError("no")

    async def empty() -> bool:
        return await jobs.size() == 0

    async with session.listener(jobs, handler):
        await eventually(empty)
    assert len(calls) == 4
    assert await server_view.children(f"{queue_root}/jobs/locks") == []


async def test_an_unreadable_due_node_stops_no_consumer(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    due = f"{queue_root}/jobs/due/due-{1:016d}-sealed"
    await server_view.create(due, b"items/item-isealed-0000000001")
    await set_acl(server_view, due, readable=False)
    assert (await take_one(session)).body == b"1"
    await session.queue("jobs").put(b"2")
    assert (await take_one(other)).body == b"2"


async def test_a_diagnosis_names_the_obstacles_that_block_messages(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    obstructed = await item_of(server_view, queue_root)
    await server_view.create(f"{obstructed}/child")
    sealed = f"{queue_root}/jobs/items/item-i{EVIL}"
    await server_view.create(sealed)
    await set_acl(server_view, sealed, readable=False)
    texts = [finding.text for finding in (await session.admin.diagnose("jobs")).findings if finding.subject == "jobs"]
    assert [text for text in texts if "with children" in text and obstructed in text]
    assert [text for text in texts if "may not read" in text and sealed in text]


async def test_a_message_whose_unique_key_cannot_be_freed_is_settled_and_handled_once(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    (key,) = await server_view.children(f"{queue_root}/jobs/keys")
    await server_view.create(f"{queue_root}/jobs/keys/{key}/child")
    assert (await take_one(session)).body == b"1"
    assert await jobs.size() == 0
    assert len(logged(caplog, "unique key")) == 1
    with pytest.raises(zq.DuplicateKeyError):
        await jobs.put(b"2", key="k", unique=True)


@pytest.mark.parametrize("history", [False, True])
async def test_an_unreadable_duplicate_does_not_block_the_newest_message_of_its_key(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, history: bool
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True, history=zq.History() if history else None))
    await jobs.put(b"old", key="k")
    await set_acl(server_view, await item_of(server_view, queue_root), readable=False)
    await jobs.put(b"newest", key="k")
    assert (await take_one(session)).body == b"newest"
    async with asyncio.timeout(30), session.transaction() as tx:
        assert await tx.take(jobs) is None


@pytest.mark.parametrize("redriven", [False, True])
async def test_an_unreadable_newest_message_of_a_key_does_not_block_a_compacting_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, redriven: bool
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    old = await jobs.put(b"old", key="k")
    if redriven:
        async with session.transaction() as tx:
            message = await tx.take(jobs)
            assert message is not None
            tx.reject(message, "not now")
    newest = await jobs.put(b"newest", key="k")
    [item] = [name for name in await server_view.children(f"{queue_root}/jobs/items") if newest in name]
    await set_acl(server_view, f"{queue_root}/jobs/items/{item}", readable=False)
    if redriven:
        assert await jobs.dead_letters.redrive([old]) == 1
    await jobs.put(b"other", key="other")
    taken: list[bytes] = []
    async with asyncio.timeout(40):
        while len(taken) < 2:
            async with session.transaction() as tx:
                taken += [message.body for message in await tx.take_many(jobs, 10, timeout=30)]
    assert sorted(taken) == [b"old", b"other"]
    assert await server_view.children(f"{queue_root}/jobs/items") == [item]


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_move_ends_and_names_the_messages_that_it_could_not_move(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, sealed: bool
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"stays")
    item = await item_of(server_view, queue_root)
    if sealed:
        await set_acl(server_view, item, readable=False)
    else:
        await server_view.create(f"{item}/child")
    await jobs.put_many([b"1", b"2"])
    reference = await session.admin.moves.start("jobs", "target")

    async def ended() -> bool:
        return (await session.admin.moves.status(reference)).state != "running"

    await eventually(ended)
    status = await session.admin.moves.status(reference)
    assert (status.state, status.moved) == ("failed", 2)
    assert "1 message left in jobs" in (status.error or "")
    assert await session.queue("target").size() == 2


async def test_cancelling_a_message_with_a_child_znode_raises_an_error_that_names_it(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"1")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    with pytest.raises(ItemNotEmptyError, match=message):
        await jobs.cancel(id=message)
    with pytest.raises(ItemNotEmptyError, match=message):
        async with session.transaction() as tx:
            await tx.cancel(jobs, id=message)


async def test_a_dead_letter_with_a_child_znode_does_not_block_the_redrive_of_the_others(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    async with session.transaction() as tx:
        for message in await tx.take_many(jobs, 3):
            tx.reject(message, "no use")
    letters = await server_view.children(f"{queue_root}/jobs/dlq")
    await server_view.create(f"{queue_root}/jobs/dlq/{letters[0]}/child")
    assert await jobs.dead_letters.redrive() == 2
    assert await server_view.children(f"{queue_root}/jobs/dlq") == [letters[0]]


async def test_an_acknowledgement_is_denied_for_an_unreadable_message_and_ends_the_other_leases(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"sealed")
    item = await item_of(server_view, queue_root)
    await jobs.put_many([b"1", b"2"])
    leases = await jobs.leases.take(3)
    await set_acl(server_view, item, readable=False)
    with pytest.raises(zq.AccessDeniedError, match="'jobs'"):
        await jobs.leases.acknowledge([lease.token for lease in leases])
    assert await jobs.size() == 1


async def test_expired_messages_are_swept_despite_an_unreadable_one(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"sealed", ttl=0.001)
    await set_acl(server_view, await item_of(server_view, queue_root), readable=False)
    await jobs.put_many([b"1", b"2"], ttl=0.001)

    async def swept() -> bool:
        await session.admin.clean("jobs")
        return await jobs.size() == 1

    await eventually(swept)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("program", ["curator", "kazoo"])
async def test_an_obstacle_in_another_programs_queue_blocks_only_its_own_item(
    program: str,
    session: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
    *,
    sealed: bool,
) -> None:
    path = f"{queue_root}-{program}"
    curator = program == "curator"
    queue = session.curator_queue(path, lock_path=f"{path}-locks") if curator else session.kazoo_queue(path)
    await queue.put(b"in the way")
    items = path if curator else f"{path}/entries"
    (item,) = [name for name in await server_view.children(items) if name.startswith(("queue-", "entry-"))]
    if sealed:
        await set_acl(server_view, f"{items}/{item}", readable=False)
    else:
        await server_view.create(f"{items}/{item}/child")
    for number in range(5):
        await queue.put(b"%d" % number)
    calls: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.body)

    async def only_it() -> bool:
        return [name for name in await server_view.children(items) if name.startswith(("queue-", "entry-"))] == [item]

    async with session.listener(queue, handler):
        await eventually(only_it)
        await asyncio.sleep(0.5)  # a spinning loop would call it some hundred times meanwhile
    assert sorted(set(calls) - {b"in the way"}) == [b"0", b"1", b"2", b"3", b"4"]
    assert calls.count(b"in the way") <= (0 if sealed else 2)
    assert logged(caplog, "may not read it" if sealed else "znodes below it")


async def test_no_lock_is_left_if_the_user_may_not_write_the_znode_that_wakes_idle_consumers(
    session: zq.QueueSession, server_view: Observer, queue_root: str, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put(b"sealed")
    await set_acl(server_view, await item_of(server_view, queue_root), readable=False)
    await jobs.put(b"1")
    acl = [make_digest_acl("somebody", "else", all=True), make_acl("world", "anyone", read=True, delete=True)]
    await server_view.set_acl(f"{queue_root}/jobs/items", acl)
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        assert message.body == b"1"
        await tx.rollback()
    await no_locks(locks)
    assert (await take_one(session)).body == b"1"


async def test_a_release_that_fails_is_logged_with_the_message_that_stays_locked(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs)
        clients = f"{queue_root}/.clients"
        for client in await server_view.children(clients):
            for slot in await server_view.children(f"{clients}/{client}"):
                await set_acl(server_view, f"{clients}/{client}/{slot}", readable=True)
        await tx.rollback(delay=0)
    assert len(await locks()) == 1
    (line,) = logged(caplog, "stay until the next try of their release")
    assert f"queue jobs: the locks of 1 message, the first of them {message}, stay" in line
