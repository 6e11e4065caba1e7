"""The dashboard in a real browser: headless Chromium, driven by Playwright.

``AIOZKQUEUE_SCREENSHOTS=docs/images`` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from aiozkqueue.http import Keys
from aiozkqueue.queue.internals import core_of
from tests.browser import PATIENCE, launched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    import aiozkqueue as zq
    from tests.http.conftest import Service

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _no_blocking_calls_on_the_loop() -> None:
    """Not watched for here: Playwright looks its caller up in the source at each call."""


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with launched("the dashboard") as browser:
        yield browser


@pytest.fixture
async def page(chromium: Browser, service: Service) -> AsyncIterator[Page]:
    """A window at the dashboard that fails the test when anything on a page is refused or goes wrong."""
    context = await chromium.new_context(base_url=service.url, viewport={"width": 1180, "height": 820})
    context.set_default_timeout(PATIENCE)
    window = await context.new_page()
    errors: list[str] = []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
    await window.goto("/")
    yield window
    await context.close()
    assert errors == []


async def sign_in(page: Page, key: str) -> None:
    await page.get_by_label("API key").fill(key)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Queues")).to_be_visible()


async def keep(page: Page, name: str) -> None:
    """Keep a picture for the documentation, when that is asked for."""
    folder = os.environ.get("AIOZKQUEUE_SCREENSHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture
async def work(session: zq.QueueSession) -> list[str]:
    """A queue with messages and three dead letters, whose ids these are."""
    orders = session.queue("orders")
    await session.queue("invoices").put_many([b'{"invoice": %d}' % number for number in range(1, 4)])
    await orders.put_many([b'{"order": %d, "customer": "K-%d"}' % (number, 100 + number) for number in range(1, 4)])
    async with orders.consume(until_idle=0, settle="explicit") as deliveries:
        async for delivery in deliveries:
            await delivery.reject("ValueError: the customer has no address")
    await orders.put_many([b'{"order": %d, "customer": "K-%d"}' % (number, 100 + number) for number in range(4, 16)])
    return [letter.id for letter in await orders.dead_letters.peek()]


async def test_queues_are_listed_and_opened(page: Page, service: Service, work: list[str]) -> None:
    await sign_in(page, service.key)
    row = page.get_by_role("row").filter(has_text="orders")
    await expect(row).to_contain_text("12")
    await expect(row).to_contain_text(str(len(work)))
    await keep(page, "dashboard-queues")
    await page.get_by_role("link", name="orders", exact=True).click()
    await expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    await expect(page.get_by_role("img", name="Size: now")).to_be_visible()
    await expect(page.get_by_text("K-104")).to_have_count(0)
    await keep(page, "dashboard-queue")
    await page.locator("tbody th a").first.click()
    await page.get_by_role("link", name="Show the payload").click()
    await expect(page.get_by_label("Payload")).to_contain_text('"customer": "K-104"')
    await keep(page, "dashboard-message")


async def test_dead_letters_are_redriven_after_a_confirmation(
    page: Page, service: Service, session: zq.QueueSession, work: list[str]
) -> None:
    await sign_in(page, service.key)
    await page.goto("/queues/orders/dead-letters")
    await keep(page, "dashboard-dead-letters")
    await page.get_by_role("searchbox").fill("k-102")
    await page.get_by_role("button", name="Search").click()
    await page.get_by_role("button", name="Redrive all 1").click()
    await expect(page.get_by_role("heading")).to_contain_text("Redrive 1 dead letter of orders?")
    assert await session.queue("orders").dead_letters.size() == 3
    await page.get_by_role("button", name="Redrive 1").click()
    await expect(page.get_by_role("status").first).to_contain_text("1 of 1 dead letters were redriven")
    assert await session.queue("orders").size() == 13
    await page.get_by_label(f"Select {work[0]}").check()
    await page.get_by_role("button", name="Delete selected").click()
    await page.get_by_role("button", name="Delete 1").click()
    await expect(page.get_by_role("status").first).to_contain_text("1 of 1 dead letters were deleted")
    assert await session.queue("orders").dead_letters.size() == 1


async def test_a_key_without_permission_sees_the_reason(page: Page, session: zq.QueueSession, work: list[str]) -> None:
    key = await Keys(core_of(session)).create("looker", ["queue|get_status|orders"])
    await sign_in(page, key)
    await expect(page.get_by_text("invoices")).to_have_count(0)
    await page.goto("/queues/orders/dead-letters")
    await expect(page.get_by_text("This key may not change them")).to_be_visible()
    await expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    await page.goto(f"/queues/orders/messages/{work[0]}?payload=1")
    await expect(page.get_by_text("may not read payloads")).to_be_visible()
    answer = await page.goto("/queues/invoices")
    assert answer is not None
    assert answer.status == 403
    await expect(page.get_by_role("alert")).to_contain_text("may not see")


async def test_the_dashboard_follows_the_dark_color_scheme(page: Page, service: Service, work: list[str]) -> None:
    await sign_in(page, service.key)
    assert work
    grounds: dict[str, str] = {}
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        grounds[scheme] = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert grounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    await keep(page, "dashboard-dark")


async def test_pages_refresh_until_they_are_paused(
    page: Page, service: Service, session: zq.QueueSession, work: list[str]
) -> None:
    assert work
    await sign_in(page, service.key)
    row = page.get_by_role("row").filter(has_text="invoices")
    await expect(row).to_contain_text("3")
    await session.queue("invoices").put_many([b"1"] * 4320)
    await expect(row).to_contain_text("4,323", timeout=60_000)
    await page.get_by_role("button", name="Pause updates").click()
    await expect(page.locator("[data-told]")).to_have_text("Updates are paused.")
    await expect(page.get_by_role("button", name="Resume updates")).to_be_visible()


async def test_the_dashboard_works_with_the_keyboard_alone(page: Page, service: Service, work: list[str]) -> None:
    assert work
    await sign_in(page, service.key)
    await expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    await page.keyboard.press("Tab")
    focused = "document.activeElement.textContent"
    assert await page.evaluate(focused) == "Skip to the content"
    for _ in range(12):
        await page.keyboard.press("Tab")
        if await page.evaluate(focused) == "orders":
            break
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    for landmark in ("banner", "main", "contentinfo"):
        await expect(page.get_by_role(landmark)).to_have_count(1)
