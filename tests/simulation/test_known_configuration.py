"""Changes of messages without a claim follow the configuration, even if another client has changed it meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.staging import BatchWriter, Fence, fenced_puts
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.schedule import Notifications
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import Create, SetData

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.testing.simulator import Cluster

    Play = Callable[[list[zq.QueueSession]], Awaitable[None]]


def play(
    program: Play,
    sessions: int = 3,
    seed: int = 0,
    *,
    options: Sequence[dict[str, Any]] = (),
    limit: float = 3600,
) -> None:
    """Run a program with several sessions of one ensemble, each with its options."""
    given = [*options, *[{}] * sessions][:sessions]

    async def main() -> None:
        cluster: Cluster = make_cluster(seed=seed)
        cluster.ensemble.delays.network = partial(float, 0.001)
        async with AsyncExitStack() as stack:
            await program([await stack.enter_async_context(cluster.connect(**own)) for own in given])

    run_virtual(main, limit=limit)


async def cancel(session: zq.QueueSession, message_id: str) -> None:
    assert await session.queue("jobs").cancel(id=message_id) is zq.Alteration.HELD


async def update(session: zq.QueueSession, message_id: str) -> None:
    assert await session.queue("jobs").update(b"other", id=message_id) is zq.Alteration.HELD


async def purge(session: zq.QueueSession, message_id: str) -> None:  # noqa: ARG001 - as every change
    assert await session.queue("jobs").purge() == 0


async def move_all(session: zq.QueueSession, message_id: str) -> None:  # noqa: ARG001 - as every change
    reference = await session.admin.moves.start("jobs", "elsewhere")
    await asyncio.sleep(1)
    assert (await session.admin.moves.status(reference)).moved == 0


async def clean(session: zq.QueueSession, message_id: str) -> None:  # noqa: ARG001 - as every change
    await asyncio.sleep(60)
    await session.admin.clean("jobs")


async def put_under_a_new_rule(
    rule: str,
    keeper: zq.QueueSession,
    producer: zq.QueueSession,
    consumer: zq.QueueSession,
    *,
    ttl: float | None = None,
) -> str:
    """Put a message under a rule that the first session has not read yet; return its id."""
    await keeper.queue("jobs").put(b"0")
    async with consumer.transaction() as tx:
        await tx.take(consumer.queue("jobs"), timeout=1)
    if rule == "ordered":
        await producer.queue("jobs").configure(zq.QueueConfig(ordered=True))
    return await producer.queue("jobs").put(b"1", ttl=ttl, group="g" if rule == "group" else None)


@pytest.mark.parametrize("rule", ["group", "ordered"])
def test_a_lease_is_extended_and_ended_by_a_session_that_knows_an_older_rule(rule: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        keeper, producer, consumer = sessions
        await put_under_a_new_rule(rule, *sessions)
        [lease] = await consumer.queue("jobs").leases.take(lifetime=5, timeout=1)
        await keeper.queue("jobs").leases.renew([lease.token], lifetime=3600)
        await asyncio.sleep(60)
        assert not await producer.queue("jobs").leases.take(lifetime=5, timeout=1), "it is leased for an hour"

        await consumer.queue("jobs").leases.renew([lease.token], lifetime=0)
        [again] = await producer.queue("jobs").leases.take(lifetime=3600, timeout=1)
        await producer.queue("jobs").leases.acknowledge([again.token])
        assert (await producer.queue("jobs").stats()).size == 0

    play(program)


@pytest.mark.parametrize("rule", ["group", "ordered"])
def test_a_lease_is_ended_by_a_session_that_knows_an_older_rule(rule: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        keeper, producer, consumer = sessions
        await put_under_a_new_rule(rule, *sessions)
        [lease] = await consumer.queue("jobs").leases.take(lifetime=3600, timeout=1)
        await keeper.queue("jobs").leases.renew([lease.token], lifetime=0)
        assert len(await producer.queue("jobs").leases.take(lifetime=5, timeout=1)) == 1

    play(program)


@pytest.mark.parametrize("change", [cancel, update, purge, move_all, clean])
@pytest.mark.parametrize("rule", ["group", "ordered"])
def test_a_message_that_is_held_under_a_new_rule_is_left_to_its_holder(
    change: Callable[[zq.QueueSession, str], Awaitable[None]], rule: str
) -> None:
    """The session that changes the message has last read the configuration before the first group."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, producer, consumer = sessions
        ttl = 5 if change is clean else None
        message_id = await put_under_a_new_rule(rule, operator, producer, consumer, ttl=ttl)
        async with consumer.transaction(autocommit=False) as held:
            assert await held.take(consumer.queue("jobs"), timeout=1)
            await change(operator, message_id)
            await held.commit()

    play(program)


