"""Imports have one direction: no layer of the package, of `queue/` or of `session/` imports a layer above it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiozkqueue
from aiozkqueue import queue, session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PACKAGE = Path(aiozkqueue.__file__).parent

#: The layers from the bottom up. A layer may import itself and the layers in the lines before it.
LAYERS = (
    {"lost_values", "moments"},
    {"errors"},
    {"arguments", "codec", "extras", "wording"},
    {"zookeeper", "layout"},
    {"dialects", "runtime"},
    {"queue"},
    {"operations"},
    {"batches", "foreign", "rates", "replies"},
    {"session"},
)
QUEUE = (
    {"options", "outcome"},
    {"candidates", "destination"},
    {"redelivery", "state"},
    {"commit", "message"},
    {"put"},
    {"claim"},
)
SESSION = (
    {
        "block",
        "cancellations",
        "connection_state",
        "credentials",
        "lane_ends",
        "late_writes",
        "left_open",
        "releases",
        "tracing",
        "work_state",
    },
    {"core"},
    {"alarms", "background", "interruptions", "unit_of_work"},
    {"administration", "direct_puts", "failures", "internals", "run"},
    {"undo"},
    {"transaction"},
    {"delivery", "leases"},
    {"batch"},
    {"middleware"},
    {"handler"},
    {"listener_options"},
    {"consumer", "listener"},
    {"batch_listener", "delivery_listener"},
    {"queue"},
    {"foreign_queue"},
    {"foreign_shards"},
    {"session"},
    {"connect"},
)
#: An extra on top of the package, which is imported inside a function.
EXTRAS = {"session/connect.py imports aiozkqueue.tracing"}


def _edges(modules: dict[str, Path], *, all_imports: bool) -> dict[str, set[str]]:
    """Map each module to its imports; with ``all_imports``, also those for types and inside functions."""
    return {module: set(_imports(module, file, modules, all_imports=all_imports)) for module, file in modules.items()}


def _imports(module: str, file: Path, modules: dict[str, Path], *, all_imports: bool) -> Iterator[str]:
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in _statements(file, all_imports=all_imports):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found = [f"{source}.{name.name}" for name in node.names]
            yield from (name if name in modules else source for name in found if name in modules or source in modules)
        else:
            yield from (name.name for name in node.names if name.name in modules)


@cache
def _statements(file: Path, *, all_imports: bool) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(file.read_text())
    nodes = ast.walk(tree) if all_imports else tree.body
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _modules() -> dict[str, Path]:
    modules: dict[str, Path] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ["aiozkqueue", *file.relative_to(PACKAGE).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def _folder(module: str, modules: dict[str, Path]) -> str:
    """Return the folder of a module; one directly in `aiozkqueue/`, `queue/` or `session/` stands for itself."""
    parts = modules[module].relative_to(PACKAGE).parts
    if len(parts) == 1 or (len(parts) == 2 and parts[0] in {"queue", "session"}):
        return module
    return "/".join(parts[:-1])


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the nodes on cycles, by repeatedly removing nodes without remaining imports."""
    left = {node: targets - {node} for node, targets in graph.items()}
    while True:
        done = {node for node, targets in left.items() if not targets & left.keys()}
        if not done:
            break
        for node in done:
            del left[node]
    imported = {target for node in left for target in left[node] if target in left}
    return [sorted(imported & left.keys())] if left else []


def _upward(folder: Path, prefix: str, layers: tuple[set[str], ...]) -> list[str]:
    modules = _modules()
    height = {name: level for level, names in enumerate(layers) for name in names}
    wrong: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        own = file.relative_to(folder).parts[0].removesuffix(".py")
        name = next(name for name, path in modules.items() if path == file)
        for module in _imports(name, file, modules, all_imports=True):
            if not module.startswith(prefix):
                continue
            other = module.removeprefix(prefix).split(".")[0]
            if own != other and height.get(own, -1) <= height.get(other, len(layers)) and own in height:
                wrong.append(f"{file.relative_to(PACKAGE)} imports {module}")
    return wrong


def test_no_files_have_circular_imports_even_for_types() -> None:
    assert _circles(_edges(_modules(), all_imports=True)) == []


def test_no_folders_have_circular_imports_even_for_types() -> None:
    modules = _modules()
    graph: dict[str, set[str]] = {}
    for module, targets in _edges(modules, all_imports=True).items():
        own = graph.setdefault(_folder(module, modules), set())
        own |= {_folder(target, modules) for target in targets}
    assert _circles(graph) == []


@pytest.mark.parametrize(
    ("folder", "prefix", "layers"),
    [
        (PACKAGE, "aiozkqueue.", LAYERS),
        (PACKAGE / "queue", "aiozkqueue.queue.", QUEUE),
        (PACKAGE / "session", "aiozkqueue.session.", SESSION),
    ],
    ids=["package", "queue", "session"],
)
def test_no_module_imports_a_layer_above_it_even_for_types(
    folder: Path, prefix: str, layers: tuple[set[str], ...]
) -> None:
    assert set(_upward(folder, prefix, layers)) <= EXTRAS


@pytest.mark.parametrize(("package", "layers"), [(queue, QUEUE), (session, SESSION)], ids=["queue", "session"])
def test_every_module_has_a_layer_and_a_place_on_the_map_of_its_package(
    package: ModuleType, layers: tuple[set[str], ...]
) -> None:
    known = sorted({name for names in layers for name in names})
    files = {path.stem for path in Path(package.__file__ or "").parent.iterdir()} - {"__init__", "__pycache__"}
    assert known == sorted(files)
    assert known == sorted(re.findall(r"``(\w+)``", package.__doc__ or ""))
