"""A message that the user may not read: operators' calls process the other messages and name this one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import PartlyDeniedError
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import clean_readable, core_of
from aiozkqueue.zookeeper.wire import error_of
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from aiozkqueue.admin import ConsumerInfo, QueueStats
    from aiozkqueue.zookeeper import Node
    from tests.observer import Observer


async def sealed_among(
    session: zq.QueueSession, view: Observer, root: str, bodies: list[bytes], folder: str = "items"
) -> str:
    """Put messages, the first of which only another user may read; return its id."""
    [first, *_] = await session.queue("jobs").put_many(bodies)
    if folder == "dlq":
        async with session.transaction() as tx:
            for message in await tx.take_many(session.queue("jobs"), len(bodies), timeout=30):
                tx.reject(message, "no use")
    names = sorted(await view.children(f"{root}/jobs/{folder}"))
    [name] = [name for name in names if first in name]
    await set_acl(view, f"{root}/jobs/{folder}/{name}", readable=False)
    return first


def is_logged(caplog: pytest.LogCaptureFixture, message_id: str) -> bool:
    return any(message_id in record.getMessage() for record in caplog.records)


async def test_peek_skips_unreadable_messages_and_reports_them(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = await sealed_among(session, server_view, queue_root, [b"sealed", b"a", b"b", b"c"])
    jobs = session.queue("jobs")
    assert [message.body for message in await jobs.peek(2)] == [b"a", b"b"]
    assert is_logged(caplog, sealed)
    assert [message.body for message in await jobs.peek()] == [b"a", b"b", b"c"]


async def test_peek_shows_a_message_with_an_unreadable_attempt_record(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"a")
    meta = f"{queue_root}/jobs/meta/meta-{message}"
    await server_view.create(meta, b'{"attempts":1}')
    await set_acl(server_view, meta, readable=False)
    [shown] = await jobs.peek()
    assert shown.body == b"a"
    assert "attempts" in (shown.error or "")


@pytest.mark.parametrize("grouped", [False, True])
async def test_purge_names_the_messages_that_it_could_not_remove_and_removes_the_others(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, grouped: bool
) -> None:
    jobs = session.queue("jobs")
    if grouped:
        await jobs.configure(zq.QueueConfig(ordered=True))
    sealed = await sealed_among(session, server_view, queue_root, [b"sealed", *(b"%d" % number for number in range(9))])
    with pytest.raises(PartlyDeniedError, match=sealed) as raised:
        await jobs.purge()
    assert (raised.value.message_ids, raised.value.done) == ((sealed,), 9)
    [left] = await server_view.children(f"{queue_root}/jobs/items")
    assert sealed in left
    assert await server_view.children(f"{queue_root}/jobs/locks") == []


async def test_an_unreadable_message_does_not_affect_stats_or_other_messages(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    sealed = await sealed_among(session, server_view, queue_root, [b"sealed", b"a"])
    figures = await jobs.stats()
    assert figures.size == 2
    assert figures.oldest is not None
    [readable] = await jobs.peek()
    assert (await other.queue("jobs").state(readable.id)).status is zq.Status.WAITING
    with pytest.raises(zq.AccessDeniedError, match="jobs"):
        await jobs.state(sealed)
    assert await jobs.cancel(id=readable.id) is zq.Alteration.DONE
    assert any(sealed in finding.text for finding in (await session.admin.diagnose("jobs")).findings)


async def test_claims_are_released_by_force_despite_one_of_an_unreadable_message(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = other.queue("jobs")
    ids = await jobs.put_many([b"a", b"b"])
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(session.queue("jobs"), 2, timeout=30)) == 2
        [name] = [name for name in await server_view.children(f"{queue_root}/jobs/items") if ids[0] in name]
        await set_acl(server_view, f"{queue_root}/jobs/items/{name}", readable=False)
        with pytest.raises(PartlyDeniedError, match=ids[0]) as raised:
            await jobs.admin.release_claims()
        assert raised.value.done == 1
        [lock] = await server_view.children(f"{queue_root}/jobs/locks")
        assert ids[0] in lock
        await tx.rollback()


async def test_dead_letters_are_listed_and_redriven_despite_an_unreadable_one(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = await sealed_among(session, server_view, queue_root, [b"sealed", b"a", b"b"], "dlq")
    letters = session.queue("jobs").dead_letters
    assert sorted([letter.body for letter in await letters.peek(2)]) == [b"a", b"b"]
    assert is_logged(caplog, sealed)
    with pytest.raises(PartlyDeniedError, match=sealed) as raised:
        await letters.redrive()
    assert raised.value.done == 2
    assert await session.queue("jobs").size() == 2
    assert await letters.size() == 1


async def test_samples_leave_out_the_age_of_an_unreadable_message(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    sampler = Sampler(session)
    await sealed_among(session, server_view, queue_root, [b"sealed", b"a"])
    [readable] = await session.queue("jobs").peek()
    await sampler.sample_all(0)
    assert sampler.unreadable == {}
    sample = sampler.latest["jobs"]
    assert (sample.size, sample.oldest) == (2, pytest.approx(readable.enqueued_at.timestamp(), abs=0.001))


async def test_a_diagnosis_reports_a_queue_that_a_server_refuses_to_read_by_an_unknown_code(
    session: zq.QueueSession, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.queue("good").put(b"1")
    await session.queue("odd").put(b"1")
    zookeeper = core_of(session).zookeeper
    read = zookeeper.read

    async def refused(path: str, **options: Any) -> Node:
        if path == f"{queue_root}/odd":
            raise error_of(-997)
        return await read(path, **options)

    monkeypatch.setattr(zookeeper, "read", refused)
    diagnosis = await session.admin.diagnose()
    assert [queue.size for queue in diagnosis.queues if queue.name == "good"] == [1]
    [finding] = [finding for finding in diagnosis.findings if finding.subject == "odd"]
    assert "a server refuses to read it: ZooKeeper error -997" in finding.text
    assert finding.advice == "the logs of the servers may show why"


async def test_a_move_that_leaves_an_unreadable_message_has_failed_and_names_its_cause(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await sealed_among(session, server_view, queue_root, [b"sealed", b"a", b"b"])
    moves = session.admin.moves
    reference = await moves.start("jobs", "others")

    async def ended() -> bool:
        return (await moves.status(reference)).ended is not None

    await eventually(ended)
    status = await moves.status(reference)
    assert (status.state, status.moved) == ("failed", 2)
    assert "1 message left in jobs" in (status.error or "")


#: Znodes that a queue stores for itself, by their folders.
ENTRIES = {
    "consumers": "Fo0reign0000-99",
    "waiting": "Fo0reign0000-1",
    "history/.pins": "audit",
    "due": "1796030060579-Fo0reign0000000001",
    "keys": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "filters": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    "locks": "lock-Fo0reign0000000001",
    "meta": "meta-Fo0reign0000000001",
    "ledger": "stream",
    "sinks": "writer",
    "janitor": "lock",
}


@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize("folder", ENTRIES)
async def test_messages_are_delivered_and_cleaned_although_an_entry_of_their_queue_is_unreadable(
    session: zq.QueueSession, server_view: Observer, queue_root: str, folder: str, *, ephemeral: bool
) -> None:
    jobs, delivered = session.queue("jobs"), list[bytes]()
    await jobs.configure(zq.QueueConfig(history=zq.History(), max_size=100))
    if not await server_view.exists(f"{queue_root}/jobs/{folder}"):
        await server_view.create(f"{queue_root}/jobs/{folder}")
    entry = f"{queue_root}/jobs/{folder}/{ENTRIES[folder]}"
    await server_view.create(entry, b"x", ephemeral=ephemeral)
    await set_acl(server_view, entry, readable=False)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivered.append(delivery.body)

    async def all_delivered() -> bool:
        return sorted(delivered) == [b"0", b"1", b"2"]

    async def expired_is_removed() -> bool:
        with suppress(zq.AccessDeniedError):  # names the entry, if the clean-up needs it
            await session.admin.clean("jobs")
        return await jobs.size() == 0

    await jobs.put(b"0", key="k", unique=True)
    async with session.listener(jobs, handler):
        await jobs.put(b"1", tags={"country": "it"})
        await jobs.put(b"2", delay=0.1)
        await eventually(all_delivered, 30)
    await jobs.put(b"expires", ttl=0.05)
    await eventually(expired_is_removed, 30)


async def test_a_cleanup_counts_the_readable_parts_of_a_queue_and_names_the_unreadable_one(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    await server_view.create(f"{queue_root}/jobs/later/400000")  # an hour of 2015
    sealed = f"{queue_root}/jobs/history/.pins"
    if not await server_view.exists(sealed):
        await server_view.create(sealed)
    await set_acl(server_view, sealed, readable=False)
    [cleaned], [failure] = await clean_readable(session.admin, ["jobs"])
    assert (cleaned.queue, cleaned.hours) == ("jobs", 1)
    assert sealed in str(failure)


#: Znodes of a queue with bundles, and the figures that leave out something if a user may not read the znode.
FIGURES = {
    "locks": {"in_flight"},
    "due": {"in_flight", "retrying", "oldest"},
    "due/1796030060579-Fo0reign0000000001": {"oldest"},
    "due/4000000000000-Fo0reign0000000001": set[str](),
    "dlq": {"dead_letters"},
    "consumers": {"consumers"},
    "consumers/Fo0reign0000-99": set[str](),
    "waiting": {"waiting_producers"},
    "keys": {"unique_keys"},
    "filters": {"tags"},
    "bundled": {"put", "removed"},
    "bundled/3": {"put", "removed"},
    "meta": {"size", "in_flight"},
    "meta/bundle-Fo0reign0000000001": {"size", "in_flight"},
    "ledger": {"ledgers"},
    "ledger/stream": {"ledgers"},
    "later": {"size", "put", "removed", "priorities"},
    "later/HOUR": {"size", "put", "removed", "priorities"},
}


@pytest.mark.parametrize("path", FIGURES)
async def test_stats_reports_what_can_be_read_and_names_the_figures_that_leave_something_out(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str, path: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=64))
    await jobs.put_many([b"1", b"2", b"3"])
    await jobs.put(b"later", delay=86_400)
    figures: list[QueueStats] = []
    with suppress(zq.AccessDeniedError):  # of the commit, without rights on the locks
        async with other.transaction() as tx:
            assert await tx.take(other.queue("jobs"), timeout=30) is not None
            [hour] = await server_view.children(f"{queue_root}/jobs/later")
            sealed = f"{queue_root}/jobs/{path.replace('HOUR', hour)}"
            if not await server_view.exists(sealed):
                await server_view.create(sealed)
            await set_acl(server_view, sealed, readable=False)
            figures.append(await jobs.stats())
    [stats] = figures
    leaves_out = FIGURES[path]
    assert leaves_out <= set(stats.unreadable)
    assert bool(leaves_out) == bool(stats.unreadable)
    assert all(sealed in reason for reason in stats.unreadable.values())
    if "size" not in leaves_out:
        assert (stats.size, stats.scheduled) == (4, 1)
    if "meta" in path:
        assert stats.scheduled == 1
    if "in_flight" not in stats.unreadable and "due" not in path:
        assert stats.in_flight == 1
    if "later" in path:
        assert stats.size == 3


#: Znodes of a queue with bundles, and the figures of a sample that leave something out if they may not be read.
SAMPLED = {
    "locks": {"in_flight"},
    "due": {"in_flight", "retrying", "oldest"},
    "due/1796030060579-Fo0reign0000000001": {"oldest"},
    "dlq": {"dead_letters"},
    "consumers": {"consumers"},
    "bundled": {"put"},
    "meta": {"size", "in_flight"},
    "meta/bundle-Fo0reign0000000001": {"size", "in_flight"},
    "later": {"size", "put"},
    "later/HOUR": {"size", "put"},
}


@pytest.mark.parametrize("path", SAMPLED)
async def test_samples_sizes_and_diagnoses_report_what_can_be_read_and_name_what_cannot(
    session: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    jobs, sampler = session.queue("jobs"), Sampler(session)
    await jobs.configure(zq.QueueConfig(bundle=64))
    await jobs.put_many([b"1", b"2", b"3"])
    await jobs.put(b"later", delay=86_400)
    [hour] = await server_view.children(f"{queue_root}/jobs/later")
    sealed = f"{queue_root}/jobs/{path.replace('HOUR', hour)}"
    if not await server_view.exists(sealed):
        await server_view.create(sealed)
    await set_acl(server_view, sealed, readable=False)
    await sampler.sample_all(0)
    assert sampler.unreadable == {}
    sample = sampler.latest["jobs"]
    left = 3 if "later" in path else 4
    assert SAMPLED[path] <= set(sample.unreadable)
    assert all(sealed in reason for reason in sample.unreadable.values())
    assert path == "meta" or sample.size == left
    assert sealed in sampler.partly_unreadable["jobs"]
    if "size" in SAMPLED[path]:
        caplog.clear()
        assert path == "meta" or await jobs.size() == left
        assert path == "meta" or sealed in caplog.text
    [facts] = (diagnosis := await session.admin.diagnose("jobs")).queues
    assert facts.trouble is None
    assert facts.size == left
    assert facts.orphan_locks == facts.orphan_metas == facts.unannounced_locks == ()
    if path != "bundled":  # which a diagnosis does not read
        assert any(sealed in finding.text for finding in diagnosis.findings)


async def entry_of(view: Observer, root: str, session: zq.QueueSession) -> str:
    """Return the name of a session's entry in the registry of consumers."""
    client = core_of(session).ids.client
    [entry] = [name for name in await view.children(f"{root}/jobs/consumers") if name.startswith(client)]
    return entry