@pytest.mark.parametrize("end", ["cancel", "cancel in hand", "purge"])
def test_an_end_in_a_bundle_is_recorded_by_a_session_that_has_not_read_the_history_setting(end: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, other, consumer = sessions
        jobs, mine = other.queue("jobs"), operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=64))
        await mine.put_many([b"0", b"1"])
        assert await mine.purge() == 2
        await jobs.configure(zq.QueueConfig(history=zq.History()))
        ids = await jobs.put_many([b"%d" % number for number in range(50)])
        if end == "purge":
            assert await mine.purge() == 50
        else:
            async with consumer.transaction(autocommit=False) as tx:
                if end == "cancel in hand":
                    assert len(await tx.take_many(consumer.queue("jobs"), 10, timeout=1)) == 10
                assert await mine.cancel(id=ids[3], running=True)
                await tx.rollback()
        ended = ids if end == "purge" else [ids[3]]
        assert sorted([record.id async for record in jobs.history()]) == sorted(ended)

    play(program)


def test_a_removed_notification_is_recorded_by_a_session_that_has_not_read_the_history_setting() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, other = sessions
        others = await Notifications(other).create("shop", "mails", bytes, history=False)
        mine = await Notifications(operator).get("shop", "mails", bytes)
        later = datetime.now(UTC) + timedelta(days=30000)
        assert await mine.remove(await mine.schedule(b"0", later))
        await others.queue.configure(zq.QueueConfig(history=zq.History()))
        message_id = await others.schedule(b"1", later)
        assert await mine.update(message_id, b"2")
        assert await mine.remove(message_id)
        assert [record.id async for record in others.queue.history()] == [message_id]

    play(program, 2)


