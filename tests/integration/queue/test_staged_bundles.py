"""Pending batches on a queue with bundles: stored in few znodes, and visible as a whole or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.staging import FencedError, OvertakenError, fenced_puts
from aiozkqueue.layout import BundleName, with_field
from aiozkqueue.operations.batch_writers import marks_of, writers
from aiozkqueue.queue.candidates.batches import batch_lock_of
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import Opcode
from aiozkqueue.zookeeper import Create, SetData
from tests.integration.queue.bundles import BODIES, NUMBER, Stored, bundled, drain
from tests.integration.queue.test_staged_batches import Writer, until, waiting

if TYPE_CHECKING:
    from aiozkqueue.batches.staging import Fence
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener

TEXTS = [body.decode() for body in BODIES]


@pytest.fixture
async def writer(session: zq.QueueSession) -> Writer:
    """A writer on an empty queue with bundles."""
    await bundled(session, [])
    return Writer(session, "jobs")


async def test_a_batch_is_stored_in_bundles_and_appears_as_a_whole(
    session: zq.QueueSession, other: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    taken: list[str] = []
    async with waiting(other.queue("jobs"), taken):
        fence = await writer.begin()
        await writer.put(fence, *TEXTS)
        names = await stored.names()
        assert [batch_lock_of(name) for name in names] == [fence.stage] * 2
        assert sum(bundle.size for bundle in await stored.bundles()) == NUMBER
        await session.queue("jobs").put(b"plain")
        await until(lambda: taken == ["plain"])
        await writer.staging.complete(0)
        await until(lambda: len(taken) == NUMBER + 1)
    assert sorted(taken) == sorted([*TEXTS, "plain"])
    assert await stored.is_empty()


async def test_a_lone_consumer_takes_a_batch_in_the_order_of_its_puts(
    other: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    fence = await writer.begin()
    await writer.put(fence, *TEXTS[:10])  # too few for a bundle
    await writer.put(fence, *TEXTS[10:])
    await writer.staging.complete(0)
    assert (len(await stored.bundles()), len(await stored.singles())) == (2, 10)
    assert await drain(other, other.queue("jobs")) == BODIES


async def test_rows_with_marks_or_other_options_are_stored_as_single_items(
    session: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    fence = await writer.begin()
    await writer.put(fence, *TEXTS, priority=-5)
    await put_marked(session, writer, fence)
    assert await stored.bundles() == []
    handle = QueueHandle(core_of(session), writer.state)
    assert await marks_of(handle, fence.stage) == {"r", *(f"r{number:016d}" for number in range(NUMBER))}


async def put_marked(session: zq.QueueSession, writer: Writer, fence: Fence) -> None:
    runtime, progress = core_of(session), f"{writer.staging.path}/marked"
    await runtime.zookeeper.multi([Create(progress)])
    puts = [fence.staged(prepare(runtime, "jobs", body, {})) for body in BODIES]
    marked = [put._replace(prefix=with_field(put.prefix, f"r{number:016d}")) for number, put in enumerate(puts)]
    await make_ready(marked)
    await runtime.settle(fenced_puts(runtime.ids.next(), marked, fence, SetData(progress, b"done", version=0)))


async def test_a_batch_is_not_bundled_with_other_puts_of_the_session(
    session: zq.QueueSession, other: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    fence = await writer.begin()
    await asyncio.gather(
        *(session.queue("jobs").put(b"plain %d" % number) for number in range(40)), writer.put(fence, *TEXTS)
    )
    assert sorted(batch_lock_of(name) or "" for name in await stored.names()) == ["", fence.stage, fence.stage]
    assert await drain(other, other.queue("jobs")) == [b"plain %d" % number for number in range(40)]
    await writer.staging.complete(0)
    assert await drain(other, other.queue("jobs")) == BODIES


async def test_operators_leave_a_pending_batch_alone(
    session: zq.QueueSession, other: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    queue = session.queue("jobs")
    fence = await writer.begin()
    await writer.put(fence, *TEXTS)
    before = await stored.names()
    first = BundleName.parse(before[0])
    assert first is not None
    assert await queue.purge() == 0
    assert await queue.peek() == []
    assert await queue.cancel(id=first.first) is zq.Alteration.NOT_FOUND
    assert (await queue.state(first.first)).status is zq.Status.UNKNOWN
    assert await queue.admin.release_claims() == 0
    assert await queue.admin.unbundle() == 2
    await session.admin.clean("jobs")
    stats = await queue.stats()
    assert (stats.size, stats.staged) == (NUMBER, 1)
    assert await stored.names() == before
    await writer.staging.complete(0)
    assert await queue.admin.unbundle() == 0
    assert await stored.bundles() == []
    assert sorted(await drain(other, other.queue("jobs"))) == sorted(BODIES)


async def test_an_abandoned_batch_leaves_no_bundle_and_refuses_further_puts(
    session: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    late = await writer.begin(1)
    await writer.put(late, *TEXTS)
    handle = QueueHandle(core_of(session), writer.state)
    assert [info.messages for info in await writers(handle)] == [NUMBER]
    assert await writer.staging.abort(1) == NUMBER
    with pytest.raises(FencedError):
        await writer.put(late, *TEXTS)
    assert await stored.is_empty()


@pytest.mark.parametrize("lose", ["lose_before", "lose_after"])
async def test_each_row_is_stored_once_when_requests_or_replies_are_lost(
    open_session: Opener, other: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, stored: Stored, lose: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    await bundled(session, [])
    writer = Writer(session, "jobs")
    fence = await writer.begin()
    await session.queue("jobs").put(b"the first makes the commit slots")
    for number in range(5):
        writer.made = True
        await core_of(session).zookeeper.multi([Create(f"{writer.staging.path}/p{number}")])
        getattr(zookeeper_proxy, lose)(Opcode.MULTI)
        await writer.put(fence, *TEXTS)
    assert len(await stored.bundles()) == 10
    getattr(zookeeper_proxy, lose)(Opcode.MULTI)
    await writer.staging.complete(0)
    assert sorted(await drain(other, other.queue("jobs"))) == sorted([*BODIES * 5, b"the first makes the commit slots"])


async def test_of_two_attempts_at_once_the_second_stores_nothing(
    session: zq.QueueSession, other: zq.QueueSession, writer: Writer, stored: Stored
) -> None:
    fence = await writer.begin()
    attempts = Writer(session, "jobs"), Writer(session, "jobs"), Writer(other, "jobs")
    await core_of(session).zookeeper.multi([Create(f"{writer.staging.path}/p0")])
    for attempt in attempts:
        attempt.made = True
    outcomes = await asyncio.gather(*(attempt.put(fence, *TEXTS) for attempt in attempts), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [OvertakenError] * 2
    assert len(await stored.bundles()) == 2
    await writer.staging.complete(0)
    assert sorted(await drain(other, other.queue("jobs"))) == sorted(BODIES)
