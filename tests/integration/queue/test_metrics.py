"""The Prometheus metrics of a session and its queues: applied changes only, and nothing before a collector exists."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import aiozkqueue as zq
from aiozkqueue.metrics import collector
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import TestClock
from aiozkqueue.zookeeper import NoAuthError, State
from tests.faults.account import CLAIM
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch
    from aiozkqueue.metrics import SessionCollector
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener


def values_of(text: bytes) -> dict[str, float]:
    """Return every sample by its name and the values of its labels."""
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items(), reverse=True))]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def samples(collecting: SessionCollector) -> dict[str, float]:
    return values_of(await collecting.text())


async def wait_for_samples(collecting: SessionCollector, **expected: float) -> None:
    """Wait until the metrics of the queue ``jobs`` have these values, because a sample may be a second old."""

    async def reached() -> bool:
        now = await samples(collecting)
        return all(now.get(f"aiozkqueue_queue_{name} jobs") == value for name, value in expected.items())

    await eventually(reached, 30)


async def test_metrics_count_messages_put_handled_retried_and_dead_lettered(session: zq.QueueSession) -> None:
    metrics = collector(session)
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if delivery.body == b"poison":
            raise zq.Reject("poison")
        if delivery.attempt == 1:
            raise RuntimeError
        delivery.put("results", b"done")

    await jobs.put_many([b"1", b"2", b"poison"])

    async def done() -> bool:
        return await jobs.size() == 0

    async with session.listener(jobs, handler):
        await eventually(done, 30)
    now = await samples(metrics)
    assert now["aiozkqueue_messages_put_total jobs"] == 3
    assert now["aiozkqueue_messages_put_total results"] == 2
    assert now["aiozkqueue_messages_claimed_total jobs"] == 5
    assert now["aiozkqueue_messages_retried_total jobs"] == 2
    assert now["aiozkqueue_messages_consumed_total jobs"] == 2
    assert now["aiozkqueue_messages_dead_lettered_total jobs"] == 1
    assert now["aiozkqueue_transactions_total committed"] == 3
    assert now["aiozkqueue_transactions_total rolled_back"] == 2
    assert now["aiozkqueue_message_wait_seconds_count jobs"] == 3
    assert now["aiozkqueue_message_handling_seconds_count jobs"] == 5
    assert now["aiozkqueue_message_handling_seconds_bucket jobs +Inf"] == 5
    # Each put, release and commit was in one group, and no group was larger than all of them together.
    assert now["aiozkqueue_group_commit_size_bucket 1.0"] <= now["aiozkqueue_group_commit_size_count"] <= 20
    assert now["aiozkqueue_group_commit_size_sum"] >= 6
    await wait_for_samples(metrics, messages=0, dead_letters=1)


@pytest.mark.parametrize("bundle", [1, 64], ids=["single items", "bundles"])
async def test_a_message_that_fails_without_end_is_counted_from_its_tenth_attempt_on(
    session: zq.QueueSession, bundle: int
) -> None:
    metrics = collector(session)
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.configure(zq.QueueConfig(bundle=bundle))
    await jobs.put_many([b"poison", *[b"good"] * 39])
    counts: list[float] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if delivery.body == b"poison":
            counts.append((await samples(metrics))["aiozkqueue_messages_retried_often_total jobs"])
            if delivery.attempt == 13:
                raise zq.Reject("poison")
            raise RuntimeError

    async def done() -> bool:
        return await jobs.size() == 0

    async with session.listener(jobs, handler):
        await eventually(done, 30)
    assert counts == [0] * 10 + [1, 2, 3]


@pytest.mark.parametrize("batch", [None, 2], ids=["deliveries", "batches"])
async def test_metrics_show_for_how_long_the_oldest_handler_has_been_running(
    zookeeper: str, queue_root: str, batch: int | None
) -> None:
    clock, may_end, begun = TestClock(), asyncio.Event(), list[bytes]()
    name = "aiozkqueue_handler_oldest_age_seconds jobs"

    async def handle(messages: list[bytes]) -> None:
        begun.extend(messages)
        await may_end.wait()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await handle([delivery.body])

    async def batch_handler(batch: Batch[bytes]) -> None:
        await handle([message.body for message in batch])

    async with zq.connect(zookeeper, root=queue_root, clock=clock, session_timeout=20) as session:
        metrics, jobs = collector(session), session.queue("jobs")

        async def first_runs() -> bool:
            return begun == [b"1"]

        async def both_run() -> bool:
            return begun == [b"1", b"2"]

        async def none_runs() -> bool:
            return name not in await samples(metrics)

        listener = (
            session.listener(jobs, handler, concurrency=2)
            if batch is None
            else session.listener(jobs, batch_handler, batch=batch, batch_wait=0, concurrency=2)
        )
        async with listener:
            assert await none_runs()
            await jobs.put(b"1")
            await eventually(first_runs, 30)
            clock.advance(600)
            await jobs.put(b"2")
            await eventually(both_run, 30)
            clock.advance(300)
            assert 900 <= (await samples(metrics))[name] < 960
            may_end.set()
            await eventually(none_runs, 30)


async def test_the_waiting_time_starts_at_the_due_time_and_handling_ends_with_the_commit(
    session: zq.QueueSession,
) -> None:
    metrics = collector(session)
    jobs = session.queue("jobs")
    await jobs.put(b"waits")
    await asyncio.sleep(0.6)  # longer than the uncertainty of the server's time, which is a round trip
    async with session.transaction() as tx:
        assert await tx.take(jobs) is not None
        await asyncio.sleep(0.3)
    now = await samples(metrics)
    assert now["aiozkqueue_message_wait_seconds_sum jobs"] >= 0.25
    assert now["aiozkqueue_message_wait_seconds_bucket jobs 0.25"] == 0
    assert now["aiozkqueue_message_handling_seconds_sum jobs"] >= 0.3
    assert now["aiozkqueue_message_handling_seconds_bucket jobs 0.25"] == 0
    before = now["aiozkqueue_message_wait_seconds_sum jobs"]
    begun = time.monotonic()
    await jobs.put(b"is due in a second", delay=1)
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        elapsed = time.monotonic() - begun
    later = await samples(metrics)
    assert later["aiozkqueue_message_wait_seconds_count jobs"] == 2
    assert later["aiozkqueue_message_wait_seconds_sum jobs"] - before < elapsed - 0.75


async def test_metrics_show_the_state_of_the_queues_that_the_session_uses(
    session: zq.QueueSession, open_session: Opener
) -> None:
    await (await open_session()).queue("others").put(b"1")
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    metrics = collector(session)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs) is not None
        await wait_for_samples(metrics, messages=3, in_flight=1, consumers=1)
        await tx.rollback()
    now = await samples(metrics)
    assert 0 <= now["aiozkqueue_queue_oldest_waiting_age_seconds jobs"] < 3600
    assert not any(name.endswith(" others") for name in now)


async def test_the_counters_of_a_queue_begin_at_zero_so_that_prometheus_sees_the_first_increase(
    session: zq.QueueSession,
) -> None:
    metrics = collector(session)
    jobs, legacy = session.queue("jobs"), session.kazoo_queue("/metrics-legacy")
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
        assert await tx.take(legacy) is None
    before = await samples(metrics)
    for queue in ("jobs", "/metrics-legacy"):
        for event in ("put", "consumed", "retried", "retried_often", "dead_lettered"):
            assert before[f"aiozkqueue_messages_{event}_total {queue}"] == 0
    assert "aiozkqueue_message_wait_seconds_count jobs" not in before  # a histogram has twenty lines
    await jobs.put(b"one")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
    after = await samples(metrics)
    assert after["aiozkqueue_messages_put_total jobs"] == after["aiozkqueue_messages_consumed_total jobs"] == 1


async def test_metrics_count_the_queues_whose_state_they_omit(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.sampling.MOST_QUEUES", 2)
    metrics = collector(session)
    for name in ("a", "b", "c", "d", "e"):
        await session.queue(name).put(b"1")

    async def counted() -> bool:
        return (await samples(metrics))["aiozkqueue_queues_omitted"] == 3

    await eventually(counted, 30)
    now = await samples(metrics)
    assert now["aiozkqueue_queue_messages b"] == 1
    assert "aiozkqueue_queue_messages c" not in now


async def test_metrics_count_claims_that_another_session_won(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, session: zq.QueueSession
) -> None:
    slow = await open_session(zookeeper_proxy.hosts, session_timeout=20)
    metrics = collector(slow)
    await session.queue("jobs").put(b"1")
    held = zookeeper_proxy.hold_request(CLAIM)
    async with slow.transaction(autocommit=False) as late:
        taking = asyncio.create_task(late.take(slow.queue("jobs"), timeout=60))
        await held.struck(30)
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=30) is not None
            held.release()

            async def contended() -> bool:
                return (await samples(metrics)).get("aiozkqueue_claim_requests_contended_total jobs") == 1

            await eventually(contended, 30)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def test_metrics_show_the_connection(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    metrics = collector(session)
    now = await samples(metrics)
    assert (now["aiozkqueue_session_state connected"], now["aiozkqueue_session_state suspended"]) == (1, 0)
    assert now["aiozkqueue_session_reconnects_total"] == 0
    zookeeper_proxy.refuse()
    zookeeper_proxy.reset_connections()

    async def suspended() -> bool:
        return (await samples(metrics))["aiozkqueue_session_state connected"] == 0

    async def connected() -> bool:
        return (await samples(metrics))["aiozkqueue_session_state connected"] == 1

    await eventually(suspended, 30)
    await zookeeper_proxy.listen()
    await eventually(connected, 30)

    async def reconnected() -> bool:
        return (await samples(metrics))["aiozkqueue_session_reconnects_total"] >= 1

    await eventually(reconnected, 30)
    await expire(session)

    async def counted() -> bool:
        now = await samples(metrics)
        return now["aiozkqueue_session_expirations_total"] >= 1 and now["aiozkqueue_session_reconnects_total"] >= 2

    await eventually(counted, 30)


async def test_a_list_of_all_queues_adds_none_to_the_metrics_of_a_session(
    session: zq.QueueSession, open_session: Opener
) -> None:
    metrics = collector(session)
    await session.queue("jobs").put(b"1")
    await (await open_session()).queue("elsewhere").put(b"1")
    assert await session.queues() == ["elsewhere", "jobs"]
    text = await metrics.text()
    assert b'queue="jobs"' in text
    assert b'queue="elsewhere"' not in text


async def test_samples_that_fail_during_an_outage_are_not_logged(
    open_session: Opener,
    zookeeper_proxy: ZooKeeperProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiozkqueue.sampling.EVERY", 0.0)
    monkeypatch.setattr("aiozkqueue.sampling.SAMPLE_TIMEOUT", 0.1)
    session = await open_session(zookeeper_proxy.hosts)
    await session.queue("jobs").put(b"1")
    sampler = Sampler(session, core_of(session).queues_used)
    running = asyncio.create_task(sampler.run())
    zookeeper_proxy.refuse()
    zookeeper_proxy.reset_connections()
    async with asyncio.timeout(30):
        while core_of(session).zookeeper.state is State.CONNECTED:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
    caplog.clear()
    for _ in range(3):  # each sample waits for its turn, so the task fails in between
        with pytest.raises(TimeoutError):
            await sampler.sample_all(0.0)
    assert [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.sampling"] == []
    running.cancel()


async def test_the_reason_why_samples_fail_is_logged_once(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = asyncio.Semaphore(0)

    async def look(*_: object) -> None:
        looks.release()
        raise NoAuthError("/zms")

    monkeypatch.setattr("aiozkqueue.sampling.EVERY", 0.0)
    monkeypatch.setattr("aiozkqueue.sampling.Sampler.sample_all", look)
    running = asyncio.create_task(Sampler(session).run())
    for _ in range(3):
        await looks.acquire()
    running.cancel()
    line = "the queues could not be sampled: /zms: not allowed by the znode's ACL"
    assert [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.sampling"] == [line]


async def test_metrics_are_a_collector_for_any_registry_and_thread(session: zq.QueueSession) -> None:
    registry = CollectorRegistry()
    metrics = collector(session)
    registry.register(metrics)
    await session.queue("jobs").put(b"1")
    await wait_for_samples(metrics, messages=1)
    scraped = values_of(await asyncio.to_thread(generate_latest, registry))
    assert scraped["aiozkqueue_messages_put_total jobs"] == 1
    assert scraped["aiozkqueue_queue_messages jobs"] == 1


async def test_metrics_show_no_queue_after_the_session_was_closed(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        metrics = collector(session)
        await session.queue("jobs").put(b"1")
        await wait_for_samples(metrics, messages=1)
    now = await samples(metrics)
    assert now["aiozkqueue_session_state closed"] == 1
    assert now["aiozkqueue_messages_put_total jobs"] == 1
    assert "aiozkqueue_queue_messages jobs" not in now


async def test_nothing_is_counted_before_a_collector_exists(session: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"1")
    assert core_of(session).meter is None
    metrics = collector(session)
    await session.queue("jobs").put(b"2")
    assert (await samples(metrics))["aiozkqueue_messages_put_total jobs"] == 1


async def test_a_scrape_while_the_session_closes_logs_no_warning(
    zookeeper: str, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    for turns in range(12):  # of the event loop, before the session closes
        async with zq.connect(zookeeper, root=queue_root) as session:
            metrics = collector(session)
            await session.queue("jobs").put(b"1")
            scrape = asyncio.create_task(metrics.text())
            for _ in range(turns):
                await asyncio.sleep(0)
        assert b"aiozkqueue_session_state" in await scrape
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_session_that_still_settles_its_work_as_it_closes_reports_no_failure_of_its_metrics(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiozkqueue.sampling.EVERY", 0.3)
    async with zq.connect(zookeeper_proxy.hosts, root=queue_root, session_timeout=2) as session:
        sampler = collector(session)._sampler
        await session.queue("jobs").put(b"1")
        before = sampler._sampled_at

        async def sampled() -> bool:
            return sampler._sampled_at > before

        await eventually(sampled, 30)  # it sleeps now
        zookeeper_proxy.stall()
        unanswered = asyncio.create_task(session.queue("jobs").put(b"2"))
        await asyncio.sleep(0)
    with pytest.raises(zq.OutcomeUnknownError):
        await unanswered
    assert [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.metrics"] == []