@pytest.mark.parametrize("path", ["locks", "locks/own", "consumers/own", "consumers/Fo0reign0000-99"])
async def test_consumers_are_listed_although_one_of_them_or_its_lock_is_unreadable(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    found: list[ConsumerInfo] = []
    with suppress(zq.AccessDeniedError):  # of the commit, without rights on the locks
        async with other.transaction() as tx, session.transaction() as second:
            [first] = await tx.take_many(other.queue("jobs"), 1, timeout=30)
            [following] = await second.take_many(jobs, 1, timeout=30)
            folder, _, name = path.partition("/")
            own = {"locks": f"lock-{first.id}", "consumers": await entry_of(server_view, queue_root, other)}
            sealed = f"{queue_root}/jobs/{folder}" + (f"/{own[folder] if name == 'own' else name}" if name else "")
            if not await server_view.exists(sealed):
                await server_view.create(sealed)
            await set_acl(server_view, sealed, readable=False)
            found = await jobs.admin.consumers()
    expected = {
        core_of(other).ids.client: () if folder == "locks" else (first.id,),
        core_of(session).ids.client: () if path == "locks" else (following.id,),
    }
    if path == "consumers/own":
        del expected[core_of(other).ids.client]
    assert {consumer.client: consumer.messages for consumer in found} == expected
    assert sealed in caplog.text
