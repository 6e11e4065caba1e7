"""The table of examples lists all examples and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_table_names_every_example() -> None:
    named = re.findall(r"^\| \[(\S+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    programs = [*EXAMPLES.glob("*.py"), *(file.parent for file in EXAMPLES.glob("*/__init__.py"))]
    assert sorted(named) == sorted(program.name for program in programs)
