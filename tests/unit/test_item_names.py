"""Only `layout/names` splits and composes paths and names of items."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import aiozkqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent

#: Modules that may split a text at slashes.
SPLITS = {
    "layout/names.py": "the one place for items",
    "layout/lanes.py": "the parents of delayed items",
    "layout/paths.py": "the root that a user gives",
    "zookeeper/paths.py": "the parent of any znode",
    "zookeeper/hosts.py": "a connection string",
    "dialects/curator.py": "a path that a user gives",
    "dialects/sharding.py": "a path that a user gives",
    "spark/files.py": "files",
    "spark/folder.py": "files",
    "testing/simulator/loop.py": "files",
    "testing/simulator/tree.py": "the znodes of a simulated server",
}
#: Modules that compose an item's path for every message, where a call would be too slow.
COMPOSES = {"queue/commit/create_items.py", "queue/candidates/backlog.py"}


def _splits(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            separators = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            if node.func.attr in {"partition", "rpartition", "split", "rsplit"} and "/" in separators:
                yield node.lineno


def _composes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of f-strings that join a lane and a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and len(node.values) == 3:
            lane, slash, name = map(ast.unparse, node.values)
            if slash == "'/'" and "lane" in lane and "lane" not in name:
                yield node.lineno


def _grammar(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of texts and patterns that begin like the name of an item."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("item-", "/item-"))
        ):
            yield node.lineno


@cache
def _modules(folder: str = "") -> list[tuple[str, ast.Module]]:
    return [
        (file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text()))
        for file in sorted((PACKAGE / folder).rglob("*.py"))
    ]


def test_only_layout_names_splits_the_path_of_an_item() -> None:
    found = {module: lines for module, tree in _modules() if (lines := list(_splits(tree)))}
    assert found.keys() - SPLITS.keys() == set(), "use `ItemRef.parse`, `name_at`, `lane_at` or `parent_of`"
    assert SPLITS.keys() - found.keys() == set(), "no longer an exception"


def test_only_layout_names_composes_the_path_of_an_item() -> None:
    found = {module for module, tree in _modules("queue") if list(_composes(tree))}
    assert found == COMPOSES, "use `ItemRef(lane, name).path`"


def test_only_layout_knows_how_the_name_of_an_item_begins() -> None:
    assert {module: lines for module, tree in _modules("queue") if (lines := list(_grammar(tree)))} == {}
