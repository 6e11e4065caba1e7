"""Znodes of others in the way of a message's end: it alone waits, is told of, and everybody else goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl, make_digest_acl

import aiozkqueue as zq
from tests.integration.queue.conftest import Locks, eventually, no_locks, take_one

if TYPE_CHECKING:
    from tests.observer import Observer

EVIL = "evil-0000000900"
"""The name of a message that somebody else has put: its id is ``evil``."""


async def set_acl(view: Observer, path: str, *, readable: bool) -> None:
    """Have a znode belong to somebody else; everybody else may read it, or not even that."""
    acl = [make_digest_acl("somebody", "else", all=True)]
    if readable:
        acl.append(make_acl("world", "anyone", read=True))
    await view._ask(lambda: view._client.set_acls(path, acl))


async def item_of(view: Observer, root: str, queue: str = "jobs") -> str:
    """The path of the only item."""
    (name,) = await view.children(f"{root}/{queue}/items")
    return f"{root}/{queue}/items/{name}"


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


@pytest.mark.parametrize("records", [1, 4])
async def test_a_znode_below_a_record_of_attempts_holds_up_no_other_commit_of_the_session(
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
    assert len(calls) == records  # the record says that each has been handed over once before
    await no_locks(locks)


async def test_a_record_of_attempts_that_may_not_be_written_lets_its_message_go_and_come_again(
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
