"""A tag record that is unreadable or wrong affects only the messages with its tags."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import Opener, take_one
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from tests.observer import Observer

EU, US = zq.Filter("region", "eq", "eu"), zq.Filter("region", "eq", "us")


async def record_of(view: Observer, root: str, text: str) -> str:
    """Return the path of the record whose tags contain this text."""
    folder = f"{root}/jobs/filters"
    [path] = [
        f"{folder}/{name}"
        for name in await view.children(folder)
        if not name.startswith(".") and text.encode() in await view.get(f"{folder}/{name}")
    ]
    return path


async def spoil(view: Observer, path: str, how: str) -> None:
    if how == "sealed":
        await set_acl(view, path, readable=False)
    else:
        data = b"not what its name says"
        await view.delete(path)
        await view.create(path, data)


@pytest.mark.parametrize("how", ["sealed", "malformed"])
async def test_consumers_of_other_tags_continue_with_a_warning_and_the_doctor_reports_it(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"us", tags={"region": "us"})
    await jobs.put(b"eu", tags={"region": "eu"})
    path = await record_of(server_view, queue_root, "us")
    await spoil(server_view, path, how)
    async with asyncio.timeout(30):
        async with other.transaction() as tx:
            message = await tx.take(other.queue("jobs"), timeout=None, filters=EU)
            assert message is not None
            assert message.body == b"eu"
        async with other.transaction() as tx:  # the take waits, and watches report new messages
            waiting = asyncio.ensure_future(tx.take(other.queue("jobs"), timeout=None, filters=AnyRegion))
            await asyncio.sleep(0.5)
            await jobs.put(b"eu again", tags={"region": "eu"})
            message = await waiting
            assert message is not None
            assert message.body == b"eu again"
    assert any(path in record.getMessage() for record in caplog.records)
    digest = path.rpartition("/")[2]
    assert any(digest in finding.text for finding in (await session.admin.diagnose("jobs")).findings)
    assert (await take_one(session)).body == b"us"


AnyRegion = zq.AnyOf(1, EU, US)


async def test_the_next_session_that_puts_such_a_message_recreates_a_wrong_tag_record(
    session: zq.QueueSession, open_session: Opener, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"before", tags={"region": "us"})
    path = await record_of(server_view, queue_root, "us")
    await spoil(server_view, path, "malformed")
    third = await open_session()
    await third.queue("jobs").put(b"after", tags={"region": "us"})
    async with asyncio.timeout(30), third.transaction() as tx:
        messages = await tx.take_many(third.queue("jobs"), 2, timeout=None, filters=US)
    assert [message.body for message in messages] == [b"before", b"after"]
