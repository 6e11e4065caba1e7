"""The tests that are named in the map of Spark's promises exist in their files, and no test file is missing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
HERE = TESTS / "spark"
NAMED = re.compile(r"`(?:tests/)?([a-z_/]*test_[a-z_]+\.py)`: ((?:`test_\w+`(?:, )?)+)")


def defined(file: Path) -> set[str]:
    """Return the tests of a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


def named() -> dict[Path, set[str]]:
    """Return the tests in the map, by their files."""
    found: dict[Path, set[str]] = {}
    for file, tests in NAMED.findall((HERE / "README.md").read_text()):
        path = TESTS / file if "/" in file else HERE / file
        found.setdefault(path, set()).update(re.findall(r"`(test_\w+)`", tests))
    return found


def test_every_named_test_exists() -> None:
    for file, tests in named().items():
        assert tests <= defined(file), file.name
    text = (HERE / "README.md").read_text()
    assert set(re.findall(r"`(test_\w+)`", text)) == {test for tests in named().values() for test in tests}


def test_the_spark_map_covers_each_file_of_spark_tests() -> None:
    assert set(HERE.glob("test_*.py")) - named().keys() == set()


def test_the_spark_map_names_existing_mutations() -> None:
    (row,) = [line for line in (HERE / "README.md").read_text().splitlines() if "mutations `" in line]
    names = re.findall(r"`(\w+)`", row.partition("mutations ")[2])
    assert names
    mutations = (TESTS / "simulation" / "mutations" / "streams.py").read_text()
    assert all(f"def {name}(" in mutations for name in names)
