"""Pending batches become visible as a whole: no consumer sees a message before all of them are stored."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter, FencedError, fenced_puts
from aiozkqueue.errors import AccessDeniedError, NotFoundError, PartlyDeniedError
from aiozkqueue.operations.batch_writers import MOST_ENDED, WriterRecord, give_up, writers
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, SetData
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_obstacles import set_acl
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.batches.staging import Fence
    from tests.observer import Observer


class Writer:
    """Puts the rows of batches as a Spark task does."""

    def __init__(self, session: zq.QueueSession, queue: str = "orders", name: str = "writer") -> None:
        self._runtime = core_of(session)
        self._queue = queue
        self.state = core_of(session).queue_state(queue)
        self.staging = BatchWriter(QueueHandle(core_of(session), self.state), name)
        self._written = 0
        self.made = False
        """Whether the znode of the next progress has been made."""

    async def begin(self, batch: int = 0, run: str = "first") -> Fence:
        fence = await self.staging.begin(batch, run)
        assert fence is not None
        return fence

    async def put(self, fence: Fence, *bodies: str, timeout: float = 0, **options: Any) -> None:
        progress = f"{self.staging.path}/p{self._written}"
        self._written += 1
        if not self.made:
            await self._runtime.zookeeper.multi([Create(progress)])
        puts = [fence.staged(prepare(self._runtime, self._queue, body.encode(), options)) for body in bodies]
        await make_ready(puts)
        await self._runtime.settle(
            fenced_puts(
                self._runtime.ids.next(),
                puts,
                fence,
                SetData(progress, b"done", version=0),
                Deadline(timeout, self._runtime.clock),
            )
        )


@asynccontextmanager
async def waiting(queue: zq.Queue[bytes], taken: list[str]) -> AsyncIterator[None]:
    """Run a consumer in a separate session during the block; it appends the committed messages to ``taken``."""
    consumer = queue.consume()

    async def consume() -> None:
        async with consumer as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    body = delivery.body.decode()
                taken.append(body)

    task = asyncio.create_task(consume())
    try:
        yield
    finally:
        consumer.stop()
        await task


async def until(condition: Callable[[], bool]) -> None:
    async def met() -> bool:
        return condition()

    await eventually(met, 30)


async def taken_now(session: zq.QueueSession) -> list[str]:
    async with session.transaction(autocommit=False) as tx:
        bodies = [message.body.decode() for message in await tx.take_many(session.queue("orders"), 100)]
        await tx.commit()
    return bodies


async def test_a_batch_waits_for_capacity_in_a_queue_that_became_bounded_meanwhile(
    zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        writer, orders = Writer(session), other.queue("orders")
        fence = await writer.begin()
        await writer.put(fence, "first")
        await orders.configure(zq.QueueConfig(max_size=1))
        putting = asyncio.create_task(writer.put(fence, "second", timeout=30))
        await asyncio.sleep(0.5)
        assert not putting.done()
        await orders.configure(zq.QueueConfig(max_size=2))
        await putting


async def test_a_batch_is_hidden_until_it_is_complete_if_its_queue_is_deleted_and_created_again_as_it_begins(
    zookeeper: str, queue_root: str
) -> None:
    """The new queue has never had a batch, so its consumers do not look for locks of batches."""
    for number in range(1, 100):
        root = f"{queue_root}/{number}"
        async with zq.connect(zookeeper, root=root) as session, zq.connect(zookeeper, root=root) as other:
            orders = other.queue("orders")
            await orders.put(b"old")
            writer = Writer(session)
            await writer.state.open()

            async def replace_queue(orders: zq.Queue[bytes] = orders) -> None:
                await orders.admin.delete(force=True)
                await orders.put(b"new")

            between = Between(session, number, replace_queue)
            fence = await writer.begin()
            assert between.reached
            if await core_of(other).zookeeper.exists(writer.staging.path) is None:
                assert number > 3
                return  # the batch had begun, and was deleted with the queue
            await writer.put(fence, "hidden")
            assert await taken_now(other) == ["new"], number
            await writer.staging.complete(0)
            assert await taken_now(other) == ["hidden"], number
    pytest.fail("the beginning never ends")


async def test_consumers_see_all_messages_of_a_batch_only_when_it_is_complete(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        await session.queue("orders").put(b"before")
        taken: list[str] = []
        async with waiting(other.queue("orders"), taken):
            await until(lambda: taken == ["before"])
            writer = Writer(session)
            fence = await writer.begin()
            await writer.put(fence, "a", "b")
            await writer.put(fence, "urgent", priority=-5)
            # Several messages, since some are first left to another session, which does not take them.
            await writer.put(fence, *(soon := [f"soon {number}" for number in range(8)]), delay=0.1)
            await session.queue("orders").put(b"plain")
            await until(lambda: "plain" in taken)
            assert taken == ["before", "plain"]
            assert await taken_now(session) == []
            assert await session.queue("orders").peek() == []
            assert (await session.queue("orders").stats()).staged == 1
            await writer.staging.complete(0)
            await until(lambda: len(taken) == 5 + len(soon))
        assert sorted(taken) == ["a", "b", "before", "plain", *soon, "urgent"]
        stats = await session.queue("orders").stats()
        assert (stats.size, stats.in_flight, stats.staged) == (0, 0, 0)


async def test_a_listing_that_is_repeated_shows_no_message_of_a_batch_that_has_begun_meanwhile(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection interrupts the listing of the items; the locks are listed before it is repeated."""
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        writer = Writer(session)
        await writer.put(await writer.begin(), "before")
        await writer.staging.complete(0)
        assert await taken_now(other) == ["before"]
        reader = core_of(other).zookeeper
        list_children, repeated = reader.children_into, list[str]()

        async def interrupted(path: str, *args: Any, **keywords: Any) -> Any:
            listed = await list_children(path, *args, **keywords)
            if not repeated and path.endswith("/items"):
                repeated.append(path)
                await asyncio.sleep(0.1)
                await writer.put(await writer.begin(1), "pending")
                listed = await list_children(path, *args, **keywords)
            return listed

        monkeypatch.setattr(reader, "children_into", interrupted)
        await session.queue("orders").put(b"another")
        assert await taken_now(other) + await taken_now(other) == ["another"]
        assert repeated


