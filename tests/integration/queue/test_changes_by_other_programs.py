"""Changes of other programs to a queue's znodes: no client hangs, and errors name the queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NotEmptyError
from kazoo.security import make_digest_acl

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from tests.observer import Observer


async def handler(_: zq.Delivery[bytes]) -> None: ...


async def close_to_others(view: Observer, path: str) -> None:
    """Create a znode that only an unknown user may access."""
    await view.create(path)
    await view.set_acl(path, [make_digest_acl("somebody", "else", all=True)])


async def test_the_error_for_a_queue_denied_by_its_acl_names_the_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await close_to_others(server_view, f"{queue_root}/jobs")
    jobs = session.queue("jobs")
    denied = r"queue 'jobs'.*not allowed by the znode's ACL"
    with pytest.raises(zq.AccessDeniedError, match=denied):
        await jobs.put(b"1")
    with pytest.raises(zq.AccessDeniedError, match=denied):
        await jobs.configuration()
    async with session.transaction() as tx:
        with pytest.raises(zq.AccessDeniedError, match=denied):
            await tx.take(jobs, timeout=None)
    with pytest.raises(zq.AccessDeniedError, match=denied):
        async with jobs.consume() as deliveries:
            await anext(deliveries)
    with pytest.raises(zq.AccessDeniedError, match=denied):
        await session.listener(jobs, handler).run()
    with pytest.raises(zq.AccessDeniedError):
        async with session.transaction() as tx:
            tx.put("jobs", b"1")
            tx.put("open", b"2")
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    await session.queue("open").put(b"3")  # other queues are not affected
    assert await session.queue("open").size() == 1


@pytest.mark.parametrize("closed", ["items", "locks"])
async def test_the_error_for_a_denied_part_of_a_queue_names_the_queue(
    closed: str, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await server_view.create(f"{queue_root}/jobs/items/item-0000000001", b"1")
    if closed == "items":
        await server_view.delete(f"{queue_root}/jobs/items")
    await close_to_others(server_view, f"{queue_root}/jobs/{closed}")
    jobs = session.queue("jobs")
    with pytest.raises(zq.AccessDeniedError, match="'jobs'"):
        async with session.transaction() as tx:
            await tx.take(jobs, timeout=None)
    if closed == "items":
        with pytest.raises(zq.AccessDeniedError, match="'jobs'"):
            await jobs.put(b"1")


async def test_an_undecodable_configuration_raises_an_error_that_names_it(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await server_view.create(f"{queue_root}/jobs", b'{"policy": {"kind": "unheard of"}}')
    jobs = session.queue("jobs")
    broken = f"queue 'jobs': the configuration stored at {queue_root}/jobs"
    with pytest.raises(zq.PayloadError, match=broken):
        await jobs.put(b"1")
    async with session.transaction() as tx:
        with pytest.raises(zq.PayloadError, match=broken):
            await tx.take(jobs, timeout=None)
    with pytest.raises(zq.PayloadError, match=broken):
        await session.listener(jobs, handler).run()
    await server_view.set(f"{queue_root}/jobs", b"")  # an operator repairs the configuration
    await jobs.put(b"1")
    assert (await take_one(session)).value == b"1"


async def test_a_queue_deleted_while_consumers_wait_is_recreated_and_they_continue(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")
    await take_one(session)
    taking = asyncio.create_task(take_one(other))
    await asyncio.sleep(0.2)  # long enough to be idle and have its watches set
    with suppress(NotEmptyError):  # consumers create missing znodes again, even during the deletion
        await server_view.delete(f"{queue_root}/jobs")
    identity = await session.queue("jobs").put(b"2")
    assert (await asyncio.wait_for(taking, 30)).id == identity


async def test_deleting_a_held_message_fails_the_commit_and_leaves_no_lock(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        tx.put("results", b"never")
        (item,) = await server_view.children(f"{queue_root}/jobs/items")
        await server_view.delete(f"{queue_root}/jobs/items/{item}")
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
        await tx.rollback()

    assert await session.queue("results").size() == 0
    assert await server_view.children(f"{queue_root}/jobs/locks") == []


@pytest.mark.parametrize("end", ["commit", "rollback", "delayed rollback", "reject"])
@pytest.mark.parametrize("policy", [zq.AtLeastOnce(backoff=zq.Fixed(0)), zq.ConsumeTimes(5, backoff=zq.Fixed(0))])
@pytest.mark.parametrize("group", [None, "a group"])
async def test_a_held_message_whose_payload_is_changed_is_redelivered_with_it(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    end: str,
    policy: zq.AtLeastOnce | zq.ConsumeTimes,
    group: str | None,
) -> None:
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"before", group=group)
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.put("results", b"never")
        (item,) = await server_view.children(f"{queue_root}/jobs/items")
        path = f"{queue_root}/jobs/items/{item}"
        await server_view.set(path, (await server_view.get(path)).replace(b"before", b"after"))
        if end == "commit":
            with pytest.raises(zq.ClaimLostError):
                await tx.commit()
        elif end == "reject":
            with suppress(zq.ClaimLostError):
                tx.reject(message, "no")
                await tx.commit()
        await tx.rollback(delay=0.01 if end == "delayed rollback" else None)
    assert await session.queue("results").size() == 0
    async with other.transaction() as tx:
        again = await tx.take(other.queue("jobs"), timeout=30)
        assert again is not None
        assert again.body == b"after"
    assert await server_view.children(f"{queue_root}/jobs/locks") == []
    assert await jobs.size() == 0


async def test_a_message_with_a_broken_attempt_record_becomes_a_dead_letter_with_that_reason(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3))
    identity = await jobs.put(b"1")
    await server_view.create(f"{queue_root}/jobs/meta/meta-{identity}", b"{")
    await jobs.put(b"2")
    assert (await take_one(session)).value == b"2"

    async def dead() -> bool:
        return await jobs.dead_letters.size() == 1

    await eventually(dead)
    (letter,) = await jobs.dead_letters.peek()
    assert (letter.id, letter.value) == (identity, b"1")
    assert "attempts" in letter.reason
    assert await server_view.children(f"{queue_root}/jobs/meta") == []


async def test_an_unreadable_item_is_skipped_and_leaves_no_lock(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"readable")
    sealed = f"{queue_root}/jobs/items/item-isealed-0000000077"
    await close_to_others(server_view, sealed)
    for _ in range(2):
        async with jobs.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                assert delivery.body == b"readable"
                await delivery.rollback()
        await eventually(lambda: nothing_held(server_view, f"{queue_root}/jobs/locks"))
    await server_view.replace([sealed], {})  # it may not be listed
    assert (await take_one(other)).body == b"readable"


async def nothing_held(view: Observer, locks: str) -> bool:
    """Return whether no session holds a lock; a message that was rolled back may have a timed lock."""
    return not await view.ephemerals(locks)


@pytest.mark.parametrize(
    "settings",
    [{}, {"bundle": 1}, {"ordered": True}, {"collapse": True, "shards": 2}, {"history": zq.History()}],
    ids=lambda settings: " ".join(settings) or "default",
)
@pytest.mark.parametrize("group", [None, "of one group"])
async def test_znodes_with_other_names_among_the_items_stop_no_queue(
    group: str | None, settings: dict[str, Any], session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(**settings))
    bodies = {b"%d" % number for number in range(3)}
    options: dict[str, Any] = {} if group is None else {"group": group}
    first = await jobs.put(b"0", **options)
    for name in ("p", "²", "item-", "item-i", "bundle--0000000001", "-0000000001-p200", "item-g--0000000002"):
        await server_view.create(f"{queue_root}/jobs/items/{name}", b"of another program")
    assert (await jobs.state(first)).status.value == "waiting"
    taken: set[bytes] = set()
    async with asyncio.timeout(30), jobs.consume() as deliveries:
        await jobs.put(b"1", **options)
        await jobs.put(b"2", **options)
        async for delivery in deliveries:
            taken.add(delivery.body)
            if taken == bodies:
                break
    assert await session.queue("others").put(b"1")  # the session goes on
