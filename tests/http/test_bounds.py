"""Queues and requests cost a server a bounded amount of memory, time and znodes."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings
from aiozkqueue.http.client import QueueServiceClient
from aiozkqueue.http.core.names import Kind
from aiozkqueue.http.core.purging import TOGETHER, Purges
from aiozkqueue.http.core.service import QueueService
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.http.dashboard.readings import letters
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.session.queue import Queue
from tests.http.conftest import NOBODY, serving
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_deep_listings import TURN, watched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.queue.options import PutOptions
    from tests.http.conftest import Service
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(300)

kinds = pytest.mark.parametrize("kind", ["queue", "dedupq"])


# -- claims that have ended


@kinds
async def test_ended_claims_are_not_counted_and_hide_no_message_without_a_poll(
    service: Service, session: zq.QueueSession, kind: str
) -> None:
    native = "q" if kind == "queue" else "DEDUP:q"
    await service.post(f"/{kind}/1/q/sendbatch", json=[1, 2, 3])
    assert len((await service.get(f"/{kind}/1/q/poll", params={"ttl": 3600, "limit": 1})).json()) == 1
    assert len((await service.get(f"/{kind}/1/q/poll", params={"ttl": 1})).json()) == 2
    assert (await service.get(f"/{kind}/1/q/poll", params={"ttl": 0})).json() == []
    assert (await service.get(f"/{kind}/1/q/claimcount")).json() == 3

    async def ended() -> bool:
        return bool((await service.get(f"/{kind}/1/q/claimcount")).json() == 1)

    await eventually(ended)
    shown = (await service.get(f"/{kind}/1/q/poll", params={"ttl": 0})).json()
    assert sorted(message["payload"] for message in shown) == [2, 3]
    sampler = Sampler(session)
    await sampler.sample_all(0.0)
    assert (sampler.latest[native].in_flight, sampler.latest[native].retrying) == (0, 1)
    assert (await session.queue(native).stats()).retrying == 1


async def test_messages_behind_a_held_group_are_not_shown_as_free(service: Service, session: zq.QueueSession) -> None:
    queue = session.queue("q")
    await queue.put_many([b"1", b"2"], group="g")
    await queue.put(b"3")
    assert [message["payload"] for message in await service.poll("q", ttl=0)] == [1, 3]
    (lease,) = await queue.leases.take(lifetime=3600)
    assert lease.body == b"1"
    assert [message["payload"] for message in await service.poll("q", ttl=0)] == [3]


@pytest.mark.parametrize(
    ("settings", "options", "shown"),
    [
        (zq.QueueConfig(ordered=True), [{}, {}], [1]),
        (zq.QueueConfig(shards=2), [{"group": "a"}, {"group": "b"}, {"group": "a"}, {}, {"group": "b"}], [1, 2, 4]),
        (zq.QueueConfig(collapse=True), [{"key": "a"}, {"key": "b"}, {"key": "a"}, {}, {"key": "b"}], [3, 4, 5]),
        (zq.QueueConfig(collapse=True), [{"key": "a", "tags": {"t": "x"}}, {"key": "a"}, {"key": "a"}], [1, 3]),
        (zq.QueueConfig(collapse=True), [{"key": "a", "priority": 9}, {"key": "a"}, {"key": "a"}], [1, 3]),
        (zq.QueueConfig(affinity="producer"), [{}, {}], []),
    ],
    ids=["ordered", "groups", "collapse", "collapse and tags", "collapse and priorities", "affinity"],
)
async def test_a_poll_without_claims_shows_what_a_poll_claims(
    service: Service,
    zookeeper: str,
    queue_root: str,
    session: zq.QueueSession,
    settings: zq.QueueConfig,
    options: Sequence[PutOptions],
    shown: Sequence[int],
) -> None:
    await session.queue("q").configure(settings)
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20, node="another") as producer:
        for number, given in enumerate(options, start=1):
            await producer.queue("q").put(str(number).encode(), **given)
    for expected in (shown, []):
        assert sorted(message["payload"] for message in await service.poll("q", ttl=0)) == expected
        assert sorted(message["payload"] for message in await service.poll("q", ttl=3600)) == expected


# -- purges


async def test_a_long_purge_continues_after_its_response_and_can_be_requested_again(
    service: Service, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = session.queue("q")
    await queue.put_many([b"1"] * 5000)
    monkeypatch.setattr("aiozkqueue.http.core.purging.PURGE_TIMEOUT", 0.01)
    begun = await service.http.delete("/queue/1/q")
    assert (begun.status_code, begun.json()) == (202, {"success": True})
    await queue.put(b"put since")
    async with QueueServiceClient(service.url, key=service.key) as client:
        await client.purge("q")
    assert await queue.size() == 0
    assert (await service.http.delete("/queue/1/none")).status_code == 200


async def test_the_client_waits_only_for_the_messages_put_before_its_purge(
    service: Service, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, purge, passes = session.queue("q"), Queue.purge, list[str]()
    await queue.put(b"0")
    monkeypatch.setattr("aiozkqueue.http.core.purging.PURGE_TIMEOUT", 0.01)

    async def outlasting_a_request(queue: Queue[bytes]) -> int:
        passes.append(queue.name)
        removed = await purge(queue)
        await session.queue("q").put(b"put since")
        await asyncio.sleep(0.1)  # longer than a request waits
        return removed

    monkeypatch.setattr(Queue, "purge", outlasting_a_request)
    async with QueueServiceClient(service.url, key=service.key) as client, asyncio.timeout(60):
        await client.purge("q")
    assert passes == ["q"]
    assert await queue.size() == 1


async def test_another_server_finishes_the_purge_of_a_stopped_one(
    zookeeper: str, queue_root: str, service: Service, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = session.queue("q")
    await queue.put_many([b"1"] * 5000)
    with monkeypatch.context() as patch:
        patch.setattr("aiozkqueue.http.core.purging.PURGE_TIMEOUT", 0.01)
        headers = {"X-BV-API-Key": service.key}
        async with (
            serving(zookeeper, queue_root, Settings()) as url,
            httpx.AsyncClient(base_url=url, headers=headers, timeout=30, verify=NOBODY) as other,
        ):
            assert (await other.delete("/queue/1/q")).status_code == 202
    monkeypatch.setattr("aiozkqueue.http.core.purging.PURGE_TIMEOUT", 60.0)  # the time of a slow machine
    assert (await service.http.delete("/queue/1/q")).status_code == 200
    assert await queue.size() == 0


async def test_a_server_limits_the_purges_of_both_services_together(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    together: list[int] = []
    purge = Queue.purge

    async def counted(queue: Queue[bytes]) -> int:
        running.append(queue.name)
        together.append(len(running))
        try:
            return await purge(queue)
        finally:
            running.remove(queue.name)

    monkeypatch.setattr(Queue, "purge", counted)
    paths = [f"/{kind}/1/q{number}" for kind in Kind for number in range(TOGETHER)]
    for path in paths:
        await service.post(f"{path}/sendbatch", json=list(range(500)))

    async def emptied(path: str) -> None:
        while (await service.http.delete(path)).status_code == 202:
            pass  # each request waits for some seconds

    await asyncio.gather(*map(emptied, paths))
    assert max(together) == TOGETHER


@pytest.mark.slow
async def test_requests_to_a_deep_queue_do_not_block_the_loop(session: zq.QueueSession) -> None:
    queue = session.queue("q")
    for _ in range(10):
        await queue.put_many([b"1"] * 10_000)
    for kind in Kind:
        native = "q" if kind is Kind.QUEUE else "DEDUP:q"
        if kind is Kind.DEDUPQ:
            await session.queue(native).configure(zq.QueueConfig(collapse=True))
            await session.queue(native).put_many([b"%d" % number for number in range(20_000)])
        service = QueueService(session, kind, MessageIds(core_of(session)), Purges(session))
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "peek": lambda service=service: service.peek("q", 1000),  # type: ignore[misc]
            "look": lambda service=service: service.poll("q", lifetime=0, limit=1000, wait=0),  # type: ignore[misc]
            "claimed": lambda service=service: service.claimed("q"),  # type: ignore[misc]
            "purge": lambda service=service: service.purge("q"),  # type: ignore[misc]
        }
        longest: dict[str, float] = {}
        for name, call in calls.items():
            async with watched() as turns:
                found = await call()
            longest[name] = turns.longest
            assert name in {"claimed", "purge"} or len(found) == 1000
        assert {name: took for name, took in longest.items() if took > TURN} == {}


# -- missing queues


async def test_names_of_missing_queues_are_forgotten_and_create_no_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    ids = MessageIds(core_of(session))
    signer = await ids.signer()
    before = sorted(await server_view.children(queue_root))
    for kind in Kind:
        service = QueueService(session, kind, ids, Purges(session))
        for name in (f"none{number}" for number in range(20)):
            native = name if kind is Kind.QUEUE else f"DEDUP:{name}"
            message = signer.message_id(native, "items/item-iabcdef-0000000001")
            assert await service.size(name) == await service.claimed(name) == 0
            assert await service.peek(name, 1) == await service.poll(name, lifetime=0, limit=1, wait=0) == []
            assert await service.poll(name, lifetime=30, limit=1, wait=0) == []
            await service.unclaim_all(name)
            await service.acknowledge(name, [message])
            await service.renew(name, [message], 30)
            assert await service.purge(name)
    assert core_of(session).queues_used() == []
    assert sorted(await server_view.children(queue_root)) == before


@kinds
async def test_a_long_poll_creates_no_queue_and_notices_a_new_one(
    service: Service, session: zq.QueueSession, server_view: Observer, queue_root: str, kind: str
) -> None:
    service.http.headers["X-BV-API-Key"] = await Keys(core_of(session)).create("polls", ["queue|poll|*"])
    before = sorted(await server_view.children(queue_root))
    assert (await service.get(f"/{kind}/1/q/poll", params={"wait": 1})).json() == []
    after = sorted(await server_view.children(queue_root))
    assert set(after) - set(before) <= {".clients", ".tokens", ".samples"}
    waiting = asyncio.create_task(service.get(f"/{kind}/1/q/poll", params={"wait": 30}))
    await asyncio.sleep(0.2)
    begun = time.monotonic()
    sent = await service.post(f"/{kind}/1/q/send", json=7, headers={"X-BV-API-Key": service.key})
    assert sent.status_code == 200
    assert [message["payload"] for message in (await waiting).json()] == [7]
    assert time.monotonic() - begun < 20


@kinds
async def test_a_long_name_and_its_hash_are_two_queues(service: Service, kind: str) -> None:
    long = "x" * 255 if kind == "dedupq" else "." + "x" * 254
    digest = sha256(long.encode()).hexdigest()
    await service.post(f"/{kind}/1/{long}/send", json="secret")
    for other in (f":{digest}", digest, f"sha256:{digest}"):
        assert (await service.get(f"/{kind}/1/{other}/peek")).json() == []
        assert (await service.get(f"/{kind}/1/{other}/size")).json() == 0
    assert [message["payload"] for message in (await service.get(f"/{kind}/1/{long}/poll")).json()] == ["secret"]


# -- dead letters


async def buried(session: zq.QueueSession, number: int, size: int) -> zq.Queue[bytes]:
    queue = session.queue("q")
    for n in range(number):
        await queue.put(b"%d:" % n + bytes(size))
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            tx.reject(message, "broken")
    return queue


async def test_large_dead_letters_are_searched_a_few_megabytes_at_a_time(session: zq.QueueSession) -> None:
    queue = await buried(session, 60, 500_000)
    gc.collect()
    tracemalloc.start()
    try:
        found = await letters.search(queue, letters.LetterFilter("17:"), payloads=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.ids), found.examined, found.more) == (1, 60, False)
    assert peak < 20_000_000


async def test_a_search_ends_at_its_byte_limit_and_reports_that_there_is_more(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await buried(session, 20, 400_000)
    monkeypatch.setattr(letters, "EXAMINED_BYTES", 1_000_000)
    found = await letters.search(queue, letters.LetterFilter(), payloads=True)
    assert found.more
    assert 0 < found.examined == len(found.ids) < 20
