"""The tests that ARCHITECTURE.md, the pages of protocols and CONTRIBUTING.md name exist, and no folder is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutations import mutations

TESTS = Path(__file__).parents[1]
PROTOCOLS = sorted((TESTS.parent / "docs/design").glob("*.md"))
ARCHITECTURE = "\n".join(page.read_text() for page in (TESTS.parent / "ARCHITECTURE.md", *PROTOCOLS))
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


def test_each_protocol_is_linked_from_the_map_and_in_the_site() -> None:
    root = TESTS.parent
    for page in PROTOCOLS:
        assert f"](docs/design/{page.name})" in (root / "ARCHITECTURE.md").read_text(), page.name
        assert f": design/{page.name}\n" in (root / "mkdocs.yml").read_text(), page.name


def test_each_folder_of_tests_has_its_row() -> None:
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]
    rows = set(re.findall(r"`tests/(\w+)`", "\n".join(table)))
    assert rows == {path.parent.name for path in TESTS.glob("*/__init__.py")}


def test_a_test_that_is_an_example_of_a_name_is_there() -> None:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    for name in re.findall(r"`(test_\w+)`", CONTRIBUTING):
        assert any(f"def {name}(" in source for source in sources), name
