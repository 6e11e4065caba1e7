"""A real browser for tests: headless Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import async_playwright, expect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

#: The environment variable with the path of a Chromium or Chrome that is not on PATH.
ENVIRONMENT = "AIOZKQUEUE_CHROMIUM"
#: A timeout in milliseconds that is sufficient even on a busy machine.
PATIENCE = 30_000.0


@asynccontextmanager
async def launched(what_for: str) -> AsyncIterator[Browser]:
    """Start the browser; skip the test, with the reason, if there is no browser."""
    executable = await asyncio.to_thread(_executable)
    if executable is None:
        pytest.skip(
            f"no Chromium on PATH, nor named by {ENVIRONMENT}: {what_for} is not seen in a browser; "
            "`make test` installs it on Debian as root (apt-get install chromium)"
        )
    expect.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        # By itself, it keeps a further process ready for the next page of another site.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--renderer-process-limit=1"]
        browser = await playwright.chromium.launch(executable_path=executable, args=arguments, timeout=90_000)
        yield browser
        await browser.close()


def _executable() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get(ENVIRONMENT) or next(filter(None, map(shutil.which, names)), None)
