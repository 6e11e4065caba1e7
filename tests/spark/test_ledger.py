"""The ledger of a stream returns the same batch each time, whichever process has died meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_digest_acl

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import NotFoundError
from aiozkqueue.layout import decode, decode_bundle, is_bundle_at, item_prefix, key_hash
from aiozkqueue.operations.ledger_pages import mark, read_page, unmark
from aiozkqueue.operations.ledgers import _Releasing, ledgers, release
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, MultiError, NoNodeError
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from aiozkqueue.batches.manifests import Page
    from aiozkqueue.zookeeper import Operation
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)


class _DriverKilledError(Exception):
    """The driver is killed at this request."""


class DyingClient:
    """A client that dies at its n-th write, before or after the write is applied."""

    def __init__(self, zookeeper: Any, step: int | None, *, applied: bool) -> None:
        self._zookeeper = zookeeper
        self._left = step
        self._applied = applied
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zookeeper, name)

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        self.steps += 1
        if self._left is not None and self.steps >= self._left:
            if self._applied and self.steps == self._left:
                await self._zookeeper.multi(operations, **options)
            raise _DriverKilledError
        return await self._zookeeper.multi(operations, **options)


class Stream:
    """Spark's use of a source and of a sink that identifies batches by their numbers, with Spark's two logs."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.commits = 0
        self.sink: dict[int, list[str]] = {}

    async def run(self, ledger: Ledger, limit: int) -> None:
        """Continue from the logs until the queue is empty."""
        while True:
            if self.commits == len(self.offsets):
                start = self.offsets[-1] if self.offsets else -1
                await ledger.acknowledge(start)
                latest = await ledger.next_batch(start, limit)
                if latest == start:
                    return
                self.offsets.append(latest)
            pages = await ledger.pages(self.offsets[-1])
            found = await bodies_of(ledger, pages)
            assert len(found) == sum(page.messages for page in pages), "a batch without a commit has lost a message"
            self.sink[self.offsets[-1]] = found
            self.commits += 1


class Overlapping(Stream):
    """A use of the source that removes the messages of a batch while tasks read the next one."""

    async def run(self, ledger: Ledger, limit: int) -> None:
        removal: asyncio.Future[int] | None = None
        try:
            while True:
                if self.commits == len(self.offsets):
                    start = self.offsets[-1] if self.offsets else -1
                    if removal is not None:
                        await removal
                    await ledger.mark_done(start)
                    latest = await ledger.next_batch(start, limit)
                    if latest == start:
                        await ledger.finish()
                        return
                    self.offsets.append(latest)
                    removal = asyncio.ensure_future(ledger.finish())
                handed = await ledger.hand_out(self.offsets[-1], "stream")
                self.sink[self.offsets[-1]] = await bodies_of(ledger, handed.pages)
                self.commits += 1
        finally:
            if removal is not None:
                removal.cancel()
                await asyncio.gather(removal, return_exceptions=True)


class Preparing(Stream):
    """A use of the source that removes a batch and prepares another while tasks read the one between them."""

    async def run(self, ledger: Ledger, limit: int) -> None:
        work: asyncio.Future[None] | None = None

        async def remove_and_prepare() -> None:
            await ledger.finish()
            await ledger.prepare(self.offsets[-1], limit)

        try:
            while True:
                if self.commits == len(self.offsets):
                    start = self.offsets[-1] if self.offsets else -1
                    if work is not None:
                        await work
                    await ledger.mark_done(start)
                    latest = await ledger.next_batch(start, limit)
                    if latest == start:
                        await ledger.finish()
                        return
                    self.offsets.append(latest)
                handed = await ledger.hand_out(self.offsets[-1], "stream")
                work = asyncio.ensure_future(remove_and_prepare())
                self.sink[self.offsets[-1]] = await bodies_of(ledger, handed.pages)
                self.commits += 1
        finally:
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)