async def test_a_batch_is_found_when_it_uses_only_some_lanes_of_each_priority(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        await session.queue("orders").configure(zq.QueueConfig(shards=32))
        taken: list[str] = []
        async with waiting(other.queue("orders"), taken):
            writer = Writer(session)
            fence = await writer.begin()
            bodies = [f"{priority} {number}" for priority in (-5, 0, 3) for number in range(2)]
            for body in bodies:
                await writer.put(fence, body, priority=int(body.split()[0]))
            await writer.staging.complete(0)
            await until(lambda: len(taken) == len(bodies))
        assert sorted(taken) == sorted(bodies)


async def test_purge_cancel_and_release_claims_do_not_affect_a_pending_batch(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        writer = Writer(session)
        fence = await writer.begin()
        await writer.put(fence, "a", key="k")
        await writer.put(fence, "short", ttl=0.001)
        assert await queue.purge() == 0
        assert await queue.cancel(key="k") is zq.Alteration.NOT_FOUND
        assert await queue.admin.release_claims() == 0
        await session.admin.clean("orders")
        diagnosis = await session.admin.diagnose("orders")
        assert "lock" not in str([str(finding) for finding in diagnosis.findings]).lower()
        assert (await queue.stats()).size == 2
        await writer.staging.complete(0)
        assert await taken_now(session) == ["a"]


async def test_an_abandoned_batch_leaves_nothing_and_refuses_further_puts(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        writer = Writer(session)
        late = await writer.begin(1)
        await writer.put(late, "a", "b")
        await writer.put(late, "later", delay=3600)
        assert await writer.staging.abort(1) == 3
        with pytest.raises(FencedError):
            await writer.put(late, "too late")
        stats = await session.queue("orders").stats()
        assert (stats.size, stats.staged, stats.in_flight) == (0, 0, 0)
        with pytest.raises(zq.NotCommittedError, match="has been discarded"):
            await writer.begin(1)  # a task that is too late
        second = await writer.begin(1, "second")
        assert second.stage != late.stage
        await writer.put(second, "a")
        await writer.staging.complete(1)
        assert await writer.staging.begin(1, "third") is None
        assert await writer.staging.begin(0, "third") is None
        await writer.staging.complete(1)  # completing twice has no effect
        assert await taken_now(session) == ["a"]
        with pytest.raises(FencedError):
            await writer.put(second, "again")


async def test_a_batch_is_neither_begun_nor_skipped_while_a_later_one_is_incomplete(
    zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        writer = Writer(session)
        early = await writer.begin(1)
        await writer.put(early, "a")
        await writer.begin(5, "second")
        with pytest.raises(zq.NotCommittedError, match="batch 5 of 'writer' has begun"):
            await writer.staging.begin(1, "first")
        with pytest.raises(zq.NotCommittedError, match="has been discarded"):
            await writer.staging.renew(1, "first")
        with pytest.raises(zq.NotCommittedError, match="has begun"):
            await writer.staging.complete(1)
        await writer.staging.abort(5)
        with pytest.raises(zq.NotCommittedError, match="has begun"):
            await writer.staging.begin(4, "third")
        fence = await writer.begin(5, "third")
        await writer.put(fence, "b")
        await writer.staging.complete(5)
        assert await writer.staging.begin(1, "fourth") is None
        assert await taken_now(session) == ["b"]


def test_the_batches_before_the_current_one_of_an_older_program_are_complete() -> None:
    older = WriterRecord.decode(b'{"name": "stream 7", "batch": 3, "stage": "bx", "complete": false}')
    assert older is not None
    assert older.last_complete == 2
    assert WriterRecord(name="stream 7", batch=3).last_complete == 3


async def test_a_batch_restarted_after_the_death_of_its_writer_is_the_same(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        first, second = Writer(session), Writer(other)
        fences = await asyncio.gather(first.begin(), second.begin())
        assert fences[0] == fences[1]
        heir = await second.begin(run="after the death")
        assert heir.stage == fences[0].stage
        with pytest.raises(FencedError):
            await first.put(fences[0], "of a driver that was thought dead")
        with pytest.raises(zq.NotCommittedError):
            await first.staging.renew(0, "first")


async def test_pending_batches_of_a_dead_writer_are_listed_and_released(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        writer = Writer(session, name="stream 7")
        fence = await writer.begin(3)
        await writer.put(fence, "a", "b")
        runtime, state = core_of(session), writer.state
        (info,) = await writers(QueueHandle(runtime, state))
        assert (info.name, info.batch, info.messages) == ("stream 7", 3, 2)
        assert await give_up(QueueHandle(runtime, state), info.writer) == 2
        assert await writers(QueueHandle(runtime, state)) == []
        with pytest.raises(FencedError):
            await writer.put(fence, "c")
        with pytest.raises(zq.NotCommittedError, match="has been discarded"):
            await writer.staging.complete(3)
        with pytest.raises(NotFoundError, match="no writer"):
            await give_up(QueueHandle(runtime, state), "other")


async def test_a_batch_supersedes_no_message_of_its_key_before_it_is_complete(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        await queue.configure(zq.QueueConfig(collapse=True))
        writer = Writer(session)
        await queue.put(b"old", key="k")
        fence = await writer.begin()
        await writer.put(fence, "new", key="k")
        assert await taken_now(session) == ["old"]
        await queue.put(b"older", key="k")
        await writer.staging.complete(0)
        assert len(await taken_now(session)) == 1


async def test_a_pending_batch_does_not_block_its_group_and_keeps_its_order(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        queue, taken = session.queue("orders"), list[str]()
        await queue.put(b"0", group="g")
        async with waiting(other.queue("orders"), taken):
            await until(lambda: taken == ["0"])
            writer = Writer(session)
            fence = await writer.begin()
            await writer.put(fence, "1", "2", group="g")
            await queue.put(b"plain", group="g")
            await until(lambda: taken == ["0", "plain"])
            await writer.staging.complete(0)
            await queue.put(b"3", group="g")
            await until(lambda: len(taken) == 5)
        assert taken == ["0", "plain", "1", "2", "3"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_run_that_was_discarded_cannot_begin_whenever_the_discarding_session_ends(
    zookeeper: str,
    queue_root: str,
    server_view: Observer,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
    *,
    begun: bool,
) -> None:
    for number in range(1, 100):
        root = f"{queue_root}/{number}"
        async with zq.connect(zookeeper, root=root) as session, zq.connect(zookeeper, root=root) as other:
            task, driver = Writer(session), Writer(other)
            if begun:
                await task.put(await task.begin(), "a")
            between = Between(other, number, partial(expire, other))
            await driver.staging.abort(0, "first")
            with pytest.raises(zq.NotCommittedError, match="has been discarded"):
                await task.begin()
            for folder in ("items", "locks"):
                assert await server_view.children(f"{root}/orders/{folder}") == []
            await task.put(await task.begin(0, "second"), "b")
            await task.staging.complete(0)
            assert await taken_now(session) == ["b"]
            if not between.reached:
                assert number > 5
                return
    pytest.fail("the discarding never ends")


async def test_only_the_latest_of_many_failed_runs_are_remembered(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        writer = Writer(session)
        for number in range(MOST_ENDED + 2):
            await writer.staging.abort(0, f"run {number}")
        record = WriterRecord.decode((await core_of(session).zookeeper.read(writer.staging.path)).data)
        assert record is not None
        assert record.ended == tuple(f"run {number}" for number in range(2, MOST_ENDED + 2))


async def test_clean_up_removes_abandoned_batches_and_records_of_old_writers(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False) as session:
        done, dead, busy = Writer(session, name="done"), Writer(session, name="dead"), Writer(session, name="busy")
        await done.put(await done.begin(), "a")
        await done.staging.complete(0)
        fence = await dead.begin()
        await dead.put(fence, "b", "c")
        node = await core_of(session).zookeeper.read(fence.path)
        record = WriterRecord.decode(node.data)
        assert record is not None
        # As if the session had died while it abandoned the batch.
        half = replace(record, stage=None, aborted=(fence.stage,))
        await core_of(session).zookeeper.multi([SetData(fence.path, half.encode())])
        await busy.put(await busy.begin(), "d")
        await session.admin.clean("orders")
        assert await session.queue("orders").size() == 2
        assert await done.staging.begin(0, "again") is None
        monkeypatch.setattr("aiozkqueue.operations.cleaning.WRITERS_KEPT", -60_000)
        await session.admin.clean("orders")
        left = await core_of(session).zookeeper.children(done.state.paths.sinks)
        assert set(left) == {dead.staging.writer, busy.staging.writer}


async def test_a_write_that_no_run_can_continue_is_abandoned_after_a_day_without_progress(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False) as session:
        killed, named = Writer(session, name="write run"), Writer(session, name="write nightly")
        fence = await killed.begin(run="run")
        await killed.put(fence, "a", "b")
        await named.put(await named.begin(run="other"), "c")
        await session.queue("orders").put(b"seen")
        await session.admin.clean("orders")
        assert await session.queue("orders").size() == 4
        findings = [
            finding for finding in (await session.admin.diagnose("orders")).findings if "staged" in finding.text
        ]
        assert sorted(finding.text.partition(" invisible")[0] for finding in findings) == [
            "1 staged message of 'write nightly' is",
            "2 staged messages of 'write run' are",
        ]
        assert all("ledgers discard orders" in finding.advice for finding in findings)
        monkeypatch.setattr("aiozkqueue.operations.cleaning.WRITES_KEPT", -60_000)  # as if a day had passed
        await session.admin.clean("orders")
        assert await session.queue("orders").size() == 2
        with pytest.raises(zq.NotCommittedError):
            await killed.put(fence, "too late")
        with pytest.raises(zq.NotCommittedError, match="has been discarded"):
            await killed.staging.complete(0)
        assert (await named.staging.begin(0, "other")) is not None


@pytest.mark.parametrize("denied", ["fence", "progress"])
async def test_a_put_of_a_batch_whose_znodes_an_acl_denies_is_refused_as_access_denied_not_as_over(
    denied: str, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        writer = Writer(session)
        fence = await writer.begin()
        await writer.put(fence, "stored")
        progress = f"{writer.staging.path}/p1"
        await server_view.create(progress)
        writer.made = True
        path = progress if denied == "progress" else fence.path
        await set_acl(server_view, path, readable=denied == "progress")
        with pytest.raises(AccessDeniedError, match=path):
            await writer.put(fence, "refused")
        assert len(await server_view.children(f"{queue_root}/orders/items")) == 1


async def test_a_group_whose_held_message_this_user_may_not_write_is_not_released_by_force(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    """The holder asserts the held message, not the older one of a pending batch, so it would not notice a release."""
    async with zq.connect(zookeeper, root=queue_root) as session, zq.connect(zookeeper, root=queue_root) as other:
        orders = session.queue("orders")
        writer = Writer(session)
        fence = await writer.begin()
        await writer.put(fence, "older", group="g")
        await orders.put(b"held", group="g")
        async with other.transaction(autocommit=False) as tx:
            message = await tx.take(other.queue("orders"), timeout=10)
            assert message is not None
            assert message.body == b"held"
            await writer.staging.complete(0)
            folder = f"{queue_root}/orders/items"
            (name,) = [name for name in await server_view.children(folder) if message.id in name]
            await set_acl(server_view, f"{folder}/{name}", readable=True)
            with pytest.raises(PartlyDeniedError):
                await orders.admin.release_claims()
            assert await taken_now(session) == []
            await tx.commit()
        assert await taken_now(session) == ["older"]
