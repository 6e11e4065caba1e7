"""Imports run one way: no layer of the package, and no package inside `queue/`, imports what is above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiozkqueue
from aiozkqueue import queue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent

#: From the bottom up. What stands in one line may import what stands in the lines before it, and itself.
LAYERS = (
    {"errors"},
    {"extras", "moments"},
    {"zookeeper", "layout"},
    {"dialects"},
    {"queue"},
)
QUEUE = (
    {"candidates", "codec", "connection_state", "destination", "middleware", "options", "outcome", "tracing"},
    {"run", "runtime"},
    {"background", "foreign_shards", "state"},
    {"commit", "message"},
    {"put", "redelivery"},
    {"claim", "unit_of_work"},
    {"admin"},
    {"batches", "foreign", "transaction"},
    {"delivery", "leases", "session_core"},
    {"consumer", "listener"},
    {"queue"},
    {"foreign_queue"},
    {"session"},
    {"connect"},
)


def _imports(file: Path) -> Iterator[str]:
    """Yield the modules that a module imports when it is imported itself, as names from the top."""
    package = ["aiozkqueue", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _upward(folder: Path, prefix: str, layers: tuple[set[str], ...]) -> list[str]:
    height = {name: level for level, names in enumerate(layers) for name in names}
    wrong: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        own = file.relative_to(folder).parts[0].removesuffix(".py")
        for module in _imports(file):
            if not module.startswith(prefix):
                continue
            other = module.removeprefix(prefix).split(".")[0]
            if own != other and height.get(own, -1) <= height.get(other, len(layers)) and own in height:
                wrong.append(f"{file.relative_to(PACKAGE)} imports {module}")
    return wrong


@pytest.mark.parametrize(
    ("folder", "prefix", "layers"),
    [(PACKAGE, "aiozkqueue.", LAYERS), (PACKAGE / "queue", "aiozkqueue.queue.", QUEUE)],
    ids=["package", "queue"],
)
def test_nothing_imports_what_is_above_it(folder: Path, prefix: str, layers: tuple[set[str], ...]) -> None:
    assert _upward(folder, prefix, layers) == []


def test_every_module_of_the_queue_has_its_place() -> None:
    known = {name for names in QUEUE for name in names}
    there = {path.stem for path in (PACKAGE / "queue").iterdir() if path.name not in {"__init__.py", "__pycache__"}}
    assert known == there


def test_the_queues_own_map_names_every_module() -> None:
    named = re.findall(r"``(\w+)``", queue.__doc__ or "")
    assert sorted(named) == sorted({name for names in QUEUE for name in names})
