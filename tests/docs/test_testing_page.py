"""The tests in `docs/testing.md` run under pytest with the package's own plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
PROGRAM = "\n".join(block.text for block in blocks(PAGE) if block.language == "python")
# `test_pages` runs these blocks as programs; here pytest runs them as tests.
CALLS = re.compile(r"^(asyncio\.run|testing\.run_virtual)\(.*\)$", re.MULTILINE)


@pytest.mark.parametrize("kind", ["simulator", "server"])
def test_the_tests_of_the_page_pass(kind: str, tmp_path: Path, zookeeper: str) -> None:
    (tmp_path / "test_page.py").write_text(CALLS.sub("", PROGRAM))
    shown = len(re.findall(r"^async def test_", PROGRAM, re.MULTILINE))
    assert shown > 4
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--aiozkqueue={kind}", "-W", "error"),
            *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
        ],
        cwd=tmp_path,
        env=os.environ | {"AIOZKQUEUE_ZOOKEEPER": zookeeper},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert f"{shown} passed" in done.stdout, done.stdout
