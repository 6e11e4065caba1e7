"""Browser windows on the dashboard, queues to show, and the check of each page by axe-core."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

import aiozkqueue as zq
from aiozkqueue.schedule import Jobs
from tests.browser import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from playwright.async_api import Browser, Page

    from tests.http.conftest import Service

#: The kinds of windows in which each page is checked.
WINDOWS: Final[dict[str, Mapping[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
REASONS: Final = ("ValueError: customer 17 has no address", "TimeoutError: the bank did not answer within 30 s")


@asynccontextmanager
async def window(browser: Browser, service: Service, kind: str = "light", *, key: str = "") -> AsyncIterator[Page]:
    """Open a signed-in window; fail the test if a page has an error or violates its security policy."""
    context = await browser.new_context(base_url=service.url, **WINDOWS[kind])
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    await page.goto("/")
    await page.get_by_label("API key").fill(key or service.key)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("navigation", name="Sections")).to_be_visible()
    yield page
    await context.close()
    assert errors == []


async def violations(page: Page) -> list[str]:
    """Return the violations of accessibility rules that axe-core finds on a page."""
    results = await Axe().run(page)
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in results.response["violations"]
        for node in violation["nodes"]
    ]


async def too_wide(page: Page) -> bool:
    """Return whether a page is wider than its window."""
    return bool(await page.evaluate("document.documentElement.scrollWidth > innerWidth"))


async def keep(page: Page, name: str) -> None:
    """Save a screenshot for the documentation if AIOZKQUEUE_SCREENSHOTS is set."""
    folder = os.environ.get("AIOZKQUEUE_SCREENSHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def fill(session: zq.QueueSession) -> list[str]:
    """Create queues of every kind; return the ids of the dead letters of ``orders``, the oldest first."""
    orders = session.queue("orders")
    await orders.configure(
        zq.QueueConfig(policy=zq.ConsumeTimes(5, backoff=zq.Fixed(3600)), history=zq.History(payload=True))
    )
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "source": "shop"}
    bodies = [b'{"order": %d, "customer": "K-%d", "paid": true}' % (number, 100 + number) for number in range(1, 9)]
    for number, body in enumerate(bodies, 1):
        await orders.put(body, key=f"order-{number}", headers=headers, tags={"country": "de" if number % 2 else "fr"})
    taken = 0
    async with orders.consume(until_idle=0, settle="explicit") as deliveries:
        async for delivery in deliveries:
            taken += 1
            if taken <= 5:
                await delivery.reject(REASONS[taken > 3])
            elif taken == 6:
                await delivery.rollback(delay=3600)
            else:
                await delivery.commit()
    await orders.put_many([b'{"order": %d, "customer": "K-%d"}' % (number, 100 + number) for number in range(9, 20)])
    await orders.put(b"grouped", group="nightly")
    await orders.put(b"later", delay=7200)
    await session.queue("invoices").put_many([b'{"invoice": %d}' % number for number in range(1, 31)])
    mails = session.queue("mails")
    await mails.put_many([b"1", b"2"])
    await mails.configure(zq.QueueConfig(paused=True))
    await session.queue("archive").configure(zq.QueueConfig(max_size=1000))
    await Jobs(session).add("nightly-report", "0 3 * * *", "invoices", b"{}", zone="Europe/Berlin")
    return [letter.id for letter in await orders.dead_letters.peek()]
