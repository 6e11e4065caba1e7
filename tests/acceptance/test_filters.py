"""Filters: messages have tags, and each consumer chooses by them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.tag_sweep import sweep_tags
from aiozkqueue.session.internals import state_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.layout import Condition
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(90)

CLASSES = zq.OrderedEnum("performance_class", ("low", "standard", "performance", "high_performance"))
STANDARD: dict[str, str | int] = {"performance_class": "standard"}


async def take_all(session: zq.QueueSession, filters: Condition | None = None, *, idle: float = 0) -> list[str]:
    async with session.queue("jobs").consume(filters=filters, until_idle=idle) as deliveries:
        return [delivery.body.decode() async for delivery in deliveries]


async def take_exactly(session: zq.QueueSession, filters: Condition, count: int) -> list[str]:
    """Take this many messages, however late they arrive."""
    bodies: list[str] = []
    async with session.queue("jobs").consume(filters=filters) as deliveries:
        async for delivery in deliveries:
            await delivery.commit()
            bodies.append(delivery.body.decode())
            if len(bodies) == count:
                break
    return bodies


async def test_a_message_tagged_with_a_class_goes_to_consumers_of_that_class(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for name in CLASSES.values:
        await jobs.put(name.encode(), tags={"performance_class": name})
    assert await take_all(session, CLASSES.absolute("standard")) == ["standard"]
    assert await take_all(session, CLASSES.at_least("performance")) == ["low", "performance"]
    assert await take_all(session) == ["high_performance"]


async def test_filters_combine_and_a_consumer_without_filters_takes_the_rest(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"eu 5", tags={"region": "eu", "size": 5})
    await jobs.put(b"us 5", tags={"region": "us", "size": 5})
    await jobs.put(b"eu", tags={"region": "eu"})
    await jobs.put(b"untagged")
    await jobs.put(b"eu five", tags={"region": "eu", "size": "five"})
    small, european = zq.Filter("size", "le", 10), zq.Filter("region", "eq", "eu")
    assert await take_all(session, zq.All(small, european)) == ["eu 5"]
    assert sorted(await take_all(session, zq.AnyOf(1, small, zq.Filter("region", "gt", "f")))) == ["us 5"]
    assert await take_all(session) == ["eu", "untagged", "eu five"]


async def test_a_message_shows_its_tags_and_keeps_them_through_a_redrive(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", tags=STANDARD)
    (peeked,) = await jobs.peek()
    assert peeked.tags == STANDARD
    async with jobs.consume(filters=CLASSES.absolute("standard"), until_idle=0) as deliveries:
        async for delivery in deliveries:
            await delivery.reject("not now")
    assert await jobs.dead_letters.redrive() == 1
    assert await take_all(session, CLASSES.absolute("low")) == []
    assert await take_all(session, CLASSES.absolute("standard")) == ["1"]


async def test_transactions_take_and_put_by_tags(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    async with session.transaction() as tx:
        tx.put(jobs, b"low", tags={"performance_class": "low"})
        tx.put("jobs", b"standard", tags=STANDARD)
    async with session.transaction() as tx:
        assert await tx.take(jobs, filters=CLASSES.absolute("high_performance")) is None
        message = await tx.take(jobs, filters=CLASSES.absolute("standard"))
        assert message is not None
        assert message.body == b"standard"
        assert [m.body for m in await tx.take_many(jobs, 5, filters=CLASSES.at_least("performance"))] == [b"low"]
    assert await jobs.size() == 0


async def test_a_message_is_delivered_at_once_while_consumers_that_filter_it_out_are_idle(open_session: Opener) -> None:
    """Idle consumers of several kinds: a consumer that takes a message delivers it without other traffic."""
    loop, arrived, kinds = asyncio.get_running_loop(), asyncio.Queue[float](), dict[str, set[str]]()

    async with asyncio.TaskGroup() as group:
        sessions = [await open_session() for _ in range(6)]
        await sessions[0].queue("jobs").configure(zq.QueueConfig())
        conditions = [
            CLASSES.absolute("standard"),
            CLASSES.absolute("standard"),
            CLASSES.absolute("low"),
            CLASSES.absolute("high_performance"),
            zq.Filter("size", "gt", 5),
        ]

        async def serve(session: zq.QueueSession, condition: Any, name: str) -> None:
            async with session.queue("jobs").consume(filters=condition) as deliveries:
                async for delivery in deliveries:
                    kinds.setdefault(name, set()).add(str(dict(delivery.tags)))
                    arrived.put_nowait(loop.time())

        servers = [
            group.create_task(serve(session, condition, f"{number} {condition}"))
            for number, (session, condition) in enumerate(zip(sessions[1:], conditions, strict=True))
        ]
        jobs = sessions[0].queue("jobs")

        async def all_there() -> bool:
            return (await jobs.stats()).consumers == len(servers)

        await eventually(all_there)
        offered: list[dict[str, str | int]] = [
            STANDARD,
            {"performance_class": "low"},
            {"performance_class": "high_performance"},
            {"size": 6},
        ]
        delays: list[float] = []
        for number in range(40):
            began = loop.time()
            await jobs.put(b"%d" % number, tags=offered[number % 4])
            delays.append(await asyncio.wait_for(arrived.get(), 30) - began)
        for server in servers:
            server.cancel()
    assert sorted(delays)[20] < 2, delays  # less than the time for which a consumer leaves a message to another one
    assert all(len(seen) == 1 for seen in kinds.values()), kinds


async def test_two_filtered_listeners_of_one_session_take_only_their_own_messages(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    handled: dict[str, list[bytes]] = {"low": [], "standard": []}

    def listener(name: str) -> zq.Listener[bytes]:
        async def handle(delivery: zq.Delivery[bytes]) -> None:
            handled[name].append(delivery.body)

        return session.listener(jobs, handle, concurrency=4, filters=CLASSES.absolute(name))

    async with listener("low"), listener("standard"):
        for number in range(30):
            await jobs.put(b"%d" % number, tags={"performance_class": ("low", "standard")[number % 2]})
        await jobs.put(b"for nobody", tags={"performance_class": "performance"})

        async def done() -> bool:
            return await jobs.size() == 1

        await eventually(done, 30)
    assert {int(body) % 2 for body in handled["low"]} == {0}
    assert {int(body) % 2 for body in handled["standard"]} == {1}
    assert [m.body for m in await jobs.peek()] == [b"for nobody"]


async def test_a_message_that_a_filtered_consumer_releases_goes_to_another(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2)))
    await jobs.put(b"1", tags=STANDARD)
    async with jobs.consume(filters=CLASSES.absolute("standard"), settle="explicit") as deliveries:
        await (await anext(aiter(deliveries))).rollback()
    assert await take_all(other, CLASSES.absolute("low"), idle=1) == []
    assert await take_exactly(other, CLASSES.at_least("performance"), 1) == ["1"]


async def test_a_message_of_a_dead_filtered_consumer_goes_to_another_with_the_same_filter(
    session: zq.QueueSession, other: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    await session.queue("jobs").put(b"1", tags=STANDARD)
    taken = await session.transaction(autocommit=False).__aenter__()
    assert await taken.take(session.queue("jobs"), filters=CLASSES.absolute("standard")) is not None
    waiting = asyncio.create_task(take_exactly(other, CLASSES.absolute("standard"), 1))
    await asyncio.sleep(0.5)
    await expire(session)
    assert await waiting == ["1"]
    assert await other.queue("jobs").size() == 0


async def test_a_combination_of_tags_is_stored_once_and_a_corrupt_record_breaks_no_consumer(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"], tags={"b": 1, "a": "x"})
    assert (await jobs.stats()).tags == 1
    tree = await server_view.tree(f"{queue_root}/jobs/filters")
    assert [json.loads(data) for path, data in tree.items() if not path.endswith("/filters")] == [{"a": "x", "b": 1}]
    for path in tree:
        if not path.endswith("/filters"):
            await server_view.set(path, b"\xff not JSON")
    await server_view.create(f"{queue_root}/jobs/items/item-fnowhere-iX-0000000099", b"stray")
    assert await take_all(other, zq.Filter("b", "eq", 1), idle=0.5) == []
    await jobs.put(b"4", tags={"b": 1, "a": "x"})  # creates the record again
    assert sorted(await take_exactly(other, zq.Filter("b", "eq", 1), 4)) == ["1", "2", "3", "4"]
    assert await take_all(other) == ["stray"]


async def test_a_sweep_removes_unused_combinations_of_tags_during_puts(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs, paths = session.queue("jobs"), state_of(session.queue("jobs")).paths
    await jobs.put(b"stays", tags={"n": -1})
    swept = 0
    putting = True

    async def folders() -> list[str]:
        return [paths.dlq, paths.items, paths.dlq]

    async def sweep() -> None:
        nonlocal swept
        client = other._runtime.zookeeper
        while putting:
            swept += await sweep_tags(client, paths, folders, client.generation)

    async with asyncio.TaskGroup() as group:
        group.create_task(sweep())
        for number in range(150):
            await jobs.put(b"%d" % number, tags={"n": number % 10})
            if number % 3 == 0:
                async with session.transaction() as tx:
                    await tx.take(jobs, filters=zq.Filter("n", "ge", 0))
        putting = False
    assert await jobs.size() == 101
    assert len(await take_exactly(other, zq.Filter("n", "ge", -1), 101)) == 101
    client = other._runtime.zookeeper
    await sweep_tags(client, paths, folders, client.generation)
    assert await server_view.children(f"{queue_root}/jobs/filters") == []
    await jobs.put(b"after", tags={"n": -1})
    assert await take_exactly(other, zq.Filter("n", "eq", -1), 1) == ["after"]


async def test_clean_up_bounds_the_number_of_stored_tag_combinations(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    async with asyncio.TaskGroup() as group:
        for number in range(1100):
            group.create_task(jobs.put(b"x", tags={"id": number}))
    await jobs.purge()
    await jobs.put(b"stays", tags={"id": -1})
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.tags == 1100
    assert len(await server_view.children(f"{queue_root}/jobs/filters")) == 1
    assert await take_all(session, zq.Filter("id", "eq", -1)) == ["stays"]


async def test_a_backlog_for_other_consumers_is_not_listed_for_every_message(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"x"] * 20_000, tags={"performance_class": "low"})
    candidate_source = other._runtime.dispatcher(
        state_of(other.queue("jobs")), CLASSES.absolute("standard")
    )._candidate_source
    listings = 0
    listing = candidate_source._list

    async def counted(*args: Any) -> None:
        nonlocal listings
        listings += 1
        await listing(*args)

    candidate_source._list = counted  # type: ignore[method-assign, assignment]
    taken = 0
    async with other.queue("jobs").consume(filters=CLASSES.absolute("standard"), prefetch=1) as deliveries:
        for number in range(200):
            await jobs.put(b"%d" % number, tags=STANDARD)
            taken += (await anext(aiter(deliveries))).body == b"%d" % number
    assert taken == 200
    assert listings < 10


async def handle_nothing(_: zq.Delivery[bytes]) -> None: ...


async def test_invalid_tags_and_filters_are_refused_before_anything_is_sent(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    with pytest.raises(zq.InvalidOptionError, match="tag 'size'"):
        await jobs.put(b"", tags={"size": 1.5})  # type: ignore[dict-item]
    with pytest.raises(zq.InvalidOptionError, match="tags takes a mapping"):
        await jobs.put(b"", tags="size=1")  # type: ignore[arg-type]
    for wrong in ("size=1", {"size": 1}, [zq.Filter("size", "eq", 1)]):
        with pytest.raises(zq.InvalidOptionError, match="Filter, All or AnyOf"):
            jobs.consume(filters=wrong)  # type: ignore[arg-type]
        with pytest.raises(zq.InvalidOptionError, match="Filter, All or AnyOf"):
            session.listener(jobs, handle_nothing, filters=wrong)  # type: ignore[call-overload]
    assert not await jobs.exists()
