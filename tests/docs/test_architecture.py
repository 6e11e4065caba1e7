"""The tests that ARCHITECTURE.md and CONTRIBUTING.md name are there, and no folder of tests is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutations import mutations

TESTS = Path(__file__).parents[1]
ARCHITECTURE = (TESTS.parent / "ARCHITECTURE.md").read_text()
CONTRIBUTING = (TESTS.parent / "CONTRIBUTING.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", ARCHITECTURE)))


def test_the_map_names_the_test_of_each_step() -> None:
    assert len([test for _, test in NAMED if test]) > 50


@pytest.mark.parametrize(("file", "test"), [(file, test) for file, test in NAMED if test])
def test_a_test_that_the_map_names_is_there(file: str, test: str) -> None:
    assert f"def {test}(" in (TESTS / file).read_text()


def test_each_mutation_that_the_map_names_is_there() -> None:
    passages = re.findall(r"mutations?((?:,? `[a-z_]+`)+)", ARCHITECTURE)
    named = {name for passage in passages for name in re.findall(r"`(\w+)`", passage)}
    assert len(named) > 15
    assert named <= {one.name for one in mutations()}


def test_each_folder_of_tests_has_its_row() -> None:
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]
    rows = set(re.findall(r"`tests/(\w+)`", "\n".join(table)))
    assert rows == {path.parent.name for path in TESTS.glob("*/__init__.py")}


def test_a_test_that_is_an_example_of_a_name_is_there() -> None:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    for name in re.findall(r"`(test_\w+)`", CONTRIBUTING):
        assert any(f"def {name}(" in source for source in sources), name
