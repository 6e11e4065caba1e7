"""Every code block of the README and of the guide runs, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from shutil import which

import pytest

from aiozkqueue.testing.ports import free_ports
from tests.complaints import complaints
from tests.docs.pages import Block, blocks, commands, shows
from tests.docs.shell import Shell

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEFAULT_HOSTS = "127.0.0.1:2181"
DEFAULT_PORTS = ("8080", "8081")
# Separates the outputs of the blocks of a page.
END = "\x1e"
# Timeout in seconds for a command or the programs of a page, even on a busy machine.
PATIENCE = 120
# Timeout in seconds for the end of the processes that the commands of a page have started, after the last command.
ENDED = 30
# The log record of a message whose attempts are used up, with its traceback. A page about retries has such messages.
ALARM = re.compile(
    r"^queue \S+: message \S+ is (?:a dead letter|dropped): .*\n"
    r"(?:(?:Traceback \(most recent call last\):\n(?: .*\n)*)?[\w.]+: .*\n)?",  # no traceback if it was not raised
    re.MULTILINE,
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server(zookeeper: str, page: Path) -> str:
    """A separate root for each page on the shared server, because all pages use the same queue names."""
    return f"{zookeeper}/page-{page.stem}-{os.urandom(4).hex()}"


def _pages_with(language: str) -> pytest.MarkDecorator:
    pages = [page for page in PAGES if any(block.language == language and not block.file for block in blocks(page))]
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@_pages_with("python")
def test_the_python_blocks_of_a_page_print_the_output_shown(page: Path, server: str, tmp_path: Path) -> None:
    _run_programs(page, server, tmp_path)


@_pages_with("console")
def test_the_commands_of_a_page_print_and_exit_as_shown(
    page: Path, server: str, tmp_path: Path, quick_command: Path
) -> None:
    _run_commands(page, server, tmp_path, quick_command)


@pytest.mark.parametrize("page", [ROOT / "docs" / "tutorial.md"], ids=["tutorial"])
def test_the_tutorial_works_after_the_readme_on_the_same_server(
    page: Path, server: str, tmp_path: Path, quick_command: Path
) -> None:
    _run_programs(ROOT / "README.md", server, tmp_path)
    _run_commands(page, server, tmp_path, quick_command)


def _run_programs(page: Path, server: str, tmp_path: Path) -> None:
    """Run the Python blocks of a page in one process, and compare the output of each."""
    found = blocks(page)
    programs = [block for block in found if block.language == "python" and not block.file]
    script = tmp_path / "page.py"
    script.write_text(
        f"\nprint({END!r}, end='')\n".join(block.text for block in programs).replace(DEFAULT_HOSTS, server)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert not complaints(ALARM.sub("", done.stderr))
    outputs = dict(zip(programs, done.stdout.split(END), strict=True))
    for block, output in outputs.items():
        assert output == _output_shown(found, block), f"{page.name}:{block.line}"


def _run_commands(page: Path, server: str, tmp_path: Path, quick_command: Path) -> None:
    """Run the commands of a page in one shell, and compare the output and the status of each."""
    found = blocks(page)
    if any("curl" in block.text for block in found if block.language == "console") and which("curl") is None:
        pytest.skip("no curl, which the page's commands use")
    ports: dict[str, str] = dict(zip(DEFAULT_PORTS, map(str, free_ports(len(DEFAULT_PORTS))), strict=True))
    for block in found:
        if block.file:
            (tmp_path / block.file).parent.mkdir(exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    real = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": f"{quick_command}:{real}",
        "AIOZKQUEUE_HOSTS": server,
        # Readers have not installed it.
        "PYTEST_ADDOPTS": "-p no:asyncio -p no:schemathesis -p no:cacheprovider",
    }
    with Shell(tmp_path, environment) as shell:
        for command in (command for block in found if block.language == "console" for command in commands(block)):
            # The test kills processes that are still running, and the stand-in would not forward the signal.
            text = re.sub(r"^(.*&)$", rf"PATH={real} \1", command.text)
            text = re.sub("|".join(ports), lambda default: ports[default[0]], text)
            done = shell.run(text, PATIENCE)
            where = f"{page.name}:{command.line}: {command.text}"
            assert shows(command.output, done.output), f"{where}\n{done.output}"
            assert done.status == command.status, where
        deadline = time.monotonic() + ENDED
        while left := shell.running():
            assert time.monotonic() < deadline, f"{page.name} leaves processes that run: {left}"
            time.sleep(0.1)


def _output_shown(found: list[Block], program: Block) -> str:
    following = next((b for a, b in pairwise(found) if a is program), None)
    return following.text if following is not None and following.language == "text" else ""
