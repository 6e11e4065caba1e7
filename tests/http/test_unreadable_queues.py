"""An unreadable queue: its own requests give the reason, and every other queue is shown and served as usual."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from kazoo.security import make_digest_acl
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper.wire import error_of
from tests.http.conftest import NOBODY, proof_in
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.zookeeper import Stat
    from tests.http.conftest import Service
    from tests.observer import Observer

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("frequent_samples")]

#: A configuration of 2.8 KB with 262,144 lanes.
HUGE = json.dumps(
    {"shards": 1024, "width": 1024, "priorities": {str(priority): {} for priority in range(-128, 128)}}
).encode()
CONFIGURATIONS = {
    "no-json": b"{",
    "a-newer-policy": b'{"policy": {"kind": "of-tomorrow"}}',
    "a-quarter-million-lanes": HUGE,
}


@pytest.fixture
async def denied(session: zq.QueueSession, zookeeper: str, queue_root: str) -> str:
    """A queue that only another user may access."""
    await session.queue("good").put_many([b"1", b"2"])
    async with zq.connect(zookeeper, root=queue_root, auth=[zq.Auth.digest("other", "secret")]) as owner:
        await owner.queue("denied").put(b"3")
    return "denied"


@pytest.fixture(params=list(CONFIGURATIONS))
async def broken(
    request: pytest.FixtureRequest, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> str:
    """A queue whose configuration does not decode."""
    await session.queue("good").put_many([b"1", b"2"])
    await session.queue("broken").put(b"3")
    await server_view.set(f"{queue_root}/broken", CONFIGURATIONS[request.param])
    return "broken"


@pytest.fixture
async def browser(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30, verify=NOBODY) as client:
        assert (await client.post("/sign-in", data={"key": service.key})).status_code == 200
        yield client


async def others_are_shown(service: Service, browser: httpx.AsyncClient, bad: str) -> None:
    async def shown() -> bool:
        overview = await browser.get("/")
        assert overview.status_code == 200
        return '/queues/good">good</a>' in overview.text and f"<dt>{bad}</dt>" in overview.text

    await eventually(shown)  # readings are reused for a second
    assert (await browser.get("/queues/good")).status_code == 200
    assert (await service.get("/queue/1/good/size")).json() == 2
    lines = (await service.get("/metrics")).text.splitlines()
    assert 'aiozkqueue_queue_messages{queue="good"} 2.0' in lines
    assert 'aiozkqueue_queue_unreadable{queue="good"} 0.0' in lines
    assert f'aiozkqueue_queue_unreadable{{queue="{bad}"}} 1.0' in lines
    (looked,) = (line for line in lines if line.startswith("aiozkqueue_queues_looked_at_timestamp_seconds "))
    assert abs(float(looked.split()[1]) - time.time()) < 60


async def test_a_queue_of_another_user_is_shown_as_unreadable_and_the_rest_as_usual(
    service: Service, browser: httpx.AsyncClient, denied: str
) -> None:
    await others_are_shown(service, browser, denied)
    page = await browser.get(f"/queues/{denied}")
    assert page.status_code == 503
    assert "cannot be read" in page.text
    for path in ("poll", "peek"):
        answer = await service.get(f"/queue/1/{denied}/{path}")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json() == {"message": "an ACL does not allow this; the log of this server names the znode"}


async def test_a_queue_with_an_unreadable_hour_is_shown_without_it_and_named(
    service: Service, session: zq.QueueSession, browser: httpx.AsyncClient, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")
    await session.queue("jobs").put(b"2", delay=86_400)
    [hour] = await server_view.children(f"{queue_root}/jobs/later")
    sealed = f"{queue_root}/jobs/later/{hour}"
    await set_acl(server_view, sealed, readable=False)

    async def shown() -> bool:
        overview = (await browser.get("/")).text
        return '/queues/jobs">jobs</a>' in overview and "Parts of queues that cannot be read" in overview

    await eventually(shown)
    page = await browser.get("/queues/jobs")
    assert (page.status_code, sealed in page.text) == (200, True)
    assert (await service.get("/queue/1/jobs/size")).json() == 1
    lines = (await service.get("/metrics")).text.splitlines()
    assert 'aiozkqueue_queue_messages{queue="jobs"} 1.0' in lines
    assert 'aiozkqueue_queue_unreadable{queue="jobs"} 1.0' in lines


async def test_a_change_that_an_acl_refuses_is_not_shown_as_a_page_that_cannot_be_read(
    session: zq.QueueSession, browser: httpx.AsyncClient, zookeeper: str, queue_root: str
) -> None:
    mixed = session.queue("mixed")
    await mixed.put(b"1")
    async with zq.connect(zookeeper, root=queue_root, auth=[zq.Auth.digest("other", "secret")]) as owner:
        theirs = await owner.queue("mixed").put(b"2")
    form = {"proof": proof_in(await browser.get("/queues/mixed")), "action": "purge", "confirmed": "yes"}
    purged = await browser.post("/queues/mixed/actions", data=form)
    assert (purged.status_code, "Some messages remain" in purged.text, theirs in purged.text) == (409, True, True)
    assert await mixed.size() == 1
    cancelled = await browser.post("/queues/mixed/actions", data={**form, "action": "cancel", "id": theirs})
    assert (cancelled.status_code, "ZooKeeper does not permit this" in cancelled.text) == (503, True)
    assert "cannot be read" not in purged.text + cancelled.text


async def test_a_queue_with_an_undecodable_configuration_is_named_and_the_rest_shown_as_usual(
    service: Service, browser: httpx.AsyncClient, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    await others_are_shown(service, browser, broken)
    page = await browser.get(f"/queues/{broken}")
    assert page.status_code == 409
    assert "cannot be read" in page.text
    answers = [await service.get(f"/queue/1/{broken}/{path}") for path in ("poll", "peek", "size")]
    answers.append(await service.post(f"/queue/1/{broken}/send", json=1))
    answers.append(await service.http.delete(f"/queue/1/{broken}"))
    for answer in answers:
        assert answer.status_code == 409
        assert "queue 'broken': the configuration stored at" in answer.json()["message"]
        assert "correct the JSON of this znode" in answer.json()["message"]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_queue_of_a_quarter_million_lanes_creates_no_znode_and_blocks_no_request(
    session: zq.QueueSession, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    await session.queue("good").put(b"1")
    await session.queue("huge").put(b"1")
    await server_view.set(f"{queue_root}/huge", HUGE)
    begun = time.monotonic()
    sampler = Sampler(session)
    await sampler.sample_all(0.0)
    assert time.monotonic() - begun < 5
    assert (sampler.latest["good"].size, list(sampler.unreadable)) == (1, ["huge"])
    assert "262144 lanes, more than 4096" in sampler.unreadable["huge"]
    async with zq.connect(zookeeper, root=queue_root) as fresh:
        with pytest.raises(zq.PayloadError, match="queue 'huge'"):
            await fresh.queue("huge").put(b"2")
    assert await server_view.children(f"{queue_root}/huge/lanes") == []


async def test_a_queue_with_too_many_folders_is_shown_as_unreadable(
    session: zq.QueueSession, server_view: Observer, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.sampling.MOST_FOLDERS", 20)
    await session.queue("good").put(b"1")
    await session.queue("hours").put(b"1", delay=3600)
    for hour in range(30):
        await server_view.create(f"{queue_root}/hours/later/{hour}")
    sampler = Sampler(session)
    await sampler.sample_all(0.0)
    assert (sampler.latest["good"].size, list(sampler.unreadable)) == (1, ["hours"])
    assert "`aiozkqueue clean hours`" in sampler.unreadable["hours"]


async def test_a_queue_whose_reads_a_server_refuses_with_an_unknown_code_is_shown_as_unreadable(
    session: zq.QueueSession, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.queue("good").put(b"1")
    await session.queue("odd").put(b"1")
    zookeeper = core_of(session).zookeeper
    exists = zookeeper.exists

    async def refused(path: str, **options: Any) -> Stat | None:
        if path == f"{queue_root}/odd/dlq":
            raise error_of(-997)
        return await exists(path, **options)

    monkeypatch.setattr(zookeeper, "exists", refused)
    sampler = Sampler(session)
    await sampler.sample_all(0.0)
    assert (sampler.latest["good"].size, list(sampler.unreadable)) == (1, ["odd"])
    assert "ZooKeeper error -997" in sampler.unreadable["odd"]


async def test_a_queue_that_takes_too_long_to_sample_is_skipped_for_a_while(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.queue("good").put(b"1")
    await session.queue("slow").put(b"1")
    monkeypatch.setattr("aiozkqueue.sampling.SAMPLE_TIMEOUT", 0.0)
    sampler = Sampler(session, lambda: ["slow"])
    await sampler.sample_all(0.0)
    assert list(sampler.unreadable) == ["slow"]
    monkeypatch.setattr("aiozkqueue.sampling.SAMPLE_TIMEOUT", 30.0)
    await sampler.sample_all(0.0)
    assert list(sampler.unreadable) == ["slow"]
    monkeypatch.setattr("aiozkqueue.sampling.RETRY", 0.0)
    await sampler.sample_all(0.0)
    assert (sampler.unreadable, sampler.latest["slow"].size) == ({}, 1)


async def test_pages_and_requests_name_the_folder_of_the_service_that_another_user_owns(
    service: Service, session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    await session.queue("good").put(b"1")
    foreign = [make_digest_acl("somebody", "else", all=True)]
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30, verify=NOBODY) as client:
        assert (await client.post("/sign-in", data={"key": service.key})).status_code == 200
        await server_view.set_acl(f"{queue_root}/.clients", foreign)
        page = await client.get("/servers")
        assert page.status_code == 503
        assert f"{queue_root}/.clients" in page.text
        assert "This queue" not in page.text
        for entry in await server_view.children(f"{queue_root}/.keys"):
            await server_view.set_acl(f"{queue_root}/.keys/{entry}", foreign)

        async def is_read_again() -> bool:  # the server knows a key for some seconds
            return (await service.get("/queue/1/good/size")).status_code == 503

        await eventually(is_read_again)
        answer = await service.get("/queue/1/good/size")
        assert "the log of this server names the znode" in answer.json()["message"]
        assert f"keys under {queue_root}/.keys" in caplog.text
        for page in (await client.get("/"), await client.post("/sign-in", data={"key": service.key})):
            assert page.status_code == 503
            assert f"keys under {queue_root}/.keys" in page.text
            assert "does not answer in time" not in page.text


async def test_buses_are_shown_beside_one_that_cannot_be_read(
    browser: httpx.AsyncClient, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    for name in ("invoices", "orders"):
        await Bus(session, name, BaseModel).join("audit")
    await server_view.set(f"{queue_root}/.buses/orders", b"{not json")
    page = await browser.get("/buses")
    assert page.status_code == 200
    assert "invoices@audit" in page.text
    assert f"{queue_root}/.buses/orders: " in page.text


async def test_consumers_are_shown_beside_the_messages_that_cannot_be_read(
    browser: httpx.AsyncClient, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    orders = session.queue("orders")
    await orders.put(b"1")
    async with session.transaction() as tx:
        held = await tx.take(orders, timeout=30)
        assert held is not None
        lock = f"{queue_root}/orders/locks/lock-{held.id}"
        await set_acl(server_view, lock, readable=False)
        for path in ("/consumers", "/queues/orders"):

            async def shows_both(path: str = path) -> bool:
                page = await browser.get(path)
                assert page.status_code == 200
                return (
                    "Consumers that cannot be read" in page.text and lock in page.text and "Consumers of" in page.text
                )

            await eventually(shows_both)