async def bodies_of(ledger: Ledger, pages: Sequence[Page]) -> list[str]:
    """Read the messages of a batch that exist, in order."""
    zookeeper = ledger._epoch.zookeeper
    places = [entry.place for page in pages for entry in await read_page(zookeeper.read, page.path)]
    nodes = await zookeeper.read_many([ledger._epoch.state.paths.at(place) for place in places])
    found: list[bytes] = []
    for place, node in zip(places, nodes, strict=True):
        if node is not None:
            found += [member.data for member in decode_bundle(node.data)] if is_bundle_at(place) else [node.data]
    return [decode(data)[1].decode() for data in found]


@asynccontextmanager
async def driver(hosts: str, root: str, step: int | None = None, *, applied: bool = False) -> AsyncIterator[Ledger]:
    async with zq.connect(hosts, root=root, janitor=False) as session:
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        ledger._epoch.zookeeper = DyingClient(core_of(session).zookeeper, step, applied=applied)  # type: ignore[assignment]
        yield ledger


async def fill(hosts: str, root: str, count: int, bundle: int = 1) -> list[str]:
    async with zq.connect(hosts, root=root) as session:
        bodies = [str(n) for n in range(count)]
        if bundle > 1:
            await session.queue("orders").configure(zq.QueueConfig(bundle=bundle))
        await session.queue("orders").put_many([body.encode() for body in bodies])
        return bodies


class InterruptedClient:
    """A client after one of whose writes another action happens."""

    def __init__(self, zookeeper: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._zookeeper = zookeeper
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zookeeper, name)

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        result = await self._zookeeper.multi(operations, **options)
        if self._meanwhile is not None and operations[-1].path.endswith("/batch-"):
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return result


class LostReplyClient(InterruptedClient):
    """A client that loses the reply to its first page. Another action happens before it reads the page."""

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        if self._meanwhile is None or not operations[1:] or not operations[1].path.endswith("/000000"):
            return await self._zookeeper.multi(operations, **options)
        await self._zookeeper.multi(operations, **options)
        with pytest.raises(MultiError) as refused:  # as if it had been sent again
            await self._zookeeper.multi(operations, **options)
        meanwhile, self._meanwhile = self._meanwhile, None
        await meanwhile()
        raise refused.value


@pytest.mark.parametrize(
    "client", [InterruptedClient, LostReplyClient], ids=["the batch was begun", "its page was made"]
)
async def test_a_batch_that_a_successor_made_and_acknowledged_raises_claim_lost(
    zookeeper: str, queue_root: str, client: type[InterruptedClient]
) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as zombie, driver(zookeeper, queue_root) as successor:

        async def take_over() -> None:
            await successor.acknowledge(await successor.next_batch(-1, None))

        zombie._epoch.zookeeper = client(zombie._epoch.zookeeper, take_over)  # type: ignore[assignment]
        with pytest.raises(zq.ClaimLostError):
            await zombie.next_batch(-1, None)
        assert await successor.next_batch(-1, None) == -1  # the batch had all the messages


class ContendedClient(InterruptedClient):
    """A client whose first page is refused because a message of it is taken. The driver dies after the next pages."""

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        if operations[1:] and operations[1].path.endswith("/000004"):
            raise _DriverKilledError
        return await super().multi(operations, **options)


async def test_a_batch_with_a_missing_page_continues_after_its_last_page(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 3)
    bodies = await fill(zookeeper, queue_root, 12)
    async with zq.connect(zookeeper, root=queue_root) as session, session.transaction() as tx:
        async with driver(zookeeper, queue_root) as ledger:

            async def take() -> None:
                assert await tx.take(session.queue("orders")) is not None

            ledger._epoch.zookeeper = ContendedClient(ledger._epoch.zookeeper, take)  # type: ignore[assignment]
            with pytest.raises(_DriverKilledError):
                await ledger.next_batch(-1, None)
            left = [page.path[-6:] for page in await ledger._manifests.pages((await ledger.batches())[0], sealed=False)]
            assert left == ["000001", "000002", "000003"]
        stream = Stream()
        async with driver(zookeeper, queue_root) as ledger:
            await stream.run(ledger, 12)
        taken = [body for batch in stream.sink.values() for body in batch]
        assert Counter(taken) == Counter(bodies[1:])
        await tx.rollback()


