"""The tests that are named in the table of Curator's and kazoo's own tests exist."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "dialects"
#: Names of our tests in the table. Some of kazoo's own tests have such names, too.
OURS = re.compile(r"`(test_[a-z_]+)`")


def test_every_test_that_the_table_names_exists() -> None:
    rows = [row.rpartition(" | ")[2] for row in (FOLDER / "README.md").read_text().splitlines() if "`test" in row]
    named = {name for row in rows for name in OURS.findall(row)}
    existing = {
        name
        for file in FOLDER.glob("test_*.py")
        for name in re.findall(r"^async def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 30
    assert named <= existing
