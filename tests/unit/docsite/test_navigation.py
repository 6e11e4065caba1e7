"""Every page is in the site's navigation, and every entry is a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.utils.yaml import yaml_load

from docsite.pages import COPIED, EXAMPLES

ROOT = Path(__file__).parents[3]


def test_every_page_is_in_the_navigation_once() -> None:
    configuration = yaml_load((ROOT / "mkdocs.yml").read_text())
    written = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    made = {page for page in COPIED.values() if page.endswith(".md")} | {EXAMPLES}
    assert sorted(_pages(configuration["nav"])) == sorted(written | made), "nav of mkdocs.yml"


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for nested in inner for page in _pages(nested)]
