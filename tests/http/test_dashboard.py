"""The dashboard's pages over HTTP: permissions, the proof in forms, and no unrequested contents."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings, create_app
from aiozkqueue.sampling import Sample, Sampler, rates_between
from aiozkqueue.session.internals import core_of
from tests.http.conftest import proof_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.http.conftest import Service, Starter

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("frequent_samples")]

#: Every page; pages of a queue are those of ``jobs``.
PAGES = (
    "/",
    "/dead-letters",
    "/consumers",
    "/jobs",
    "/buses",
    "/moves",
    "/servers",
    "/findings",
    "/queues/jobs",
    "/queues/jobs/messages",
    "/queues/jobs/messages/unknown",
    "/queues/jobs/dead-letters",
)
POISON = b'{"card": "<script>alert(1)</script>"}'


@pytest.fixture
async def browser(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that is signed in with the key that has all permissions."""
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        answer = await client.post("/sign-in", data={"key": service.key})
        assert answer.status_code == 200
        yield client


@pytest.fixture
async def dead(session: zq.QueueSession) -> list[str]:
    """Three dead letters of the queue ``jobs``."""
    jobs = session.queue("jobs")
    await jobs.put_many([POISON, b"2", b"3"])
    async with jobs.consume(until_idle=0, settle="explicit") as deliveries:
        async for delivery in deliveries:
            await delivery.reject(f"no use: {'<b>bold</b>' if delivery.body == POISON else 'other'}")
    return [letter.id for letter in await jobs.dead_letters.peek()]


async def test_a_visitor_without_a_key_must_sign_in(service: Service) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        for path in PAGES:
            answer = await client.get(path)
            assert answer.status_code == 403, path
            assert 'name="key"' in answer.text, path
        deep = await client.post("/sign-in", data={"key": service.key, "next": "/queues/jobs"})
        assert (deep.status_code, deep.headers["location"]) == (303, "/queues/jobs")
        for foreign in ("//evil.test/", "https://evil.test", "/\\evil.test"):
            led = await client.post("/sign-in", data={"key": service.key, "next": foreign})
            assert led.headers["location"] == "/"
        client.cookies.clear()
        wrong = await client.post("/sign-in", data={"key": "wrong"})
        assert wrong.status_code == 403
        assert "unknown" in wrong.text
        assert "set-cookie" not in wrong.headers
        right = await client.post("/sign-in", data={"key": service.key})
        cookie = right.headers["set-cookie"]
        for attribute in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert attribute in cookie
        cross_site = await client.post("/sign-in", data={"key": service.key}, headers={"Sec-Fetch-Site": "cross-site"})
        assert cross_site.status_code == 403


async def test_pages_allow_no_foreign_script(browser: httpx.AsyncClient, session: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"1")
    for path in (*PAGES, "/sign-in", "/queues/none", "/nowhere"):
        answer = await browser.get(path, headers={"Accept": "text/html"})
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*src=)|style=|\bon[a-z]+=", answer.text)
        assert ("Sign in" in answer.text) == (path == "/sign-in"), path


async def test_a_key_can_name_a_queue_with_capitals_of_a_python_program(
    service: Service, session: zq.QueueSession
) -> None:
    for queue in ("Jobs", "Orders", "jobs"):
        await session.queue(queue).put(b"1")
    key = await Keys(core_of(session)).create("capitals", ["queue|get_status|Jobs", "queue|manage|Ord*"])
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        await client.post("/sign-in", data={"key": key})
        answers = {queue: (await client.get(f"/queues/{queue}")).status_code for queue in ("Jobs", "Orders", "jobs")}
    assert answers == {"Jobs": 200, "Orders": 403, "jobs": 403}


@pytest.mark.parametrize(
    "permission", ["queue|pots*", "queue|POST|q", "queue|[p]oll|q", "queue|poll|q?", "queue|poll|"]
)
async def test_a_permission_that_would_allow_nothing_is_refused(session: zq.QueueSession, permission: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="is not a permission"):
        await Keys(core_of(session)).create("k", [permission])


@pytest.mark.parametrize("prefix", ["DEDUP", "QUEUE"])
async def test_a_permission_for_a_name_in_zookeeper_that_differs_over_http_is_refused(
    session: zq.QueueSession, prefix: str
) -> None:
    with pytest.raises(zq.InvalidOptionError, match=f"give the queue's name as over HTTP, without {prefix}:"):
        await Keys(core_of(session)).create("k", [f"queue|manage|{prefix}:q"])


