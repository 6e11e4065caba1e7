"""Hostile bytes in a queue cause a typed error or a dead letter, and work continues.

Every decoder is tested end to end: an independent client writes items, records, locks, delays and the configuration of
a real queue, and a consumer must continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus, Buses
from aiozkqueue.layout import MAGIC
from aiozkqueue.schedule import Jobs, Notification, Notifications, Scheduler
from tests.security.decoders import DECODERS, typed
from tests.security.fuzzing import FUZZ, LONG
from tests.unit.layout.hostile import HOSTILE_JSON, json_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.timeout(3600 if LONG else 300)

#: The memory limit of the tests, far above the bounded size of a read.
MEMORY = 400 * 1024 * 1024

hostile_json = (
    st.sampled_from(HOSTILE_JSON)
    | st.binary(max_size=200)
    | json_objects("attempts", "claim", "error", "due", "owner", "end", "policy", "shards", "width", "generations")
)


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Draw bytes that begin like an envelope, with any length and header."""
    header = draw(st.sampled_from(HOSTILE_JSON) | json_objects("headers", "key", "priority", "enqueued_at", "dead"))
    length = draw(st.just(len(header)) | st.integers(0, 2**32 - 1))
    cut = draw(st.integers(0, 12)) if draw(st.booleans()) else None
    return (MAGIC + length.to_bytes(4, "big") + header + draw(st.binary(max_size=20)))[:cut]


items = st.binary(max_size=200) | envelopes()
#: A name that ZooKeeper accepts for a znode.
names = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="/"), max_size=60).filter(
    lambda name: name not in {"", ".", ".."}
)
item_names = (
    names
    | st.from_regex(r"item-(t[0-9]{0,18}-)?(i[A-Za-z0-9]{0,40}-)?[0-9-]{1,12}", fullmatch=True)
    | st.integers(25, 3000).map(lambda size: f"item-i{'x' * size}-0000000001")
    | st.integers(25, 3000).map(lambda size: f"item-{'q' * size}-ishort-0000000001")
)
due_names = names | st.builds(
    lambda due, who: f"{due:013d}-{who}", st.integers(0, 10**15 - 1), st.sampled_from(["victim", "nobody", "x" * 500])
)
places = st.sampled_from(
    [b"", b"items/item-ivictim-0000000001", b"items", b"/", b"../../x/item-ivictim-0000000001", b"//", b"\x00", b"\xff"]
) | st.integers(1, 900_000).map(lambda size: b"x" * size + b"/item-ivictim-0000000001")


