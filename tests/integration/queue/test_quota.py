"""A server that enforces a quota: each refusal names the quota, and no message is lost until it is raised."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

import aiozkqueue as zq
from aiozkqueue.admin import Severity
from aiozkqueue.errors import PartlyDeniedError
from aiozkqueue.session.internals import activity_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions, ServerUnavailableError, TestClock
from aiozkqueue.zookeeper import QuotaExceededError
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

ROOT = "/limited"
QUOTA = f"/zookeeper/quota{ROOT}"


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    options = ServerOptions(fsync=False, settings={"enforceQuota": "true"})
    server = EmbeddedZooKeeper(options)
    try:
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))  # the error names the missing part
    with server:
        yield server.hosts


@pytest.fixture
def limit(hosts: str) -> Iterator[Callable[[int], Awaitable[None]]]:
    """Limit the znodes below the root, as ``setquota -N`` does, or the further bytes, as ``setquota -B`` does."""
    client = KazooClient(hosts)
    client.start(60)

    def set_quota(count: int, room: int | None = None) -> None:
        size = -1 if room is None else room + int(client.get(f"{QUOTA}/zookeeper_stats")[0].partition(b"bytes=")[2])
        limits = f"count=-1,bytes=-1=;byteHardLimit={size};countHardLimit={count}".encode()
        if client.exists(QUOTA):
            client.set(f"{QUOTA}/zookeeper_limits", limits)
        else:
            client.create(f"{QUOTA}/zookeeper_limits", limits, makepath=True)
            client.create(f"{QUOTA}/zookeeper_stats", b"count=0,bytes=0")

    async def set_apart(count: int, room: int | None = None) -> None:
        await asyncio.to_thread(set_quota, count, room)

    yield set_apart
    client.stop()
    client.close()


async def test_a_quota_refuses_calls_by_its_name_and_its_end_lets_them_continue(
    hosts: str, limit: Callable[[int], Awaitable[None]]
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"1", b"2"])
        await limit(1)
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: jobs.put(b"3"),
            lambda: session.queue("unknown").put(b"4"),
            lambda: session.queue("unknown").configure(zq.QueueConfig(bundle=1)),
            lambda: taken(session),
            lambda: session.admin.moves.start("jobs", "elsewhere"),
        ]
        for call in refused:
            with pytest.raises(zq.AccessDeniedError, match="quota of ZooKeeper; raise the quota"):
                await call()
        assert await jobs.size() == 2
        found = await session.admin.diagnose("jobs")
        assert [
            (finding.subject, finding.advice) for finding in found.findings if finding.severity is Severity.ERROR
        ] == [("root", QuotaExceededError.advice)]
        async with zq.connect(hosts, root=ROOT, session_timeout=20) as newcomer:
            with pytest.raises(zq.AccessDeniedError, match="quota of ZooKeeper; raise the quota"):
                await newcomer.queue("jobs").put(b"5")
        await limit(10_000)
        await jobs.put(b"6")
        assert [await taken(session) for _ in range(4)] == [b"1", b"2", b"6", None]


async def test_doctor_names_the_queue_whose_own_quota_is_used_up(hosts: str) -> None:
    client = KazooClient(hosts)
    await asyncio.to_thread(client.start, 60)
    async with zq.connect(hosts, root="/apart", session_timeout=20) as session:
        await session.queue("narrow").put(b"1")
        await session.queue("wide").put(b"1")
        quota = "/zookeeper/quota/apart/narrow"
        limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"
        await asyncio.to_thread(client.create, f"{quota}/zookeeper_limits", limits, makepath=True)
        await asyncio.to_thread(client.create, f"{quota}/zookeeper_stats", b"count=9,bytes=9")
        with pytest.raises(zq.AccessDeniedError, match="quota of ZooKeeper"):
            await session.queue("narrow").put(b"2")
        findings = [
            (finding.severity, finding.text, finding.advice)
            for finding in (await session.admin.diagnose()).findings
            if finding.subject == "narrow"
        ]
        text = "an enforced quota of ZooKeeper refuses new znodes below it: no message can be put or taken"
        assert findings == [(Severity.ERROR, text, QuotaExceededError.advice)], "no worker could be started"
        await asyncio.to_thread(client.set, f"{quota}/zookeeper_limits", limits.replace(b"=1", b"=9999"))
        diagnosis = await session.admin.diagnose()
        assert not [found for found in diagnosis.findings if found.severity is Severity.ERROR]
        assert await session.queue("narrow").size() == 1
        names = await asyncio.to_thread(client.get_children, "/apart/narrow")
        assert not [name for name in names or () if "doctor" in name]
    await asyncio.to_thread(client.stop)
    client.close()


@pytest.mark.parametrize("bundle", [1, 64], ids=["single item", "bundle"])
async def test_dead_letters_can_be_deleted_under_a_quota_that_is_used_up(
    hosts: str, limit: Callable[[int], Awaitable[None]], bundle: int
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        await limit(10_000)
        jobs = session.queue(f"rejects-{bundle}", policy=zq.AtLeastOnce())
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        await jobs.put_many([b"1", b"2"])
        async with session.transaction() as tx:
            for message in await tx.take_many(jobs, 2, timeout=30):
                tx.reject(message, "no")
        await jobs.put_many([b"3"] * 32)
        await limit(1)
        refusal = r"An enforced quota of ZooKeeper refuses the rest.*Raise the quota with setquota of zkCli"
        with pytest.raises(PartlyDeniedError, match=refusal):
            await jobs.purge()
        assert await jobs.size() == 32
        assert await jobs.dead_letters.purge() == 2
        await limit(10_000)
        assert await jobs.purge() == 32


@pytest.mark.parametrize("bodies", [[b"x" * 1000] * 10, [b"x" * 100] * 80], ids=["single items", "bundles"])
async def test_a_put_that_exceeds_a_quota_of_bytes_is_refused_without_the_puts_sent_with_it(
    hosts: str, limit: Callable[..., Awaitable[None]], bodies: list[bytes]
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        jobs = session.queue(f"sizes-{len(bodies)}")
        await jobs.configure(zq.QueueConfig(bundle=64))
        await limit(-1)
        await asyncio.gather(*(jobs.put(b"first") for _ in range(40)))
        await limit(-1, room=30_000)
        puts = [jobs.put(body) for body in [*bodies, b"x" * 31_000, *bodies]]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        large = outcomes.pop(len(bodies))
        assert isinstance(large, zq.AccessDeniedError)
        assert {type(each) for each in outcomes} == {str}
        assert await jobs.size() == 40 + 2 * len(bodies)


async def test_a_listener_continues_when_the_quota_is_raised(
    hosts: str, limit: Callable[[int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    clock = TestClock()
    async with zq.connect(hosts, root=ROOT, session_timeout=20, clock=clock) as session:
        await limit(10_000)
        jobs = session.queue("served")
        await jobs.put_many([b"1", b"2"])
        handled: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            handled.put_nowait(delivery.value)

        async def refused() -> bool:
            return "the listener tries again every 5 s" in caplog.text

        await limit(1)
        async with session.listener(jobs, handle) as listener:
            await eventually(refused)
            assert activity_of(listener) == (1, 0), "an idle worker would end, although there are messages"
            await limit(10_000)
            clock.advance(5)
            assert {await asyncio.wait_for(handled.get(), 30) for _ in range(2)} == {b"1", b"2"}
    (record,) = [record for record in caplog.records if "tries again" in record.getMessage()]
    assert QuotaExceededError.advice in record.getMessage()


async def test_messages_of_a_bundle_that_cannot_be_settled_wait_before_their_handler_is_called_again(
    hosts: str, limit: Callable[[int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    clock, exceeded, calls = TestClock(), asyncio.Event(), list[bytes]()
    async with zq.connect(hosts, root=ROOT, session_timeout=20, clock=clock) as session:
        await limit(10_000)
        jobs = session.queue("bundled")
        await jobs.configure(zq.QueueConfig(bundle=64, policy=zq.AtLeastOnce(backoff=zq.Fixed(600))))
        values = [b"%d" % number for number in range(40)]
        await jobs.put_many(values)

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            calls.append(delivery.value)
            delivery.put("handled", delivery.value)
            await exceeded.wait()

        async def called() -> bool:
            return len(calls) == 40

        async def kept() -> bool:
            return caplog.text.count("is kept for 60 s") >= 40

        async def empty() -> bool:
            return await jobs.size() == 0

        async with session.listener(jobs, handle, concurrency=40):
            await eventually(called)
            await limit(1)
            exceeded.set()
            await eventually(kept)
            await jobs.size()
            assert len(calls) == 40
            await limit(10_000)
            clock.advance(60)
            await eventually(empty)
        assert sorted(calls) == sorted(values * 2)
        assert await session.queue("handled").size() == 40


async def test_a_commit_names_the_quota_that_refuses_its_history(
    hosts: str, limit: Callable[[int], Awaitable[None]]
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        await limit(10_000)
        jobs = session.queue("recorded")
        await jobs.configure(zq.QueueConfig(history=zq.History()))
        await jobs.put(b"1")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            await limit(1)
            with pytest.raises(
                zq.AccessDeniedError, match="history: refused by an enforced quota of ZooKeeper; raise the quota"
            ):
                await tx.commit()
        await limit(10_000)
        assert await jobs.size() == 1


@pytest.mark.parametrize("bundle", [1, 64], ids=["single items", "bundle"])
async def test_an_operator_who_connects_when_the_quota_is_used_up_gets_it_as_the_reason(
    hosts: str, limit: Callable[[int], Awaitable[None]], bundle: int
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        await limit(10_000)
        jobs = session.queue(f"narrow-{bundle}")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        await jobs.put_many([b"%d" % number for number in range(4)])
        async with session.transaction() as tx:
            for message in await tx.take_many(jobs, 2, timeout=30):
                tx.reject(message, "no")
        async with session.transaction() as tx, zq.connect(hosts, root=ROOT, session_timeout=20) as operator:
            assert await tx.take(jobs, timeout=30) is not None
            await limit(1)
            same = operator.queue(jobs.name)
            refusal = r"An enforced quota of ZooKeeper refuses the rest.*Raise the quota with setquota of zkCli"
            for call in (same.purge, same.admin.release_claims, same.dead_letters.redrive):
                with pytest.raises(PartlyDeniedError, match=refusal):
                    await call()
            await limit(10_000)
        assert await jobs.size() == 1


async def test_a_release_under_a_quota_of_bytes_names_the_quota_as_the_remedy(
    hosts: str, limit: Callable[..., Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with zq.connect(hosts, root=ROOT, session_timeout=20) as session:
        await limit(10_000)
        jobs = session.queue("counted", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
        await jobs.put(b"1")
        with pytest.raises(ValueError, match="a long error"):
            async with session.transaction() as tx:
                assert await tx.take(jobs, timeout=30) is not None
                await limit(-1, room=0)
                raise ValueError("a long error" + "!" * 100)
        await limit(-1)
        assert await jobs.size() == 1
    assert "the record of attempts" in caplog.text
    assert QuotaExceededError.advice in caplog.text
    assert "let this user write to it" not in caplog.text


async def taken(session: zq.QueueSession) -> bytes | None:
    async with session.transaction() as tx:
        message = await tx.take(session.queue("jobs"), timeout=0)
        return None if message is None else message.value