@pytest.mark.parametrize("kind", [Stream, Overlapping, Preparing], ids=["in turn", "removing", "preparing"])
@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_driver_killed_at_any_write_of_any_batch_loses_and_duplicates_nothing(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, bundle: int, kind: type[Stream], *, applied: bool
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 3)
    step = 0
    while True:
        step += 1
        root = f"{queue_root}/{step}"
        bodies = await fill(zookeeper, root, 12, bundle)
        stream = kind()
        died = False
        async with driver(zookeeper, root, step, applied=applied) as ledger:
            try:
                await stream.run(ledger, 7)
            except _DriverKilledError:
                died = True
        if not died:
            break
        async with driver(zookeeper, root) as ledger:
            await stream.run(ledger, 7)
            assert await ledger.batches() == []
        taken = [body for batch in stream.sink.values() for body in batch]
        assert Counter(taken) == Counter(bodies), f"killed at write {step}"
        async with zq.connect(zookeeper, root=root) as session:
            assert (await session.queue("orders").stats()).in_flight == 0
            assert await session.queue("orders").size() == 0
    assert step > (10 if bundle == 1 else 7)


async def test_a_batch_with_an_interrupted_acknowledgement_is_never_returned_again(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 2)
    monkeypatch.setattr("aiozkqueue.batches.acknowledge.MAX_CONCURRENT", 1)
    step, died = 0, True
    while died:
        step += 1
        root = f"{queue_root}/{step}"
        await fill(zookeeper, root, 8)
        async with driver(zookeeper, root) as ledger:
            batch = await ledger.next_batch(-1, 6)
            ledger._epoch.zookeeper = DyingClient(ledger._epoch.zookeeper, step, applied=True)  # type: ignore[assignment]
            died = False
            try:
                await ledger.acknowledge(batch)
            except _DriverKilledError:
                died = True
        async with driver(zookeeper, root) as successor:
            if died:
                with pytest.raises(zq.ClaimLostError, match="does not exist"):
                    await successor.pages(batch)
            another = await successor.next_batch(-1, None)
            assert sum(page.messages for page in await successor.pages(another)) == 2, f"killed at write {step}"
            await successor.acknowledge(another)
        async with zq.connect(zookeeper, root=root) as session:
            stats = await session.queue("orders").stats()
            assert (stats.size, stats.in_flight, stats.ledgers) == (0, 0, 0)
    assert step == 6


async def test_a_zombie_driver_gets_no_part_of_a_batch_that_is_being_removed(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 2)
    monkeypatch.setattr("aiozkqueue.batches.acknowledge.MAX_CONCURRENT", 1)
    await fill(zookeeper, queue_root, 8)
    async with driver(zookeeper, queue_root) as zombie, driver(zookeeper, queue_root) as successor:
        batch = await zombie.next_batch(-1, None)
        successor._epoch.zookeeper = DyingClient(successor._epoch.zookeeper, 4, applied=True)  # type: ignore[assignment]
        read, removed = zombie._manifests.read, False

        async def read_before_it_is_marked(number: int) -> object:
            nonlocal removed
            state = await read(number)
            with pytest.raises(_DriverKilledError):
                await successor.acknowledge(batch)
            removed = True
            return state

        monkeypatch.setattr(zombie._manifests, "read", read_before_it_is_marked)
        with pytest.raises(zq.ClaimLostError):
            await zombie.pages(batch)
        assert removed


async def test_releasing_a_ledger_releases_nothing_of_a_finished_batch(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 2)
    await fill(zookeeper, queue_root, 9)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 4)
        await ledger.next_batch(first, 3)
        ledger._epoch.zookeeper = DyingClient(ledger._epoch.zookeeper, 1, applied=True)  # type: ignore[assignment]
        with pytest.raises(_DriverKilledError):
            await ledger.acknowledge(first)
        queue = session.queue("orders")
        assert await queue.admin.release_ledger("spark") == 3
        stats = await queue.stats()
        assert (stats.size, stats.in_flight, stats.ledgers) == (5, 0, 0)


