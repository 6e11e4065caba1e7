"""The documentation site: built in strict mode, complete, and without requests to other servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from docsite.public import documented
from tests.browser import PATIENCE, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import Request

ROOT = Path(__file__).parents[2]
# A proxy that does not exist, so that each request to another host fails.
NOWHERE = "http://127.0.0.1:9"
ALONE = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "no_proxy": ""}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it. A warning, for example about a broken link, is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | ALONE | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Needed(HTMLParser):
    """The resources that a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src") or "")


def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    outside = []
    for page in pages:
        needed = _Needed()
        needed.feed(page.read_text())
        outside += [f"{page.relative_to(site)}: {url}" for url in needed.addresses if re.match(r"(https?:)?//", url)]
    styles = [(file, file.read_text()) for file in site.rglob("*.css")]
    outside += [f"{file.name}: {url}" for file, text in styles for url in re.findall(r"url\([\"']?https?:[^)]*", text)]
    assert outside == []


def test_the_reference_lists_each_public_member(site: Path) -> None:
    texts = [page.read_text() for page in site.rglob("*.html")]
    anchors = {anchor for text in texts for anchor in re.findall(r'id="(aiozkqueue[\w.]*)"', text)}
    assert sorted(set(documented()) - anchors) == []


def test_the_table_of_errors_links_to_the_calls_that_raise_them(site: Path) -> None:
    text = (site / "errors" / "index.html").read_text()
    row = next(row for row in text.split("<tr>") if ">DuplicateKeyError<" in row)
    assert re.search(r'href="\.\./reference/queues/#aiozkqueue\.Queue\.put"', row)


def test_search_finds_common_terms(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert all(word in index for word in ("dead letters", "ConsumeTimes", "exactly once"))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, to keep the output of the tests clean."""


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def _no_blocking_calls_on_the_loop() -> None:
    """Disable the check here, because Playwright reads its caller's source file at each call."""


async def test_pages_fit_the_window_and_send_no_request_to_other_hosts(served: str) -> None:
    windows: list[tuple[int, Literal["light", "dark"]]] = [(1280, "light"), (390, "dark")]
    wrong: list[str] = []

    def see(request: Request) -> None:
        if not request.url.startswith((served, "data:", "blob:")):
            wrong.append(request.url)

    async with launched("the documentation's site") as browser:
        for width, scheme in windows:
            context = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
            context.set_default_timeout(PATIENCE)
            window = await context.new_page()
            window.on("request", see)
            window.on("pageerror", lambda error: wrong.append(str(error)))
            for page in ("/", "/tutorial/", "/errors/", "/reference/queues/", "/cli/", "/architecture/"):
                await window.goto(served + page)
                beyond = await window.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert beyond <= 0, f"{page} is {beyond} pixels wider than a window of {width}"
    assert wrong == []
