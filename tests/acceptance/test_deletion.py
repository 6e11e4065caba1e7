"""Creation and deletion: only puts and settings create a queue, and a deleted queue is gone for every program."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ImplicitSettleWarning, NotFoundError, QueueInUseError
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing import Opcode
from tests.faults.account import CLAIM, SETTLE
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)

PAUSED = zq.QueueConfig(paused=True)
DELETED = b'{"deleted": true}'


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises: TimeoutError."""

    async def holds() -> bool:
        return condition()

    await eventually(holds)


async def nothing_but_the_mark(view: Observer, root: str) -> bool:
    tree = await view.tree(f"{root}/jobs")
    return list(tree.values()) == [DELETED]


# -- a mistyped name creates nothing


async def test_no_read_pause_or_take_creates_a_queue(session: zq.QueueSession, other: zq.QueueSession) -> None:
    await session.queue("orders").put(b"1")
    mistyped = other.queue("ordres")
    assert await mistyped.peek() == []
    assert (await mistyped.size(), await mistyped.exists()) == (0, False)
    assert (await mistyped.stats()).size == 0
    assert await mistyped.cancel(id="nobody") is zq.Alteration.NOT_FOUND
    assert await mistyped.update(b"2", key="nobody") is zq.Alteration.NOT_FOUND
    assert await mistyped.purge() == 0
    assert [record async for record in mistyped.history()] == []
    assert await mistyped.dead_letters.redrive() == 0
    assert await mistyped.leases.take() == []
    assert await mistyped.admin.reap() == await mistyped.admin.unbundle() == await mistyped.admin.release_claims() == 0
    await other.admin.clean("ordres")
    async with other.transaction() as tx:
        assert await tx.take(mistyped) is None
        assert await tx.take(mistyped, timeout=0.3) is None
    async with mistyped.consume(until_idle=0.3) as deliveries:
        assert [delivery.value async for delivery in deliveries] == []
    async with other.listener(mistyped, handle_nothing, concurrency=1):
        await asyncio.sleep(0.3)
    for refused in (mistyped.configuration(), mistyped.configure(PAUSED), mistyped.admin.delete()):
        with pytest.raises(NotFoundError, match=r"there is no queue 'ordres' below .*; did you mean 'orders'\?"):
            await refused
    assert await session.queues() == ["orders"]


async def handle_nothing(delivery: zq.Delivery[bytes]) -> None:
    raise AssertionError(delivery)


async def test_settings_create_a_queue_explicitly(session: zq.QueueSession) -> None:
    await session.queue("plain").configure(zq.QueueConfig())
    await session.queue("sharded").configure(zq.QueueConfig(shards=2, paused=True))
    assert await session.queues() == ["plain", "sharded"]
    assert (await session.queue("sharded").configuration()).paused


async def test_a_listener_that_starts_before_its_queue_exists_gets_the_first_message(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiozkqueue")
    handled: list[bytes] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async with session.listener(session.queue("jobs"), handle, concurrency=2):
        await asyncio.sleep(0.3)
        assert not await other.queue("jobs").exists()
        await other.queue("jobs").put(b"1")
        await until(lambda: handled == [b"1"])
        await other.queue("jobs").put(b"2")
        await until(lambda: handled == [b"1", b"2"])
    logged = [record.getMessage() for record in caplog.records if "queue jobs" in record.getMessage()]
    assert logged[:2] == ["queue jobs does not exist: its first put creates it", "queue jobs exists now"]


async def test_a_worker_logs_one_line_when_its_queue_is_paused_and_one_when_it_is_resumed(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiozkqueue")
    jobs = other.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=1, paused=True))
    await jobs.put_many([b"1", b"2"])
    handled: list[bytes] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    def logged() -> list[str]:
        return [message for record in caplog.records if "queue jobs is" in (message := record.getMessage())]

    async with session.listener(session.queue("jobs"), handle, concurrency=2):
        await until(lambda: len(logged()) == 1)
        await jobs.put(b"3")
        await jobs.configure(zq.QueueConfig(paused=False))
        await until(lambda: len(handled) == 3)
    paused = "queue jobs is paused: its messages are delivered again after it is resumed"
    assert logged() == [paused, "queue jobs is resumed"]


