"""The registry: the consumers of a queue, where they run, and what they hold. An entry ends with its session."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.admin import Process
from aiozkqueue.operations.consumers import consumers
from aiozkqueue.operations.story import name_process
from aiozkqueue.session.internals import core_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer


async def test_the_list_of_consumers_shows_where_they_run_and_what_they_hold(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    assert await jobs.admin.consumers() == []
    first, second = await jobs.put_many([b"1", b"2"])
    async with other.transaction() as holding, session.transaction() as not_holding:
        assert len(await holding.take_many(other.queue("jobs"), 2, timeout=10)) == 2
        assert await not_holding.take(jobs) is None
        holder, idle = sorted(await jobs.admin.consumers(), key=lambda consumer: -len(consumer.messages))
        assert set(holder.messages) == {first, second}
        assert idle.messages == ()
        assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
        assert holder.client != idle.client
        assert abs(datetime.now(UTC) - holder.since) < timedelta(minutes=5)
        state = await jobs.state(first)
        assert state.claimed_by == Process(client=holder.client, host=holder.host, pid=holder.pid, name=holder.name)
    assert [entry.messages for entry in await jobs.admin.consumers()] == [(), ()]


async def test_the_list_of_consumers_shows_the_name_of_a_session(
    session: zq.QueueSession, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper, root=queue_root, name="billing") as named:
        await named.queue("jobs").configure(zq.QueueConfig())
        await named.queue("others").put(b"1")
        async with named.transaction() as tx, session.transaction() as unnamed:
            assert await tx.take(named.queue("jobs"), timeout=0.1) is None
            assert await unnamed.take(session.queue("jobs"), timeout=0.1) is None
            found = {consumer.client: consumer.name for consumer in await session.queue("jobs").admin.consumers()}
        client = core_of(named).ids.client
    assert found == {client: "billing", core_of(session).ids.client: ""}
    about = json.loads(await server_view.get(f"{queue_root}/.clients/{client}"))
    assert about == {"host": socket.gethostname(), "pid": os.getpid(), "name": "billing"}


async def test_the_state_of_a_message_shows_the_names_of_its_sessions(
    session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root, name="billing") as named:
        await named.queue("jobs").configure(zq.QueueConfig(history=zq.History()))
        job = await named.queue("jobs").put(b"1")
        async with named.transaction() as tx:
            assert await tx.take(named.queue("jobs"), timeout=30) is not None
            state = await session.queue("jobs").state(job)
    assert state.put_by is not None
    assert state.put_by == state.claimed_by
    assert state.put_by.name == "billing"
    ended = await session.queue("jobs").state(job)
    assert ended.claimed_by == state.claimed_by
    assert [record.name async for record in session.queue("jobs").history()] == ["billing"]
    where = f"{socket.gethostname()}, process {os.getpid()}"
    assert name_process(state.put_by, "") == f"{state.put_by.client} (billing, {where})"


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "\ud800", 5])
def test_a_name_that_cannot_be_shown_is_refused(name: Any) -> None:  # Any: one name is no text
    with pytest.raises(zq.InvalidOptionError, match="name"):
        zq.connect("127.0.0.1:1", name=name)


async def test_the_list_names_the_held_messages_of_groups_and_of_ordered_queues(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    grouped, ordered = session.queue("grouped"), session.queue("ordered")
    await ordered.configure(zq.QueueConfig(ordered=True))
    first = [await grouped.put(b"1", group="eu"), await grouped.put(b"1", group="us")]
    await grouped.put(b"2", group="eu")
    head = await ordered.put(b"1")
    await ordered.put(b"2")
    async with other.transaction() as mine:
        for queue, held in ((grouped, first), (ordered, [head])):
            assert len(await mine.take_many(other.queue(queue.name), len(held), timeout=10)) == len(held)
            (holder,) = await queue.admin.consumers()
            assert set(holder.messages) == set(held)
        (unlisted,) = await consumers(core_of(session).handle("ordered"), most=1)
        assert len(unlisted.messages) == 1
        assert unlisted.messages != (head,)  # the id of the lock, since the lane was not listed


async def test_a_stopped_consumer_is_not_listed(session: zq.QueueSession, zookeeper: str, queue_root: str) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig())
    async with zq.connect(zookeeper, root=queue_root) as gone, gone.transaction() as tx:
        await tx.take(gone.queue("jobs"))
        assert len(await jobs.admin.consumers()) == 1

    async def nobody() -> bool:
        return not await jobs.admin.consumers()

    await eventually(nobody, 30)


async def test_a_consumer_registers_as_the_same_client_after_its_session_ended(
    open_session: Opener, session: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig())
    worker = await open_session()

    async def handler(_: zq.Delivery[bytes]) -> None: ...

    async def registered() -> bool:
        return len(await jobs.admin.consumers()) == 1

    async with worker.listener(worker.queue("jobs"), handler):
        await eventually(registered, 30)
        (before,) = await jobs.admin.consumers()
        await expire(worker)
        await jobs.put(b"wakes it")

        async def registered_again() -> bool:
            return [(consumer.client, consumer.pid) for consumer in await jobs.admin.consumers()] == [
                (before.client, os.getpid())
            ]

        await eventually(registered_again, 30)
