"""The janitor removes leftovers automatically, in one session at a time, and removes nothing that is in use."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.layout import AttemptRecord, End, HistoryRecord, LockRecord
from aiozkqueue.operations.cleaning import clean_root
from aiozkqueue.operations.history_pins import pin, read_pins
from aiozkqueue.session.internals import core_of, handle_of
from aiozkqueue.zookeeper import Create
from tests.integration.queue.conftest import eventually, take_one
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.operations.history_pins import Pins
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.session.core import SessionCore
    from tests.observer import Observer

NOW = datetime.now(UTC)


class Connect(Protocol):
    async def __call__(self, *, janitor: bool) -> zq.QueueSession: ...


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def record(message_id: str, age: timedelta) -> HistoryRecord:
    ended = ms(NOW - age)
    return HistoryRecord(id=message_id, ended=ended, outcome=End.FINISHED, put=ended)


@pytest.fixture
async def base(queue_root: str) -> str:
    return f"{queue_root}/jobs"


@pytest.fixture
async def connect(zookeeper: str, queue_root: str) -> AsyncIterator[Connect]:
    """Opens sessions with or without a janitor."""
    async with AsyncExitStack() as stack:

        async def open_one(*, janitor: bool) -> zq.QueueSession:
            return await stack.enter_async_context(zq.connect(zookeeper, root=queue_root, janitor=janitor))

        yield open_one


async def write_history(view: Observer, base: str, *records: HistoryRecord) -> None:
    for record in records:
        await view.create(f"{base}/history/{record.place}", record.encode())


async def ids(queue: zq.Queue[bytes]) -> list[str]:
    return [record.id async for record in queue.history()]


async def test_clean_up_removes_expired_history_at_its_interval_and_follows_a_new_lifetime(
    connect: Connect, server_view: Observer, base: str
) -> None:
    session = await connect(janitor=True)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=timedelta(days=7)), clean_every=0.2))
    old, recent = record("old", timedelta(days=8)), record("recent", timedelta(days=3))
    await write_history(server_view, base, old, recent)
    await server_view.gone(f"{base}/history/{old.place}")
    await server_view.gone(f"{base}/history/{old.place.partition('/')[0]}")
    assert await ids(jobs) == ["recent"]
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=timedelta(days=2))))
    await server_view.gone(f"{base}/history/{recent.place}")
    job = await jobs.put(b"one")
    await take_one(session)
    assert await ids(jobs) == [job]


async def test_a_queue_whose_record_of_clean_up_an_acl_protects_is_cleaned_again(
    connect: Connect, server_view: Observer, base: str
) -> None:
    session = await connect(janitor=True)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=timedelta(days=7)), clean_every=0.1))
    await server_view.until_there(f"{base}/janitor")
    protected = make_acl("world", "anyone", read=True, create=True, delete=True)  # not: to write
    await server_view.set_acl(f"{base}/janitor", [protected])
    for age in (8, 9, 10):
        old = record(f"old-{age}", timedelta(days=age))
        await write_history(server_view, base, old)
        await server_view.gone(f"{base}/history/{old.place}")


async def test_a_session_that_opted_out_does_not_clean(connect: Connect, server_view: Observer, base: str) -> None:
    out = await connect(janitor=False)
    jobs = out.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(), clean_every=0.05))
    await write_history(server_view, base, record("old", timedelta(days=8)))
    for _ in range(20):
        await jobs.put(b"one")
        await take_one(out)
    await asyncio.sleep(0.5)
    assert "old" in await ids(jobs)
    assert not await server_view.exists(f"{base}/janitor")
    taking = await connect(janitor=True)
    await taking.queue("jobs").configuration()  # a session cleans the queues that it has used
    await server_view.gone(f"{base}/history/{record('old', timedelta(days=8)).place}")


async def test_clean_up_removes_the_oldest_records_beyond_the_maximum(
    session: zq.QueueSession, server_view: Observer, base: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(most=3)))
    ages = [timedelta(hours=hours) for hours in (9, 8, 7.99, 5, 1)]
    await write_history(server_view, base, *(record(f"r{index}", age) for index, age in enumerate(ages)))
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.records == 2
    assert await ids(jobs) == ["r2", "r3", "r4"]


async def test_records_pinned_by_an_audit_stay_until_they_are_unpinned(
    session: zq.QueueSession, server_view: Observer, base: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=3600)))
    await write_history(server_view, base, *(record(f"r{days}", timedelta(days=days)) for days in (4, 3, 2)))
    await pin(handle_of(jobs), "audit", NOW - timedelta(days=3))
    await session.admin.clean("jobs")
    assert await ids(jobs) == ["r3", "r2"]
    await pin(handle_of(jobs), "audit", NOW - timedelta(days=2))
    await session.admin.clean("jobs")
    assert await ids(jobs) == ["r2"]
    assert [(pin.queue, pin.name) for pin in await jobs.admin.pins()] == [("jobs", "audit")]
    assert await jobs.admin.unpin("audit")
    assert not await jobs.admin.unpin("audit")
    assert await jobs.admin.pins() == []
    await session.admin.clean("jobs")
    assert await ids(jobs) == []


async def test_a_pin_set_during_a_clean_up_applies_at_once(
    session: zq.QueueSession, server_view: Observer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=3600)))
    await write_history(server_view, base, *(record(f"r{days}", timedelta(days=days)) for days in (3, 2)))

    async def slowly(handle: QueueHandle[SessionCore]) -> Pins:
        pins = await read_pins(handle)
        await pin(handle, "audit", NOW - timedelta(days=3))
        return pins

    monkeypatch.setattr("aiozkqueue.operations.cleaning.read_pins", slowly)
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.records == 0
    assert await ids(jobs) == ["r3", "r2"]


async def test_clean_up_removes_attempts_only_of_ended_messages(
    session: zq.QueueSession, server_view: Observer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.operations.cleaning.ORPHAN_AGE", -3600.0)  # each record counts as old
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    job = await jobs.put(b"one")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30)
        await tx.rollback()
    await server_view.create(f"{base}/meta/meta-gone", AttemptRecord(2).encode())
    await server_view.create(f"{base}/meta/somebody-elses", b"?")
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.attempts == 1
    assert await server_view.children(f"{base}/meta") == [f"meta-{job}", "somebody-elses"]
    assert await server_view.children(f"{base}/locks") == []
    (peeked,) = await jobs.peek()
    assert peeked.attempt == 1


async def test_clean_up_keeps_the_attempt_of_a_message_that_was_just_claimed(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.operations.cleaning.ORPHAN_AGE", -3600.0)
    await session.queue("jobs").put(b"one")
    async with other.transaction() as tx:
        message = await tx.take(other.queue("jobs"), timeout=10)
        assert message is not None
        (item,) = await server_view.children(f"{base}/items")
        data = await server_view.get(f"{base}/items/{item}")
        await server_view.delete(f"{base}/items/{item}")  # as in a listing that missed the item
        await server_view.create(f"{base}/meta/meta-{message.id}", AttemptRecord(1).encode())
        (cleaned,) = await session.admin.clean("jobs")
        assert cleaned.attempts == 0
        await server_view.create(f"{base}/items/{item}", data)
    assert await server_view.exists(f"{base}/meta/meta-{message.id}")


async def test_clean_up_ends_delays_that_expired_while_nobody_consumed(
    session: zq.QueueSession, server_view: Observer, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.operations.cleaning.ORPHAN_AGE", 0.0)
    monkeypatch.setattr("aiozkqueue.operations.orphans.ORPHAN_AGE", 0.0)
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    ended, announced_badly, running = await jobs.leases.take(3, lifetime=300)
    dues = {name.partition("-")[2]: name for name in await server_view.children(f"{base}/due")}
    for lease in (ended, announced_badly):
        await server_view.delete(f"{base}/due/{dues[lease.id]}")
        lock = LockRecord("c", "o", ms(NOW - timedelta(minutes=5)))
        await server_view.set(f"{base}/locks/lock-{lease.id}", lock.encode())
    place = next(name for name in await server_view.children(f"{base}/items") if ended.id in name)
    due = f"{base}/due/{ms(NOW - timedelta(minutes=5)):013d}-{ended.id}"
    await server_view.create(due, f"items/{place}".encode())
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.claims == 2
    assert await server_view.children(f"{base}/locks") == [f"lock-{running.id}"]
    assert {(await take_one(session)).id for _ in range(2)} == {ended.id, announced_badly.id}


async def test_clean_up_removes_only_slots_of_clients_gone_for_a_day(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await other.queue("jobs").put(b"one")
    clients = f"{queue_root}/.clients"
    before = await server_view.children(clients)
    assert (await session.admin.clean())[-1].clients == 0
    assert await server_view.children(clients) == before
    monkeypatch.setattr("aiozkqueue.operations.orphans.SLOT_LIFETIME", -3600.0)  # each client counts as gone for a day
    cleaned = (await session.admin.clean())[-1]
    assert (cleaned.queue, cleaned.clients) == (None, len(before))
    await other.queue("jobs").put(b"two")  # a live client creates another slot
    assert await server_view.children(clients) == before
    assert await session.queue("jobs").size() == 2


async def test_clean_up_removes_a_client_with_more_replies_than_a_request_can_delete(
    connect: Connect, queue_root: str, server_view: Observer
) -> None:
    """A caller that has died with many calls: their handlers have replied, and no process reads the replies."""
    session = await connect(janitor=False)
    core = core_of(session)
    caller, later = f"{queue_root}/.clients/caller", timedelta(days=2)
    await core.zookeeper.ensure(caller)
    number, page = core.zookeeper.max_request // len(f"{caller}/reply-0000000000000000") + 1000, 2000
    for start in range(0, number, page):
        await core.zookeeper.multi([Create(f"{caller}/reply-{start + reply:016}") for reply in range(page)])
    cleaned = await clean_root(core, ms(datetime.now(UTC) + later))
    assert cleaned.clients >= 1
    assert "caller" not in await server_view.children(f"{queue_root}/.clients")


@pytest.mark.parametrize("sealed", ["folder", "slot"])
async def test_slots_of_another_user_do_not_keep_clean_up_from_other_clients(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    monkeypatch: pytest.MonkeyPatch,
    sealed: str,
) -> None:
    await session.queue("jobs").put(b"one")
    await other.queue("jobs").put(b"two")
    folder = f"{queue_root}/.clients/{core_of(other).ids.client}"
    [slot] = await server_view.children(folder)
    await set_acl(server_view, folder if sealed == "folder" else f"{folder}/{slot}", readable=sealed == "folder")
    monkeypatch.setattr("aiozkqueue.operations.orphans.SLOT_LIFETIME", -3600.0)  # each client counts as gone for a day
    await session.admin.diagnose()
    assert (await session.admin.clean())[-1].clients == 1
    assert await server_view.children(folder) == [slot]


@pytest.mark.parametrize("named", [(), ("broken", "jobs")])
async def test_a_queue_that_cannot_be_read_does_not_keep_the_others_from_being_cleaned(
    named: tuple[str, ...], connect: Connect, server_view: Observer, base: str, queue_root: str
) -> None:
    session = await connect(janitor=False)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=timedelta(hours=1))))
    await write_history(server_view, base, record("old", timedelta(days=2)))
    await session.queue("broken").put(b"")
    await server_view.set(f"{queue_root}/broken", b"{not json")
    with pytest.raises(zq.PayloadError, match="broken"):
        await session.admin.clean(*named)
    assert await ids(jobs) == []


async def test_several_sessions_clean_one_at_a_time_at_the_shared_interval(
    connect: Connect, server_view: Observer, base: str
) -> None:
    sessions = [await connect(janitor=True) for _ in range(4)]
    begun = asyncio.get_running_loop().time()
    await sessions[0].queue("jobs").configure(zq.QueueConfig(history=zq.History(), clean_every=0.5))
    for session in sessions:
        await session.queue("jobs").configuration()

    async def cleaned_thrice() -> bool:
        return await server_view.exists(f"{base}/janitor") and await server_view.version(f"{base}/janitor") >= 3

    await eventually(cleaned_thrice, 30)
    passes = await server_view.version(f"{base}/janitor")
    assert passes <= (asyncio.get_running_loop().time() - begun) / 0.5 + 1
    last_pass = json.loads(await server_view.get(f"{base}/janitor"))
    assert last_pass["queue"] == "jobs"


async def test_concurrent_clean_ups_remove_each_record_once(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, base: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(most=5)))
    await write_history(
        server_view, base, *(record(f"r{index}", timedelta(minutes=200 - index)) for index in range(60))
    )
    both = await asyncio.gather(session.admin.clean("jobs"), other.admin.clean("jobs"), session.admin.clean("jobs"))
    assert sum(removed.records for (removed,) in both) == 55
    assert await ids(jobs) == [f"r{index}" for index in range(55, 60)]


async def test_clean_up_does_not_create_a_missing_queue(
    session: zq.QueueSession, server_view: Observer, base: str
) -> None:
    (cleaned,) = await session.admin.clean("jobs")
    assert cleaned.total == 0
    assert not await server_view.exists(base)