@pytest.mark.parametrize("end", ["cancel", "purge", "acknowledge"])
def test_an_end_is_recorded_by_a_session_that_has_not_read_the_history_setting(end: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, other = sessions
        jobs, mine = other.queue("jobs"), operator.queue("jobs")
        await mine.put(b"0")
        await jobs.configure(zq.QueueConfig(history=zq.History()))
        message_id = await jobs.put(b"1")
        if end == "cancel":
            assert await mine.cancel(id=message_id)
        elif end == "purge":
            assert await mine.purge() == 2
        else:
            await mine.leases.acknowledge([lease.token for lease in await jobs.leases.take(5)])
        assert [record.id async for record in jobs.history() if record.id == message_id] == [message_id]

    play(program, 2)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_claimed_while_messages_are_held_under_the_rules_before_ordered(seed: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        policy = zq.AtLeastOnce(backoff=zq.Fixed(0))
        await sessions[0].queue("jobs").configure(zq.QueueConfig(bundle=1, policy=policy))
        await sessions[0].queue("jobs").put_many([b"0", b"1", b"2", b"3"])
        taken: list[bytes] = []

        async def take(session: zq.QueueSession) -> None:
            async with session.transaction() as tx:
                message = await tx.take(session.queue("jobs"), timeout=20)
                assert message is not None
                taken.append(message.body)

        async with AsyncExitStack() as stack:
            held: dict[bytes, tuple[zq.QueueSession, zq.Transaction]] = {}
            for session in sessions:
                work = await stack.enter_async_context(session.transaction(autocommit=False))
                message = await work.take(session.queue("jobs"), timeout=1)
                assert message is not None
                held[message.body] = session, work
            session, first = held.pop(min(held))
            await session.queue("jobs").configure(zq.QueueConfig(ordered=True))
            taking = asyncio.create_task(take(session))
            await asyncio.sleep(1)
            await first.rollback()
            await asyncio.sleep(1)
            assert taken == []
            for _, other in held.values():
                await other.commit()
            await taking
        assert taken

    play(program, 2, seed)


@pytest.mark.parametrize("change", ["history", "policy", "pause"])
@pytest.mark.parametrize("rule", ["group", "ordered"])
def test_a_transaction_continues_to_take_in_order_after_a_change_of_the_configuration(rule: str, change: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, other, consumer = sessions
        jobs, mine = operator.queue("jobs"), consumer.queue("jobs")
        if rule == "ordered":
            await jobs.configure(zq.QueueConfig(ordered=True))
        for number in range(40):
            await jobs.put(b"%d" % number, group="g" if rule == "group" else None)
        async with consumer.transaction() as tx:
            taken = [message.body for message in await tx.take_many(mine, 3, timeout=1)]
            if change == "history":
                await jobs.configure(zq.QueueConfig(history=zq.History()))
            elif change == "policy":
                await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(5)))
            else:
                await jobs.configure(zq.QueueConfig(paused=True))
                while (ahead := await tx.take(mine, timeout=1)) is not None:  # read before the pause
                    taken.append(ahead.body)
                assert len(taken) < 39
                await jobs.configure(zq.QueueConfig(paused=False))
            while len(taken) < 39 and (more := await tx.take_many(mine, 39 - len(taken), timeout=1)):
                taken += [message.body for message in more]
            async with other.transaction() as beside:
                assert await beside.take(other.queue("jobs"), timeout=1) is None
        assert taken == [b"%d" % number for number in range(39)]
        async with other.transaction() as tx:
            assert [message.body for message in await tx.take_many(other.queue("jobs"), 9, timeout=1)] == [b"39"]

    play(program)


async def put_pending(session: zq.QueueSession, staging: BatchWriter, fence: Fence, **options: Any) -> None:
    """Put one message of a pending batch."""
    runtime, path = core_of(session), f"{staging.path}/p"
    await runtime.zookeeper.multi([Create(path)])
    puts = [fence.staged(prepare(runtime, "jobs", b"pending", options))]
    await make_ready(puts)
    await runtime.settle(fenced_puts(runtime.ids.next(), puts, fence, SetData(path, b"done", version=0)))


def test_a_forced_release_of_a_group_reaches_a_holder_that_did_not_see_its_oldest_message() -> None:
    """The oldest message belongs to a batch that was pending when the group was locked."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        writer, consumer, following, third = sessions
        jobs = writer.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
        await jobs.put(b"0", group="h")
        async with writer.transaction() as tx:
            await tx.take(jobs, timeout=1)
        staging = BatchWriter(core_of(writer).handle("jobs"), "writer")
        fence = await staging.begin(0, "run")
        assert fence is not None
        await put_pending(writer, staging, fence, group="g")
        await jobs.put(b"later", group="g")
        async with AsyncExitStack() as stack:
            held = await stack.enter_async_context(consumer.transaction(autocommit=False))
            assert [message.body for message in await held.take_many(consumer.queue("jobs"), 2)] == [b"later"]
            await staging.complete(0)
            assert await jobs.admin.release_claims() == 1
            new = await stack.enter_async_context(following.transaction(autocommit=False))
            assert len(await new.take_many(following.queue("jobs"), 2, timeout=1)) == 2
            with pytest.raises(zq.ClaimLostError):
                await held.commit()
            async with third.transaction() as tx:
                assert await tx.take(third.queue("jobs"), timeout=1) is None
            await new.commit()

    play(program, 4)


@pytest.mark.parametrize("waits", [False, True])
def test_a_delayed_message_of_a_batch_that_was_pending_at_the_listing_is_found(waits: bool) -> None:  # noqa: FBT001 - a case
    async def program(sessions: list[zq.QueueSession]) -> None:
        writer, reader = sessions
        jobs = writer.queue("jobs")
        await jobs.put(b"before", delay=0.01)
        staging = BatchWriter(core_of(writer).handle("jobs"), "writer")
        fence = await staging.begin(0, "run")
        assert fence is not None
        await put_pending(writer, staging, fence, delay=3)

        async def take() -> list[bytes]:
            taken: list[bytes] = []
            for _ in range(20):
                async with reader.transaction() as tx:
                    message = await tx.take(reader.queue("jobs"), timeout=0.5 if waits else 0)
                    taken += [] if message is None else [message.body]
                await asyncio.sleep(0.5)
            return taken

        taking = asyncio.create_task(take())
        await asyncio.sleep(1)
        await staging.complete(0)
        assert await taking == [b"before", b"pending"]

    play(program, 2)


def test_the_release_of_a_ledger_leaves_what_another_ledger_holds() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        first_session, second_session, operator = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1))
        await jobs.put_many([b"1", b"2"])
        first, second = (
            Ledger(core_of(first_session).handle("jobs"), "A"),
            Ledger(core_of(second_session).handle("jobs"), "B"),
        )
        number = await first.next_batch(-1, None)
        assert number is not None
        await first.hand_out(number, "s", None)
        await jobs.admin.release_claims()
        following = await second.next_batch(-1, None)
        assert following is not None
        await second.hand_out(following, "s", None)
        await jobs.admin.release_ledger("A")
        async with operator.transaction() as tx:
            assert await tx.take_many(jobs, 5, timeout=1) == []
        assert await second.acknowledge(following) == 2

    play(program)


def test_a_running_message_in_the_bundle_of_a_ledger_is_not_cancelled() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        session, operator = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=64))
        await jobs.put(b"0")
        ids = await jobs.put_many([b"%d" % number for number in range(50)])
        ledger = Ledger(core_of(session).handle("jobs"), "A")
        number = await ledger.next_batch(-1, None)
        assert number is not None
        await ledger.hand_out(number, "s", None)
        assert await jobs.cancel(id=ids[7], running=True) is zq.Alteration.HELD
        async with operator.transaction() as tx:
            assert await tx.take(jobs, timeout=1) is None

    play(program, 2)


def test_a_message_that_is_reassigned_while_it_is_cancelled_is_found() -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with (
            cluster.connect(node="n1") as producer,
            cluster.connect(node="n2") as operator,
            cluster.connect(node="n3") as other,
        ):
            jobs = producer.queue("jobs")
            await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=1, bundle=1))
            message_id = await jobs.put(b"m")
            await asyncio.sleep(3)
            zookeeper: Any = core_of(operator).zookeeper  # Any: its methods are replaced
            list_children, reaped = zookeeper.children_into, list[int]()

            async def listed(path: str, *args: Any, **keywords: Any) -> Any:  # Any: passed through
                names = await list_children(path, *args, **keywords)
                if path.endswith("/items") and not reaped:
                    reaped.append(await other.queue("jobs").admin.reap())
                return names

            zookeeper.children_into = listed
            assert await operator.queue("jobs").cancel(id=message_id)
            assert reaped == [1]

    run_virtual(main)


REFUSED: dict[str, tuple[zq.QueueConfig, zq.QueueConfig, Callable[[zq.Queue[bytes]], Awaitable[object]]]] = {
    "priority, was ordered": (
        zq.QueueConfig(ordered=True),
        zq.QueueConfig(ordered=False),
        lambda jobs: jobs.put(b"1", priority=3),
    ),
    "delay, was ordered": (
        zq.QueueConfig(ordered=True),
        zq.QueueConfig(ordered=False),
        lambda jobs: jobs.put(b"1", delay=3),
    ),
    "group, was sticky": (
        zq.QueueConfig(affinity="producer"),
        zq.QueueConfig(affinity="any"),
        lambda jobs: jobs.put(b"1", group="g"),
    ),
    "collapse, was ordered": (
        zq.QueueConfig(ordered=True),
        zq.QueueConfig(ordered=False),
        lambda jobs: jobs.configure(zq.QueueConfig(collapse=True)),
    ),
    "ordered, has bundles": (
        zq.QueueConfig(bundle=1),
        zq.QueueConfig(bundle=64),
        lambda jobs: jobs.configure(zq.QueueConfig(ordered=True)),
    ),
    "bundles, had a size": (
        zq.QueueConfig(max_size=5),
        zq.QueueConfig(max_size=0),
        lambda jobs: jobs.configure(zq.QueueConfig(bundle=64)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_refused_because_of_a_configuration_that_has_changed(case: str) -> None:
    before, after, call = REFUSED[case]

    async def program(sessions: list[zq.QueueSession]) -> None:
        mine, other = sessions
        await other.queue("jobs").configure(before)
        await mine.queue("jobs").put(b"0")
        assert await mine.queue("jobs").purge() == 1
        await other.queue("jobs").configure(after)
        await call(mine.queue("jobs"))

    play(program, 2)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        (zq.QueueConfig(ttl=5), zq.QueueConfig(ttl=float("inf")), "-e"),
        (zq.QueueConfig(collapse=True), zq.QueueConfig(collapse=False), "-k"),
        (zq.QueueConfig(affinity="producer"), zq.QueueConfig(affinity="any"), "-n"),
    ],
)
def test_a_put_that_was_refused_has_no_default_of_the_earlier_configuration(
    before: zq.QueueConfig, after: zq.QueueConfig, field: str
) -> None:
    """Otherwise the message would expire although its queue no longer has a lifetime."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, operator, _ = sessions
        jobs, tree = producer.queue("jobs"), core_of(producer).zookeeper
        await jobs.configure(before)
        for configured in (True, False):
            await jobs.put(b"job")
            (name,) = await tree.children("/zms/jobs/items")
            assert (field in name) is configured
            await operator.queue("jobs").purge()
            await operator.queue("jobs").configure(after)

    play(program)
