"""Every code block of the README and of the guide runs, and prints what the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import Block, blocks, commands, shows

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.testing import EmbeddedZooKeeper

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEFAULT_HOSTS = "127.0.0.1:2181"
# Ends the output of one block, among those of a page.
END = "\x1e"


@pytest.fixture
def server(embedded_server: Callable[[], EmbeddedZooKeeper]) -> str:
    """A server of the page's own: the pages use the default root."""
    return embedded_server().hosts


def _pages_with(language: str) -> pytest.MarkDecorator:
    pages = [page for page in PAGES if any(block.language == language for block in blocks(page))]
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@_pages_with("python")
def test_the_python_blocks_of_a_page_run_and_print_what_it_shows(page: Path, server: str, tmp_path: Path) -> None:
    found = blocks(page)
    programs = [block for block in found if block.language == "python"]
    script = tmp_path / "page.py"
    script.write_text(
        f"\nprint({END!r}, end='')\n".join(block.text for block in programs).replace(DEFAULT_HOSTS, server)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    outputs = dict(zip(programs, done.stdout.split(END), strict=True))
    for block, output in outputs.items():
        assert output == _output_shown(found, block), f"{page.name}:{block.line}"


@_pages_with("console")
def test_the_commands_of_a_page_print_and_exit_as_it_shows(page: Path, server: str) -> None:
    found = [command for block in blocks(page) if block.language == "console" for command in commands(block)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "AIOZKQUEUE_HOSTS": server}
    for command in found:
        done = subprocess.run(
            ["sh", "-c", command.text],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
            check=False,
        )
        where = f"{page.name}:{command.line}: {command.text}"
        assert shows(command.output, done.stdout), f"{where}\n{done.stdout}"
        assert done.returncode == command.status, where


def _output_shown(found: list[Block], program: Block) -> str:
    following = next((b for a, b in pairwise(found) if a is program), None)
    return following.text if following is not None and following.language == "text" else ""