async def test_queues_are_listed_with_their_figures(
    browser: httpx.AsyncClient, session: zq.QueueSession, dead: list[str]
) -> None:
    await session.queue("jobs").put_many([b"1"] * 1234)
    row = ""
    async with asyncio.timeout(90):
        while "1,234" not in row:
            page = (await browser.get("/")).text
            row = "".join(line for line in page.splitlines() if 'href="/queues/jobs"' in line)
    assert f">{len(dead)}<" in row


async def test_a_visitor_sees_only_the_queues_of_its_key(service: Service, session: zq.QueueSession) -> None:
    key = await Keys(core_of(session)).create("orders", ["queue|get_status|orders*"])
    await session.queue("orders").put(b"secret payload")
    await session.queue("salaries").put(b"1")
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        page = await client.post("/sign-in", data={"key": key})
        assert "orders" in page.text
        assert "salaries" not in page.text
        assert (await client.get("/queues/salaries")).status_code == 403
        (message,) = await session.queue("orders").peek()
        shown = await client.get(f"/queues/orders/messages/{message.id}")
        assert shown.status_code == 200
        assert "secret payload" not in shown.text


@pytest.fixture
def two_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server samples the first two queues."""
    monkeypatch.setattr("aiozkqueue.sampling.MOST_QUEUES", 2)


@pytest.mark.usefixtures("two_sampled")
async def test_queues_without_figures_are_counted_and_found_by_name(
    session: zq.QueueSession, start: Starter, key: str
) -> None:
    for name in ("a", "b", "c", "d1", "d2"):
        await session.queue(name).put(b"1")
    only_d = await Keys(core_of(session)).create("d", ["queue|get_status|d*"])
    service = await start()
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        page = await client.post("/sign-in", data={"key": key})
        assert "All 5<" in page.text
        assert "There are 3 more queues." in page.text
        assert 'href="/queues/a"' in page.text
        found = (await client.get("/?search=D")).text
        assert "No queue matches" not in found
        assert 'href="/queues/d1"' in found
        assert 'href="/queues/d2"' in found
        assert 'href="/queues/c"' not in found
        assert (await client.get("/queues/d1")).status_code == 200
        assert "No queue matches" in (await client.get("/?search=e")).text
        for path in ("/dead-letters", "/consumers"):
            assert re.search(r"There are [23] more queues", (await client.get(path)).text)
        page = await client.post("/sign-in", data={"key": only_d})
        assert "may not see any queue" not in page.text
        assert re.search(r"There (are 2 more queues|is 1 more queue)", page.text)
    metrics = (await service.get("/metrics")).text
    assert "aiozkqueue_queues_omitted 3.0" in metrics
    assert 'aiozkqueue_queue_messages{queue="d1"}' not in metrics


@pytest.mark.usefixtures("two_sampled")
async def test_a_queue_without_figures_has_a_page_at_any_time(
    session: zq.QueueSession, start: Starter, key: str
) -> None:
    """The samples of all queues, which leave it out, are taken between the requests of its page."""
    for name in ("a", "b", "c"):
        await session.queue(name).put(b"1")
    service = await start()
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        await client.post("/sign-in", data={"key": key})
        for _ in range(20):
            assert (await client.get("/queues/c")).status_code == 200
            assert (await client.get("/queues/c/points")).json()["waiting"] == [1]
            await asyncio.sleep(0.1)


async def test_a_change_of_a_queue_that_cannot_be_read_afterwards_is_confirmed(
    browser: httpx.AsyncClient, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = session.queue("orders")
    await orders.put(b"1")
    form = {"proof": proof_in(await browser.get("/queues/orders")), "action": "pause", "confirmed": "yes", "back": "/"}
    monkeypatch.setattr("aiozkqueue.sampling.MOST_FOLDERS", 0)
    done = await browser.post("/queues/orders/actions", data=form)
    assert done.status_code == 200
    assert "The queue orders is paused." in done.text
    assert (await orders.configuration()).paused


async def test_a_server_that_has_not_read_all_queues_yet_says_so(
    session: zq.QueueSession, start: Starter, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.Event()
    sample = Sampler._sample

    async def late(sampler: Sampler, name: str) -> Sample | None:
        await reading.wait()
        return await sample(sampler, name)

    await session.queue("jobs").put(b"1")
    monkeypatch.setattr("aiozkqueue.sampling.SAMPLE_TIMEOUT", 60.0)
    monkeypatch.setattr(Sampler, "_sample", late)
    service = await start()
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=60) as client:
        page = await client.post("/sign-in", data={"key": key})
        assert page.status_code == 503
        assert "The queues are being read" in page.text
        assert "ZooKeeper does not answer" not in page.text
        reading.set()
        async with asyncio.timeout(60):
            while (page := await client.get("/")).status_code != 200:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.1)
        assert 'href="/queues/jobs"' in page.text


async def test_a_list_without_queues_says_why(service: Service, session: zq.QueueSession) -> None:
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        page = await client.post("/sign-in", data={"key": service.key})
        assert "There are no queues yet." in page.text
        await session.queue("salaries").put(b"1")
        async with asyncio.timeout(60):
            while "salaries" not in (await client.get("/")).text:  # noqa: ASYNC110 - the server takes a sample every ten seconds
                await asyncio.sleep(0.2)
        key = await Keys(core_of(session)).create("orders", ["queue|get_status|orders*"])
        client.cookies.clear()
        page = await client.post("/sign-in", data={"key": key})
        assert "This key may not see any queue." in page.text


async def test_a_payload_is_shown_escaped(browser: httpx.AsyncClient, dead: list[str]) -> None:
    shown = await browser.get(f"/queues/jobs/messages/{dead[0]}")
    assert "dead-lettered" in shown.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.text
    assert "<script>alert" not in shown.text
    assert "<b>bold" not in shown.text


async def test_a_payload_with_half_of_a_surrogate_pair_has_a_page(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    half = await session.queue("orders").put(json.dumps({"name": "\ud800"}).encode())
    page = await browser.get(f"/queues/orders/messages/{half}")
    assert page.status_code == 200
    assert r"\ud800" in page.text


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_held_message_of_a_group_or_of_an_ordered_queue_is_shown_as_in_flight_and_as_retrying(
    browser: httpx.AsyncClient, session: zq.QueueSession, *, ordered: bool
) -> None:
    for name in ("held", "failed"):
        queue = session.queue(name)
        await queue.configure(zq.QueueConfig(ordered=ordered))
        await queue.put_many([b"1", b"2", b"3"], group=None if ordered else "g")
    async with session.transaction() as tx, session.transaction() as other:
        held, failed = (
            await tx.take(session.queue("held"), timeout=30),
            await other.take(session.queue("failed"), timeout=30),
        )
        assert held is not None
        assert failed is not None
        other.release(failed, delay=3600)
        await other.commit()
        for name, message, status in (("held", held, "in flight"), ("failed", failed, "retrying")):
            for search, ids in (({"status": status}, 1), ({"status": "waiting"}, 2), ({"id": message.id}, 1)):
                page = await browser.get(f"/queues/{name}/messages", params=search)
                rows = [row for row in page.text.split("<tr")[2:] if "/messages/" in row]
                assert len(rows) == ids, (name, search)
                assert (message.id in page.text) == (search != {"status": "waiting"})
                assert all(f">{search.get('status', status)}<" in row for row in rows)


async def test_dead_letters_are_searched(browser: httpx.AsyncClient, dead: list[str]) -> None:
    for text, count in (("", 3), ("bold", 1), ("CARD", 1), (dead[1], 1), ("nothing", 0)):
        page = await browser.get("/queues/jobs/dead-letters", params={"search": text})
        assert page.text.count('name="id"') == count, text


async def test_redriving_into_another_queue_names_the_dead_letters_that_cannot_go_there(
    browser: httpx.AsyncClient, session: zq.QueueSession, dead: list[str]
) -> None:
    jobs, sticky = session.queue("jobs"), session.queue("sticky")
    await sticky.configure(zq.QueueConfig(affinity="producer"))
    grouped = await jobs.put(b"grouped", group="g")
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "broken")
    page = await browser.get("/queues/jobs/dead-letters")
    form = {
        "proof": proof_in(page),
        "action": "redrive",
        "target": "sticky",
        "confirmed": "yes",
        "id": [*dead, grouped],
    }
    done = await browser.post("/queues/jobs/actions", data=form)
    assert done.status_code == 409
    assert "3 of 4 dead letters put into" in done.text
    assert grouped in done.text
    assert (await sticky.size(), await jobs.dead_letters.size()) == (3, 1)


async def test_a_message_that_was_moved_is_at_once_on_the_page_of_its_queue(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    await session.queue("target").configure(zq.QueueConfig(max_size=9))
    message = await session.queue("orders").put(b"1")
    proof = proof_in(await browser.get("/queues/orders/messages"))
    assert message not in (await browser.get("/queues/target/messages")).text
    form = {"proof": proof, "action": "move-one", "target": "target", "confirmed": "yes", "id": message}
    assert (await browser.post("/queues/orders/actions", data=form)).status_code == 200
    page = await browser.get("/queues/target/messages")
    assert message in page.text


async def test_a_purge_deletes_leased_messages_and_leaves_those_in_flight(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    orders = session.queue("orders")
    await orders.put_many([b"1", b"2", b"3"])
    form = {"proof": proof_in(await browser.get("/queues/orders")), "action": "purge"}
    asked = await browser.post("/queues/orders/actions", data=form)
    assert "leased ones too. Those in flight and the dead letters stay." in asked.text
    async with session.transaction() as tx:
        held = await tx.take(orders, timeout=30)
        assert held is not None
        assert len(await orders.leases.take(1, lifetime=600, timeout=30)) == 1
        done = await browser.post("/queues/orders/actions", data={**form, "confirmed": "yes"})
        assert "All messages of orders that were not in flight were deleted." in done.text
        assert [message.id for message in await orders.peek()] == [held.id]


async def test_a_message_that_another_queue_refuses_stays_and_the_page_states_the_reason(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    orders, keyed, sticky = (session.queue(name) for name in ("orders", "keyed", "sticky"))
    await sticky.configure(zq.QueueConfig(affinity="producer"))
    await keyed.put(b"1", key="k", unique=True)
    unique = await orders.put(b"1", key="k", unique=True)
    grouped = await orders.put(b"1", group="g")
    proof = proof_in(await browser.get("/queues/orders/messages"))
    for message, target, reason in ((unique, "keyed", "already has this unique key"), (grouped, "sticky", "is sticky")):
        form = {"proof": proof, "action": "move-one", "target": target, "confirmed": "yes", "id": message}
        done = await browser.post("/queues/orders/actions", data=form)
        assert done.status_code == 409
        assert reason in done.text
    assert (await orders.size(), await keyed.size(), await sticky.size()) == (2, 1, 0)


@pytest.mark.parametrize("action", ["pause", "resume", "delete-queue"])
async def test_a_change_of_a_queue_that_another_program_has_just_deleted_is_answered_with_a_page(
    browser: httpx.AsyncClient, session: zq.QueueSession, action: str
) -> None:
    orders = session.queue("orders")
    await orders.put(b"1")
    form = {"proof": proof_in(await browser.get("/queues/orders")), "action": action, "confirmed": "yes"}
    await orders.admin.delete(force=True)
    done = await browser.post("/queues/orders/actions", data=form)
    assert done.status_code == 404
    assert "No such queue" in done.text


async def test_redriving_shows_the_number_of_dead_letters_first(
    browser: httpx.AsyncClient, session: zq.QueueSession, dead: list[str]
) -> None:
    page = await browser.get("/queues/jobs/dead-letters")
    back = "/queues/jobs/dead-letters?search=other"
    form = {"proof": proof_in(page), "action": "redrive", "every": "1", "search": "other", "back": back}
    asked = await browser.post("/queues/jobs/actions", data=form)
    assert "Redrive 2 dead letters" in asked.text
    assert await session.queue("jobs").size() == 0, "nothing is redriven before the confirmation"
    ids = re.findall(r'name="id" value="([^"]+)"', asked.text)
    assert sorted(ids) == sorted(dead[1:])
    done = await browser.post("/queues/jobs/actions", data={**form, "every": "", "confirmed": "yes", "id": ids})
    assert "2 of 2 dead letters were redriven" in done.text
    assert done.url.params["search"] == "other", "the search is kept"
    assert await session.queue("jobs").size() == 2
    deletion = {"proof": form["proof"], "action": "delete", "id": [dead[0]]}
    assert "deleted permanently" in (await browser.post("/queues/jobs/actions", data=deletion)).text
    done = await browser.post("/queues/jobs/actions", data={**deletion, "confirmed": "yes"})
    assert "1 of 1 dead letter was deleted" in done.text
    assert await session.queue("jobs").dead_letters.size() == 0


async def test_a_form_without_a_valid_proof_changes_nothing(
    browser: httpx.AsyncClient, session: zq.QueueSession, dead: list[str]
) -> None:
    proof = proof_in(await browser.get("/queues/jobs/dead-letters"))
    change = {"action": "delete", "id": dead, "confirmed": "yes"}
    for fields in ({}, {"proof": ""}, {"proof": "0" * 64}, {"proof": "é"}):
        assert (await browser.post("/queues/jobs/actions", data={**change, **fields})).status_code == 403
    foreign = await browser.post(
        "/queues/jobs/actions", data={**change, "proof": proof}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert foreign.status_code == 403
    assert (await browser.post("/sign-out", data={})).status_code == 403
    assert await session.queue("jobs").dead_letters.size() == 3


async def test_a_read_only_key_changes_nothing(service: Service, session: zq.QueueSession, dead: list[str]) -> None:
    key = await Keys(core_of(session)).create("looker", ["queue|get_status|*", "queue|poll|*"])
    async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
        await client.post("/sign-in", data={"key": key})
        page = await client.get("/queues/jobs/dead-letters")
        assert "Redrive" not in page.text
        for action in ("delete", "redrive", "pause", "purge", "move", "cancel", "move-one", "delete-queue"):
            form = {"proof": proof_in(page), "action": action, "id": dead, "target": "others", "confirmed": "yes"}
            assert (await client.post("/queues/jobs/actions", data=form)).status_code == 403
        page = await client.get("/queues/jobs")
        assert "/actions" not in page.text
    assert await session.queue("jobs").dead_letters.size() == 3


async def test_any_server_accepts_a_form_that_another_server_rendered(
    browser: httpx.AsyncClient, start: Starter, dead: list[str]
) -> None:
    proof = proof_in(await browser.get("/queues/jobs/dead-letters"))
    other = await start()
    cookies = {name: value for name, value in browser.cookies.items() if value}
    form = {"proof": proof, "action": "delete", "id": dead, "confirmed": "yes"}
    async with httpx.AsyncClient(base_url=other.url, cookies=cookies, follow_redirects=True, timeout=30) as client:
        done = await client.post("/queues/jobs/actions", data=form)
        assert "3 of 3" in done.text


async def test_anonymous_visitors_can_read_but_not_change_anything(
    start: Starter, session: zq.QueueSession, dead: list[str]
) -> None:
    service = await start(Settings(anonymous=("queue|*|*",)))
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        assert "jobs" in (await client.get("/")).text
        assert "Redrive" not in (await client.get("/queues/jobs/dead-letters")).text
        form = {"action": "delete", "id": dead, "proof": "", "confirmed": "yes"}
        assert (await client.post("/queues/jobs/actions", data=form)).status_code == 403
    assert await session.queue("jobs").dead_letters.size() == 3


async def test_a_missing_queue_suggests_only_a_queue_that_the_key_may_see(
    service: Service, session: zq.QueueSession
) -> None:
    await session.queue("orders").put(b"1")
    await session.queue("order-audit").put(b"1")
    key = await Keys(core_of(session)).create("orders", ["queue|get_status|order*"])
    narrow = await Keys(core_of(session)).create("narrow", ["queue|get_status|ordrs", "queue|get_status|order-audit"])
    for api_key, suggested in ((key, True), (narrow, False)):
        async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as client:
            await client.post("/sign-in", data={"key": api_key})
            answer = await client.get("/queues/orders-" if api_key == key else "/queues/ordrs")
            assert answer.status_code == 404
            assert ("Did you mean &#39;orders&#39;?" in answer.text) is suggested
            assert ("Did you mean" in answer.text) is suggested


async def test_signing_out_forgets_the_key(browser: httpx.AsyncClient) -> None:
    out = await browser.post("/sign-out", data={"proof": proof_in(await browser.get("/"))})
    assert "API key" in out.text
    assert (await browser.get("/queues/jobs")).status_code == 403


async def test_every_link_of_a_mounted_dashboard_stays_below_its_path(
    zookeeper: str, queue_root: str, key: str
) -> None:
    from starlette.applications import Starlette  # noqa: PLC0415 - a user's own application
    from starlette.routing import Mount  # noqa: PLC0415 - a user's own application

    app = create_app(lambda: zq.connect(zookeeper, root=queue_root))
    outer = Starlette(routes=[Mount("/queues-of-ours", app)])
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="https://test", follow_redirects=True) as client:
            await client.post("/queues-of-ours/queue/1/q/send", json=1, headers={"X-BV-API-Key": key})
            page = await client.post("/queues-of-ours/sign-in", data={"key": key})
            assert page.url.path == "/queues-of-ours/"
            sent = page.history[0].headers["set-cookie"]
            assert "Secure" in sent
            assert "Path=/queues-of-ours" in sent
            for link in re.findall(r'(?:href|src|action)="([^"]+)"', page.text):
                assert link.startswith(("/queues-of-ours/", "?", "#", "data:")), link
                if link.startswith("/queues-of-ours/") and "sign-" not in link:
                    assert (await client.get(link)).status_code == 200
            paused = {"proof": proof_in(page), "action": "pause", "confirmed": "yes", "back": "/queues/q"}
            done = await client.post("/queues-of-ours/queues/q/actions", data=paused)
            assert done.url.path == "/queues-of-ours/queues/q"
            assert "The queue q is paused." in done.text


async def test_the_metrics_endpoint_counts_requests_and_queues(service: Service, session: zq.QueueSession) -> None:
    await service.post("/queue/1/jobs/sendbatch", json=[1, 2, 3])
    await service.get("/queue/1/jobs/poll", params={"limit": 0})
    await service.get("/")  # the overview samples the queues
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        assert (await client.get("/metrics")).status_code == 403
        narrow = await Keys(core_of(session)).create("narrow", ["queue|get_status|jobs"])
        assert (await client.get("/metrics", headers={"X-BV-API-Key": narrow})).status_code == 403
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {service.key}"})
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    assert 'aiozkqueue_http_requests_total{operation="send_batch",service="queue",status="200"} 1.0' in lines
    assert 'aiozkqueue_http_requests_total{operation="poll",service="queue",status="400"} 1.0' in lines
    assert any(line.startswith("aiozkqueue_http_request_seconds_bucket{") for line in lines)
    async with asyncio.timeout(90):
        while 'aiozkqueue_queue_messages{queue="jobs"} 3.0' not in lines:
            await asyncio.sleep(0.5)
            lines = (await service.get("/metrics")).text.splitlines()


async def test_the_figures_count_puts_and_finished_messages(session: zq.QueueSession) -> None:
    sampler, jobs = Sampler(session), session.queue("jobs")
    await sampler.sample_all(0)
    await jobs.put_many([b"1"] * 10)
    await sampler.sample_all(0)
    first = sampler.latest["jobs"]
    assert (first.size, first.in_flight, first.dead, first.put) == (10, 0, 0, 10)
    assert first.oldest is not None
    async with session.transaction() as tx:
        await tx.take_many(jobs, 4)
    await sampler.sample_all(0)
    second = sampler.latest["jobs"]
    assert (second.size, second.put) == (6, 10)
    moved = rates_between(first, second._replace(at=first.at + 2))
    assert (moved.put, moved.removed) == (0.0, 2.0)
    assert isinstance(second, Sample)


@pytest.mark.parametrize("ordered", [False, True], ids=["group", "ordered"])
async def test_the_list_of_messages_shows_only_the_held_message_of_a_group_in_flight(
    browser: httpx.AsyncClient, session: zq.QueueSession, *, ordered: bool
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(ordered=ordered or None))
    await jobs.put_many([b"0", b"1", b"2"], group=None if ordered else "g")
    async with session.transaction(autocommit=False) as tx:
        taken = await tx.take(jobs, timeout=30)
        assert taken is not None
        later = [message.id for message in await jobs.peek() if message.id != taken.id]
        await _shows(browser, f"/queues/jobs/messages?id={taken.id}", {taken.id: "in flight"})
        await _shows(browser, "/queues/jobs/messages?status=in+flight", {taken.id: "in flight"})
        await _shows(browser, "/queues/jobs/messages", {taken.id: "in flight"} | dict.fromkeys(later, "waiting"))
        await tx.rollback()


async def _shows(browser: httpx.AsyncClient, path: str, expected: dict[str, str]) -> None:
    """Wait until a list of messages has exactly these ids, with their states."""
    shown: dict[str, str] = {}
    async with asyncio.timeout(30):
        while shown != expected:
            await asyncio.sleep(0.05)
            page = (await browser.get(path)).text
            rows = re.findall(r'>([0-9A-Za-z]{18})</a></th><td data-label="Status">(.*?)</td>', page)
            shown = {found: re.sub("<[^>]*>", "", status).strip() for found, status in rows}
