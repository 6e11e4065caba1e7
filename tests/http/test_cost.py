"""The cost of the dashboard: deep queues, and many open browsers."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue import sampling
from aiozkqueue.http import Settings
from aiozkqueue.http.core import shared_readings
from aiozkqueue.http.dashboard.pages import dead_letters
from aiozkqueue.http.dashboard.web import visit
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from aiozkqueue.zookeeper import Create
from tests.http.conftest import NOBODY
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_deep_listings import TURN, watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.http.conftest import Service, Starter

pytestmark = pytest.mark.timeout(180)

PAGES = (
    "/",
    "/dead-letters",
    "/consumers",
    "/jobs",
    "/buses",
    "/moves",
    "/queues/orders",
    "/queues/orders/points",
    "/queues/orders/messages",
    "/queues/orders/dead-letters",
)
#: The messages of a queue that takes longer to list than a page waits.
DEEP = 100_000


@asynccontextmanager
async def browsing(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """Sign in; yield a client that follows redirects."""
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=60, verify=NOBODY) as client:
        assert (await client.post("/sign-in", data={"key": service.key})).status_code == 200
        yield client


@pytest.fixture
async def browser(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with browsing(service) as client:
        yield client


async def received(session: zq.QueueSession) -> int:
    """Return the number of requests that the ZooKeeper server has received."""
    (report,) = (await core_of(session).zookeeper.ask_servers("srvr")).values()
    assert isinstance(report, str), report
    found = re.search(r"Received: (\d+)", report)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
async def test_fifty_open_browsers_cost_zookeeper_as_much_as_one(
    browser: httpx.AsyncClient, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = session.queue("orders")
    await orders.put_many([b"1"] * 60)
    async with session.transaction() as tx:
        for message in await tx.take_many(orders, 5):
            tx.reject(message, "broken")

    async def shown() -> bool:
        return "/queues/orders" in (await browser.get("/")).text

    await eventually(shown)
    # On a busy machine, these requests take longer than five seconds.
    monkeypatch.setattr(shared_readings, "FRESH", 60.0)
    counts, moments = [await received(session)], [time.monotonic()]
    for browsers in (1, 49):
        for _ in range(browsers):
            answers = await asyncio.gather(*(browser.get(path) for path in PAGES))
            assert {answer.status_code for answer in answers} == {200}
        counts.append(await received(session))
        moments.append(time.monotonic())
    first, added = counts[1] - counts[0], counts[2] - counts[1]
    if added > 2 * first:  # subtract the samples, which the service takes even without browsers
        await asyncio.sleep(moments[2] - moments[1])
        added -= await received(session) - counts[2]
    assert added <= 2 * first


@pytest.mark.slow
async def test_the_pages_of_a_deep_queue_answer_at_once_and_do_not_block_the_loop(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    await session.queue("deep").put(b"1")
    await fill(session, "deep", DEEP)
    for path in ("/queues/deep", "/queues/deep/points", "/queues/deep/messages", "/queues/deep/dead-letters"):
        async with watched() as turns:
            begun = time.monotonic()
            answer = await browser.get(path)
            took = time.monotonic() - begun
        assert answer.status_code == 200
        assert turns.longest < TURN, path
        assert took < 2.0, path
    assert "still being read" in answer.text or "There are no dead letters" in answer.text

    async def listed() -> bool:
        page = await browser.get("/queues/deep/messages?page=99")
        return "4,951\N{EN DASH}5,000 of 5,000 messages" in page.text and page.text.count("<tr") > 50

    await eventually(listed)
    message = f"Deep{DEEP // 2:014d}"
    async with watched() as turns:
        begun = time.monotonic()
        await browser.get(f"/queues/deep/messages/{message}")
        took = time.monotonic() - begun
    assert turns.longest < TURN
    assert took < 2.0

    async def found() -> bool:
        page = await browser.get(f"/queues/deep/messages/{message}")
        return "put by" in page.text and "waiting</span>" in page.text

    await eventually(found)


@pytest.mark.parametrize(
    ("page", "folder", "waiting"),
    [
        ("/queues/deep/messages", "items", "/queues/deep/messages"),
        ("/findings", "items", "/queues/deep/messages"),
        ("/queues/deep/dead-letters", "dlq", "/queues/deep/dead-letters"),
    ],
)
async def test_pages_do_not_wait_for_the_listing_of_a_deep_queue(
    page: str,
    folder: str,
    waiting: str,
    zookeeper: str,
    start: Starter,
    session: zq.QueueSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper answers the requests of a connection in order, so long listings use a separate session."""
    for module in (sampling, visit, dead_letters):
        monkeypatch.setattr(module, "MOST_LISTED", 50)
    monkeypatch.setattr(sampling, "LISTED", 50)
    await session.queue("deep").configure(zq.QueueConfig(bundle=1))
    await session.queue("deep").put_many([b"1"] * 120)
    async with session.transaction() as tx:
        for message in await tx.take_many(session.queue("deep"), 60):
            tx.reject(message, "broken")
    await session.queue("orders").put(b"1")
    async with (
        ZooKeeperProxy(zookeeper) as proxy,
        browsing(await start(Settings(request_timeout=2), hosts=proxy.hosts)) as it,
    ):

        async def shown() -> bool:
            return "/queues/deep" in (await it.get("/")).text

        await eventually(shown)
        path = f"/deep/{folder}".encode()
        listing = proxy.hold_reply(lambda request: path in request.body and request.opcode == Opcode.GET_CHILDREN)

        async def listed() -> bool:
            return bool(listing.requests)

        assert (await it.get(page)).status_code == 200
        await eventually(listed)  # the page does not wait for the listing, which may begin later on a busy machine
        assert "being read" in (await it.get(waiting)).text
        for other in (*PAGES, "/servers", "/queues/deep", "/queues/deep/points", "/queues/deep/dead-letters"):
            assert (await it.get(other)).status_code == 200, other
        proxy.heal()

        async def read() -> bool:
            return "being read" not in (await it.get(waiting)).text

        await eventually(read)


async def fill(session: zq.QueueSession, name: str, number: int) -> None:
    """Create this many messages, faster than by puts."""
    core = core_of(session)
    lane = core.queue_state(name).paths.items
    names = [Create(f"{lane}/item-iDeep{n:014d}-{n + 1:010d}", b"1") for n in range(number)]
    for start in range(0, number, 5000):
        await asyncio.gather(*(core.zookeeper.multi(names[at : at + 500]) for at in range(start, start + 5000, 500)))
