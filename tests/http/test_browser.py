"""The dashboard in a real browser: headless Chromium, driven by Playwright.

``AIOZKQUEUE_SCREENSHOTS=docs/images`` saves the screenshots for the documentation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import expect

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.http import Keys, Settings
from aiozkqueue.schedule import Jobs
from aiozkqueue.session.internals import core_of
from tests.browser import launched
from tests.http.browsing import TRACE, WINDOWS, fill, keep, too_wide, violations, window
from tests.http.conftest import NOBODY, PATIENCE, Service, serving
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

#: The screenshots for the documentation, by page and window.
PICTURES = {
    ("queues", "light"): "dashboard-queues",
    ("queues", "phone"): "dashboard-phone",
    ("messages", "light"): "dashboard-messages",
    ("message", "light"): "dashboard-message",
    ("dead-letters", "light"): "dashboard-dead-letters",
}

# All tests share a browser, whose start takes longer than most of them. A browser belongs to the loop that started it,
# so all tests and their sessions, servers and windows run on one loop.
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("frequent_samples"),
    pytest.mark.asyncio(loop_scope="module"),
]
on_the_loop = partial(pytest_asyncio.fixture, loop_scope="module")


@pytest.fixture(autouse=True, scope="module")
def _no_blocking_calls_on_the_loop() -> None:
    """Disable the check, since Playwright reads the source of its caller in each call."""


@on_the_loop(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with launched("the dashboard") as browser:
        yield browser


@on_the_loop()
async def session(zookeeper: str, queue_root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as opened:
        yield opened


@on_the_loop()
async def service(zookeeper: str, queue_root: str, session: zq.QueueSession) -> AsyncIterator[Service]:
    key = await Keys(core_of(session)).create("operator", ["queue|*|*"])
    async with (
        serving(zookeeper, queue_root, Settings()) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=NOBODY) as client,
    ):
        yield Service(url, client, key)


@on_the_loop()
async def dead(session: zq.QueueSession) -> list[str]:
    """Queues of every kind, and the dead letters of ``orders``."""
    return await fill(session)


@on_the_loop()
async def page(chromium: Browser, service: Service, dead: list[str]) -> AsyncIterator[Page]:
    assert dead
    async with window(chromium, service) as opened:
        yield opened


def row(page: Page, name: str) -> object:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


async def confirm(page: Page, button: str, question: str) -> None:
    """Press a button, and confirm on the next page."""
    await page.get_by_role("button", name=f"{button}…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(question)


async def expect_notice(page: Page, text: str) -> None:
    await expect(page.get_by_role("status").first).to_have_text(text)


# -- every page


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind != "light" else []) for kind in WINDOWS]
)
async def test_every_page_is_accessible_and_fits_its_window(
    chromium: Browser, service: Service, session: zq.QueueSession, dead: list[str], kind: str
) -> None:
    await session.admin.moves.start("archive", "invoices")
    pages = {
        "queues": "/",
        "all-dead-letters": "/dead-letters",
        "consumers": "/consumers",
        "jobs": "/jobs",
        "buses": "/buses",
        "moves": "/moves",
        "servers": "/servers",
        "findings": "/findings",
        "queue": "/queues/orders?range=1h",
        "messages": "/queues/orders/messages",
        "message": f"/queues/orders/messages/{dead[0]}",
        "dead-letters": "/queues/orders/dead-letters",
        "missing": "/queues/nosuch",
    }
    found: dict[str, object] = {}
    async with session.queue("invoices").consume() as _, window(chromium, service, kind) as opened:
        for name, path in pages.items():
            await opened.goto(path)
            await expect(opened.locator("[data-soon]")).to_have_count(0)
            if name == "queues":  # samples are up to ten seconds old
                await expect(opened.get_by_role("row", name="invoices")).to_be_visible()
            found[name] = await violations(opened), await too_wide(opened)
            if (picture := PICTURES.get((name, kind))) is not None:
                await keep(opened, picture)
        await opened.goto("/queues/orders/dead-letters")
        await opened.get_by_role("button", name="Redrive…").click()
        found["confirm"] = await violations(opened), await too_wide(opened)
        await opened.goto("/")
        await opened.get_by_role("button", name="Sign out").click()
        found["sign in"] = await violations(opened), await too_wide(opened)
    assert {name: result for name, result in found.items() if result != ([], False)} == {}


async def test_the_sections_are_reached_by_the_navigation(page: Page) -> None:
    sections = page.get_by_role("navigation", name="Sections")
    for title in ("Dead letters", "Consumers", "Jobs", "Buses", "Moves", "Servers", "Findings", "Queues"):
        await sections.get_by_role("link", name=title).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
        await expect(sections.locator("[aria-current=page]")).to_have_text(title)
    await page.goto("/dead-letters")
    await page.get_by_role("link", name="orders").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters of orders")


async def test_a_missing_page_is_shown_with_the_navigation_and_without_sign_in(page: Page) -> None:
    for path, text in (("/queues/order", "Did you mean 'orders'?"), ("/nowhere", "no page"), ("/queue/", "no page")):
        answer = await page.goto(path)
        assert answer is not None
        assert answer.status == 404
        await expect(page.get_by_role("alert")).to_contain_text(text)
        await expect(page.get_by_role("navigation", name="Sections")).to_be_visible()
        await expect(page.get_by_text("Sign in")).to_have_count(0)


# -- queues


async def test_queues_that_need_attention_are_highlighted_and_idle_ones_are_dimmed(page: Page) -> None:
    for name, text, kind in (
        ("invoices", "no consumers", "sick"),
        ("mails", "paused", "sick"),
        ("orders", "5 dead", "sick"),
        ("archive", "", "idle"),
    ):
        queue_row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        await expect(queue_row).to_have_class(kind)
        await expect(queue_row).to_contain_text(text)
    await page.get_by_role("link", name="Need attention 3").click()
    await expect(page.locator("tbody tr")).to_have_count(3)


async def test_queues_are_searched_and_sorted_with_their_totals(page: Page) -> None:
    await page.get_by_role("link", name="Waiting").click()
    await expect(page.locator("tbody th a:not(.sign)")).to_have_text(["invoices", "orders", "mails", "archive"])
    await expect(page.locator("tfoot")).to_contain_text("Total of 4")
    await page.get_by_role("searchbox").fill("M")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("tbody th a:not(.sign)")).to_have_text(["mails"])
    await expect(page.locator("tfoot td").first).to_have_text("2")
    await expect(page.locator("th[aria-sort]")).to_have_text("Waiting")


async def test_pages_refresh_until_they_are_paused(page: Page, session: zq.QueueSession) -> None:
    invoices = page.get_by_role("row").filter(has_text="invoices")
    await session.queue("invoices").put_many([b"1"] * 4290)
    await expect(invoices).to_contain_text("4,320", timeout=60_000)
    await page.get_by_role("button", name="Pause updates").click()
    await expect(page.locator("[data-told]")).to_have_text("Updates are paused.")
    await expect(page.get_by_role("button", name="Resume updates")).to_be_visible()


async def test_a_page_is_updated_around_its_readers_focus(page: Page, session: zq.QueueSession) -> None:
    invoices = page.get_by_role("row").filter(has_text="invoices")
    link = page.get_by_role("link", name="invoices", exact=True)
    await page.set_viewport_size({"width": 800, "height": 800})
    await page.get_by_role("region", name="Queues").evaluate("node => { node.scrollLeft = 40; }")
    await link.focus()
    await session.queue("invoices").put(b"1")
    await expect(invoices).to_contain_text("31", timeout=60_000)  # the same rows
    await expect(link).to_be_focused()
    await session.queue("a-new-queue").put(b"1")
    await expect(page.get_by_role("link", name="a-new-queue")).to_be_visible(timeout=60_000)  # another row
    await expect(link).to_be_focused()
    assert await page.get_by_role("region", name="Queues").evaluate("node => node.scrollLeft") == 40
    await invoices.get_by_role("cell").nth(3).click()  # the focus is on the whole table
    await session.queue("invoices").put(b"1")
    await expect(invoices).to_contain_text("32", timeout=60_000)


async def test_a_page_that_cannot_be_updated_says_why(page: Page, session: zq.QueueSession) -> None:
    await session.queue("short-lived").put(b"1")
    await page.goto("/queues/short-lived")
    await session.queue("short-lived").admin.delete(force=True)
    await expect(page.locator("[data-told]")).to_contain_text("it no longer exists", timeout=60_000)
    await page.goto("/")
    await Keys(core_of(session)).revoke("operator")
    await expect(page.locator("[data-told]")).to_contain_text("sign in again", timeout=60_000)


async def test_the_dashboard_works_with_the_keyboard_alone(page: Page) -> None:
    await page.goto("/")
    await expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    await page.keyboard.press("Tab")
    focused = "document.activeElement.textContent"
    assert await page.evaluate(focused) == "Skip to the content"
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate(focused) == "orders":
            break
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    for landmark in ("banner", "main", "contentinfo"):
        await expect(page.get_by_role(landmark)).to_have_count(1)


async def test_the_longest_names_fit_into_a_narrow_window(
    chromium: Browser, service: Service, session: zq.QueueSession
) -> None:
    name = "n" * 255
    queue = session.queue(name)
    await queue.put_many([b"1", b"2"], key="k" * 1000, tags={"t" * 100: "v" * 100})
    async with queue.consume(until_idle=0, settle="explicit") as deliveries:
        async for delivery in deliveries:
            await delivery.reject("r" * 1000)
            break
    await Jobs(session).add("j" * 255, "0 3 * * *", name, b"{}")
    await session.admin.moves.start(name, "m" * 255)
    [dead] = await queue.dead_letters.peek()
    key = await Keys(core_of(session)).create("k" * 255, ["queue|*|*"])
    own = f"/queues/{name}"
    wide: list[str] = []
    async with queue.consume() as _, window(chromium, service, "phone", key=key) as opened:
        for path in (
            *("/", "/dead-letters", "/consumers", "/jobs", "/moves", "/servers", "/findings"),
            *(own, f"{own}/messages", f"{own}/messages/{dead.id}", f"{own}/dead-letters", "/queues/" + "x" * 255),
        ):
            await opened.goto(path)
            if await too_wide(opened):
                wide.append(path)
        for action in ("Purge", "Move all"):
            await opened.goto(own)
            await opened.get_by_role("button", name=f"{action}…").click()
            if await too_wide(opened):
                wide.append(action)
    assert wide == []


# -- one queue


async def test_a_queue_shows_figures_that_agree_with_its_charts(page: Page) -> None:
    await page.goto("/queues/orders")
    figures = page.get_by_label("Figures")
    await expect(figures).to_contain_text("12 waiting")
    await expect(figures).to_contain_text("14 size")
    await expect(figures).to_contain_text("5 dead letters")
    chart = page.get_by_role("img", name="Messages, now: waiting 12, in flight 0, dead letters 5")
    await expect(chart).to_be_visible()
    await expect(chart.locator("canvas")).to_be_visible()
    await expect(chart).to_contain_text("waiting12")
    await chart.locator(".u-over").hover()
    await page.get_by_role("navigation", name="Time range").get_by_role("link", name="6 h").click()
    await expect(page.locator("[data-charts]")).to_have_attribute("data-charts", "/queues/orders/points?range=6h")
    for link, count in (("Messages", 14), ("Dead letters", 5)):
        await expect(page.get_by_role("navigation", name="Queue").get_by_role("link", name=link)).to_contain_text(
            str(count)
        )


async def test_a_queue_shows_its_configuration_its_times_and_its_consumers(
    page: Page, session: zq.QueueSession
) -> None:
    async with session.queue("orders").consume() as deliveries:
        async for _ in deliveries:
            break
        await page.goto("/queues/orders")
        settings = page.locator(".settings")
        await expect(settings).to_contain_text("policyconsume-times=5")
        await expect(settings).to_contain_text("backoff3600")
        await expect(settings).to_contain_text("exhausteddead-letter")
        await expect(settings).to_contain_text("history604800,most=100000,payload")
        await expect(settings).to_contain_text("max_sizeunlimited")
        await expect(page.get_by_role("row", name="Wait until claimed")).to_be_visible()
        await expect(page.get_by_role("row", name="Handling")).to_be_visible()
        consumers = page.get_by_role("region", name="Consumers of orders")
        await expect(consumers.locator("tbody tr")).to_have_count(1)
        await consumers.locator("summary").click()
        await expect(consumers.locator("details a").first).to_be_visible()
    await page.goto("/queues/invoices")
    await expect(page.get_by_text("These times come from the history")).to_be_visible()
    await expect(page.get_by_text("This queue has no consumers.")).to_be_visible()


@pytest.mark.parametrize("kind", ["light", "phone"])
async def test_a_queue_is_paused_resumed_moved_purged_and_deleted_after_a_confirmation(
    chromium: Browser, service: Service, session: zq.QueueSession, dead: list[str], kind: str
) -> None:
    assert dead
    invoices = session.queue("invoices")
    async with window(chromium, service, kind) as page:
        await page.goto("/queues/invoices")
        await confirm(page, "Pause", "Pause the queue invoices?")
        assert not (await invoices.configuration()).paused
        await page.get_by_role("button", name="Pause", exact=True).click()
        await expect_notice(page, "The queue invoices is paused.")
        await expect(page.locator(".heading .sign").first).to_have_text("paused")
        assert (await invoices.configuration()).paused
        await confirm(page, "Resume", "Resume the queue invoices?")
        await page.get_by_role("button", name="Resume", exact=True).click()
        await expect_notice(page, "The queue invoices is resumed.")
        assert not (await invoices.configuration()).paused

        await confirm(page, "Move all", "Move all messages of invoices?")
        await page.get_by_label("To the queue").fill("nosuch")
        await page.get_by_role("button", name="Move").click()
        await expect(page.get_by_role("alert")).to_contain_text("There is no queue 'nosuch'")
        assert not await session.queue("nosuch").exists()
        await page.get_by_label("To the queue").fill("archive")
        await page.get_by_role("button", name="Move").click()
        await expect_notice(
            page, "The messages of invoices are being moved to archive; the page Moves shows the progress."
        )

        async def moved() -> bool:
            return await session.queue("archive").size() == 30

        await eventually(moved)
        await page.get_by_role("link", name="Moves").click()
        await expect(page.locator("tbody tr")).to_contain_text("archive")

        await page.goto("/queues/archive")
        await confirm(page, "Purge", "Purge all messages of archive?")
        await page.get_by_role("button", name="Purge").click()
        await expect_notice(page, "All messages of archive that were not in flight were deleted.")
        assert await session.queue("archive").size() == 0

        await page.goto("/queues/orders")
        await confirm(page, "Delete", "Delete the queue orders?")
        await page.get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("alert")).to_contain_text("nothing was deleted")
        await page.goto("/queues/archive")
        await confirm(page, "Delete", "Delete the queue archive?")
        await page.get_by_role("button", name="Delete").click()
        await expect_notice(page, "The queue archive was deleted.")
        await expect(page.get_by_role("link", name="archive", exact=True)).to_have_count(0)
        assert not await session.queue("archive").exists()


# -- messages


async def test_messages_are_searched_by_id_key_tag_group_and_status(page: Page, session: zq.QueueSession) -> None:
    await session.queue("orders").put_many([b"x"] * 60)
    await page.goto("/queues/orders/messages")
    await expect(page.get_by_role("navigation", name="Pages")).to_contain_text("1\N{EN DASH}50 of 74")
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_role("navigation", name="Pages")).to_contain_text("51\N{EN DASH}74 of 74")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(24)
    messages = await session.queue("orders").peek(1)
    for label, text, count in (
        ("Id", messages[0].id, 1),
        ("Key, group", "order-6", 1),
        ("Key, group", "country=", 1),
        ("Key, group", "nightly", 1),
        ("Key, group", "nothing", 0),
    ):
        await page.goto("/queues/orders/messages")
        await page.get_by_label(label).fill(text)
        await page.get_by_role("button", name="Search").click()
        await expect(rows).to_have_count(count)
    for status, count in (("retrying", 1), ("scheduled", 1), ("in flight", 0), ("waiting", 50)):
        await page.goto("/queues/orders/messages")
        await page.get_by_label("Status").select_option(status)
        await page.get_by_role("button", name="Search").click()
        await expect(rows).to_have_count(count)
        await expect(page.get_by_label("Status")).to_have_value(status)


async def test_a_message_shows_its_properties_its_payload_and_its_history(page: Page, dead: list[str]) -> None:
    await page.goto("/queues/orders/dead-letters")
    await page.get_by_role("link", name=dead[0]).click()
    for text in ("order-1", "country=de", TRACE, "shop", "dead-lettered"):
        await expect(page.get_by_text(text).first).to_be_visible()
    story = page.locator(".story li")
    await expect(story).to_contain_text(["put by", "claimed by", "dead-lettered, delivered at least once"])
    payload = page.get_by_label("Payload")
    await expect(payload).to_contain_text('"customer": "K-101"')
    await expect(payload.locator(".json-key").first).to_have_text('"order"')
    await expect(payload.locator(".json-figure").first).to_have_text("1")


async def test_a_waiting_message_is_moved_and_cancelled(page: Page, session: zq.QueueSession) -> None:
    orders = session.queue("orders")
    first, second = [
        message for message in await orders.peek(20) if b"K-109" in message.body or b"K-110" in message.body
    ]
    await page.goto(f"/queues/orders/messages/{first.id}")
    await confirm(page, "Move", f"Move the message {first.id} of orders?")
    await page.get_by_label("To the queue").fill("archive")
    await page.get_by_role("button", name="Move").click()
    await expect_notice(page, "The message was moved to archive.")
    (moved,) = await session.queue("archive").peek()
    assert (moved.id, moved.body) == (first.id, first.body)
    await page.goto(f"/queues/orders/messages/{second.id}")
    await confirm(page, "Cancel", f"Cancel the message {second.id} of orders?")
    await page.get_by_role("button", name="Cancel").click()
    await expect_notice(page, "The message was cancelled.")
    assert (await orders.state(second.id)).status is zq.Status.CANCELLED
    await expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)


async def test_a_message_in_flight_is_not_changed(page: Page, session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        message = await tx.take(session.queue("orders"), timeout=30)
        assert message is not None
        await page.goto(f"/queues/orders/messages/{message.id}")
        await page.get_by_role("button", name="Cancel…").click()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("alert")).to_contain_text("A consumer holds it")


# -- dead letters


async def test_dead_letters_are_newest_first_and_grouped_by_reason(page: Page, dead: list[str]) -> None:
    await page.goto("/queues/orders/dead-letters")
    await expect(page.locator("tbody th a")).to_have_text(dead[::-1])
    reasons = page.locator(".reasons li")
    await expect(reasons).to_contain_text(["ValueError: customer … has no address", "TimeoutError: the bank did"])
    await reasons.nth(1).get_by_role("link").click()
    await expect(page.locator("tbody th a")).to_have_text(dead[:2:-1])


@pytest.mark.parametrize("kind", ["light", "phone"])
async def test_dead_letters_are_redriven_and_deleted_and_the_filter_is_kept(
    chromium: Browser, service: Service, session: zq.QueueSession, dead: list[str], kind: str
) -> None:
    orders = session.queue("orders")
    async with window(chromium, service, kind) as page:
        await page.goto("/queues/orders/dead-letters")
        await page.get_by_role("searchbox").fill("VALUE")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_label(f"Select {dead[0]}").check()
        await expect(page.get_by_label("Selected")).to_be_checked()
        await confirm(page, "Redrive", "Redrive 1 dead letter of orders?")
        assert await orders.dead_letters.size() == 5
        await page.get_by_label("Into another queue").fill("archive")
        await page.get_by_role("button", name="Redrive").click()
        await expect_notice(page, "1 of 1 dead letter was redriven into archive.")
        assert [message.id for message in await session.queue("archive").peek()] == [dead[0]]
        await expect(page.get_by_role("searchbox")).to_have_value("VALUE")
        await expect(page.locator("tbody tr")).to_have_count(2)
        size = await orders.size()
        await confirm(page, "Redrive", "Redrive 2 dead letters of orders?")
        await page.get_by_role("button", name="Redrive 2").click()
        await expect_notice(page, "2 of 2 dead letters were redriven.")
        assert await orders.size() == size + 2
        await page.get_by_role("link", name="Clear").click()
        await confirm(page, "Delete", "Delete 2 dead letters of orders?")
        await page.get_by_role("link", name="Back").click()
        await confirm(page, "Delete", "Delete 2 dead letters of orders?")
        await page.get_by_role("button", name="Delete 2").click()
        await expect_notice(page, "2 of 2 dead letters were deleted.")
        assert await orders.dead_letters.size() == 0


async def test_a_whole_page_of_dead_letters_is_selected_at_once(page: Page) -> None:
    await page.goto("/queues/orders/dead-letters")
    await page.get_by_label("Select all on this page").check()
    await expect(page.locator("tbody input:checked")).to_have_count(5)
    await confirm(page, "Delete", "Delete 5 dead letters of orders?")
    await page.goto("/queues/orders/dead-letters")
    await page.get_by_label("Selected").check()
    await page.get_by_role("button", name="Delete…").click()
    await expect(page.get_by_role("main")).to_contain_text("No message is selected.")


async def test_a_dead_letter_is_readable_on_a_phone(chromium: Browser, service: Service, dead: list[str]) -> None:
    assert dead
    async with window(chromium, service, "phone") as page:
        await page.goto("/queues/orders/dead-letters")
        date = page.locator("td.when").first
        box = await date.bounding_box()
        assert box is not None
        assert box["height"] < 50, "the label and the date take one line each"
        reason = await page.locator("td.wide").first.bounding_box()
        assert reason is not None
        assert 0 <= reason["x"] < reason["x"] + reason["width"] <= 390
        card = await page.locator("tbody tr").first.bounding_box()
        assert card is not None
        assert card["height"] < 160


# -- jobs, and permissions


async def test_a_job_is_paused_and_resumed(page: Page) -> None:
    await page.goto("/jobs")
    await page.get_by_role("button", name="Pause nightly-report").click()
    await expect_notice(page, "The job nightly-report is paused.")
    await page.get_by_role("button", name="Resume nightly-report").click()
    await expect_notice(page, "The job nightly-report is resumed.")


async def test_a_bus_is_shown_with_the_backlog_of_each_group(page: Page, session: zq.QueueSession) -> None:
    from pydantic import BaseModel  # noqa: PLC0415 - needed only by this test

    class Event(BaseModel):
        number: int

    bus = Bus(session, "shop", Event)
    await bus.post(Event(number=1))
    await page.goto("/buses")
    await expect(page.get_by_role("row", name="shop")).to_contain_text("the bus itself")


async def test_a_key_without_permission_sees_the_reason(
    chromium: Browser, service: Service, session: zq.QueueSession, dead: list[str]
) -> None:
    key = await Keys(core_of(session)).create("looker", ["queue|get_status|orders"])
    async with window(chromium, service, key=key) as page:
        await expect(page.get_by_text("invoices")).to_have_count(0)
        await expect(page.get_by_role("link", name="Servers")).to_have_count(0)
        await page.goto("/queues/orders/dead-letters")
        await expect(page.get_by_text("This key may not change them")).to_be_visible()
        await expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
        await page.goto(f"/queues/orders/messages/{dead[0]}")
        await expect(page.get_by_text("may not read payloads")).to_be_visible()
        await page.goto("/jobs")
        await expect(page.get_by_text("nightly-report")).to_have_count(0)
        for path, text in (("/queues/invoices", "may not see"), ("/servers", "needs the permission")):
            answer = await page.goto(path)
            assert answer is not None
            assert answer.status == 403
            await expect(page.get_by_role("alert")).to_contain_text(text)
            await expect(page.get_by_text("Sign in")).to_have_count(0)


async def test_the_dashboard_follows_the_dark_color_scheme(page: Page) -> None:
    backgrounds: dict[str, str] = {}
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        backgrounds[scheme] = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backgrounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
