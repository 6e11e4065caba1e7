"""The tests that ARCHITECTURE.md, the protocol pages and CONTRIBUTING name exist, and no folder is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutations import mutations

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "aiozkqueue"
MAP = (TESTS.parent / "ARCHITECTURE.md").read_text()
PROTOCOLS = sorted((TESTS.parent / "docs/design").glob("*.md"))
ARCHITECTURE = "\n".join([MAP, *(page.read_text() for page in PROTOCOLS)])
CONTRIBUTING = (TESTS.parent / "CONTRIBUTING.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", ARCHITECTURE)))
ARROWS = {
    file
    for diagram in re.findall(r"```mermaid\n(.*?)```", MAP, re.DOTALL)
    for file in re.findall(r"[\w/]+\.py", diagram)
}


def test_the_map_names_the_test_of_each_step() -> None:
    assert len([test for _, test in NAMED if test]) > 50


def test_each_test_that_the_map_names_exists() -> None:
    named = [(file, test) for file, test in NAMED if test]
    sources = {file: (TESTS / file).read_text() for file in {file for file, _ in named}}
    assert [(file, test) for file, test in named if f"def {test}(" not in sources[file]] == []


def test_each_mutation_that_the_map_names_exists() -> None:
    passages = re.findall(r"mutations?((?:,? `[a-z_]+`)+)", ARCHITECTURE)
    named = {name for passage in passages for name in re.findall(r"`(\w+)`", passage)}
    assert len(named) > 15
    assert named <= {mutation.name for mutation in mutations()}


def test_the_map_and_the_site_link_each_protocol() -> None:
    root = TESTS.parent
    for page in PROTOCOLS:
        assert f"](docs/design/{page.name})" in MAP, page.name
        assert f": design/{page.name}\n" in (root / "mkdocs.yml").read_text(), page.name


def test_the_map_is_short() -> None:
    assert len(MAP.splitlines()) <= 250


@pytest.mark.parametrize("page", PROTOCOLS, ids=lambda page: page.stem)
def test_each_protocol_page_has_the_required_sections(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert 20 <= len(lines) <= 80
    parts = [line.removeprefix("## ").partition(":")[0] for line in lines if line.startswith("## ")]
    assert list(dict.fromkeys(parts)) == ["Problem", "Invariant", "Protocol", "Why it holds", "Tests"]
    tests = page.read_text().partition("## Tests")[2]
    assert re.search(r"`\w+/[\w/]*test_\w+\.py", tests), "no test is named"


def test_each_file_that_the_map_names_exists() -> None:
    places = (TESTS, PACKAGE, PACKAGE / "queue", TESTS.parent)
    stages = {path.name for path in PACKAGE.glob("queue/*/*.py")}  # these may be named without their folder
    files = {file for file, _ in NAMED} | ARROWS
    assert [file for file in sorted(files - stages) if not any((place / file).is_file() for place in places)] == []


def test_the_matrix_names_existing_files_and_all_features() -> None:
    heads, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in MAP.partition("## Features and stages")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    folders = [PACKAGE / "layout", *(PACKAGE / "queue" / stage for stage in heads[2:-1]), PACKAGE / heads[-1]]
    named = {
        folder / file
        for row in rows
        for folder, cell in zip(folders, row[1:], strict=True)
        for file in cell.split(", ")
        if file != "-"
    }
    assert [path for path in named if not path.is_file()] == []
    features = {row[0].replace(" ", "_") for row in rows}
    assert [
        path for folder in folders for path in folder.glob("*.py") if path.stem in features and path not in named
    ] == []


def test_the_table_of_test_folders_is_complete() -> None:
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]
    rows = set(re.findall(r"`tests/(\w+)`", "\n".join(table)))
    assert rows == {path.parent.name for path in TESTS.glob("*/__init__.py")}


def test_each_test_named_as_an_example_exists() -> None:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    for name in re.findall(r"`(test_\w+)`", CONTRIBUTING):
        assert any(f"def {name}(" in source for source in sources), name
