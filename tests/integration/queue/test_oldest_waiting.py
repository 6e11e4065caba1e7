"""The age of the oldest waiting message: messages in flight and delayed ones do not count."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import aiozkqueue as zq
from aiozkqueue import sampling
from aiozkqueue.metrics import collector, queue_gauges
from aiozkqueue.sampling import Sampler
from aiozkqueue.testing import Opcode
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_metrics import samples, values_of, wait_for_samples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client import Metric

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener


class Gauges(CollectorRegistry):
    """The metrics of the last samples."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler

    def collect(self) -> Iterator[Metric]:
        yield from queue_gauges(self.sampler.latest, ())


AGE = "aiozkqueue_queue_oldest_waiting_age_seconds jobs"


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(3600)))


@pytest.fixture
async def oldest(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> Callable[[], Awaitable[bytes | None]]:
    """Returns the body of the oldest waiting message, which must be the same in the queue's figures and samples."""
    sampler = Sampler(session)

    async def body() -> bytes | None:
        since = (await jobs.stats()).oldest
        for _ in range(2):  # the second sample uses the result of the first
            sample = await sampler.sample("jobs")
            sampled = None if sample is None else sample.oldest  # it does not exist before the first put
            assert sampled == (None if since is None else pytest.approx(since.timestamp(), abs=0.001))
        if since is None:
            return None
        (found,) = [message.body for message in await jobs.peek(100) if message.enqueued_at == since]
        return found

    return body


async def put_apart(jobs: zq.Queue[bytes], *bodies: bytes, **options: object) -> None:
    """Put messages at different milliseconds, so that their times differ."""
    for body in bodies:
        await jobs.put(body, **options)  # type: ignore[arg-type]
        await asyncio.sleep(0.005)


async def test_delayed_messages_do_not_count_as_waiting_and_have_no_age(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    metrics = collector(session)
    await jobs.put(b"next week", delay=timedelta(days=7))
    await wait_for_samples(metrics, messages=1, scheduled=1, delayed=1, waiting=0)
    assert AGE not in await samples(metrics)
    await jobs.put(b"now")
    await wait_for_samples(metrics, messages=2, scheduled=1, delayed=1, waiting=1)
    assert 0 <= (await samples(metrics))[AGE] < 60


@pytest.mark.parametrize("ahead", [-7200, 7200])
async def test_the_age_is_right_on_a_machine_whose_clock_is_wrong_or_is_set(
    session: zq.QueueSession, other: zq.QueueSession, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    await other.queue("jobs").put(b"x")
    right, sampler = time.time, Sampler(session)

    async def is_right() -> bool:  # soon, because a reading does not wait long for the time of a slow server
        await sampler.sample("jobs")
        age, shown = values_of(generate_latest(Gauges(sampler)))[AGE], (await session.queue("jobs").stats()).oldest_age
        return 0 < age < 3600 and shown is not None and 0 < shown < 3600

    for offset in (ahead, 0, 2 * ahead):
        monkeypatch.setattr(time, "time", lambda offset=offset: right() + offset)
        await eventually(is_right, 40)


async def test_a_queue_is_sampled_although_a_write_takes_longer_than_a_sample_may(
    open_session: Opener, other: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy
) -> None:
    await other.queue("jobs").put(b"x")
    session = await open_session(zookeeper_proxy.hosts)
    sampler = Sampler(session)
    held = zookeeper_proxy.hold_reply(Opcode.MULTI)
    sampling_it = asyncio.create_task(sampler.sample("jobs"))
    await held.struck()
    await asyncio.sleep(sampling.SAMPLE_TIMEOUT + 0.1)  # less than the time for a write and for a sample together
    held.release()
    await sampling_it
    assert sampler.latest["jobs"].age(time.time()) is not None


async def test_the_oldest_is_the_first_that_is_neither_in_flight_nor_retried_later(
    session: zq.QueueSession, jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    assert await oldest() is None
    await put_apart(jobs, b"1", b"2", b"3")
    assert await oldest() == b"1"
    async with session.transaction() as tx:
        first = await tx.take(jobs)
        assert first is not None
        assert await oldest() == b"2"
        tx.release(first, delay=3600)
    assert await oldest() == b"2"
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 2)) == 2
        assert await oldest() is None
    assert (await jobs.size(), await oldest()) == (1, None)


async def test_a_message_waits_from_the_end_of_its_delay(
    jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    before = datetime.now().astimezone()
    await jobs.put(b"soon", delay=1.0)
    assert await oldest() is None

    async def waits() -> bool:
        return (await jobs.stats()).waiting == 1

    await eventually(waits, 30)
    since = (await jobs.stats()).oldest
    assert since is not None
    assert timedelta(seconds=0.9) < since - before < timedelta(seconds=30)


async def test_a_message_whose_retry_is_due_waits_though_no_consumer_is_there_to_see_it(
    session: zq.QueueSession, jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    await put_apart(jobs, b"1", b"2")
    async with session.transaction() as tx:
        taken = await tx.take(jobs)
        assert taken is not None
        assert await oldest() == b"2"
        tx.release(taken, delay=0.5)

    async def both_wait() -> bool:
        return (await jobs.stats()).waiting == 2

    await eventually(both_wait, 30)
    assert await oldest() == b"1"


async def test_the_oldest_of_all_priorities_counts(
    jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    for number in range(5):
        await put_apart(jobs, b"%d" % number)
    await put_apart(jobs, b"urgent", priority=-3)
    await put_apart(jobs, b"low", priority=3)
    assert await oldest() == b"0"


async def test_messages_behind_the_one_in_flight_of_their_group_wait(
    session: zq.QueueSession, jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    await put_apart(jobs, b"1", b"2", b"3", group="a")
    await put_apart(jobs, b"4", group="b")
    async with session.transaction() as tx:
        first = await tx.take(jobs)
        assert first is not None
        assert first.body == b"1"
        assert await oldest() == b"2"


async def test_held_bundles_do_not_wait(
    session: zq.QueueSession, jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]]
) -> None:
    await jobs.configure(zq.QueueConfig(bundle=64))
    await jobs.put_many([b"1", b"2"])
    await asyncio.sleep(0.005)
    await jobs.put_many([b"3", b"4"])
    since = (await jobs.stats()).oldest
    assert since is not None
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 2)) == 2
        later = (await jobs.stats()).oldest
        assert later is not None
        assert later > since
        assert len(await tx.take_many(jobs, 2)) == 2
        assert await oldest() is None


async def test_metrics_show_a_pause_and_the_capacity(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    metrics = collector(session)
    await jobs.put(b"1")
    await wait_for_samples(metrics, paused=0, messages=1)
    assert "aiozkqueue_queue_max_size jobs" not in await samples(metrics)
    await jobs.configure(zq.QueueConfig(max_size=50, paused=True))
    await wait_for_samples(metrics, paused=1, max_size=50, waiting=1)


async def test_a_deep_queue_has_an_age_that_is_at_most_a_minute_late(
    session: zq.QueueSession, jobs: zq.Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "LISTED", 1)
    await put_apart(jobs, b"1", b"2", b"3")
    sampler = Sampler(session)

    async def since() -> float | None:
        await sampler.sample("jobs")
        return sampler.latest["jobs"].oldest

    first = (await jobs.peek(1))[0].enqueued_at.timestamp()
    assert await since() == pytest.approx(first, abs=0.001)
    async with session.transaction() as tx:
        assert await tx.take(jobs) is not None
    assert await since() == pytest.approx(first, abs=0.001), "the last listing is less than a minute old"
    monkeypatch.setattr(sampling, "RETRY", 0)
    second = (await jobs.peek(1))[0].enqueued_at.timestamp()
    assert await since() == pytest.approx(second, abs=0.001)
    await jobs.put_many([b"4", b"5"])
    monkeypatch.setattr(sampling, "MOST_LISTED", 1)
    async with session.transaction() as tx:
        assert await tx.take(jobs) is not None
    assert await since() is None, "a queue of this depth is not listed"


@pytest.mark.parametrize("end", ["commit", "retry"])
async def test_the_lock_of_a_queue_that_was_ordered_hides_only_the_message_that_it_holds(
    other: zq.QueueSession, jobs: zq.Queue[bytes], oldest: Callable[[], Awaitable[bytes | None]], end: str
) -> None:
    await jobs.configure(zq.QueueConfig(ordered=True))
    await jobs.put(b"held")
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=30) is not None
        await jobs.configure(zq.QueueConfig(ordered=False))
        await put_apart(jobs, b"urgent", priority=5)
        if end == "retry":
            await tx.rollback(delay=3600)
        assert await oldest() == b"urgent"
        await put_apart(jobs, b"grouped", group="a")
        stats = await jobs.stats()
        assert (stats.groups, stats.groups_held) == (1, 0)


@pytest.mark.parametrize("end", ["commit", "retry"])
@pytest.mark.parametrize("order", ["ordered", "by group"])
async def test_a_group_is_held_by_a_lock_from_before_its_queue_changed_its_order(
    other: zq.QueueSession, jobs: zq.Queue[bytes], order: str, end: str
) -> None:
    ordered = order == "ordered"
    await jobs.configure(zq.QueueConfig(ordered=not ordered))
    await jobs.put_many([b"1", b"2"], group="a")
    await jobs.put(b"3", group="b")
    async with other.transaction() as tx:
        held = await tx.take(other.queue("jobs"), timeout=30)
        assert held is not None
        assert held.value == b"1"
        await jobs.configure(zq.QueueConfig(ordered=ordered))
        if end == "retry":
            await tx.rollback(delay=3600)
        stats = await jobs.stats()
        assert (stats.groups, stats.groups_held) == (1 if ordered else 2, 1)


async def test_an_ordered_queue_is_held_by_the_lock_of_a_message_from_before(
    other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.put_many([b"1", b"2"])
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=30) is not None
        await jobs.configure(zq.QueueConfig(ordered=True))
        stats = await jobs.stats()
        assert (stats.groups, stats.groups_held) == (1, 1)