class Writer:
    """An independent client that writes any bytes. It blocks, so call it before a loop runs."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client

    def queue(self, root: str, **znodes: bytes) -> None:
        """Create the folders of the queue ``q`` and these znodes in them; ``__`` in a name stands for ``/``."""
        base = f"{root}/q"
        for folder in ("items", "lanes", "locks", "meta", "dlq", "consumers", "due"):
            self.client.ensure_path(f"{base}/{folder}")
        for path, data in znodes.items():
            self.create(f"{base}/{path.replace('__', '/')}", data)

    def create(self, path: str, data: bytes) -> None:
        with contextlib.suppress(Exception):  # the server may refuse the name
            self.client.create(path, data)


@pytest.fixture(scope="module")
def writer(zookeeper: str) -> Iterator[Writer]:
    client = KazooClient(zookeeper)
    client.start(15)
    yield Writer(client)
    client.stop()
    client.close()


@pytest.fixture(scope="module", autouse=True)
def _memory_is_bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    scale = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * scale < MEMORY


@contextlib.asynccontextmanager
async def consuming(hosts: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with asyncio.timeout(120), zq.connect(hosts, root=root, session_timeout=20) as session:
        yield session
        assert session._runtime.tasks.failure is None


async def drain(queue: zq.Queue[Any], wanted: bytes) -> list[bytes]:
    """Consume all messages, which must include the wanted one; return the others."""
    came: list[bytes] = []
    async with queue.consume(prefetch=4, until_idle=0) as deliveries:
        async for delivery in deliveries:
            await delivery.commit()
            came.append(delivery.body)
    came.remove(wanted)
    return came


async def take(session: zq.QueueSession, queue: zq.Queue[Any]) -> None:
    async with session.transaction() as tx:
        assert await tx.take(queue, timeout=None)


async def settled(queue: zq.Queue[Any]) -> None:
    """Wait until the messages that were not delivered have been dead-lettered."""
    async with asyncio.timeout(30):
        while await queue.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.005)


def new_root() -> str:
    return f"/hostile-{uuid.uuid4().hex[:12]}"


@FUZZ
@given(data=st.lists(items, min_size=1, max_size=4))
def test_an_item_of_any_bytes_is_delivered_or_dead_lettered_with_a_reason(
    data: list[bytes], zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root, **{f"items__item-ihostile{n}-{n:010d}": item for n, item in enumerate(data)})

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            await queue.put(b"sound")
            came = await drain(queue, b"sound")
            await settled(queue)
            letters = await queue.dead_letters.peek(100)
            assert len(came) + len(letters) == len(data)
            assert all(letter.reason for letter in letters)
            assert all(letter.body in data for letter in letters)  # without losing a byte
            assert await queue.dead_letters.redrive() == len(letters)  # all of them can be redriven
            await queue.put(b"after")
            await drain(queue, b"after")

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


@FUZZ
@given(record=hostile_json, policy=st.sampled_from([zq.AtLeastOnce(), zq.ConsumeTimes(3)]))
def test_an_attempts_record_of_any_bytes_affects_only_its_own_message(
    record: bytes, policy: zq.Policy, zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root, **{"items__item-ivictim-0000000001": b"victim", "meta__meta-victim": record})
    # Only an item with a changed version may have a record.
    writer.client.set(f"{root}/q/items/item-ivictim-0000000001", b"victim")

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q", policy=policy)
            await queue.put(b"sound")
            came = await drain(queue, b"sound")
            await settled(queue)
            letters = await queue.dead_letters.peek()
            assert [*came, *(letter.body for letter in letters)] == [b"victim"]
            assert all(letter.reason for letter in letters)

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


@FUZZ
@given(lock=hostile_json, due=places, due_name=due_names)
@pytest.mark.slow
def test_a_lock_and_a_delay_of_any_bytes_hold_only_their_own_message(
    lock: bytes, due: bytes, due_name: str, zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root, **{"items__item-ivictim-0000000001": b"victim", "locks__lock-victim": lock})
    writer.create(f"{root}/q/due/{due_name}", due)
    writer.create(f"{root}/q/due/1000000000000-victim", due)
    writer.create(f"{root}/q/due/1000000000000-other", due)

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            await queue.put(b"sound")
            came = await drain(queue, b"sound")
            if not came:
                await queue.admin.release_claims()
                await drain(queue, b"victim")
            await session.admin.diagnose()

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


@FUZZ
@given(found=st.lists(item_names, min_size=1, max_size=4))
def test_znodes_of_any_name_among_the_items_are_skipped_or_delivered(
    found: list[str], zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root)
    for name in found:
        writer.create(f"{root}/q/items/{name}", b"hostile")
        writer.create(f"{root}/q/locks/{name}", b"")
        writer.create(f"{root}/q/meta/{name}", b"")
        writer.create(f"{root}/q/dlq/{name}", b"")
        writer.create(f"{root}/q/consumers/{name}", b"")
        writer.create(f"{root}/{name}", b"")

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            await queue.put(b"sound")
            assert set(await drain(queue, b"sound")) <= {b"hostile"}
            await queue.stats()
            await queue.dead_letters.peek()
            await session.admin.diagnose()
            await queue.purge()

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


@FUZZ
@given(config=hostile_json)
def test_a_configuration_of_any_bytes_is_applied_or_refused_with_the_queue_named(
    config: bytes, zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root)
    writer.client.set(f"{root}/q", config)

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue, other = session.queue("q"), session.queue("other")
            await other.put(b"sound")
            try:
                await queue.put(b"sound")
                await drain(queue, b"sound")
            except zq.PayloadError as error:
                assert "'q'" in str(error)  # noqa: PT017 -- with or without an error is correct
                with pytest.raises(zq.PayloadError, match="'q'"):
                    await drain(queue, b"sound")
                diagnosis = await session.admin.diagnose("q")
                assert not diagnosis.healthy
            await drain(other, b"sound")

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


def test_a_consumer_raises_a_typed_error_when_its_configuration_becomes_invalid(zookeeper: str, writer: Writer) -> None:
    root = new_root()
    writer.queue(root)

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            waiting = asyncio.create_task(take(session, queue))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(writer.client.set, f"{root}/q", b"{")
            await asyncio.to_thread(writer.client.create, f"{root}/q/items/item-", b"sound", sequence=True)
            with pytest.raises(zq.PayloadError, match="'q'"):
                await waiting
            await asyncio.to_thread(writer.client.set, f"{root}/q", json.dumps({"shards": 2}).encode())
            await drain(queue, b"sound")

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


@pytest.mark.parametrize("size", [500_000, 900_000, 1_000_000, 1_047_900])
@pytest.mark.parametrize("start", [b"", MAGIC + b"\xff\xff\xff\xff"], ids=["bare", "broken envelope"])
def test_items_of_the_largest_size_are_delivered_or_dead_lettered_with_every_byte(
    size: int, start: bytes, zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root)
    data = start + b"x" * (size - len(start))
    for number in range(3):
        writer.client.create(f"{root}/q/items/item-ihuge{number}-{number:010d}", data)

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            await queue.put(b"sound")
            came = await drain(queue, b"sound")
            await settled(queue)
            letters = await queue.dead_letters.peek()
            assert len(came) + len(letters) == 3
            assert all(body == data for body in [*came, *(letter.body for letter in letters)])

    asyncio.run(consume())
    writer.client.delete(root, recursive=True)


def test_an_item_too_large_to_move_is_logged_and_kept_and_other_items_are_delivered(
    zookeeper: str, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    root = new_root()
    data = (MAGIC + b"\xff" * 4).ljust(1_048_450, b"x")
    writer.queue(root, **{"items__item-ihuge-0000000001": data})

    async def consume() -> None:
        async with consuming(zookeeper, root) as session:
            queue = session.queue("q")
            await queue.put(b"sound")
            assert await drain(queue, b"sound") == []
            async with asyncio.timeout(30):
                while "too large to become a dead letter" not in caplog.text:  # noqa: ASYNC110 -- no event reports it
                    await asyncio.sleep(0.005)
            await queue.put(b"after")
            assert await drain(queue, b"after") == []
            assert [message.body for message in await queue.peek()] == [data]

    asyncio.run(consume())
    assert "item-ihuge-0000000001 manually" in caplog.text
    writer.client.delete(root, recursive=True)


class _Event(BaseModel):
    number: int


_RECORDS = hostile_json | json_objects(
    "cron", "zone", "queue", "missed", "limit", "tolerance", "paused", "last", "body", "groups", "source", "target",
    "state", "moved", "outcome", "put", "ended", "headers",
)  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@FUZZ
@given(data=_RECORDS | envelopes() | st.text(max_size=80).map(str.encode))
def test_a_decoder_reads_any_bytes_or_refuses_them_with_its_own_error(
    decoder: Callable[[bytes], None], data: bytes
) -> None:
    typed(decoder)(data)


@FUZZ
@given(record=_RECORDS)
def test_records_of_any_bytes_outside_the_items_raise_a_typed_error(
    record: bytes, zookeeper: str, writer: Writer
) -> None:
    root = new_root()
    writer.queue(root)
    for folder in (".schedule", ".moves", ".buses"):
        writer.client.ensure_path(f"{root}/{folder}")
        writer.create(f"{root}/{folder}/bad", record)
    writer.client.ensure_path(f"{root}/q/history/2023-11-14T22")
    writer.create(f"{root}/q/history/2023-11-14T22/1700000000000-abcdefghijklmnopqr", record)
    for folder in (f"{root}/q/ledger/bad/b0", f"{root}/q/sinks"):
        writer.client.ensure_path(folder)
    writer.client.set(f"{root}/q/ledger/bad", record)
    writer.create(f"{root}/q/ledger/bad/b0/p0", record)
    writer.create(f"{root}/q/sinks/bad", record)

    async def look() -> None:
        async with consuming(zookeeper, root) as session:
            jobs, bus = Jobs(session), Bus(session, "bad", _Event)
            async with Scheduler(session):
                for act in (
                    lambda: jobs.get("bad"),
                    jobs.list,
                    lambda: jobs.pause("bad"),
                    lambda: session.admin.moves.status("bad"),
                    session.admin.moves.all,
                    session.admin.moves.resume,
                    bus.groups,
                    lambda: bus.join("audit"),
                    lambda: bus.post(_Event(number=1)),
                    lambda: Buses(session).queues("bad"),
                    lambda: session.queue("q").state("abcdefghijklmnopqr"),
                    session.queue("q").stats,
                    session.queue("q").admin.ledgers,
                    lambda: session.queue("q").admin.release_ledger("bad"),
                    session.queue("q").admin.unfinished,
                    lambda: session.queue("q").admin.discard_unfinished("bad"),
                    lambda: session.admin.clean("q"),
                ):
                    with contextlib.suppress(zq.QueueError):
                        await act()
                with contextlib.suppress(zq.PayloadError):
                    async for _ in session.queue("q").history():
                        pass
            await session.queue("other").put(b"sound")
            await drain(session.queue("other"), b"sound")

    asyncio.run(look())
    writer.client.delete(root, recursive=True)


def test_a_bus_and_a_notification_queue_dead_letter_undecodable_messages_and_handle_the_rest(
    zookeeper: str, writer: Writer
) -> None:
    root = new_root()

    async def serve() -> None:
        async with consuming(zookeeper, root) as session:
            bus = Bus(session, "events", _Event)
            reminders = await Notifications(session).create("s", "n", _Event)
            for number, data in enumerate([*HOSTILE_JSON, b'{"number":"x"}']):
                await session.queue("events").put(data, headers={"bus-event": "_Event"} if number % 2 else {})
                await session.queue(reminders.queue.name).put(data, headers={"notification-at": "never"})
            came = list[str]()
            done = asyncio.Event()

            async def subscriber(event: _Event) -> None:
                came.append(f"bus {event.number}")
                if len(came) == 2:
                    done.set()

            async def handler(notification: Notification[_Event]) -> None:
                came.append(f"notified {notification.event.number}")
                if len(came) == 2:
                    done.set()

            bus.subscribe(_Event, subscriber)
            await bus.post(_Event(number=1))
            await reminders.schedule(_Event(number=2), datetime.now(UTC))
            async with bus.listener(), reminders.listener(handler):
                await done.wait()
                await settled(bus.queue())
                await settled(reminders.queue)
            assert sorted(came) == ["bus 1", "notified 2"]
            for queue in (bus.queue(), reminders.queue):
                letters = await session.queue(queue.name).dead_letters.peek(100)
                assert len(letters) == len(HOSTILE_JSON) + 1
                assert all(letter.reason for letter in letters)

    asyncio.run(serve())
    writer.client.delete(root, recursive=True)