async def test_a_batch_marked_as_done_during_a_release_of_its_ledger_is_not_released(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        batch = await ledger.next_batch(-1, None)
        take_over = _Releasing._take_over

        async def after_the_mark(self: _Releasing) -> None:
            successor = Ledger(core_of(session).handle("orders"), "spark")
            successor._epoch.zookeeper = DyingClient(successor._epoch.zookeeper, 2, applied=True)  # type: ignore[assignment]
            with pytest.raises(_DriverKilledError):
                await successor.acknowledge(batch)
            await take_over(self)

        monkeypatch.setattr(_Releasing, "_take_over", after_the_mark)
        queue = session.queue("orders")
        assert await queue.admin.release_ledger("spark") == 0
        stats = await queue.stats()
        assert (stats.size, stats.in_flight, stats.ledgers) == (0, 0, 0)


class FollowedClient:
    """A client after whose first write or read of the ledger's record another action happens."""

    def __init__(self, zookeeper: Any, method: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._zookeeper = zookeeper
        self._method = method
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._zookeeper, name)
        if name != self._method or self._meanwhile is None:
            return method

        async def followed(*arguments: Any, **options: Any) -> object:
            result = await method(*arguments, **options)
            if self._meanwhile is not None:
                meanwhile, self._meanwhile = self._meanwhile, None
                await meanwhile()
            return result

        return followed


async def test_a_driver_that_takes_the_ledger_over_during_a_release_fails_once_its_batch_is_released(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release writes the driver's record again before the driver has seen the version of its own write."""
    await fill(zookeeper, queue_root, 4)
    async with (
        driver(zookeeper, queue_root) as dead,
        driver(zookeeper, queue_root) as ledger,
        zq.connect(zookeeper, root=queue_root) as session,
    ):
        batch = await dead.next_batch(-1, None)
        reached, go_on = asyncio.Event(), asyncio.Event()
        release_page = _Releasing._release_page

        async def later(self: _Releasing, manifest: str, page: str) -> int:
            reached.set()
            await go_on.wait()
            return await release_page(self, manifest, page)

        monkeypatch.setattr(_Releasing, "_release_page", later)
        releasing: list[asyncio.Task[int]] = []

        async def begin_to_release() -> None:
            releasing.append(asyncio.create_task(release(core_of(session).handle("orders"), "spark")))
            await reached.wait()

        followed: Any = FollowedClient(ledger._epoch.zookeeper, "multi", begin_to_release)
        ledger._epoch.zookeeper = followed
        handed = await ledger.hand_out(batch, "stream")
        await handed.reading.of(0, 4).note(core_of(session).zookeeper)
        go_on.set()
        assert await releasing[0] == 4
        with pytest.raises(zq.ClaimLostError):
            await ledger.acknowledge(batch, "stream")
        assert await session.queue("orders").size() == 4


async def test_a_release_ends_although_another_one_takes_the_ledger_over_whenever_it_is_refused(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as ledger:
        await ledger.next_batch(-1, None)
        releasing, other = (_Releasing(ledger._epoch.zookeeper, ledger._epoch.state, "spark") for _ in range(2))
        change, changes = _Releasing._change, 0

        async def after_the_other(self: _Releasing, *operations: Operation) -> None:
            nonlocal changes
            changes += 1
            assert changes < 20
            await other._take_over()
            await change(self, *operations)

        monkeypatch.setattr(_Releasing, "_change", after_the_other)
        assert await releasing.run() == 4
        assert await ledger.batches() == []


async def test_a_release_keeps_the_record_of_an_acknowledgement_at_the_same_time(
    zookeeper: str, queue_root: str
) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as ledger, driver(zookeeper, queue_root) as later:
        batch = await ledger.next_batch(-1, None)

        async def acknowledge() -> None:
            assert await ledger.acknowledge(batch) == 4

        followed: Any = FollowedClient(ledger._epoch.zookeeper, "read", acknowledge)
        releasing = _Releasing(followed, ledger._epoch.state, "spark")
        assert await releasing.run() == 0
        assert (await later.state()).done == batch


async def test_a_zombie_driver_is_fenced_and_changes_nothing(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 10)
    async with driver(zookeeper, queue_root) as zombie, driver(zookeeper, queue_root) as successor:
        first = await zombie.next_batch(-1, 4)
        assert await successor.next_batch(-1, 4) == first  # both get the same batch
        with pytest.raises(zq.ClaimLostError, match="taken over"):
            await zombie.acknowledge(first)
        with pytest.raises(zq.ClaimLostError, match="taken over"):
            await zombie.next_batch(first, 4)
        assert await successor.acknowledge(first) == 4
    async with zq.connect(zookeeper, root=queue_root) as session:
        assert await session.queue("orders").size() == 6


async def test_messages_of_a_ledger_count_as_claimed_and_not_as_leftovers(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 10)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        await ledger.next_batch(-1, 4)
        queue = session.queue("orders")
        async with session.transaction() as tx:
            assert len(await tx.take_many(queue, 10)) == 6
        stats = await queue.stats()
        assert (stats.size, stats.in_flight, stats.ledgers) == (4, 4, 1)
        await session.admin.clean("orders")
        assert (await queue.stats()).in_flight == 4
        diagnosis = await session.admin.diagnose("orders")
        assert "lock" not in json.dumps([str(finding) for finding in diagnosis.findings]).lower()


class CountingClient(DyingClient):
    """A client that records the largest number of operations in a request."""

    most = 0

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        self.most = max(self.most, len(operations))
        return await super().multi(operations, **options)


async def test_requests_of_a_large_batch_stay_small_since_servers_keep_the_last_500(
    zookeeper: str, queue_root: str
) -> None:
    await fill(zookeeper, queue_root, 1200)
    async with driver(zookeeper, queue_root) as ledger:
        ledger._epoch.zookeeper = counting = CountingClient(ledger._epoch.zookeeper, None, applied=False)  # type: ignore[assignment]
        batch = await ledger.next_batch(-1, None)
        assert sum(page.messages for page in await ledger.pages(batch)) == 1200
        assert await ledger.acknowledge(batch) == 1200
    assert 100 < counting.most < 600  # at 0.75 KiB for each operation, up to 225 MiB of heap


async def test_releasing_a_ledger_releases_every_message_and_fences_its_stream(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 10)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        batch = await ledger.next_batch(-1, 4)
        state = core_of(session).queue_state("orders")
        (info,) = await ledgers(QueueHandle(core_of(session), state))
        assert (info.group, info.batches, info.messages, info.client) == (
            "spark",
            1,
            4,
            ledger._epoch.runtime.ids.client,
        )
        assert await release(QueueHandle(core_of(session), state), "spark") == 4
        with pytest.raises(zq.ClaimLostError, match="taken over or released"):
            await ledger.acknowledge(batch)
        async with session.transaction() as tx:
            assert len(await tx.take_many(session.queue("orders"), 20)) == 10
        with pytest.raises(NotFoundError):
            await release(QueueHandle(core_of(session), state), "other")


async def test_the_error_of_a_stream_whose_queue_was_deleted_names_the_remedy(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 10)
    deleted = "queue 'orders' was deleted.*Create the queue again, as any put does, and start the query with a new"
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        batch = await ledger.next_batch(-1, 4)
        await session.queue("orders").admin.delete(force=True)
        with pytest.raises(zq.ClaimLostError, match=deleted):
            await ledger.acknowledge(batch)
        with pytest.raises(zq.ClaimLostError, match=deleted):
            await ledger.next_batch(batch, 4)


class OvertakenClient(InterruptedClient):
    """A client before whose first removal of locks another action happens."""

    async def multi(self, operations: Sequence[Operation], **options: Any) -> object:
        if self._meanwhile is not None and any("/lock-" in operation.path for operation in operations):
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await self._zookeeper.multi(operations, **options)


async def test_releasing_a_ledger_keeps_the_locks_of_consumers_that_claimed_its_messages(
    zookeeper: str, queue_root: str
) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        await ledger.next_batch(-1, 4)
        orders = session.queue("orders")
        async with session.transaction(autocommit=False) as holder:

            async def force_open_and_take() -> None:
                assert await orders.admin.release_claims() == 4
                assert len(await holder.take_many(orders, 4, timeout=30)) == 4

            client = OvertakenClient(core_of(session).zookeeper, force_open_and_take)
            await _Releasing(client, core_of(session).queue_state("orders"), "spark").run()  # type: ignore[arg-type]
            assert (await orders.stats()).in_flight == 4
            async with session.transaction() as tx:
                assert await tx.take(orders) is None
            await holder.commit()
        assert await orders.size() == 0


async def test_batches_claim_retried_messages_and_those_with_a_key_a_history_or_a_priority(
    zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        await queue.configure(zq.QueueConfig(history=zq.History()))
        await queue.put(b"tried")
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(queue)
            assert message is not None
            tx.release(message, delay=0)
            await tx.commit()
        await queue.put(b"only", key="k", unique=True)
        await queue.put(b"urgent", priority=-1)
        await queue.put(b"later", delay=3600)
        async with driver(zookeeper, queue_root) as ledger:
            batch = await ledger.next_batch(-1, None)
            assert sum(page.messages for page in await ledger.pages(batch)) == 3
            await ledger.acknowledge(batch)
        assert [message.body for message in await queue.peek()] == [b"later"]
        assert [record.outcome.value async for record in queue.history()] == ["finished"] * 3
        await queue.put(b"again", key="k", unique=True)  # the key is free


async def test_a_stream_gets_nothing_from_a_paused_queue(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 10)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 4)
        await session.queue("orders").configure(zq.QueueConfig(paused=True))
        assert await ledger.next_batch(first, 4) == first
        await session.queue("orders").configure(zq.QueueConfig(paused=False))
        assert await ledger.next_batch(first, 4) > first


@pytest.mark.parametrize(
    "config", [zq.QueueConfig(ordered=True), zq.QueueConfig(collapse=True)], ids=["ordered", "collapse"]
)
async def test_an_ordered_or_collapsing_queue_cannot_be_streamed(
    zookeeper: str, queue_root: str, config: zq.QueueConfig
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        await session.queue("orders").configure(config)
    async with driver(zookeeper, queue_root) as ledger:
        with pytest.raises(zq.InvalidOptionError, match="keeps an order or collapses"):
            await ledger.next_batch(-1, None)


async def test_a_batch_leaves_out_delayed_and_expired_messages(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False) as session:
        queue = session.queue("orders")
        await queue.put(b"later", delay=3600)
        await queue.put(b"over", ttl=0.001)
        lasting = await queue.put(b"lasting", ttl=3600)
        clock, due = core_of(session).server_clock, core_of(session).queue_state("orders").paths.due
        put = await clock.learned(due)

        async def ended() -> bool:
            return await clock.learned(due) > put + 500

        await eventually(ended, 30)
        async with driver(zookeeper, queue_root) as ledger:
            batch = await ledger.next_batch(-1, None)
            (page,) = await ledger.pages(batch)
            (entry,) = await read_page(core_of(session).zookeeper.read, page.path)
            assert lasting in entry.place
            await ledger.acknowledge(batch)
            assert await ledger.next_batch(batch, None) == batch
        assert await queue.size() == 2


async def test_undecodable_messages_become_dead_letters_when_their_batch_is_acknowledged(
    zookeeper: str, queue_root: str
) -> None:
    ids = []
    async with zq.connect(zookeeper, root=queue_root) as session:
        ids = await session.queue("orders").put_many([b"good", b"bad", b"changed"])
        async with driver(zookeeper, queue_root) as ledger:
            batch = await ledger.next_batch(-1, None)
            (page,) = await ledger.pages(batch)
            client = core_of(session).zookeeper
            for message_id in (ids[1], ids[1], ids[2]):  # marked twice, because the task had two attempts
                await mark(client, page.path, message_id, "no JSON", -1)
            await unmark(client, page.path, ids[2], -1)
            await unmark(client, page.path, ids[2], -1)
            queue = session.queue("orders")
            assert await queue.dead_letters.size() == 0
            assert await ledger.acknowledge(batch) == 3
            (dead,) = await queue.dead_letters.peek()
            assert dead.body == b"bad"
            assert dead.reason == "stream 'spark': the payload does not decode: no JSON"
            assert await queue.size() == 0
            assert (await queue.stats()).in_flight == 0
            with pytest.raises(NoNodeError):
                await mark(client, page.path, ids[1], "too late", -1)


async def test_a_released_ledger_forgets_what_was_marked(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        (bad,) = await session.queue("orders").put_many([b"bad"])
        async with driver(zookeeper, queue_root) as ledger:
            (page,) = await ledger.pages(await ledger.next_batch(-1, None))
            await mark(core_of(session).zookeeper, page.path, bad, "no JSON", -1)
            assert await session.queue("orders").admin.release_ledger("spark") == 1
        assert [message.body for message in await session.queue("orders").peek()] == [b"bad"]


async def test_an_incomplete_batch_does_not_hide_messages_that_were_put_after_it(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.BACKLOG", 2)
    async with zq.connect(zookeeper, root=queue_root) as session, driver(zookeeper, queue_root) as ledger:
        queue, state = session.queue("orders"), core_of(session).queue_state("orders")
        await queue.put(b"makes the queue")
        stage = key_hash("a batch")
        await core_of(session).zookeeper.multi([Create(state.paths.lock(f"b{stage}"))])
        staged = [f"{state.paths.items}/{item_prefix(f'x{number}', batch=stage)}" for number in range(10)]
        await core_of(session).zookeeper.multi([Create(path, sequential=True) for path in staged])
        await queue.put(b"after it")
        (page,) = await ledger.pages(await ledger.next_batch(-1, 2))
        assert page.messages == 2


async def test_a_frozen_ledger_claims_every_earlier_message_and_no_later_one(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.BACKLOG", 4)
    bodies = await fill(zookeeper, queue_root, 10)
    async with zq.connect(zookeeper, root=queue_root) as session, driver(zookeeper, queue_root) as ledger:
        queue = session.queue("orders")
        await queue.put(b"urgent", priority=-1)
        await ledger.freeze()
        await queue.put(b"too late")
        await queue.put(b"urgent, and too late", priority=-1)
        await queue.put(b"of a new level", priority=-2)
        last, taken = -1, 0
        while (batch := await ledger.next_batch(last, 3)) != last:
            taken += sum(page.messages for page in await ledger.pages(batch))
            await ledger.acknowledge(batch)
            last = batch
        assert taken == len(bodies) + 1
        left = {message.body for message in await queue.peek(limit=10)}
        assert left == {b"too late", b"urgent, and too late", b"of a new level"}


@pytest.mark.parametrize("counted", [False, True])
async def test_a_message_with_a_child_znode_does_not_block_an_acknowledgement_and_stays_locked(
    zookeeper: str, queue_root: str, server_view: Observer, caplog: pytest.LogCaptureFixture, *, counted: bool
) -> None:
    if counted:
        async with zq.connect(zookeeper, root=queue_root) as session:
            await session.queue("orders").configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))
    await fill(zookeeper, queue_root, 10)
    first, *_ = await server_view.children(f"{queue_root}/orders/items")
    await server_view.create(f"{queue_root}/orders/items/{first}/child")
    async with driver(zookeeper, queue_root) as ledger, asyncio.timeout(60):
        batch = await ledger.next_batch(-1, None)
        assert sum(page.messages for page in await ledger.pages(batch)) == 10
        await ledger.acknowledge(batch)
        assert await server_view.children(f"{queue_root}/orders/items") == [first]
        assert await ledger.next_batch(batch, None) == batch
    async with zq.connect(zookeeper, root=queue_root) as session, session.transaction() as tx:
        assert await tx.take(session.queue("orders")) is None
    assert len([record for record in caplog.records if "stays locked" in record.getMessage()]) == 1


async def test_a_stream_skips_messages_that_its_user_may_not_read(
    zookeeper: str, queue_root: str, server_view: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(zookeeper, queue_root, 10)
    first, *_ = await server_view.children(f"{queue_root}/orders/items")
    sealed = [make_digest_acl("somebody", "else", all=True)]
    await server_view.set_acl(f"{queue_root}/orders/items/{first}", sealed)
    async with driver(zookeeper, queue_root) as ledger, asyncio.timeout(60):
        batch = await ledger.next_batch(-1, None)
        assert sum(page.messages for page in await ledger.pages(batch)) == 9
        await ledger.acknowledge(batch)
        assert await ledger.next_batch(batch, None) == batch
    assert await server_view.children(f"{queue_root}/orders/items") == [first]
    assert len([record for record in caplog.records if "this user may not read" in record.getMessage()]) == 1
