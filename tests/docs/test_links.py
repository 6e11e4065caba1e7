"""The relative links of all Markdown pages name existing files. `test_site.py` also checks anchors, but takes long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "benchmarks", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
CODE = re.compile(r"```.*?```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:|#")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_relative_links_of_a_page_name_existing_files(page: Path) -> None:
    links = [link for link in LINK.findall(CODE.sub("", page.read_text())) if not ELSEWHERE.match(link)]
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []
