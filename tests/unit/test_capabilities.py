"""The tests, rules and mutations that are named in the table of capabilities exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "acceptance" / "README.md").read_text()


def defined(*folders: str) -> set[str]:
    """Return the top-level functions of the modules in a folder."""
    files = [file for folder in folders for file in (TESTS / folder).rglob("*.py")]
    found = [re.findall(r"^(?:async )?def (\w+)", file.read_text(), re.MULTILINE) for file in files]
    return {name for names in found for name in names}


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TABLE))
    assert len(named) > 60
    assert named <= defined("acceptance", "integration", "simulation", "unit")


def test_the_capability_table_covers_each_file_of_acceptance_tests() -> None:
    files = {file.name for file in (TESTS / "acceptance").glob("test_*.py")}
    named = set(re.findall(r"test_\w+\.py", TABLE))
    named_by_their_tests, of_none = {"test_combined_features.py", "test_leases.py"}, {"test_pause.py"}
    assert files - named == named_by_their_tests | of_none


def test_the_capability_table_names_existing_rules_and_mutations() -> None:
    rows = [row.split(" | ") for row in TABLE.splitlines() if row.startswith("| ") and row.count(" | ") == 6]
    assert len(rows) > 18
    rules, mutations = defined("simulation/rules"), defined("simulation/mutations")
    for row in rows[1:]:
        assert set(re.findall(r"`(\w+)`", row[5])) <= rules, row[0]
        assert set(re.findall(r"`(\w+)`", row[6])) <= mutations, row[0]
        assert "`" in row[5], row[0]
        assert "`" in row[6], row[0]
