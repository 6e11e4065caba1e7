"""No identifier contains a word of `UNNAMED`, which says nothing about its object."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiozkqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent
#: The top-level folders and modules of the package.
PARTS = sorted(path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.glob("*.py")))
#: Words that are not names, alone or between underscores; `for queue in queues` says more than `for one in`.
UNNAMED = {"one", "others", "told", "there"}


def _bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the identifiers that a module defines, with their lines, without names that it imports unchanged."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=str(name), ctx=ast.Store())
                | ast.Attribute(attr=str(name), ctx=ast.Store())
                | ast.arg(arg=str(name))
                | ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ClassDef(name=str(name))
                | ast.alias(asname=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield node.lineno, name
            case _:
                pass


def _unnamed(path: Path) -> Iterator[str]:
    """Yield the identifiers with such a word, each with its file and line."""
    file = path.relative_to(PACKAGE.parent).as_posix()
    bound = _bound(ast.parse(path.read_text()))
    for line, name in [(1, path.stem), *sorted(bound)]:
        if UNNAMED.intersection(name.lower().split("_")):
            yield f"{file}:{line}: {name}"


@pytest.mark.parametrize("part", PARTS)
def test_identifiers_say_what_they_stand_for(part: str) -> None:
    path = PACKAGE / part
    modules = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert [place for module in modules for place in _unnamed(module)] == []


@pytest.mark.parametrize(
    "line",
    [
        "for one in queues: pass",
        "[one for one in queues]",
        "lambda one: one",
        "def f(*, told): pass",
        "async def _told(): pass",
        "self._others = 1",
        "OTHERS_LIMIT = 1",
        "from hosts import is_reached as there",
        "try: pass\nexcept E as told: pass",
        "match m:\n  case [first, *others]: pass",
        "match m:\n  case {**others}: pass",
        "if (one := f()): pass",
    ],
)
def test_each_kind_of_identifier_is_found(line: str) -> None:
    assert any(UNNAMED.intersection(name.lower().split("_")) for _, name in _bound(ast.parse(line)))