# -- refused deletions


async def test_a_queue_is_not_deleted_while_it_has_messages_or_dead_letters(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"], delay=3600)
    with pytest.raises(QueueInUseError, match=r"queue 'jobs' has 2 messages; nothing was deleted\. .* force=True"):
        await jobs.admin.delete()
    await jobs.purge()
    await jobs.put(b"3")
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        with pytest.raises(QueueInUseError, match="1 message;"):
            await jobs.admin.delete()
        tx.reject(message, "bad")
    with pytest.raises(QueueInUseError, match="1 dead letter;") as refused:
        await jobs.admin.delete()
    assert refused.value.uses == "1 dead letter"
    assert [letter.body for letter in await jobs.dead_letters.peek()] == [b"3"]
    await jobs.dead_letters.purge()
    await jobs.admin.delete()
    assert not await jobs.exists()


async def test_a_queue_is_not_deleted_while_znodes_of_others_are_below_it(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(), shards=2, bundle=64))
    await jobs.put_many([b"%d" % number for number in range(200)], key="k", tags={"a": "b"}, delay=0.01, priority=3)
    await jobs.put_many([b"%d" % number for number in range(200)])
    await jobs.purge()
    await server_view.create(f"{queue_root}/jobs/.clients")  # another session's root
    with pytest.raises(QueueInUseError, match=r"has 1 znode of another program or version \(\.clients\); nothing"):
        await jobs.admin.delete()
    await server_view.delete(f"{queue_root}/jobs/.clients")
    await jobs.admin.delete()
    assert await nothing_but_the_mark(server_view, queue_root)


@pytest.mark.parametrize("program", ["curator", "kazoo", "kazoo without locks"])
async def test_a_deletion_keeps_the_messages_of_another_programs_queue_with_the_same_path(
    session: zq.QueueSession, queue_root: str, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    path = f"{queue_root}/jobs"
    theirs = (
        session.curator_queue(path, lock_path=f"{path}-locks")
        if program == "curator"
        else session.kazoo_queue(path, locking=program == "kazoo")
    )
    jobs = session.queue("jobs")
    await jobs.put(b"ours")
    await theirs.put(b"theirs")
    await take_one(session)
    with pytest.raises(QueueInUseError, match="of another program"):
        await jobs.admin.delete()
    await jobs.admin.delete(force=True)
    monkeypatch.setattr("aiozkqueue.operations.deleted.LEFT", -1000)
    await session.admin.clean()
    assert not await jobs.exists()
    await jobs.put(b"again")
    assert (await take_one(session)).value == b"again"
    async with session.transaction() as tx:
        message = await tx.take(theirs, timeout=30)
        assert message is not None
        assert message.body == b"theirs"


async def test_a_queue_is_not_deleted_while_another_session_consumes_it(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    assert (await take_one(other)).value == b"1"
    with pytest.raises(QueueInUseError, match=r"1 consumer \(.*, process \d+\); nothing was deleted"):
        await jobs.admin.delete()
    await other.queue("jobs").put(b"2")  # the refused deletion has no effect
    assert (await take_one(other)).value == b"2"
    await other.queue("jobs").admin.delete()  # a session's own registration does not prevent its deletion
    assert not await jobs.exists()


# -- after a deletion


async def test_a_deleted_queue_is_gone_for_every_session_and_all_its_data_with_it(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=4, history=zq.History(payload=True), ttl=3600))
    await jobs.put_many([b"1", b"2", b"3"], tags={"size": 1})
    await jobs.put(b"urgent", priority=-3, key="k", unique=True)
    await jobs.put(b"later", delay=3600)
    async with session.transaction() as tx:
        messages = await tx.take_many(jobs, 2)
        tx.reject(messages[0], "bad")
    await jobs.admin.delete(force=True)
    assert await nothing_but_the_mark(server_view, queue_root)
    for opened in (session, other):
        queue = opened.queue("jobs")
        assert (await queue.exists(), await queue.size(), await opened.queues()) == (False, 0, [])
        with pytest.raises(NotFoundError):
            await queue.configuration()
    with pytest.raises(NotFoundError):
        await other.queue("jobs").admin.delete(force=True)
    assert (await session.admin.diagnose("jobs")).queues[0].exists is False


async def test_a_put_after_a_deletion_creates_a_new_queue_with_nothing_of_the_old_one(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, other_jobs = session.queue("jobs"), other.queue("jobs")
    await other_jobs.configure(zq.QueueConfig(shards=3, max_size=5))
    await other_jobs.put(b"old", key="k", unique=True)
    await jobs.put(b"old")
    await other_jobs.admin.delete(force=True)
    await jobs.put(b"new")  # this session has not noticed the deletion
    await other_jobs.put(b"newer", key="k", unique=True)
    config = await other_jobs.configuration()
    assert (config.shards, config.max_size) == (None, None)
    assert [(await take_one(session)).value, (await take_one(other)).value] == [b"new", b"newer"]


async def test_the_policy_of_a_program_is_stored_with_the_new_queue_too(session: zq.QueueSession) -> None:
    policy = zq.ConsumeTimes(3)
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"1")
    await jobs.admin.delete(force=True)
    await jobs.put(b"2")
    assert (await jobs.configuration()).policy == policy


async def test_a_listener_survives_the_deletion_and_takes_from_the_new_queue(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    handled: list[bytes] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    jobs = other.queue("jobs")
    async with session.listener(session.queue("jobs"), handle, concurrency=2):
        for round_ in range(4):
            await jobs.put(b"%d" % round_)
            await until(lambda: len(handled) == round_ + 1)  # noqa: B023 - awaited before the variable changes
            await jobs.admin.delete(force=True)
            assert not await jobs.exists()
    assert handled == [b"0", b"1", b"2", b"3"]
    assert not await jobs.exists()


async def test_the_commit_of_a_message_of_a_deleted_queue_fails_and_does_not_bring_the_queue_back(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    await jobs.put_many([b"1", b"2", b"3"])
    with pytest.raises(zq.ClaimLostError, match=r"^queue 'jobs' was deleted, and message .* with it; nothing "):
        async with session.transaction() as tx:
            first, second, _ = await tx.take_many(jobs, 3)
            tx.put("results", b"done")
            tx.reject(first, "bad")
            tx.release(second, delay=60)
            await other.queue("jobs").admin.delete(force=True)
    assert await session.queues() == ["results"]
    assert await session.queue("results").size() == 0
    await asyncio.sleep(0.3)  # time for the release of the messages
    assert await nothing_but_the_mark(server_view, queue_root)


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("group", [None, "g"])
async def test_a_commit_states_that_the_queue_was_deleted_although_it_was_created_again(
    session: zq.QueueSession, other: zq.QueueSession, bundle: int, group: str | None
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle))
    await jobs.put_many([b"1", b"2"], group=group)
    async with session.transaction() as tx:
        held = await tx.take(jobs, timeout=30)
        assert held is not None
        await other.queue("jobs").admin.delete(force=True)
        await other.queue("jobs").put(b"3")
        with pytest.raises(zq.ClaimLostError, match=f"^queue 'jobs' was deleted, and message {held.id} with it"):
            await tx.commit()
    assert [message.body for message in await jobs.peek()] == [b"3"]


@pytest.mark.parametrize("bundle", [1, 64])
async def test_a_loop_and_a_transaction_state_that_the_queue_of_their_messages_was_deleted(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture, bundle: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle))
    await jobs.put_many([b"1", b"2"])
    async with session.transaction() as tx:
        held = await tx.take(jobs, timeout=30)
        assert held is not None
        with pytest.warns(ImplicitSettleWarning):
            async with jobs.consume(prefetch=1) as deliveries:
                async for delivery in deliveries:
                    await other.queue("jobs").admin.delete(force=True)
                    deliveries.stop()
                    shown = delivery.id
        with pytest.raises(zq.ClaimLostError, match=f"^queue 'jobs' was deleted, and message {held.id} with it"):
            await tx.commit()
    [line] = [record.getMessage() for record in caplog.records if shown in record.getMessage()]
    assert line == (
        f"queue jobs: message {shown} is not committed: queue 'jobs' was deleted, and message {shown} with it; nothing "
        "of the transaction was applied"
    )


async def test_a_session_that_missed_a_deletion_puts_with_the_settings_of_the_new_queue(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    """The new queue's configuration has been changed as often as the old one's."""
    stale, jobs = session.queue("jobs"), other.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    await stale.put(b"old")
    known = state_of(stale).version
    await jobs.admin.delete(force=True)
    await jobs.configure(zq.QueueConfig(ordered=True))
    assert state_of(jobs).version > known
    await stale.put(b"1")
    await jobs.put(b"2")
    assert [(await take_one(other)).value for _ in range(2)] == [b"1", b"2"]


# -- concurrent operations


@pytest.mark.parametrize("force", [True, False])
async def test_each_put_during_deletions_is_delivered_once_or_was_deleted(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str, *, force: bool
) -> None:
    """Without force, no message may be lost: the queue is only deleted while it is empty."""
    put: set[bytes] = set()
    delivered: list[bytes] = []
    deleted = 0

    async def producer() -> None:
        for number in range(150):
            body = b"%d" % number
            await session.queue("jobs").put(body)
            put.add(body)
            await asyncio.sleep(0.01)

    async def consumer() -> None:
        async with session.queue("jobs").consume(settle="explicit") as deliveries:
            async for delivery in deliveries:
                try:
                    await delivery.commit()
                except zq.NotCommittedError:
                    continue
                delivered.append(delivery.value)

    async def deleter() -> None:
        nonlocal deleted
        while True:
            try:
                await session.queue("jobs").admin.delete(force=force)
                deleted += 1
            except (NotFoundError, QueueInUseError, zq.NotCommittedError):
                pass
            await asyncio.sleep(0.02)

    async def ended() -> bool:
        return not await other.queue("jobs").size()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(consumer()), group.create_task(deleter())]
        await producer()
        await asyncio.sleep(0.2)
        tasks[1].cancel()
        await eventually(ended)
        await until(lambda: force or set(delivered) == put)
        tasks[0].cancel()
    assert deleted > 0
    assert len(delivered) == len(set(delivered))
    assert set(delivered) <= put
    await other.queue("jobs").put(b"last")
    assert (await take_one(other)).value == b"last"
    assert await server_view.children(f"{queue_root}/jobs/locks") == []


@pytest.mark.parametrize("existed", [True, False])
async def test_a_put_creates_a_queue_again_that_was_deleted_before_its_configuration_was_read(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, queue_root: str, *, existed: bool
) -> None:
    distant = await open_session(zookeeper_proxy.hosts)
    if existed:
        await session.queue("jobs").configure(zq.QueueConfig())
        await session.queue("jobs").admin.delete()
    path = f"{queue_root}/jobs".encode()
    read = zookeeper_proxy.hold_request(
        lambda request: request.opcode == Opcode.GET_DATA and request.body[4:-1] == path, nth=2
    )
    putting = asyncio.create_task(distant.queue("jobs").put(b"1"))
    await read.struck()
    await session.queue("jobs").admin.delete()
    read.release()
    await putting
    assert await session.queue("jobs").exists()
    assert (await take_one(session)).value == b"1"


async def test_two_sessions_delete_a_large_queue_at_once(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").configure(zq.QueueConfig(shards=16))
    await session.queue("jobs").put_many([b"x"] * 3000)
    done = await asyncio.gather(
        *(opened.queue("jobs").admin.delete(force=True) for opened in (session, other, session)), return_exceptions=True
    )
    assert None in done
    assert all(isinstance(result, NotFoundError) for result in done if result is not None)
    assert await nothing_but_the_mark(server_view, queue_root)


async def test_a_put_finishes_a_deletion_that_was_killed_and_then_creates_the_queue(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    killed = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.put_many([b"old"] * 1000)
    await killed.queue("jobs").size()
    fault = zookeeper_proxy.lose_before(
        lambda request: request.opcode == Opcode.MULTI and b"items/" in request.body and b"/slot-" not in request.body,
        times=99,
    )
    deleting = asyncio.create_task(killed.queue("jobs").admin.delete(force=True))
    await until(lambda: len(fault.requests) > 0)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    assert (await jobs.exists(), await jobs.size(), await session.queues()) == (False, 0, [])
    await jobs.put(b"new")
    assert [message.body for message in await jobs.peek(5)] == [b"new"]


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_deletion_whose_request_or_reply_is_lost_deletes_once(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, when: str, *, force: bool
) -> None:
    distant = await open_session(zookeeper_proxy.hosts)
    await session.queue("jobs").configure(zq.QueueConfig())
    if force:
        await session.queue("jobs").put(b"1")
    lose = zookeeper_proxy.lose_before if when == "before" else zookeeper_proxy.lose_after
    fault = lose(lambda request: request.opcode == Opcode.MULTI and DELETED in request.body, times=2)
    await distant.queue("jobs").admin.delete(force=force)
    assert len(fault.requests) == 2
    assert not await session.queue("jobs").exists()
    await session.queue("jobs").put(b"new")
    assert (await take_one(distant)).value == b"new"


# -- remaining znodes


async def test_the_janitor_removes_the_rest_of_a_deleted_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    await jobs.admin.delete(force=True)
    await session.admin.clean()
    assert await nothing_but_the_mark(server_view, queue_root)
    monkeypatch.setattr("aiozkqueue.operations.deleted.KEPT", 0)
    await asyncio.sleep(0.01)
    [*_, root] = await session.admin.clean()
    assert root.deleted == 1
    assert await server_view.tree(f"{queue_root}/jobs") == {}
    await jobs.put(b"2")
    assert [json.loads(message.body) for message in await jobs.peek()] == [2]
    assert core_of(session).root == queue_root


async def test_the_doctor_does_not_report_the_rest_of_a_deleted_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")
    await server_view.set(f"{queue_root}/jobs", DELETED)  # as a deletion leaves it that is killed after its first step
    assert await session.queues() == []
    assert [finding for finding in (await session.admin.diagnose()).findings if finding.subject == "jobs"] == []


async def test_a_deletion_removes_the_rate_of_its_queue_unless_slots_are_still_to_come(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handle(_: zq.Delivery[bytes]) -> None: ...

    for name, rate in (("quick", 1000), ("slow", 0.001)):
        queue = session.queue(name)
        await queue.put(b"1")
        async with session.listener(queue, handle, rate=rate):

            async def done(queue: zq.Queue[bytes] = queue) -> bool:
                return await queue.size() == 0

            await eventually(done)
        assert f"{queue_root}/.rates/{name}" in await server_view.tree(f"{queue_root}/.rates")
        await other.queue(name).admin.delete(force=True)
    rates = await server_view.tree(f"{queue_root}/.rates")
    assert [path for path in rates if path.endswith(("/quick", "/slow"))] == [f"{queue_root}/.rates/slow"]
    monkeypatch.setattr("aiozkqueue.operations.deleted.KEPT", 0)
    await other.admin.clean()
    assert f"{queue_root}/.rates/slow" in await server_view.tree(f"{queue_root}/.rates")


async def test_the_lock_of_a_group_is_left_to_a_session_that_holds_it_in_the_queue_that_was_created_again(
    session: zq.QueueSession,
    other: zq.QueueSession,
    open_session: Opener,
    zookeeper_proxy: ZooKeeperProxy,
    server_view: Observer,
    queue_root: str,
) -> None:
    """A session removes a lock under which it has found no message, while the queue is deleted and created again."""

    distant, jobs = await open_session(zookeeper_proxy.hosts), session.queue("jobs")
    await jobs.put(b"0", group="g")
    claim = zookeeper_proxy.hold_request(CLAIM)
    async with distant.transaction(autocommit=False) as waiting:
        taking = asyncio.create_task(waiting.take(distant.queue("jobs"), timeout=None))
        await claim.struck()
        assert (await take_one(session)).value == b"0"
        removal = zookeeper_proxy.hold_request(SETTLE)
        claim.release()
        await removal.struck()
        await jobs.admin.delete(force=True)
        await jobs.put(b"1", group="g")
        async with other.transaction() as tx:
            assert await tx.take(other.queue("jobs"), timeout=30) is not None
            (lock,) = await server_view.children(f"{queue_root}/jobs/locks")
            held = await server_view.get(f"{queue_root}/jobs/locks/{lock}")
            removal.release()
            await core_of(distant).zookeeper.sync(queue_root)  # is answered after the removal
            assert await server_view.get(f"{queue_root}/jobs/locks/{lock}") == held
        taking.cancel()
